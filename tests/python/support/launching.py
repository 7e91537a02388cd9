"""Starts real launchers for tests, and checks that they leave no process."""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
import select
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import elastic

from support.waiting import DEADLINE_S

MARK = "ELASTIC_TEST_MARK"
SECRET = "ELASTIC_TEST_SECRET"
SECRET_VALUE = f"canary-{uuid.uuid4().hex}"


def clean_environment(**more: str) -> dict[str, str]:
    """This process's variables without those that a launcher reads, and with a new mark.

    Without PYTHONUNBUFFERED, which hides output that a program does not flush.
    """
    steering = (
        *("PET_", "TORCHELASTIC_", "TORCH_ELASTIC_"),
        *("OMP_NUM_THREADS", "LOGLEVEL", "PYTHONUNBUFFERED"),
    )
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(steering)}
    return inherited | {MARK: uuid.uuid4().hex, SECRET: SECRET_VALUE} | more


def assert_no_secret(*texts: str) -> None:
    """The launcher prints no value of its environment, not even in an internal error."""
    for text in texts:
        assert SECRET_VALUE not in text, "the output has a value of the environment"


def python_path(*folders: Path | str) -> str:
    """PYTHONPATH with these folders first: elastic itself may be found by the variable."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def marked(environ: dict[str, str]) -> list[int]:
    """The running processes that inherited the mark."""
    wanted = f"{MARK}={environ[MARK]}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue  # the process has ended
    return found


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


class LeftoverProcesses(AssertionError):
    """A job has ended, but processes of it run: the load of the machine cannot be the cause."""


def assert_all_ended(environ: dict[str, str], deadline_s: float = 0.0) -> None:
    """Waits until no process with the mark runs; fails at the deadline."""
    end = time.monotonic() + deadline_s
    for pid in marked(environ):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            select.select([handle], [], [], max(0.0, end - time.monotonic()))
        finally:
            os.close(handle)
    left = {}
    for pid in marked(environ):
        with suppress(OSError):  # it has ended meanwhile
            left[pid] = Path("/proc", str(pid), "cmdline").read_bytes()
    if left:
        raise LeftoverProcesses(left)


class Process(subprocess.Popen[str]):
    """A process whose lines may be read by readline() first and by communicate() later.

    Popen.communicate() reads the descriptor itself, so it drops the lines that arrived together
    with one that readline() has returned.
    """

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]
    _readers: dict[str, tuple[threading.Thread, list[str]]] | None = None

    def end(self, code: int) -> tuple[str, str]:
        """What the process writes until its end, which it reaches with this exit code."""
        stdout, stderr = self.communicate(timeout=DEADLINE_S)
        assert self.returncode == code, (self.returncode, stdout, stderr)
        return stdout, stderr

    def communicate(  # type: ignore[override]
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[str, str]:
        if self._readers is None:
            self._readers = {name: _collect(getattr(self, name)) for name in ("stdout", "stderr")}
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(input or "")
                self.stdin.close()
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread, _ in self._readers.values():
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        found = {name: "".join(lines) for name, (_, lines) in self._readers.items()}
        if any(thread.is_alive() for thread, _ in self._readers.values()):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout, found["stdout"], found["stderr"])
        self.wait(None if deadline is None else max(1.0, deadline - time.monotonic()))
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        assert_no_secret(*found.values())
        return found["stdout"], found["stderr"]


def await_line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Reads the stderr of a process until a line matches."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"no {pattern!r} in {lines}")


def _collect(stream: IO[str] | None) -> tuple[threading.Thread, list[str]]:
    """A thread that reads all lines of a stream into the list."""
    lines: list[str] = []
    source: Iterable[str] = stream if stream is not None and not stream.closed else ()
    thread = threading.Thread(target=lines.extend, args=(source,), daemon=True)
    thread.start()
    return thread, lines


def launcher_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "elastic", *words]


def run_program(
    command: Sequence[str | Path],
    *,
    environ: dict[str, str] | None = None,
    check: bool = False,
    timeout: float = DEADLINE_S,
    grace_s: float = 0.0,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end and checks that it leaves no process.

    ``grace_s``: for the processes of agents that the program has killed.
    """
    environ = clean_environment() if environ is None else {MARK: uuid.uuid4().hex, **environ}
    if options.get("input") is None:
        options["stdin"] = subprocess.DEVNULL
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=timeout, **options
    )
    assert_all_ended(environ, deadline_s=grace_s)
    assert_no_secret(done.stdout, done.stderr)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def run_isolated(program: str) -> str:
    """The output of a program in an interpreter that no variable affects, by which elastic may be
    found here."""
    home = str(Path(elastic.__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {home!r}); {program}"
    return run_program([sys.executable, "-I", "-c", program], check=True).stdout


def launch(
    *words: str, environ: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a launcher to its end and checks that it leaves no process."""
    return run_program(launcher_command(*words), environ=environ, **options)


@contextmanager
def started(
    command: Sequence[str], *, environ: dict[str, str] | None = None, **options: Any
) -> Iterator[Process]:
    """A running program with pipes; killed at the end if it still runs. It leaves no process."""
    environ = environ or clean_environment()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Process(command, env=environ, text=True, **(pipes | options))
    # If it does not print what a test waits for, it is killed and the reader gets the end of file.
    deadline = threading.Timer(DEADLINE_S, process.kill)
    deadline.start()
    try:
        yield process
        process.wait(DEADLINE_S)
    finally:
        deadline.cancel()
        process.kill()
        process.wait(DEADLINE_S)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=60.0)  # closes the pipes
        assert_all_ended(environ, deadline_s=60.0)


def launched(*words: str, **options: Any) -> AbstractContextManager[Process]:
    """A running launcher."""
    return started(launcher_command(*words), **options)


class Job:
    """Agents of one job on this machine, each with its own arguments."""

    def __init__(
        self, options: Sequence[str], program: Sequence[str], deadline_s: float = DEADLINE_S
    ) -> None:
        self._options = options
        self._program = program
        self._environ = clean_environment()
        self.nodes: list[Process] = []
        # If a node prints nothing in time, it is killed and its readers get the end of file.
        self._deadline = threading.Timer(deadline_s, self._kill)
        self._deadline.start()

    def start(
        self, *words: str, on: Callable[..., list[str]] | None = None, **variables: str
    ) -> Process:
        """Starts a node; its arguments override the common ones. ``on`` prefixes a host."""
        command = launcher_command(*self._options, *words, *self._program)
        node = Process(
            on(*command) if on else command,
            env=self._environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.nodes.append(node)
        return node

    def start_nodes(self, number: int, lines: int) -> None:
        """Starts nodes, and waits until each has printed this many lines."""
        for _ in range(number):
            self.start()
        for node in self.nodes:
            assert node.stdout is not None
            for _ in range(lines):
                assert node.stdout.readline()

    def finish(self) -> list[subprocess.CompletedProcess[str]]:
        """Waits until every node has ended."""
        done = []
        for node in self.nodes:
            stdout, stderr = node.communicate(timeout=DEADLINE_S)
            done.append(subprocess.CompletedProcess(node.args, node.returncode, stdout, stderr))
        # The guardian of an agent that was killed ends after it.
        was_killed = any(node.returncode < 0 for node in self.nodes)
        assert_all_ended(self._environ, deadline_s=60.0 if was_killed else 0.0)
        return done

    def finish_with(self, *codes: int) -> list[subprocess.CompletedProcess[str]]:
        """Waits until every node has ended, in the order of their starts with these exit codes."""
        done = self.finish()
        found = tuple(node.returncode for node in done)
        assert found == codes, [(node.returncode, node.stdout, node.stderr) for node in done]
        return done

    def succeed(self) -> list[subprocess.CompletedProcess[str]]:
        """Waits until every node has ended with 0."""
        return self.finish_with(*[0] * len(self.nodes))

    def __enter__(self) -> Job:
        return self

    def _kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def __exit__(self, *_: object) -> None:
        self._deadline.cancel()
        self._kill()
        for node in self.nodes:
            if node.stdout is not None and not node.stdout.closed:
                node.communicate(timeout=DEADLINE_S)
        assert_all_ended(self._environ, deadline_s=60.0)


def job_at(
    endpoint: str,
    nnodes: str,
    program: Sequence[str],
    *words: str,
    run_id: str = "job",
    deadline_s: float = DEADLINE_S,
) -> Job:
    """Nodes of a job at an endpoint."""
    options = [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-id={run_id}"]
    return Job([*options, f"--rdzv-endpoint={endpoint}", *words], program, deadline_s)


def shell_job(
    endpoint: str, nnodes: str, script: str, *words: str, run_id: str = "job", shell: str = "sh"
) -> Job:
    """Nodes whose workers run a shell script."""
    program = [shell, "-c", script]
    return job_at(endpoint, nnodes, program, "--no-python", *words, run_id=run_id)


# The kernel gives ports from its own range to sockets that ask for any, so such a port may be taken
# between the moment at which it was found free and its use.
_KERNELS_FIRST = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
_PORTS = range(10_000, max(min(_KERNELS_FIRST, 29_000), 12_000))
_PORTS_OF_ONE = 500


@functools.cache
def _held_ports() -> Iterator[int]:
    """Ports of which no other test process of this host uses any, round and round.

    A test process holds its part of the range by the name of a socket, which ends with it.
    """
    parts = [
        _PORTS[first : first + _PORTS_OF_ONE] for first in range(0, len(_PORTS), _PORTS_OF_ONE)
    ]
    random.SystemRandom().shuffle(parts)
    for part in parts:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0elastic-test-ports-{part[0]}")
        except OSError:
            holder.close()
            continue
        _holders.append(holder)
        return itertools.cycle(part)
    raise AssertionError(f"{len(parts)} test processes run on this host")


_holders: list[socket.socket] = []


def free_port() -> int:
    """A port that is free on all addresses, and that no other call returns for a long time."""
    for port in itertools.islice(_held_ports(), _PORTS_OF_ONE):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise AssertionError("there is no free port")


def free_endpoint() -> str:
    return f"127.0.0.1:{free_port()}"
