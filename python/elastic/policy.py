"""What the function of a failure policy receives, and what it may return.

::

    def decide(failure: policy.Failure) -> str | policy.Decision | None:
        if "license" in failure.error:
            return policy.Decision("restart", count=False, reason="the license server is slow")
        return None

``docs/policy.md`` has when it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Action: TypeAlias = Literal["stop", "restart", "exclude"]


class Failure(NamedTuple):
    """A worker that has failed, as its node knows it."""

    run_id: str
    round: int  # as ELASTIC_ROUND
    rank: int
    local_rank: int
    host: str
    exit_code: int  # as in a shell: 128+N after signal N
    message: str  # how it ended, and whether that repeats earlier rounds
    error: str  # the exception with its message, in one line; "": none is known
    output: str  # the last lines of its stderr
    failure_class: str  # "user-worker", "user-input", "platform" or "infrastructure"
    cause: str  # "exception", "exit code", "signal", "out of memory", "GPU", "hang", …
    restart_count: int  # charged restarts of the job so far
    max_restarts: int


@dataclass(frozen=True)
class Decision:
    """What follows the failure.

    ``do``: end the job, restart it, or restart it without the host. ``count``: whether the restart
    is charged to ``--max-restarts``; None: as without a function. ``reason``: a sentence for the
    log and the result.
    """

    do: Action
    count: bool | None = None
    reason: str = ""
