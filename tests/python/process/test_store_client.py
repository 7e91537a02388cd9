"""StoreClient from Python, with elastic's server and with both of PyTorch's servers."""

from __future__ import annotations

import datetime
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import elastic
import pytest
from elastic import StoreClient, StoreServer

from support.launching import free_port
from support.waiting import eventually

TIMEOUT_S = 60.0  # for events that happen at once unless the machine is busy


def torch_server(use_libuv: bool) -> tuple[object, int]:
    dist = pytest.importorskip("torch.distributed", reason="needs torch for its store server")
    server = dist.TCPStore("127.0.0.1", 0, None, True, use_libuv=use_libuv)
    return server, server.port


@pytest.fixture(params=["elastic", "torch-libuv", "torch-classic"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def port(backend: str) -> Iterator[int]:
    if backend == "elastic":
        with StoreServer() as server:
            yield server.port
    else:
        owner, number = torch_server(use_libuv=backend == "torch-libuv")
        yield number
        del owner


@pytest.fixture
def client(port: int) -> Iterator[StoreClient]:
    with StoreClient("127.0.0.1", port, timeout=TIMEOUT_S) as client:
        yield client


def test_keys_and_values_are_str_or_bytes_and_results_are_bytes(client: StoreClient) -> None:
    client.set("key", "päivää")
    assert client.get(b"key") == "päivää".encode()
    client.set(b"\xff\x00", b"\x00\xfe")
    assert client.get(b"\xff\x00") == b"\x00\xfe"
    client.set("empty", b"")
    assert client.get("empty") == b""


@pytest.mark.smoke
def test_counters_and_compare_set(client: StoreClient) -> None:
    assert client.add("n", 5) == 5
    assert client.add("n", -7) == -2
    assert client.get("n") == b"-2"
    assert client.compare_set("c", "", "first") == b"first"
    assert client.compare_set("c", b"other", "second") == b"first"
    assert client.compare_set("c", "first", "second") == b"second"
    client.append("c", "!")
    assert client.get("c") == b"second!"
    assert client.delete_key("c") is True
    assert client.delete_key("c") is False


def test_lists_of_keys(client: StoreClient) -> None:
    client.multi_set(["a", b"b"], [b"1", "22"])
    assert client.multi_get(["b", "a"]) == [b"22", b"1"]
    assert client.multi_get(()) == []
    assert client.check(["a", "b"]) is True
    assert client.check(["a", "missing"]) is False
    client.wait(("a", "b"))
    assert client.num_keys() == 2
    assert sorted(client.list_keys()) == ["a", "b"]


def test_get_waits_until_another_client_sets_the_key(client: StoreClient, port: int) -> None:
    with ThreadPoolExecutor() as pool:
        one = pool.submit(client.get, "late")
        many = pool.submit(client.multi_get, ["late", "later"])
        other = StoreClient("127.0.0.1", port, timeout=TIMEOUT_S)
        other.set("late", "v")
        assert one.result(TIMEOUT_S) == b"v"
        other.set("later", "w")
        assert many.result(TIMEOUT_S) == [b"v", b"w"]


def test_barrier_releases_all(client: StoreClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        for caller in [pool.submit(client.barrier, "b", 4) for _ in range(4)]:
            assert caller.result(TIMEOUT_S) is None


@pytest.mark.parametrize("timeout", [0.05, datetime.timedelta(milliseconds=50)])
def test_client_stays_usable_after_a_timeout(
    client: StoreClient, timeout: float | datetime.timedelta
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.get("missing", timeout=timeout),
        lambda: client.wait(["missing"], timeout),
        lambda: client.multi_get(["missing"], timeout=timeout),
        lambda: client.barrier("b", 2, timeout=timeout),
    ]
    for call in calls:
        begin = time.monotonic()
        with pytest.raises(elastic.StoreTimeout, match=r"timeout after 50 ms"):
            call()
        assert time.monotonic() - begin >= 0.05
    client.set("missing", "now")
    assert client.get("missing") == b"now"


def test_default_timeout_can_be_set_and_read(client: StoreClient) -> None:
    client.timeout = datetime.timedelta(seconds=0.05)
    assert client.timeout == pytest.approx(0.05)
    with pytest.raises(TimeoutError):
        client.get("missing")
    client.timeout = 7
    assert client.timeout == 7.0
    clone = client.clone()
    assert (clone.host, clone.port, clone.timeout) == (client.host, client.port, 7.0)


@pytest.mark.parametrize("timeout", [-1, -0.1, float("nan"), datetime.timedelta(seconds=-1)])
def test_negative_timeout_is_rejected(
    client: StoreClient, timeout: float | datetime.timedelta
) -> None:
    with pytest.raises(elastic.ConfigError):
        client.get("k", timeout=timeout)


def test_arguments_over_a_limit_or_of_another_type_are_rejected(client: StoreClient) -> None:
    with pytest.raises(ValueError, match="8192 bytes: at most 8191"):
        client.set("k" * 8192, "v")
    with pytest.raises(elastic.ConfigError, match="the number of keys is 2, that of values 1"):
        client.multi_set(["a", "b"], ["1"])
    with pytest.raises(TypeError):
        client.wait("abc")  # type: ignore[arg-type]  # a str is not a list of keys
    with pytest.raises(TypeError):
        client.set("k", 1)  # type: ignore[arg-type]
    client.ping()


def test_connect_fails_at_its_timeout() -> None:
    port = free_port()
    begin = time.monotonic()
    error = rf"cannot connect to a store server at 127.0.0.1:{port} \(\d+ attempts in 1 s\)"
    with pytest.raises(ConnectionError, match=error):
        StoreClient("127.0.0.1", port, timeout=1)
    assert time.monotonic() - begin >= 1


def test_queues(backend: str, client: StoreClient) -> None:
    if backend == "torch-classic":
        pytest.skip("torch's classic server has no queues")
    client.queue_push("q", "1")
    client.queue_push("q", b"2")
    assert client.queue_len("q") == 2
    assert client.queue_pop("q") == b"1"
    assert client.queue_pop("q", block=False) == b"2"
    with pytest.raises(elastic.QueueEmpty):
        client.queue_pop("q", block=False)
    with pytest.raises(elastic.StoreTimeout):
        client.queue_pop("q", timeout=0.05)
    with ThreadPoolExecutor() as pool:
        popped = pool.submit(client.queue_pop, "q")
        client.queue_push("q", "3")
        assert popped.result(TIMEOUT_S) == b"3"


def test_exceptions_have_a_message_and_can_be_pickled(client: StoreClient) -> None:
    with pytest.raises(elastic.StoreTimeout) as caught:
        client.get(b"\xff", timeout=0.01)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, elastic.ElasticError)
    assert "\\xff" in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is elastic.StoreTimeout
    assert str(copy) == str(caught.value)


def test_the_exception_of_a_signal_handler_is_not_lost_after_the_deadline() -> None:
    class Interrupted(Exception):
        pass

    def handle(_: int, __: object) -> None:
        raise Interrupted

    def serve(listener: socket.socket, main: int) -> None:
        """Answers the handshake and no request; the signal follows the cancellation."""
        connection, _ = listener.accept()
        with connection:
            got = b""
            while len(got) < 10:  # VALIDATE and PING
                got += connection.recv(4096)
            connection.sendall(got[6:10])
            got = got[10:]
            while got.count(CANCEL_WAIT) == 0:
                got += connection.recv(4096)
            signal.pthread_kill(main, signal.SIGUSR1)

    CANCEL_WAIT = b"\x0c"
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            main = threading.get_ident()
            thread = threading.Thread(target=serve, args=(listener, main), daemon=True)
            thread.start()
            port = listener.getsockname()[1]
            with (
                StoreClient("127.0.0.1", port, timeout=TIMEOUT_S) as client,
                pytest.raises(Interrupted),
            ):
                try:
                    client.wait(["never"], 0.2)
                except elastic.StoreTimeout:  # the handler of a late signal runs here
                    eventually(lambda: not thread.is_alive())
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("call", ["client.add('n', 1)", "client.wait(['n'], 1e-4)"])
def test_a_process_may_end_while_a_daemon_thread_is_in_a_call(call: str) -> None:
    program = f"""
import elastic, threading
server = elastic.StoreServer()
client = elastic.StoreClient("127.0.0.1", server.port)
begun = threading.Event()
def work():
    while True:
        try:
            {call}
        except elastic.StoreTimeout:
            pass
        begun.set()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_signal_handlers_run_in_a_blocked_call_and_may_end_it() -> None:
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)
        if len(handled) == 2:
            raise KeyboardInterrupt

    def interrupt(server: StoreServer, main: int) -> None:
        eventually(lambda: server.stats().requests >= 5)  # the fifth is WAIT
        signal.pthread_kill(main, signal.SIGUSR1)
        eventually(lambda: bool(handled))
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with StoreServer() as server, StoreClient("127.0.0.1", server.port) as client:
            thread = threading.Thread(target=interrupt, args=(server, threading.get_ident()))
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                client.get("never")
            assert client.add("n", 1) == 1
            thread.join(TIMEOUT_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_server_stats_count_keys_and_bytes() -> None:
    with StoreServer(value_bytes_max=10) as server:
        client = StoreClient(server.host, server.port, timeout=TIMEOUT_S)
        client.set("k", "v")
        client.ping()
        eventually(lambda: server.stats().keys == 1)
        stats = server.stats()
        assert (stats.connections, stats.connections_total, stats.requests) == (1, 1, 4)
        client.set("k", "longer than that")
        with pytest.raises(elastic.StoreUnavailable):
            client.ping()
        eventually(lambda: server.stats().connections_rejected == 1)
        server.close(drain=0.1)
        server.close()


def test_server_rejects_an_address_that_it_cannot_bind() -> None:
    with StoreServer() as server, pytest.raises(elastic.StoreUnavailable):
        StoreServer(port=server.port)
    with pytest.raises(elastic.ConfigError):
        StoreServer("192.0.2.1")
