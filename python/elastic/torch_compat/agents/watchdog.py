"""Optional checks of an agent's workers, which torch's variables or arguments turn on.

``TORCHELASTIC_ENABLE_FILE_TIMER=1``: timers that workers set (``elastic.timer``).
``TORCHELASTIC_HEALTH_CHECK_PORT``: an HTTP health check of the launcher.
``TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT``: the limit in seconds for a worker in an
uninterruptible wait (state D), which no signal ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic import _files
from elastic.constants import PORT_MAX
from elastic.constants import TORCHELASTIC_ENABLE_FILE_TIMER as FILE_TIMER
from elastic.constants import TORCHELASTIC_HEALTH_CHECK_PORT as HEALTH_CHECK_PORT
from elastic.constants import TORCHELASTIC_TIMER_FILE as TIMER_FILE
from elastic.constants import TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT as STATE_TIMEOUT
from elastic.errors import ConfigError
from elastic.text import is_number, seconds
from elastic.torch_compat.utils.process_state import is_uninterruptible_state, read_proc_state

logger = logging.getLogger(__name__)

HEALTH_CHECK_TIMEOUT_S = 60
FILE_TIMEOUT_S = 60.0
CHECKS_PER_LIMIT = 5  # of the states of workers


class Watchdog:
    """The checks that the environment asks for. ``variables`` are for the workers."""

    def __init__(
        self, environment: Mapping[str, str], run_id: str, state_timeout: float | None = None
    ) -> None:
        """An invalid variable turns its check off. ``state_timeout`` replaces the variable."""
        self.variables: dict[str, str] = {}
        self._run_id = run_id
        self._timers: Any = None
        if environment.get(FILE_TIMER) == "1":
            self._timer_file = environment.get(TIMER_FILE) or self._nameless_pipe()
            self.variables[TIMER_FILE] = self._timer_file
        self._port = _port(environment.get(HEALTH_CHECK_PORT, ""))
        self._state_timeout = state_timeout
        if state_timeout is None and (text := environment.get(STATE_TIMEOUT)):
            try:
                self._state_timeout = seconds(text, STATE_TIMEOUT)
            except ConfigError as error:  # torch's agent also continues without the check
                logger.warning("%s; the check is off", error)
        self._health_check: Any = None
        self._stopped = threading.Event()
        self._monitor: threading.Thread | None = None

    def _nameless_pipe(self) -> str:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb", 0)  # an object closes it if stop is not called
        return f"/proc/{os.readlink('/proc/self')}/fd/{reading}"

    def start(
        self,
        pids: Callable[[], Mapping[int, int]],
        stop: Callable[[], None],
        log_event: Callable[[str, Any], None] | None = None,
    ) -> None:
        """``pids``: the running workers by rank. ``stop`` ends the job on this node.

        ``log_event`` receives the events of the timers, also on their thread.
        """
        if self.variables:
            from elastic.torch_compat.timer import FileTimerServer

            try:
                self._timers = _files.within(
                    FILE_TIMEOUT_S,
                    lambda: FileTimerServer(self._timer_file, self._run_id, log_event=log_event),
                )
            except OSError as error:
                raise ConfigError(
                    f"{TIMER_FILE} is {self._timer_file}: {error.strerror or error}"
                ) from error
            self._timers.start()
        if self._port is not None:
            from elastic.torch_compat.agents.health_check_server import create_healthcheck_server

            self._health_check = create_healthcheck_server(
                self._alive, self._port, HEALTH_CHECK_TIMEOUT_S
            )
            self._health_check.start()
        if self._state_timeout:
            self._monitor = threading.Thread(
                target=self._watch_states, args=(self._state_timeout, pids, stop), daemon=True
            )
            self._monitor.start()

    def stop(self) -> None:
        self._stopped.set()
        for check in (self._timers, self._health_check):
            if check is not None:
                check.stop()
        if self._monitor is not None:
            self._monitor.join()

    def expired(self) -> Mapping[int, str]:
        """The workers that an expired timer has killed, by process id, and the timer's scopes."""
        return self._timers.expired if self._timers is not None else {}

    def _alive(self) -> int:
        return int(self._timers.get_last_progress_time() if self._timers else time.time())

    def _watch_states(
        self,
        limit: float,
        pids: Callable[[], Mapping[int, int]],
        stop: Callable[[], None],
    ) -> None:
        since: dict[int, float] = {}  # by process id
        while not self._stopped.wait(min(limit / CHECKS_PER_LIMIT, 1.0)):
            now = time.monotonic()
            running = pids()
            since = {pid: begun for pid, begun in since.items() if pid in running.values()}
            for rank, pid in running.items():
                if not is_uninterruptible_state(read_proc_state(pid)):
                    since.pop(pid, None)
                    continue
                begun = since.setdefault(pid, now)
                if now - begun < limit:
                    continue
                logger.error(
                    "rank %d (process %d) has been in an uninterruptible wait%s for %.3g s, and "
                    "no signal can end it; this node leaves the job",
                    rank, pid, _where(pid), now - begun,
                )  # fmt: skip
                stop()
                return


def _port(text: str) -> int | None:
    if not text:
        return None
    if not is_number(text) or int(text) > PORT_MAX:
        logger.warning("%s is %r: expected a port; the check is off", HEALTH_CHECK_PORT, text)
        return None
    return int(text)


def _where(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/wchan") as wchan:
            name = wchan.read().strip()
    except OSError:
        return ""
    return f" in {name}" if name and name != "0" else ""
