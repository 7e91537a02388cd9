"""Replays recorded sessions with PyTorch's store servers against our server.

``tests/data/tcpstore-vectors.json`` has the replies of torch 2.13's two servers, byte by byte;
where they differ it names the server to follow. Each session runs twice: requests in one piece,
and one byte at a time.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import Any, Protocol

import pytest
from elastic import StoreServer

from support.paths import ROOT

VECTORS = json.loads((ROOT / "tests/data" / "tcpstore-vectors.json").read_text())
SESSIONS = {
    name: list(steps) for name, steps in groupby(VECTORS["vectors"], key=lambda v: v["session"])
}
VALIDATE = bytes.fromhex("00cef7853c")
PING = bytes.fromhex("0d") + b"ping"  # its reply proves that earlier requests were handled
DEADLINE_S = 30.0


class Client:
    def __init__(self, port: int, piece: int | None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.piece = piece
        self.closed = False

    def send(self, request: bytes) -> None:
        step = self.piece or max(len(request), 1)
        for start in range(0, len(request), step):
            self.socket.sendall(request[start : start + step])

    def receive_exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = self.socket.recv(size - len(received))
            assert more, f"closed after {received!r}"
            received += more
        return received

    def receive_until_pong(self, expected_size: int) -> bytes:
        """Exactly the bytes received so far: those before the reply to a final PING."""
        self.send(PING)
        received = self.receive_exactly(expected_size + 4)
        assert received.endswith(b"ping"), received
        return received[:-4]

    def receive_until_closed(self) -> bytes:
        self.closed = True
        received = b""
        with suppress(ConnectionResetError):
            while more := self.socket.recv(65536):
                received += more
        return received


class Connect(Protocol):
    def __call__(self, piece: int | None = None, validate: bool = True) -> Client: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects clients to a new server; both are closed after the test."""
    with StoreServer(host="127.0.0.1", port=0) as server, ExitStack() as stack:

        def connect(piece: int | None = None, validate: bool = True) -> Client:
            client = Client(server.port, piece)
            stack.callback(client.socket.close)
            if validate:
                client.send(VALIDATE)
            return client

        yield connect


def followed(vector: dict[str, Any]) -> dict[str, Any]:
    """The expected reply, of the server that the vector recommends."""
    if vector.get("recommend") == "classic":
        return {**vector, **vector["classic"]}
    return vector


def is_unordered_same(received: str, expected: str) -> bool:
    """LIST_KEYS has no defined order: compares the count and the sorted keys."""
    return received[:16] == expected[:16] and sorted(received) == sorted(expected)


@pytest.mark.parametrize("piece", [None, 1], ids=["whole", "bytewise"])
@pytest.mark.parametrize("session", SESSIONS)
def test_session_is_answered_as_recorded(connect: Connect, session: str, piece: int | None) -> None:
    steps = SESSIONS[session]
    clients: dict[str, Client] = {}
    for step in steps:
        validate = step.get("validate_sent_before", True)
        for name in [step["conn"], *step["pushed"], *step["closed"]]:
            if name not in clients:
                clients[name] = connect(piece, validate)

    for step in map(followed, steps):
        client = clients[step["conn"]]
        if client.closed:
            continue  # an earlier step closed it here, and in one of the two servers
        # The server closes at the invalid byte, so sending the rest may fail.
        with suppress(BrokenPipeError, ConnectionResetError):
            client.send(bytes.fromhex(step["request"]))
        if step["conn"] in step["closed"]:
            assert client.receive_until_closed().hex() == step["response"], step["id"]
        else:
            received = client.receive_until_pong(len(step["response"]) // 2).hex()
            if step.get("unordered"):
                assert is_unordered_same(received, step["response"]), step["id"]
            else:
                assert received == step["response"], step["id"]
        for name, other in clients.items():
            if other is not client and not other.closed and step.get("validate_sent_before", True):
                pushed = step["pushed"].get(name, "")
                assert other.receive_until_pong(len(pushed) // 2).hex() == pushed, step["id"]


def test_all_recorded_vectors_are_replayed() -> None:
    assert sum(len(steps) for steps in SESSIONS.values()) == len(VECTORS["vectors"]) > 100


def list_of(opcode: int, count: int, item: bytes = b"") -> bytes:
    body = (len(item).to_bytes(8, "little") + item) * count
    return bytes([opcode]) + count.to_bytes(8, "little") + body


def pair_of(opcode: int, key: bytes, value: bytes) -> bytes:
    parts = (len(part).to_bytes(8, "little") + part for part in (key, value))
    return bytes([opcode]) + b"".join(parts)


KIB8, MIB5, MIB8 = 8 << 10, 5 << 20, 8 << 20
LIMITS: dict[str, tuple[bytes, bytes | None]] = {
    "key of 8192 bytes": (pair_of(1, b"k" * KIB8, b"v"), b""),
    "key of 8193 bytes": (pair_of(1, b"k" * (KIB8 + 1), b"v"), None),
    "value of 8 MiB": (pair_of(1, b"k", bytes(MIB8)), b""),
    "value of 8 MiB and 1 byte": (pair_of(1, b"k", bytes(MIB8 + 1)), None),
    "APPEND of 5 MiB twice": (pair_of(9, b"k", bytes(MIB5)) * 2, b""),
    "CHECK of 131072 keys": (pair_of(1, b"/k", b"") + list_of(5, 131072, b"/k"), b"\0"),
    "CHECK of 131073 keys": (list_of(5, 131073, b"/k"), None),
    "CHECK with a count of 2^40 keys": (b"\x05" + (1 << 40).to_bytes(8, "little"), None),
    "SET with a key length of 2^63": (b"\x01" + (1 << 63).to_bytes(8, "little"), None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_limits_equal_those_of_torchs_default_server(connect: Connect, case: str) -> None:
    request, reply = LIMITS[case]
    client = connect()
    if reply is None:
        with suppress(BrokenPipeError, ConnectionResetError):
            client.send(request)
        assert client.receive_until_closed() == b""
    else:
        client.send(request)
        assert client.receive_until_pong(len(reply)) == reply
    assert connect().receive_until_pong(0) == b"", "other connections are unaffected"
