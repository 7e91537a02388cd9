"""The jobs of this user whose agents run on this host, for ``elastic-launch status``.

Each agent has a file in a directory that only its user can use: a Unix socket for observers if the
job has one node, or a JSON file with the endpoint if it has a coordinator. The file of an agent
that was killed is removed when the next agent starts, or by a reader.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

SOCKET, RECORD = ".sock", ".json"
NAME_MAX = 40  # bytes of the run id in a file name: the path of a socket has at most 107
UNIX = "unix:"  # begins an endpoint that is the path of a socket

_numbers = itertools.count()


class LocalJob(NamedTuple):
    """Where an agent's job can be observed."""

    endpoint: str  # for observe.connect
    pid: int
    run_id: str  # "": unknown before a connection
    moved_to: str = ""  # where the coordinator is, if that is not at the endpoint


def directories(environ: Mapping[str, str]) -> list[str]:
    """Where agents leave their files, in the order of preference.

    /tmp first: the directory of a login session is removed at its end, which a job survives.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return [f"/tmp/elastic-{os.geteuid()}", *([f"{runtime}/elastic"] if runtime else [])]


def new_path(run_id: str, suffix: str, candidates: list[str]) -> str:
    """The path of a new file of this process; "": no directory can be used."""
    for folder in candidates:
        with suppress(OSError):
            os.mkdir(folder, 0o700)
        if _is_private(folder):
            _sweep(folder)
            number = next(_numbers)
            of_process = f"{os.getpid()}.{number}" if number else str(os.getpid())
            return f"{folder}/{_safe(run_id)}-{of_process}{suffix}"
    return ""


class Record:
    """The record of a job with a coordinator, which its agent keeps, locked, while it runs."""

    def __init__(self, run_id: str, endpoint: str, candidates: list[str]) -> None:
        self._run_id = run_id
        self._path = new_path(run_id, RECORD, candidates)
        self._descriptor = -1
        self.write(endpoint)

    def write(self, endpoint: str, moved_to: str = "") -> None:
        """Replaces the record; readers find the earlier one or the later one."""
        import fcntl
        import json

        if not self._path:
            return
        former, new = self._descriptor, f"{self._path}.new"
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(new, flags, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = {"job": self._run_id, "endpoint": endpoint, "moved_to": moved_to}
            os.write(self._descriptor, json.dumps(record).encode())
            os.rename(new, self._path)
        if former not in (-1, self._descriptor):
            os.close(former)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        for name in (self._path, f"{self._path}.new"):
            with suppress(OSError):
                os.unlink(name)
        os.close(self._descriptor)
        self._descriptor = -1


def find(candidates: list[str]) -> list[LocalJob]:
    """The jobs whose agents run, by file name; removes the files of others."""
    found = []
    for folder in candidates:
        for name in _names(folder):
            path = f"{folder}/{name}"
            pid = _pid(name)
            if name.endswith(SOCKET):
                if _is_alive(path):
                    found.append(LocalJob(f"{UNIX}{path}", pid, ""))
                elif not _runs(pid):
                    _remove_socket(path)
            elif name.endswith(RECORD) and (record := _read(path)):
                where = record["endpoint"], pid, record["job"], record["moved_to"]
                found.append(LocalJob(*where))
    return found


def _names(folder: str) -> list[str]:
    if not _is_private(folder):
        return []
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _is_private(folder: str) -> bool:
    """Whether it is a directory of this user that no other user can use or replace."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_own and not stat.S_IMODE(found.st_mode) & 0o077


def _safe(run_id: str) -> str:
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in run_id)
    return kept[:NAME_MAX]


def _pid(name: str) -> int:
    text = name.rpartition("-")[2].partition(".")[0]
    return int(text) if text.isdecimal() and text.isascii() else 0


def _sweep(folder: str) -> None:
    """Removes what agents that were killed have left."""
    for name in _names(folder):
        if _runs(_pid(name)):
            continue
        path = f"{folder}/{name}"
        if not name.endswith(SOCKET):
            _read(path)
        elif not _is_alive(path):  # it may run in another pid namespace
            _remove_socket(path)


def _runs(pid: int) -> bool:
    """Whether a process of this pid runs, as far as this pid namespace shows."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _is_alive(path: str) -> bool:
    """Whether a process listens at the socket; also True if that cannot be determined."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # its queue is full, or this process has no descriptor left
        return True
    return True


# An agent listens a moment after its socket was made: only one whose process has ended is removed.
def _remove_socket(path: str) -> None:
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def _read(path: str) -> dict[str, str]:
    """The record of an agent that runs, and holds its lock; else {}, and the file is removed."""
    import fcntl
    import json

    try:
        with open(path, encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                record = json.load(file)
                return {key: str(record[key]) for key in ("job", "endpoint", "moved_to")}
            # Its agent may have replaced the file meanwhile: the new one stays.
            if os.path.samestat(os.fstat(file.fileno()), os.lstat(path)):
                os.unlink(path)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}
