"""A server that speaks the protocol of NCCL's RAS, with replies that a test gives it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

# Called with each connection; `next()` of the server's replies is what STATUS returns.
Behaviour = Callable[[socket.socket, Iterator[bytes]], None]


def report(counts: Sequence[int], second: int, **changes: Any) -> dict[str, Any]:
    """A reply as of NCCL 2.29, of one communicator whose ranks have launched so many operations."""
    communicator = {
        "hash": "0x6ac1",
        "secondary_hash": "0x1:0x2",
        "size": len(counts),
        "ranks_count": len(counts),
        "missing_ranks_count": 0,
        "ranks": [
            {
                "rank": rank,
                "host": f"10.0.0.{rank}",
                "pid": 100 + rank,
                "cuda_dev": 0,
                "nvml_dev": 0,
                "status": {
                    "init_state": 0,
                    "async_error": 0,
                    "finalize_called": False,
                    "destroy_flag": False,
                    "abort_flag": False,
                },
                "collective_counts": {"Broadcast": 1, "AllReduce": count},
            }
            for rank, count in enumerate(counts)
        ],
        "missing_ranks": [],
    }
    return {
        "nccl_version": "2.29.7",
        "timestamp": f"2026-11-28 19:00:{second:02}",
        "communicators_count": 1,
        "communicators": [communicator | changes],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }


def answer(connection: socket.socket, replies: Iterator[bytes]) -> None:
    """As NCCL's thread."""
    for line in connection.makefile("rb"):
        command = line.strip().upper()
        if command.startswith(b"CLIENT PROTOCOL"):
            connection.sendall(b"SERVER PROTOCOL 2\n")
        elif command == b"STATUS":
            connection.sendall(next(replies))
            return
        else:
            connection.sendall(b"OK\n")


@contextmanager
def ras_server(
    replies: Sequence[bytes], *behaviours: Behaviour
) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Its address, and the connections: the first ones behave as given, the others answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = iter(replies)
    accepted: list[int] = []
    open_ones: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                number = len(accepted)
                accepted.append(number)
                behave = behaviours[number] if number < len(behaviours) else answer
                with suppress(OSError, StopIteration):
                    behave(connection, left)
                if behave is not keep_silent:
                    connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname(), accepted
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_ones:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        thread.join()


def keep_silent(connection: socket.socket, replies: Iterator[bytes]) -> None:
    """As a process that is stopped: the kernel accepts, and nothing replies."""
