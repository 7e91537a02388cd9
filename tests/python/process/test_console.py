"""Consoles that are closed, full or broken: only text may be lost."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.launching import (
    DEADLINE_S,
    clean_environment,
    launched,
    launcher_command,
    run_program,
)

FAILING = ["--no-python", "/bin/sh", "-c", "exit 5"]


def end_of(*words: str, environ: dict[str, str] | None = None, **streams: Any) -> tuple[int, str]:
    """Exit code and stderr of a launcher with these streams."""
    with launched(*words, environ=environ, **streams) as process:
        _, stderr = process.communicate(timeout=DEADLINE_S)
    return process.returncode, stderr


@contextmanager
def broken(kind: str) -> Iterator[int]:
    """A descriptor to which nothing can be written."""
    if kind == "a full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@pytest.mark.parametrize("kind", ["a full disk", "a closed pipe"])
@pytest.mark.parametrize("level", ["WARNING", "DEBUG"])
def test_a_broken_console_keeps_code_and_error_file(kind: str, level: str, tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    environ = clean_environment(TORCHELASTIC_ERROR_FILE=str(error_file), LOGLEVEL=level)
    with broken(kind) as console:
        assert end_of(*FAILING, environ=environ, stderr=console)[0] == 5
    assert json.loads(error_file.read_text())["message"]["errorCode"] == 5


def test_a_usage_error_keeps_its_code_without_a_console() -> None:
    with broken("a closed pipe") as console:
        assert end_of("--no-such-option", "x", stderr=console)[0] == 2


@pytest.mark.parametrize("words", [["--help"], ["drain", "--help"]])
def test_help_to_a_closed_pipe_is_not_an_error(words: list[str]) -> None:
    with broken("a closed pipe") as writer:
        assert end_of(*words, stdout=writer) == (0, "")


@pytest.mark.parametrize(
    "words", [["--help"], ["help"], ["--dry-run", *FAILING], ["status", "--help"]]
)
def test_output_to_a_full_disk_is_an_error(words: list[str]) -> None:
    message = "elastic-launch: cannot write the output: No space left on device\n"
    with broken("a full disk") as full:
        environ = clean_environment(PYTHONUNBUFFERED="")
        assert end_of(*words, environ=environ, stdout=full) == (74, message)


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-", "1>&-"])
def test_closed_descriptors_are_devnull_for_the_launcher_and_its_workers(
    closed: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    words = ["--tee=3", "--no-python", "/bin/sh", "-c"]
    words.append(
        f"for f in 0 1 2; do readlink /proc/$PPID/fd/$f; done > {seen}; echo a >&2; exit 5"
    )
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *launcher_command(*words)]
    done = run_program(command)
    assert done.returncode == 5
    assert "failed" not in done.stdout
    descriptors = seen.read_text().splitlines()
    assert len(descriptors) == 3
    assert all(descriptors[int(f[0])] == "/dev/null" for f in closed.split())


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    while select.select([], [pipe], [], 0)[1]:
        try:
            os.write(pipe, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(pipe, True)


@pytest.mark.parametrize("level", ["WARNING", "DEBUG"])
def test_a_full_pipe_does_not_keep_a_signal_from_ending_the_launcher(level: str) -> None:
    reader, writer = os.pipe()
    fill(writer)
    environ = clean_environment(LOGLEVEL=level)
    words = ["--no-python", "/bin/sh", "-c", "exec 2>/dev/null; echo ready; exec sleep 1000"]
    try:
        with launched(*words, environ=environ, stderr=writer) as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 143
    finally:
        os.close(reader)
        os.close(writer)
