"""Starts and stops the measured processes, with time limits; ends its own children only."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

STOP_SECONDS = 30.0
ANSWER_SECONDS = 300.0


@contextlib.contextmanager
def running(argv: Sequence[str], *, terminate: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A child that runs until its standard input closes, like the programs in this directory.

    Other children are ended by SIGTERM.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )
    try:
        yield child
    finally:
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        if terminate:
            child.terminate()
        _reap(child)
        child.stdout.close()


def _reap(child: subprocess.Popen[Any]) -> None:
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def read_line(child: subprocess.Popen[str], seconds: float = ANSWER_SECONDS) -> str:
    """The child's next line; ends the benchmark if none arrives before the time limit."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        ready = selector.select(seconds)
    line = child.stdout.readline() if ready else ""
    if not line:
        raise RuntimeError(f"no answer from {child.args!r} within {seconds:g} s")
    return line


def ask(child: subprocess.Popen[str], **request: Any) -> Any:
    """Sends one line to a child of bench/clients and returns its answer."""
    tell(child, **request)
    return json.loads(read_line(child))


def tell(child: subprocess.Popen[str], **request: Any) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(request) + "\n")
    child.stdin.flush()


def answer_of(argv: Sequence[str], seconds: float = ANSWER_SECONDS) -> Any:
    """Runs a program that prints one JSON object."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise RuntimeError(f"{argv[0]} exited with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Stamps:
    """The FIFO into which stub workers (stamp_worker.cc) write when they start and are ended."""

    def __init__(self, directory: str) -> None:
        self.path = str(Path(directory) / "stamps")
        os.mkfifo(self.path)
        # Open for writing, too, so that reads do not return end of file without a worker.
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def close(self) -> None:
        os.close(self._fd)

    def next(self, kind: str, count: int, seconds: float = ANSWER_SECONDS) -> list[tuple[int, int]]:
        """The next `count` stamps of that kind as (pid, ns); stamps of other kinds are dropped."""
        collected = self.collect(kind, count, seconds)
        return [(pid, at_ns) for what, pid, at_ns in collected if what == kind]

    def collect(
        self, kind: str, count: int, seconds: float = ANSWER_SECONDS
    ) -> list[tuple[str, int, int]]:
        """All stamps as (kind, pid, ns), until `count` of that kind are among them."""
        found: list[tuple[str, int, int]] = []
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            while (there := sum(what == kind for what, _, _ in found)) < count:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise RuntimeError(f"{there} of {count} workers stamped in {seconds:g} s")
                found += self._read()
        return found

    def seen(self, kind: str) -> list[tuple[int, int]]:
        """The stamps of that kind that have arrived already."""
        with contextlib.suppress(BlockingIOError):
            return [(pid, at_ns) for what, pid, at_ns in self._read() if what == kind]
        return []

    def _read(self) -> list[tuple[str, int, int]]:
        *lines, self._rest = (self._rest + os.read(self._fd, 65536)).split(b"\n")
        words = [line.decode().split() for line in lines]
        return [(what, int(pid), int(at_ns)) for what, pid, at_ns in words]


@contextlib.contextmanager
def stamps() -> Iterator[Stamps]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        pipe = Stamps(directory)
        try:
            yield pipe
        finally:
            pipe.close()


@contextlib.contextmanager
def launched(
    argv: Sequence[str], variables: Mapping[str, str], stderr: int | IO[bytes] = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher, ended by SIGTERM."""
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={**os.environ, **variables},
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        _reap(child)


def timed(argv: Sequence[str]) -> tuple[float, float]:
    """Runs a program to its end: seconds from exec to exit, CPU seconds of it and its children."""
    with tempfile.TemporaryFile() as errors:
        begun = time.monotonic()
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            errors.seek(0)
            stderr = errors.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{argv[0]} exited with {child.returncode}: {stderr}")
    return seconds, usage.ru_utime + usage.ru_stime
