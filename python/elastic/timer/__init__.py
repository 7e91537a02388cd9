"""Limits for parts of a program, with torch's names: a worker that exceeds one is killed.

::

    server = LocalTimerServer(queue, max_interval=0.5)  # in the parent
    server.start()

    timer.configure(LocalTimerClient(queue))  # in the worker
    with timer.expires(after=60):
        step()
"""

from elastic.timer.api import (
    RequestQueue,
    TimerClient,
    TimerRequest,
    TimerServer,
    configure,
    expires,
)
from elastic.timer.local_timer import LocalTimerClient, LocalTimerServer

__all__ = [
    "LocalTimerClient",
    "LocalTimerServer",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]
