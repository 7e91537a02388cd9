"""The installed ``elastic-coordinator``, and unmodified PyTorch clients at its port."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest

from support.coordinators import program
from support.launching import DEADLINE_S, run_program


@pytest.fixture
def port() -> Iterator[int]:
    with subprocess.Popen(
        [program(), "--bind", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    ) as process:
        line = process.stderr.readline()
        listening = re.search(r"listening on 127\.0\.0\.1:(\d+)$", line)
        assert listening, line
        yield int(listening[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_prints_version_and_usage() -> None:
    version = run_program([program(), "--version"], check=True)
    assert version.stdout.startswith("elastic-coordinator ")
    usage = run_program([program(), "--help"], check=True)
    assert "--state-file FILE" in usage.stdout


def test_torch_uses_the_port_as_a_store(port: int) -> None:
    dist = pytest.importorskip("torch.distributed")
    first, second = (
        dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
        for _ in range(2)
    )
    first.set("k", "v")
    assert second.get("k") == b"v"
    assert second.add("n", 2) == 2
    assert first.num_keys() == 2
