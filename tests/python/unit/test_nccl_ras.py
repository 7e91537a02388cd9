"""The client of NCCL's RAS: its replies, whole, in pieces and broken, and what they show."""

from __future__ import annotations

import json
import queue
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from elastic.agent.server import nccl_ras
from elastic.agent.server.nccl_ras import NoReplyError, Witness, decode, explain, fetch

from support.ras_server import answer, keep_silent, ras_server, report
from support.waiting import DEADLINE_S


def reply(*arguments: Any, **changes: Any) -> bytes:
    return json.dumps(report(*arguments, **changes), indent=1).encode()


def missing(**status: bool) -> dict[str, Any]:
    return {
        "rank": 1, "host": "10.0.0.1", "pid": 101, "cuda_dev": 0, "nvml_dev": 0,
        "status": {"unresponsive": False, "considered_dead": False} | status,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "world_size", "expected"),
    [
        (reply([4, 3, 4], 1), reply([4, 3, 4], 6), 3, "rank 1 launched 3 AllReduce, 2 ranks 4"),
        (
            reply([4, 3, 4, 3], 1), reply([4, 3, 4, 3], 6), 4,
            "2 ranks (1,3) launched 3 AllReduce, 2 ranks 4",
        ),
        (
            reply([4, 3], 1), reply([4, 3], 6), 8,
            "rank 1 of a communicator of 2 (process 101 on 10.0.0.1) launched 3 AllReduce, "
            "1 rank 4",
        ),
        (
            reply([4, 4], 1, size=3, missing_ranks=[missing(unresponsive=True)]),
            reply([4, 4], 6, size=3, missing_ranks=[missing(unresponsive=True)]), 3,
            "rank 1 did not reply",
        ),
        # It is reachable, and no member yet or any more.
        (
            reply([4, 4], 1, size=3, missing_ranks=[missing()]),
            reply([4, 4], 6, size=3, missing_ranks=[missing()]), 3, "",
        ),
        (reply([4, 3, 4], 1), reply([4, 4, 4], 6), 3, ""),  # it advances
        (reply([4, 3, 4], 1), reply([5, 4, 5], 6), 3, ""),
        (reply([4, 4, 4], 1), reply([4, 4, 4], 6), 3, ""),  # all have launched the same
        (reply([4, 3, 4], 1), reply([4, 3, 4], 1), 3, ""),  # the same reply twice
        (reply([4, 3], 1), reply([4, 3, 4], 6), 3, ""),  # another rank appears
        (reply([4, 3], 1, hash="0x1"), reply([4, 3], 6), 2, ""),  # another communicator
        (reply([4, 3], 1, size=0), reply([4, 3], 6, size=0), 2, ""),  # it is being initialized
        (reply([4, 3], 1, communicators=[]), reply([4, 3], 6, hash="0x0"), 2, ""),
    ],
)  # fmt: skip
def test_what_two_replies_show(before: bytes, after: bytes, world_size: int, expected: str) -> None:
    assert explain(decode(before), decode(after), world_size) == expected


@pytest.mark.parametrize("flag", ["finalize_called", "destroy_flag", "abort_flag", "init_state"])
def test_a_rank_that_ends_is_not_behind(flag: str) -> None:
    first, second = report([4, 3, 4], 1), report([4, 3, 4], 6)
    for one in (first, second):
        one["communicators"][0]["ranks"][1]["status"][flag] = 7 if flag == "init_state" else True
    assert explain(decode(json.dumps(first).encode()), decode(json.dumps(second).encode()), 3) == ""


def test_a_comma_that_nccl_2_28_omits_is_added() -> None:
    whole = json.dumps(report([4, 4], 1, missing_ranks=[missing(unresponsive=True)]), indent=1)
    broken = whole.replace('"nvml_dev": 0,\n     "status": {\n      "unresp', '"nvml_dev": 0\n     '
                           '"status": {\n      "unresp')  # fmt: skip
    assert broken != whole
    assert decode(broken.encode()) == decode(whole.encode())


def test_replies_that_are_cut_or_changed_raise_the_one_error() -> None:
    whole = reply([4, 3], 1, missing_ranks=[missing(unresponsive=True)])
    for size in range(len(whole)):
        with pytest.raises(NoReplyError):
            decode(whole[:size])
    generator = random.Random(7)
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(generator.randint(1, 8)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        try:
            found = decode(bytes(changed))
        except NoReplyError:
            continue
        explain(found, decode(whole), 2)
    for garbage in (b"", b"[]", b"null", b'{"communicators": 4}', b"[" * 100000, b"\xff\xfe"):
        with pytest.raises(NoReplyError):
            decode(garbage)


def test_values_of_other_types_are_left_out() -> None:
    value: Any
    for value in (None, True, -1, "4", [], {}, 1.5):
        for change in ({"size": value}, {"ranks": value}, {"ranks": [value]}, {"hash": value},
                       {"missing_ranks": value}, {"missing_ranks": [value]}):  # fmt: skip
            decode(reply([4, 3], 1, **change))
        for key in ("rank", "status", "collective_counts", "host", "pid"):
            changed = report([4, 3], 1)
            changed["communicators"][0]["ranks"][0][key] = value
            decode(json.dumps(changed).encode())


def in_pieces(connection: socket.socket, replies: Iterator[bytes]) -> None:
    class Pieces:
        def makefile(self, _mode: str) -> Any:
            return connection.makefile("rb")

        def sendall(self, data: bytes) -> None:
            for byte in data:
                connection.sendall(bytes([byte]))

    answer(Pieces(), replies)  # type: ignore[arg-type]


def close_at_once(connection: socket.socket, replies: Iterator[bytes]) -> None:
    connection.recv(1)


def test_a_reply_is_read_in_pieces_of_any_size() -> None:
    whole = reply([4, 3], 1)
    with ras_server([whole], in_pieces) as (address, _):
        assert fetch(address) == whole


def test_a_process_that_is_stopped_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_LIMIT_S", 0.01)
    whole = reply([4, 3], 1)
    with ras_server([whole], keep_silent, keep_silent) as (address, accepted):
        monkeypatch.setattr(nccl_ras, "CONNECTIONS_MAX", 1000)
        assert fetch(address, DEADLINE_S) == whole
        assert len(accepted) >= 3


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_LIMIT_S", 0.01)
    with (
        ras_server([], *[keep_silent] * 5) as (address, _),
        pytest.raises(NoReplyError, match="no process replied in time"),
    ):
        fetch(address)


def say(*lines: bytes) -> Any:
    def behave(connection: socket.socket, replies: Iterator[bytes]) -> None:
        for line, _ in zip(lines, connection.makefile("rb"), strict=False):
            connection.sendall(line)

    return behave


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (say(b"SSH-2.0-OpenSSH_9.2\r\n"), "another program listens"),
        (say(b"x" * 5000), "another program listens"),
        (say(b"SERVER PROTOCOL 2\n", b"OK\n", b"ERROR: Unknown command: SET\n"), "has no JSON"),
        (say(b"SERVER PROTOCOL 2\r\n", b"ERROR: no\r\n"), "has no JSON"),
        (say(b"SERVER PROTOCOL 2\n"), "was closed|no process listens"),
        (close_at_once, "was closed|no process listens"),
    ],
)
def test_other_servers(behaviour: Any, why: str) -> None:
    with ras_server([], behaviour) as (address, _), pytest.raises(NoReplyError, match=why):
        fetch(address)


def test_a_reply_without_an_end_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "REPLY_BYTES_MAX", 1000)
    with (
        ras_server([b"x" * 100000]) as (address, _),
        pytest.raises(NoReplyError, match="too long"),
    ):
        fetch(address)


def test_nothing_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(NoReplyError, match="no process listens"):
            fetch(bound.getsockname())


def test_the_witness_asks_twice_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "PAUSE_S", 0.0)
    monkeypatch.setattr(nccl_ras, "_installed_version", lambda: (2, 29, 7))
    texts: queue.Queue[str] = queue.Queue()
    with ras_server([reply([4, 3, 4], 1), reply([4, 3, 4], 6)]) as (address, _):
        witness = Witness.of({"NCCL_RAS_ADDR": f"127.0.0.1:{address[1]}"})
        assert witness is not None and not witness.variables
        witness.ask(3, texts.put)
        assert texts.get(timeout=DEADLINE_S) == "rank 1 launched 3 AllReduce, 2 ranks 4"


@pytest.mark.parametrize("version", [(2, 28, 9), None])
def test_versions_that_may_fail_while_they_answer_are_not_asked(
    version: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_ras, "_installed_version", lambda: version)
    with ras_server([]) as (address, accepted):
        assert Witness(address, {})._ask(3) == ""
        assert not accepted


def test_each_job_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "DEVICE", "/dev/null")
    one, other = Witness.of({}), Witness.of({})
    assert one is not None and other is not None
    assert one.address != other.address
    assert one.variables == {"NCCL_RAS_ADDR": f"127.0.0.1:{one.address[1]}"}
    # As NCCL's threads: several processes of the same user listen on the port that is reserved.
    listeners = []
    for _ in range(2):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(one.address)
        listener.listen()
        listeners.append(listener)
    socket.create_connection(one.address).close()
    for listener in listeners:
        listener.close()
    one.close()
    other.close()


def test_what_the_user_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "DEVICE", "/dev/null")
    for given, address in (("node:28028", ("node", 28028)), ("[::1]:7", ("::1", 7))):
        witness = Witness.of({"NCCL_RAS_ADDR": given})
        assert witness is not None and (witness.address, witness.variables) == (address, {})
    assert Witness.of({"NCCL_RAS_ADDR": "node"}) is None
    assert Witness.of({"NCCL_RAS_ENABLE": "0"}) is None
    monkeypatch.setattr(nccl_ras, "DEVICE", "/nowhere")
    assert Witness.of({}) is None
