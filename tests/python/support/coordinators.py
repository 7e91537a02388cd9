"""The installed ``elastic-coordinator`` as a process of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from elastic import _C

from support.launching import (
    DEADLINE_S,
    Process,
    await_line,
    clean_environment,
    free_endpoint,
    started,
)


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
def listening(*options: str, first: str = "", **environ: str) -> Iterator[Process]:
    """elastic-coordinator with the options, which listens. Its first line contains `first`."""
    with started([program(), *options], environ=clean_environment(**environ)) as process:
        if first:
            assert first in process.stderr.readline()
        await_line(process, "listening on")
        yield process
        process.kill()


def coordinator(endpoint: str, state: Path) -> AbstractContextManager[Process]:
    return listening("--bind", endpoint, f"--state-file={state}")


@contextmanager
def running_coordinator(*options: str, **environ: str) -> Iterator[str]:
    """The endpoint of a coordinator, which ends in order."""
    endpoint = free_endpoint()
    with listening("--bind", endpoint, *options, **environ) as process:
        yield endpoint
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
