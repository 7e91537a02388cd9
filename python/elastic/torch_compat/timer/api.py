"""Timers: a client acquires and releases them, a server kills the workers of expired ones."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from elastic._plug_in import plug_in

logger = logging.getLogger(__name__)

RETRY_S = 1.0  # at least this long after an error, or max_interval if that is shorter


class TimerRequest(NamedTuple):
    """A negative ``expiration_time`` releases the timer of the scope."""

    worker_id: Any
    scope_id: str
    expiration_time: float


class TimerClient(ABC):
    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Requests that the worker is killed at ``expiration_time`` (Unix seconds)."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Withdraws that request."""


class RequestQueue(ABC):
    @abstractmethod
    def size(self) -> int:
        """The number of pending requests."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Up to ``size`` requests; returns earlier after ``timeout`` seconds."""


class TimerServer(ABC):
    """Reads requests and checks for expired timers at least every ``max_interval`` seconds."""

    def __init__(
        self, request_queue: RequestQueue, max_interval: float, daemon: bool = True
    ) -> None:
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None
        self._stop_signaled = threading.Event()

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Adds and releases timers."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Removes all timers of workers that were killed."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """The timers that expire before ``deadline``, by worker."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """Kills a worker; returns True if it has ended."""

    def _run_watchdog(self) -> None:
        size = max(1, self._request_queue.size())
        self.register_timers(self._request_queue.get(size, self._max_interval))
        killed = set()
        for worker_id, timers in self.get_expired_timers(time.time()).items():
            scopes = ", ".join(timer.scope_id for timer in timers)
            logger.warning("killing worker %s: the timer of %s expired", worker_id, scopes)
            if self._try_to_reap(worker_id):
                killed.add(worker_id)
        self.clear_timers(killed)

    def _try_to_reap(self, worker_id: Any) -> bool:
        with plug_in(f"kill of worker {worker_id}, whose timers are dropped,"):
            return self._reap_worker(worker_id)
        return True

    def _watchdog_loop(self) -> None:
        while not self._stop_signaled.is_set():
            with plug_in("pass of the timer server"):
                try:
                    self._run_watchdog()
                except EOFError:  # the queue was closed: no request can follow
                    return
                continue
            # An error that returns at once must not take a whole CPU.
            self._stop_signaled.wait(min(self._max_interval, RETRY_S))

    def start(self) -> None:
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, name="elastic-timers", daemon=self._daemon
        )
        self._watchdog_thread.start()

    def stop(self) -> None:
        self._stop_signaled.set()
        if self._watchdog_thread is not None:
            self._watchdog_thread.join(self._max_interval)
            self._watchdog_thread = None


_clients: list[TimerClient] = []


def configure(timer_client: TimerClient | None) -> None:
    """Sets the client that ``expires`` uses in this process; None: no client."""
    _clients[:] = [] if timer_client is None else [timer_client]


@contextmanager
def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> Iterator[None]:
    """Kills this process if the block takes longer than ``after`` seconds.

    ``scope`` names the block in messages; its default is the file and line of the block.
    """
    if client is None:
        if not _clients:
            raise RuntimeError("no timer client: call elastic.timer.configure() first")
        client = _clients[0]
    if scope is None:
        caller = sys._getframe(2)
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    client.acquire(scope, time.time() + after)
    try:
        yield
    finally:
        client.release(scope)
