"""Starts the template process of warm workers without a launcher: this process is the guardian."""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import elastic

from support.waiting import DEADLINE_S

PROGRAM = Path(elastic.__file__).parent / "_warm" / "template.py"
KINDS = ("", "importing", "ready", "unfit", "stale", "forked", "refused", "left out")
PR_SET_CHILD_SUBREAPER = 36


class Message(NamedTuple):
    kind: str
    id: int
    pid: int
    text: str
    release: int = -1  # of a forked worker: it runs when a byte was written there

    def run_worker(self) -> None:
        os.write(self.release, b"r")
        os.close(self.release)


class Template:
    """One template process and its workers."""

    def __init__(
        self, modules: str, program: Sequence[str], environ: Mapping[str, str], cwd: Path
    ) -> None:
        import ctypes

        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        self._program = list(program)
        self.cwd = cwd
        self._socket, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(DEADLINE_S)

        def give_socket() -> None:
            os.setsid()
            os.dup2(remote.fileno(), 3)

        self.process = subprocess.Popen(
            [sys.executable, "-u", str(PROGRAM), modules, *program],
            env={**environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            pass_fds=(3,),
            preexec_fn=give_socket,
            cwd=cwd,
        )
        remote.close()

    def receive(self) -> Message:
        """The next message that is not about an import; kind "ended" if there is none."""
        while True:
            data, passed, _, _ = socket.recv_fds(self._socket, 8192, 1)
            if len(data) < 12:
                return Message("ended", 0, self.process.wait(DEADLINE_S), "")
            kind, id, pid = struct.unpack("<B3xIi", data[:12])
            if KINDS[kind] != "importing":
                return Message(KINDS[kind], id, pid, data[12:].decode(), *passed)

    def request(
        self,
        environ: Mapping[str, str],
        output: int,
        *,
        argv: Sequence[str] | None = None,
        descriptors: Mapping[int, int] | None = None,
    ) -> int:
        """Requests a worker whose output goes to a descriptor; the exec pipe's read end."""
        argv = argv or [sys.executable, "-u", *self._program]
        targets = {0: 0, 1: output, 2: output, **(descriptors or {})}
        fields = [str(os.getpid()), "7", str(len(argv)), *argv, str(len(environ))]
        fields += [f"{name}={value}" for name, value in environ.items()]
        fields += [str(self.cwd), "", "", *map(str, targets)]
        pipe, pipe_end = os.pipe()
        file = os.memfd_create("request")
        os.write(file, "".join(f"{field}\0" for field in fields).encode(errors="surrogateescape"))
        passed = array.array("i", [file, pipe_end, *targets.values()])
        self._socket.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        os.close(file)
        os.close(pipe_end)
        return pipe

    def run(self, environ: Mapping[str, str]) -> tuple[int, str]:
        """Forks one worker; its exit code and output."""
        with open(self.cwd / "output", "w+b") as file:
            pipe = self.request(environ, file.fileno())
            message = self.receive()
            assert message.kind == "forked", message
            message.run_worker()
            code = wait_for(message.pid)
            os.close(pipe)
            file.seek(0)
            return code, file.read().decode()

    def close(self) -> None:
        self._socket.close()
        self.process.wait(DEADLINE_S)

    def __enter__(self) -> Template:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self.process.kill()
        self.close()


def wait_for(pid: int) -> int:
    """The exit code of an adopted child, as ``subprocess`` gives it; killed at the deadline."""
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], DEADLINE_S)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
