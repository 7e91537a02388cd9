"""A second witness of a hang: what NCCL's own threads know of each rank's operations.

Every process with an NCCL communicator has a thread ("RAS") that knows the processes of all
communicators and how many operations each has launched. It listens at ``NCCL_RAS_ADDR``. It is
asked only when the job is suspected to hang, since questions have ended processes of some versions
of NCCL; by a thread of its own with a deadline; and nothing is ever stopped because of a reply.

Each process of a host listens on the same port, and a stopped one may be the one that accepts, so a
connection without a greeting within a second is made again.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
ENABLE_VARIABLE = "NCCL_RAS_ENABLE"
DEVICE = "/dev/nvidiactl"  # of every host with NVIDIA's driver

GREETING_LIMIT_S = 1.0
CONNECTIONS_MAX = 5
REPLY_LIMIT_S = 10.0  # of one question, all connections together
PAUSE_S = 5.0  # between the two questions
REPLY_BYTES_MAX = 64 << 20
LINE_BYTES_MAX = 1024
COMMUNICATORS_MAX = 4096
VERSION_MIN = (2, 29, 2)  # earlier ones write past an array while they answer

_RANKS_SHOWN = 8
_REPEATED_COMMA = re.compile(r'([\d"\]}])(\s*\n\s*")')


class NoReplyError(Exception):
    """There is no usable reply: why."""


@dataclass(frozen=True)
class Rank:
    host: str
    pid: int
    counts: Mapping[str, int]  # launched operations, by name
    is_running: bool  # neither being initialized nor finalized nor aborted


@dataclass(frozen=True)
class Communicator:
    size: int
    ranks: Mapping[int, Rank]
    unresponsive: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Report:
    version: str
    timestamp: str
    communicators: Mapping[str, Communicator] = field(default_factory=dict)


# ---- The reply.


def decode(reply: bytes) -> Report:
    """Raises NoReplyError. Entries that are being initialized, which may have no values, are left
    out."""
    text = reply.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        # NCCL 2.28 omits a comma where a rank is missing.
        try:
            data = json.loads(_REPEATED_COMMA.sub(r"\1,\2", text))
        except (ValueError, RecursionError) as error:
            raise NoReplyError("the reply is not JSON") from error
    if not isinstance(data, dict) or not isinstance(data.get("communicators"), list):
        raise NoReplyError("the reply has no communicators")
    found = {}
    for one in data["communicators"][:COMMUNICATORS_MAX]:
        communicator = _communicator(one)
        if communicator is not None:
            found[f"{one['hash']} {one.get('secondary_hash')}"] = communicator
    return Report(str(data.get("nccl_version")), str(data.get("timestamp")), found)


def _communicator(data: Any) -> Communicator | None:
    if not isinstance(data, dict) or not isinstance(data.get("ranks"), list):
        return None
    size = _number(data.get("size"))
    if not size or str(data.get("hash", "0x0")) == "0x0":
        return None
    ranks = {}
    for one in data["ranks"]:
        rank = _number(one.get("rank")) if isinstance(one, dict) else None
        if rank is not None and rank < size:
            ranks[rank] = _rank(one)
    missing = data.get("missing_ranks")
    silent = {
        rank
        for one in (missing if isinstance(missing, list) else [])
        if isinstance(one, dict)
        and isinstance(one.get("status"), dict)
        and one["status"].get("unresponsive") is True
        and (rank := _number(one.get("rank"))) is not None
    }
    return Communicator(size, ranks, frozenset(silent)) if ranks else None


def _rank(data: Mapping[str, Any]) -> Rank:
    status, counts = data.get("status"), data.get("collective_counts")
    status = status if isinstance(status, dict) else {}
    flags = ("finalize_called", "destroy_flag", "abort_flag")
    is_running = status.get("init_state") == 0 and not any(status.get(flag) for flag in flags)
    known = counts.items() if isinstance(counts, dict) else ()
    return Rank(
        host=str(data.get("host", "unknown")),
        pid=_number(data.get("pid")) or -1,
        counts={str(name): number for name, one in known if (number := _number(one)) is not None},
        is_running=is_running,
    )


def _number(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_number else None


# ---- What two replies show.


def explain(first: Report, second: Report, world_size: int) -> str:
    """What holds back the operations that no rank has advanced from; "": nothing is known."""
    if first.timestamp == second.timestamp:
        return ""  # the same reply twice
    for key, after in second.communicators.items():
        before = first.communicators.get(key)
        if before is None or before.ranks.keys() != after.ranks.keys():
            continue
        if any(before.ranks[rank].counts != one.counts for rank, one in after.ranks.items()):
            continue
        if found := _cause(after, world_size):
            return found
    return ""


def _cause(communicator: Communicator, world_size: int) -> str:
    of = "" if communicator.size == world_size else f" of a communicator of {communicator.size}"
    if communicator.unresponsive:
        return f"{_names(sorted(communicator.unresponsive))}{of} did not reply"
    names = sorted({name for one in communicator.ranks.values() for name in one.counts})
    for name in names:
        counts = {rank: one.counts.get(name, 0) for rank, one in communicator.ranks.items()}
        most = max(counts.values())
        behind = [r for r, n in counts.items() if n < most and communicator.ranks[r].is_running]
        if not behind:
            continue
        least = min(counts[rank] for rank in behind)
        behind = sorted(rank for rank in behind if counts[rank] == least)
        ahead = sum(count == most for count in counts.values())
        where = ""
        if of:
            one = communicator.ranks[behind[0]]
            where = f" (process {one.pid} on {one.host})"
        return (
            f"{_names(behind)}{of}{where} launched {least} {name}, "
            f"{ahead} rank{'s' if ahead > 1 else ''} {most}"
        )
    return ""


def _names(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ",".join(map(str, ranks[:_RANKS_SHOWN])) + (",…" if len(ranks) > _RANKS_SHOWN else "")
    return f"{len(ranks)} ranks ({shown})"


# ---- The client.


def fetch(address: tuple[str, int], limit_s: float = REPLY_LIMIT_S) -> bytes:
    """The reply to one question. Raises NoReplyError, at the latest after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    why = "no time was left"
    for _ in range(CONNECTIONS_MAX):
        if time.monotonic() >= deadline:
            break
        try:
            with _connect(address, deadline) as connection:
                return _question(connection, deadline)
        except TimeoutError:
            why = "no process replied in time"
        except OSError as error:
            raise NoReplyError(f"no process listens: {error.strerror or error}") from error
    raise NoReplyError(why)


def _connect(address: tuple[str, int], deadline: float) -> socket.socket:
    limit = min(GREETING_LIMIT_S, deadline - time.monotonic())
    connection = socket.create_connection(address, timeout=max(limit, 0.001))
    try:
        connection.sendall(b"CLIENT PROTOCOL 2\n")
        until = min(deadline, time.monotonic() + GREETING_LIMIT_S)
        greeting = _line(connection, until)
        if not greeting.upper().startswith(b"SERVER PROTOCOL"):
            raise NoReplyError("another program listens")
    except BaseException:
        connection.close()
        raise
    return connection


def _question(connection: socket.socket, deadline: float) -> bytes:
    for command in (b"TIMEOUT 3\n", b"SET FORMAT json\n"):
        connection.sendall(command)
        if _line(connection, deadline).upper() != b"OK":
            raise NoReplyError("this version of NCCL has no JSON")
    connection.sendall(b"STATUS\n")
    reply = bytearray()
    while block := _receive(connection, deadline):
        reply += block
        if len(reply) > REPLY_BYTES_MAX:
            raise NoReplyError("the reply is too long")
    return bytes(reply)


def _line(connection: socket.socket, deadline: float) -> bytes:
    """Byte by byte: what follows is not to be consumed."""
    line = bytearray()
    while len(line) < LINE_BYTES_MAX:
        byte = _receive(connection, deadline, 1)
        if not byte:
            raise NoReplyError("the connection was closed")
        if byte == b"\n":
            return bytes(line.rstrip(b"\r"))
        line += byte
    raise NoReplyError("another program listens")


def _receive(connection: socket.socket, deadline: float, size: int = 1 << 16) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
    return connection.recv(size)


# ---- The witness of a job on one node.


class Witness:
    """Asks in a thread of its own, one question at a time."""

    def __init__(self, address: tuple[str, int], variables: Mapping[str, str]) -> None:
        self.address = address
        self.variables = variables  # for the workers
        self._reserved: socket.socket | None = None
        self._is_asking = threading.Lock()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Witness | None:
        """None: the workers have no NCCL, or a variable forbids it to listen."""
        if environment.get(ENABLE_VARIABLE) == "0":
            return None
        given = environment.get(ADDRESS_VARIABLE)
        if given is not None:
            address = _parse(given)
            return None if address is None else cls(address, {})
        if not os.path.exists(DEVICE):
            return None
        # Bound, but not listening: NCCL's threads share the port, and no other job gets it.
        reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        witness = cls(("127.0.0.1", port), {ADDRESS_VARIABLE: f"127.0.0.1:{port}"})
        witness._reserved = reserved
        return witness

    def ask(self, world_size: int, on_text: Callable[[str], None]) -> None:
        """Calls ``on_text`` with a sentence, from another thread, if there is one."""
        if not self._is_asking.acquire(blocking=False):
            return

        def run() -> None:
            try:
                if text := self._ask(world_size):
                    on_text(text)
            finally:
                self._is_asking.release()

        threading.Thread(target=run, name="elastic-ras", daemon=True).start()

    def _ask(self, world_size: int) -> str:
        version = _installed_version()
        if version is None or version < VERSION_MIN:
            return ""
        try:
            first = decode(fetch(self.address))
            threading.Event().wait(PAUSE_S)
            return explain(first, decode(fetch(self.address)), world_size)
        except NoReplyError:
            return ""

    def close(self) -> None:
        if self._reserved is not None:
            self._reserved.close()


def _parse(address: str) -> tuple[str, int] | None:
    """``host:port``, ``[::1]:port``"""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 1 << 16:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def _installed_version() -> tuple[int, ...] | None:
    """Of torch's NCCL in this environment; None: unknown, as of conda's or a container's own."""
    import importlib.metadata

    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            text = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
    return None
