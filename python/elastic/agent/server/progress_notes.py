"""What an agent waits for, as lines of its log: no short wait, and no line twice."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elastic import _C
from elastic.agent.server.api import WorkerState
from elastic.constants import NOTICE
from elastic.text import duration

# Deadlines that differ by less, because of the network's delay, are considered equal.
DEADLINE_TOLERANCE_S = 2.0
WARNING = "warning: "  # how such a message of the rendezvous begins
DELAY_S = 0.5  # a wait that ends earlier is not logged
# In messages about a restart: after its reason, and before the reason in what the node waits for.
RESTARTING, CONTINUING, ROUND_ENDED = "; restarting", "; continuing", " has ended ("


class ProgressNotes:
    """``log`` receives a level and a sentence; ``endpoint`` is where the node waits."""

    def __init__(self, log: Callable[[int, str], None], endpoint: str) -> None:
        self._log = log
        self._endpoint = endpoint
        self._awaited: tuple[str, float | None] = ("", None)  # the last message and its deadline
        self._message = ""  # to be logged
        self._logged = ""  # in the current wait
        self._due = 0.0

    def note(self, event: _C.AgentEvent, state: WorkerState) -> None:
        """Logs a message soon if it or its deadline has changed."""
        message, deadline = event.message, event.deadline
        if message.startswith(WARNING):  # not what the node waits for
            self._log(logging.WARNING, message)
            return
        if deadline is not None:
            message += f" at {_clock_time(deadline)}"
        if WorkerState.is_running(state):
            self._log(logging.WARNING, message)
            return
        last_message, last_deadline = self._awaited
        is_news = event.message != last_message or (
            abs((deadline or 0) - (last_deadline or 0)) > DEADLINE_TOLERANCE_S
        )
        has_ended = state in (WorkerState.SUCCEEDED, WorkerState.FAILED)
        if self._endpoint and self._endpoint not in message and not has_ended:
            host = " as host" if event.hosts_coordinator else ""
            message = f"waiting at {self._endpoint}{host}: {message}"
        if not is_news:
            self._log(logging.DEBUG, message)
            return
        # A message with a limit does not replace the one that says what the node waits for.
        if self._message and last_deadline is None and deadline is not None:
            self._log(NOTICE, self._message)
            self._message = ""
        if not self._message:
            self._due = time.monotonic() + DELAY_S
        self._awaited = event.message, deadline
        self._message = message

    def delay(self) -> float | None:
        """How long until a message is logged; None: there is none."""
        return max(0.0, self._due - time.monotonic()) if self._message else None

    def flush(self) -> None:
        """Logs the message if it is due."""
        if self.delay() == 0:
            message, self._message = self._message, ""
            self._logged = message
            self._log(NOTICE, message)

    def drop(self) -> str:
        """The wait is over. Returns the last line that was logged about it; "": none was."""
        if self._message:
            self._log(logging.DEBUG, self._message)
        logged, self._logged, self._message = self._logged, "", ""
        self._awaited = ("", None)
        return logged


# Imports and the first batch may take so long: a rank without a step is nothing to note before.
FIRST_STEP_S = 60.0


class StepWatch:
    """Notes once that ``--hang-timeout`` has nothing to measure: no rank has reported a step.

    ``limit``: the option's value; 0: it was not given.
    """

    def __init__(self, limit: float) -> None:
        self._limit = max(limit, FIRST_STEP_S) if limit > 0 else 0
        self._due: float | None = None

    def observe(self, kind: _C.AgentEvent.Kind) -> None:
        kinds = _C.AgentEvent.Kind
        if kind == kinds.WORKERS_RUNNING and self._limit > 0:
            self._due = time.monotonic() + self._limit
        elif kind == kinds.FIRST_STEP:
            self._limit, self._due = 0, None
        elif kind in (kinds.STOPPING, kinds.RESTARTING, kinds.FINISHED):
            self._due = None

    def delay(self, other: float | None) -> float | None:
        """How long to wait for an event; None: no limit. ``other``: for another reason."""
        if self._due is None:
            return other
        left = max(0.0, self._due - time.monotonic())
        return left if other is None else min(other, left)

    def sentence(self) -> str:
        """The line to log now; "": none."""
        if self._due is None or time.monotonic() < self._due:
            return ""
        limit, self._limit, self._due = self._limit, 0, None
        return (
            f"no rank of this node has reported a step in {duration(limit)}: --hang-timeout limits "
            "waits in collective operations until one does (by a torch optimizer, or should_stop())"
        )


def _clock_time(deadline: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() + deadline - time.monotonic()))


def restart_line(message: str, waited: str, stopped: str = "") -> str:
    """The message without its reason, if an earlier line has named it.

    ``waited``: the last line about the wait for the round. ``stopped``: the line about the end of
    the last round.
    """
    mark = CONTINUING if CONTINUING in message else RESTARTING
    reason, found, budget = message.rpartition(mark)
    was_named = found and (ROUND_ENDED in waited or stopped.startswith(f"{reason};"))
    return f"{mark.lstrip('; ')}{budget}" if was_named else message


def place_in(info: _C.RoundInfo) -> str:
    if info.group_world_size == 1:
        return ""
    return f" as node {info.group_rank} of {info.group_world_size}"


def logs_in(event: _C.AgentEvent, keeps_logs: bool) -> str:
    return f", logs in {event.log_dir}" if keeps_logs and event.log_dir else ""
