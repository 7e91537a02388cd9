"""The installed ``elastic-coordinator``, and unmodified PyTorch clients at its port."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.coordinators import program, running_coordinator
from support.launching import run_program


def test_prints_version_and_usage() -> None:
    version = run_program([program(), "--version"], check=True)
    assert version.stdout.startswith("elastic-coordinator ")
    usage = run_program([program(), "--help"], check=True)
    assert "--state-file FILE" in usage.stdout


def test_torch_uses_the_port_as_a_store() -> None:
    dist = pytest.importorskip("torch.distributed")
    with running_coordinator() as endpoint:
        host, _, port = endpoint.rpartition(":")
        first, second = (
            dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=30))
            for _ in range(2)
        )
        first.set("k", "v")
        assert second.get("k") == b"v"
        assert second.add("n", 2) == 2
        assert first.num_keys() == 2
