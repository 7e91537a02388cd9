"""What the template imports later: what a worker has imported before its first step.

The worker's hook sends the names to a socket of the template, which forks a successor. The
successor imports the modules one by one, and takes the template's place when all of them are
imported; until then the template serves. A module that is not fit is left out: the successor ends,
and the next one does not import it.
"""

from __future__ import annotations

import os
import select
import struct
from _socket import (
    AF_UNIX,
    CMSG_LEN,
    MSG_DONTWAIT,
    SO_PASSCRED,
    SOCK_CLOEXEC,
    SOCK_DGRAM,
    SOL_SOCKET,
    socket,
)
from collections.abc import Callable

SCM_CREDENTIALS = 2
NAMES_BYTES_MAX = 1 << 18
LEFT_OUT_MAX = 16  # then the template stays as it is

_CREDENTIALS = struct.Struct("iII")  # pid, user, group
_DONE, _BEGUN, _LEFT_OUT = "done", "begun", "left out"

_fork, _exit, _pipe, _waitpid = os.fork, os._exit, os.pipe, os.waitpid


class Names:
    """Receives the names of modules, once."""

    def __init__(self, address: str) -> None:
        self._socket: socket | None = None
        if not address:
            return
        opened = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC)
        try:
            opened.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
            opened.bind(b"\0" + os.fsencode(address))
        except OSError:  # of a template that has not ended yet
            opened.close()
        else:
            self._socket = opened

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def forget(self) -> None:
        """Drops the descriptor without closing it, as ``Link.forget``."""
        if self._socket is not None:
            self._socket.detach()

    def receive(self) -> list[str]:
        """The names, if a process of this user has sent them."""
        assert self._socket is not None
        space = CMSG_LEN(_CREDENTIALS.size)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(NAMES_BYTES_MAX, space, MSG_DONTWAIT)
        except OSError:
            return []
        users = [
            _CREDENTIALS.unpack(content)[1]
            for level, kind, content in ancillary
            if level == SOL_SOCKET and kind == SCM_CREDENTIALS and len(content) == 12
        ]
        if users != [os.getuid()]:
            return []
        self.close()
        names = data.decode(errors="replace").split("\n")
        return [name for name in names if all(part.isidentifier() for part in name.split("."))]


class Successor:
    """A forked process that imports modules, and then serves in this one's place."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.left_out: list[str] = []
        self._causes: set[str] = set()
        self._begun = ""
        self._pid = 0
        self._news = self._answer = -1
        self._text = b""

    def fileno(self) -> int:
        return self._news

    def start(self, learn: Callable[[Successor], None]) -> bool:
        """Forks. True in the new process, when it has imported the modules and is to serve."""
        news, news_end = _pipe()
        answer_end, answer = _pipe()
        self._text, self._begun = b"", ""
        try:
            self._pid = _fork()
        except OSError:
            for descriptor in (news, news_end, answer_end, answer):
                os.close(descriptor)
            return False
        if self._pid != 0:
            os.close(news_end)
            os.close(answer_end)
            self._news, self._answer = news, answer
            return False
        os.close(news)
        os.close(answer)
        self._news = news_end
        learn(self)
        self._send(_DONE)
        if not os.read(answer_end, 1):  # the template has ended
            _exit(0)
        os.close(news_end)
        os.close(answer_end)
        return True

    # In the new process.

    def begin(self, name: str) -> None:
        self._send(_BEGUN, name)

    def leave_out(self, name: str, reason: str) -> None:
        """Ends this process."""
        self._send(_LEFT_OUT, name, reason)
        _exit(0)

    def _send(self, *words: str) -> None:
        line = "\t".join(word.replace("\n", " ").replace("\t", " ") for word in words)
        os.write(self._news, f"{line[:1000]}\n".encode(errors="replace"))

    # In the template.

    def read(self) -> tuple[str, str, bool]:
        """A module that was left out and why, or two empty strings; and whether it is ready."""
        data = os.read(self._news, 1 << 16)
        self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            kind, *words = line.decode(errors="replace").split("\t")
            if kind == _BEGUN:
                self._begun = words[0]
            elif kind == _LEFT_OUT:
                self._end()
                return words[0], words[1], False
            elif kind == _DONE:
                return "", "", True
        if data:
            return "", "", False
        status = self._end()
        ending = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "an exit"
        return self._begun, f"the import of {self._begun} ended in {ending}", False

    def leave_out_next(self, name: str, reason: str) -> bool:
        """The next process does not import the module. True: the reason is not yet known.

        A package has many modules that are left out because all of them import the one that is not
        fit.
        """
        self.left_out.append(name)
        self.names.remove(name)
        cause = reason.replace(name, "", 1)
        is_new = cause not in self._causes
        self._causes.add(cause)
        return is_new

    def give_place(self) -> None:
        """Lets it serve, and waits for its end. Does not return."""
        os.write(self._answer, b"s")
        _waitpid(self._pid, 0)
        _exit(0)

    def _end(self) -> int:
        os.close(self._news)
        os.close(self._answer)
        self._news = self._answer = -1
        _, status = _waitpid(self._pid, 0)
        return status


def wait_for_input(*descriptors: int) -> list[int]:
    """Those of the descriptors that have input; negative ones are ignored."""
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll()]
