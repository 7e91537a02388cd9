"""The signals of a process that has started others without an agent."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from types import FrameType
from typing import NoReturn

from elastic import _environment
from elastic.constants import DEFAULT_SIGNALS
from elastic.multiprocessing.errors.signal_exception import SignalException

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def _terminate_process_handler(signum: int, frame: FrameType | None) -> NoReturn:
    """The handler of the process that has started others: an exception where it waits for them."""
    received = signal.Signals(signum)
    raise SignalException(f"Process {os.getpid()} got signal: {received}", received)


def handle() -> None:
    """Installs that handler, as torch does whenever processes are started."""
    if threading.current_thread() is not threading.main_thread():
        logger.warning(
            "processes are started outside the main thread, where no signal can be handled: stop "
            "them yourself when this process is asked to end"
        )
        return
    chosen = _environment.get("TORCHELASTIC_SIGNALS_TO_HANDLE", DEFAULT_SIGNALS)
    for name in chosen.split(","):
        try:
            signal.signal(getattr(signal, name.strip()), _terminate_process_handler)
        except (AttributeError, ValueError, OSError):
            logger.warning("TORCHELASTIC_SIGNALS_TO_HANDLE: cannot handle %s", name.strip())
        else:
            logger.info("Registered signal handler for %s", name)


def forget() -> None:
    """In a forked child: the handlers are not for this copy of the process."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is _terminate_process_handler:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when the thread of ``parent`` that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before that call
        os._exit(1)
