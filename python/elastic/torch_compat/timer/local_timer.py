"""Timers of child processes, over a queue of ``multiprocessing``."""

from __future__ import annotations

import os
import signal
import time
from queue import Empty
from typing import Any

from elastic.torch_compat.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer


class LocalTimerClient(TimerClient):
    """The worker id is the process id."""

    def __init__(self, mp_queue: Any) -> None:
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    def __init__(self, mp_queue: Any) -> None:
        self._mp_queue = mp_queue

    def size(self) -> int:
        return int(self._mp_queue.qsize())

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        requests: list[TimerRequest] = []
        deadline = time.monotonic() + timeout
        while len(requests) < size:
            try:
                left = max(0.0, deadline - time.monotonic())
                requests.append(self._mp_queue.get(block=True, timeout=left))
            except Empty:
                break
        return requests


class LocalTimerServer(TimerServer):
    """Kills only the process of an expired timer."""

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[Any, str], TimerRequest] = {}

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        self._timers = {
            key: request for key, request in self._timers.items() if key[0] not in worker_ids
        }

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        expired: dict[Any, list[TimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_id, []).append(request)
        return expired

    def _reap_worker(self, worker_id: Any) -> bool:
        try:
            os.kill(worker_id, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return True
