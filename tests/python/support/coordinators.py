"""The installed ``elastic-coordinator`` as a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from elastic import _C

from support.launching import DEADLINE_S, await_line, clean_environment


def program() -> str:
    installed = Path(sys.executable).with_name("elastic-coordinator")
    found = str(installed) if installed.exists() else shutil.which("elastic-coordinator")
    assert found, "the wheel installs elastic-coordinator"
    return found


def needs_openssl() -> None:
    try:
        _C.check_token("job", token="x" * 32)
    except _C.ConfigError as error:
        pytest.skip(str(error))


@contextmanager
def coordinator(endpoint: str, state: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [program(), "--bind", endpoint, "--state-file", str(state)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            # It logs the jobs of its state file first.
            lines = iter(process.stderr.readline, "")
            assert any("listening on" in line for line in lines)
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_S)


@contextmanager
def running_coordinator(*options: str, **environ: str) -> Iterator[str]:
    """The endpoint of a coordinator at a free port, which ends in order."""
    command = [program(), "--bind", "127.0.0.1:0", *options]
    variables = clean_environment(**environ)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            yield await_line(process, r"listening on (\S+)$")[1]
            process.terminate()
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0
        finally:
            process.kill()
            process.wait(DEADLINE_S)


@contextmanager
def listening(*options: str, first: str = "", **environ: str) -> Iterator[subprocess.Popen[str]]:
    """elastic-coordinator with the options, which listens. Its first line contains `first`."""
    command = [program(), *options]
    variables = clean_environment(**environ)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            wanted = "witness listening on" if "--witness" in options else "listening on"
            if first:
                assert first in process.stderr.readline()
            await_line(process, wanted)
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_S)
