"""What a training script may import: progress, sections, and the step at which to stop.

Imports neither torch nor the agent and starts no thread. In a process that elastic did not start,
and on a system for which elastic is not built, every call works and has no effect.
docs/worker.md has the contract.

    from elastic import worker

    for step in range(first, last):
        train(batch)
        if worker.should_stop(step + 1):
            save(step + 1)
            break
"""

from __future__ import annotations

from elastic.worker import _channel
from elastic.worker._channel import section

try:
    from elastic._worker import is_restart, progress, round, should_stop
except ImportError:
    from elastic.worker._absent import is_restart, progress, round, should_stop

__all__ = ["is_restart", "progress", "round", "section", "should_stop"]

_channel.open()
