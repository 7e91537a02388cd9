"""Scripts that use elastic.worker: with a launcher, alone, or with the test as the guardian."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

from support.launching import DEADLINE_S, clean_environment, launch, run_program

LAYOUT, BYTES = 3, 90112  # ELASTIC_WORKER_LAYOUT, ELASTIC_WORKER_BYTES
STEP, LEFT_ROUND, STOP_REASON = 264, 280, 420  # of elastic_worker_page
NO_STEP = -1

ALONE = ("--standalone",)


def run_script(tmp_path: Path, script: str, *options: str, **variables: str) -> str:
    """The output of a script that a launcher starts."""
    path = tmp_path / "script.py"
    path.write_text("from elastic import worker, _worker\n" + script)
    done = launch(*ALONE, *options, str(path), environ=clean_environment(**variables), check=True)
    return done.stdout


def alone(script: str, **variables: str) -> str:
    """The output of a script that no launcher starts."""
    done = run_program([sys.executable, "-c", script], environ=clean_environment(**variables))
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_memory() -> int:
    """A worker's page, as the guardian makes it."""
    memory = os.memfd_create("channel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    page = struct.pack("<QII112x", 0x6C656E6E61686345, LAYOUT, BYTES)
    page += struct.pack("<qq112x", NO_STEP, NO_STEP) + struct.pack("<qqq", 0, NO_STEP, NO_STEP)
    page = page.ljust(376, b"\0") + struct.pack("<q", NO_STEP)
    os.pwrite(memory, page.ljust(BYTES, b"\0"), 0)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return memory


def channel_variable(memory: int, end: socket.socket) -> str:
    names = [(item, os.fstat(item)) for item in (memory, end.fileno())]
    return "1:" + ":".join(f"{item}:{found.st_dev}:{found.st_ino}" for item, found in names)


class MemberWorker:
    """Runs a script as a worker of the given round, whose launcher keeps processes."""

    def __init__(self, script: Path, round: int = 0, **variables: str) -> None:
        self._memory = new_memory()
        self.socket, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(DEADLINE_S)
        with end:
            self.process = subprocess.Popen(
                [sys.executable, str(script)],
                env=clean_environment(
                    ELASTIC_CHANNEL=channel_variable(self._memory, end),
                    ELASTIC_ROUND=str(round),
                    ELASTIC_ON_MEMBERSHIP_CHANGE="inplace",
                    **variables,
                ),
                pass_fds=(self._memory, end.fileno()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

    def __enter__(self) -> MemberWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.socket.close()
        os.close(self._memory)

    def wait_for(self, message: bytes) -> None:
        """Reads the worker's messages until this one."""
        while (found := self.socket.recv(1)) != message:
            assert found, "the worker has closed its socket"

    def left_round(self) -> int:
        return int(struct.unpack("<Q", os.pread(self._memory, 8, LEFT_ROUND))[0]) - 1

    def set_stop_reason(self, text: str) -> None:
        os.pwrite(self._memory, text.encode() + b"\0", STOP_REASON)

    def cut(self, round: int) -> None:
        self.socket.send(b"C" + struct.pack("<Q", round))

    def give(self, round: int, **variables: object) -> None:
        items = {"ELASTIC_ROUND": round, **variables}
        texts = (f"{name}={text}".encode() + b"\0" for name, text in items.items())
        self.socket.send(b"R" + struct.pack("<Q", round) + b"".join(texts))

    def next_line(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def output(self) -> str:
        """The rest of the output of a worker that exits with 0."""
        text = self.process.stdout.read()
        assert self.process.wait(DEADLINE_S) == 0
        return text
