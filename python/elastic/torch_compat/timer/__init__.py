"""Limits for parts of a program, with torch's names: a worker that exceeds one is killed.

::

    server = LocalTimerServer(queue, max_interval=0.5)  # in the parent
    server.start()

    timer.configure(LocalTimerClient(queue))  # in the worker
    with timer.expires(after=60):
        step()

``FileTimerServer`` and ``FileTimerClient`` use a named pipe instead of a queue.
"""

from elastic.torch_compat.timer.api import (
    RequestQueue,
    TimerClient,
    TimerRequest,
    TimerServer,
    configure,
    expires,
)
from elastic.torch_compat.timer.file_based_local_timer import (
    FileTimerClient,
    FileTimerRequest,
    FileTimerServer,
)
from elastic.torch_compat.timer.local_timer import LocalTimerClient, LocalTimerServer

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]
