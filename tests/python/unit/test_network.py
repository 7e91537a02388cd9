"""Which interface the workers get for a host whose name other nodes cannot use."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from elastic import _C
from elastic._host import network

KNOWN = [("lo", "127.0.0.1"), ("eth0", "10.0.0.5"), ("eth1", "10.1.0.5"), ("eth2", "fd00::5")]
ETH0 = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
ETH1 = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
# The name, the source of packets to it, and its address.
ROUTES = {"node0": "10.1.0.5", "debian": "127.0.0.1", "192.0.2.1": "10.0.0.5"}
NAMES = {"debian": "127.0.1.1", "good": "10.0.0.5", "own1": "10.1.0.5"}


class Probe:
    def __init__(self, *_: object) -> None:
        self._source = ""

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, target: tuple[str, int]) -> None:
        self._source = ROUTES[target[0]]

    def getsockname(self) -> tuple[str, int]:
        return self._source, 1


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    def name(own: str) -> None:
        def look_up(host: str, port: int | None, **kind: Any) -> list[Any]:
            is_target = kind["type"] == socket.SOCK_DGRAM
            address = host if is_target and host in ROUTES else NAMES.get(host)
            if address is None:
                raise socket.gaierror("unknown")
            return [(socket.AF_INET, 0, 0, "", (address, port))]

        monkeypatch.setattr(socket, "gethostname", lambda: own)
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        monkeypatch.setattr(socket, "socket", Probe)
        monkeypatch.setattr(_C, "host_addresses", lambda: KNOWN)

    return name


@pytest.mark.parametrize(
    ("own", "endpoint", "local_addr", "expected"),
    [
        ("good", "node0", "", {}),
        ("debian", "node0", "", ETH1),  # the address towards the endpoint
        ("unknown", "node0", "", ETH1),
        ("debian", "debian", "", ETH0),  # it hosts the endpoint: its primary address
        ("debian", "", "", ETH0),  # the record is in a store
        ("debian", "node0", "own1", ETH1),
        ("debian", "localhost", "", {}),  # all nodes are on this host
        ("debian", "node0", "127.0.0.1", {}),
        ("debian", "node0", "nowhere", {}),
    ],
)
def test_the_interface_is_that_of_the_published_address(
    host: Any, own: str, endpoint: str, local_addr: str, expected: dict[str, str]
) -> None:
    host(own)
    assert network.worker_variables({}, endpoint, local_addr) == expected


def test_what_the_user_set_stays_and_one_line_names_the_reason(
    host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host("debian")
    for name in network.VARIABLES:
        assert network.worker_variables({name: "x"}, "node0", "") == {}
    assert caplog.messages == []
    network.worker_variables({}, "node0", "")
    assert caplog.messages == [
        "the host name debian is 127.0.1.1 here, so workers have "
        "GLOO_SOCKET_IFNAME=eth1 and NCCL_SOCKET_IFNAME==eth1 for the other nodes"
    ]
