"""What a training script may import: progress, sections, and the step at which to stop.

Imports neither torch nor the agent, and starts no thread before ``membership()``. In a process that
elastic did not start, and on a system for which elastic is not built, every call works and has no
effect. docs/scripts.md has the contract.

    from elastic import worker

    for step in range(first, last):
        train(batch)
        if worker.should_stop(step + 1):
            save(step + 1)
            break
"""

from __future__ import annotations

from elastic import _lazy
from elastic.worker import _channel

# Not on first use: a handler of a signal, which calls it, may interrupt the import that this is.
from elastic.worker._cause import Cause, Restart, restart, stop_reason
from elastic.worker._channel import section

try:
    from elastic._worker import has_stopped, is_restart, progress, round, should_stop
except ImportError:
    from elastic.worker._absent import has_stopped, is_restart, progress, round, should_stop

TYPE_CHECKING = False  # type checkers know the name
if TYPE_CHECKING:
    from elastic.worker._membership import Membership, Round, membership

_HOMES = {"elastic.worker._membership": "Membership Round membership"}

__all__ = [
    "Cause",
    "Membership",
    "Restart",
    "Round",
    "has_stopped",
    "is_restart",
    "membership",
    "progress",
    "restart",
    "round",
    "section",
    "should_stop",
    "stop_reason",
]

__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)

_channel.open()
