"""The HTTP servers of an agent without a free descriptor: they try again after a pause."""

from __future__ import annotations

import errno
import os
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from elastic import WorkerSpec
from elastic.agent.server import create_healthcheck_server
from elastic.torch_compat.agents.health_check_server import PAUSE_S

from support.launching import free_port
from support.waiting import DEADLINE_S

ATTEMPTS = 3


@contextmanager
def health_check(port: int) -> Iterator[None]:
    server = create_healthcheck_server(lambda: int(time.time()), port, timeout=60)
    server.start()
    yield
    server.stop()


@contextmanager
def metrics(port: int) -> Iterator[None]:
    pytest.importorskip("prometheus_client")
    from elastic.agent.server.prometheus import PrometheusSink

    sink = PrometheusSink(WorkerSpec("role", 1, entrypoint="/bin/true"), port)
    yield
    sink.close()


@pytest.mark.parametrize("serving", [health_check, metrics])
def test_a_server_without_a_descriptor_pauses_and_answers_later(
    serving: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, accept = free_port(), socket.socket.accept
    failed: list[float] = []

    def limited(self: socket.socket) -> Any:
        if self.getsockname()[1] == port and len(failed) < ATTEMPTS:
            failed.append(time.monotonic())
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(self)

    with serving(port):
        monkeypatch.setattr(socket.socket, "accept", limited)
        url = f"http://127.0.0.1:{port}/"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
            assert response.status == 200
    assert len(failed) == ATTEMPTS
    assert failed[-1] - failed[0] >= PAUSE_S * (ATTEMPTS - 1)
