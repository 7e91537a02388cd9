"""The template's connection to its guardian. csrc/guardian/template.h describes the messages.

Only modules that the interpreter has loaded at its start, or that have no Python code, are used.
"""

from __future__ import annotations

import os
import struct
from _socket import (
    CMSG_LEN,
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    MSG_PEEK,
    SCM_RIGHTS,
    SOL_SOCKET,
    socket,
)
from typing import NamedTuple

SOCKET = 3
DESCRIPTORS_MAX = 16
TEXT_BYTES_MAX = 1000

IMPORTING, READY, UNFIT, STALE, FORKED, REFUSED, LEFT_OUT = range(1, 8)

_HEADER = struct.Struct("<B3xIi")
_INT = struct.Struct("i")


class Request(NamedTuple):
    """One worker to fork."""

    guardian: int  # the worker's parent
    id: int
    argv: list[str]
    env: dict[bytes, bytes]
    cwd: str
    stdout_path: str
    stderr_path: str
    pipe: int  # the exec pipe's write end
    descriptors: dict[int, int]  # the number in the worker: the number here


class Link:
    """The socket to the guardian."""

    def __init__(self) -> None:
        self._socket = socket(fileno=SOCKET)

    def send(
        self, kind: int, text: str = "", *, id: int = 0, pid: int = -1, descriptor: int = -1
    ) -> None:
        data = text.encode(errors="replace")[:TEXT_BYTES_MAX]
        passed = [(SOL_SOCKET, SCM_RIGHTS, _INT.pack(descriptor))] if descriptor >= 0 else []
        try:
            self._socket.sendmsg([_HEADER.pack(kind, id, pid), data], passed)
        except OSError:  # the guardian has ended, and so does this process
            os._exit(0)

    def forget(self) -> None:
        """Drops the descriptor without closing it: in a worker, ``child.set_up`` closes it."""
        self._socket.detach()

    def has_request(self) -> bool:
        """Whether a request has arrived that was not received yet."""
        try:
            return bool(self._socket.recv(1, MSG_PEEK | MSG_DONTWAIT))
        except OSError:
            return False

    def receive(self) -> Request | None:
        """The next request; None if the guardian has closed the connection."""
        space = CMSG_LEN(_INT.size * DESCRIPTORS_MAX)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(1, space, MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        if not data:
            return None
        descriptors: list[int] = []
        for level, kind, content in ancillary:
            if level == SOL_SOCKET and kind == SCM_RIGHTS:
                descriptors += [number for (number,) in _INT.iter_unpack(content)]
        return _parse(descriptors)


def _parse(descriptors: list[int]) -> Request:
    file, pipe, *passed = descriptors
    fields = iter(os.pread(file, os.fstat(file).st_size, 0).split(b"\0"))
    os.close(file)

    def number() -> int:
        return int(next(fields))

    def text() -> str:
        return os.fsdecode(next(fields))

    guardian, id = number(), number()
    argv = [text() for _ in range(number())]
    env: dict[bytes, bytes] = {}
    for _ in range(number()):
        name, _equals, value = next(fields).partition(b"=")
        env.setdefault(name, value)
    cwd, stdout_path, stderr_path = text(), text(), text()
    numbers = [number() for _ in passed]
    return Request(
        guardian, id, argv, env, cwd, stdout_path, stderr_path, pipe,
        dict(zip(numbers, passed, strict=True)),
    )  # fmt: skip
