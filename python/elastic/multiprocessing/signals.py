"""The signals of a process that has started others without an agent."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from elastic import _environment, _torch_bases
from elastic.constants import DEFAULT_SIGNALS, ECHO_S, SIGNALS_VARIABLE
from elastic.errors import ConfigError
from elastic.text import signal_numbers

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1

_is_in_block = False  # of ``stopping``, in the main thread
_deferred: list[int] | None = None  # the signals received in the block of ``deferred``
_owner = 0  # the process whose handlers these are; a forked child has a copy of them


class SignalException(_torch_bases.Error):
    """The launching process received ``sigval`` and stopped its workers."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)  # not torch's, which has more arguments
        self.sigval = sigval

    def __reduce__(self) -> tuple[type[SignalException], tuple[str, signal.Signals]]:
        return type(self), (str(self), self.sigval)


_torch_bases.derive(SignalException, "multiprocessing.api", "SignalException")


def _terminate_process_handler(signum: int, frame: FrameType | None) -> None:
    """The handler of the process that has started others: an exception where it waits for them."""
    if _deferred is None:
        _raise(signum)
    elif not _ends_fork(signum):
        _deferred.append(signum)


def _raise(signum: int) -> NoReturn:
    received = signal.Signals(signum)
    raise SignalException(f"Process {os.getpid()} got signal: {received}", received)


def _ends_fork(signum: int) -> bool:
    """Gives a signal its default action in a forked child that has not reset its handlers yet."""
    if os.getpid() == _owner:
        return False
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)
    return True


@contextmanager
def deferred() -> Iterator[None]:
    """Raises the exception of that handler after the block, in which processes are started.

    A process whose start is interrupted could not be stopped: its id would not be known.
    """
    global _deferred, _owner
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = _deferred = []
    _owner = os.getpid()
    try:
        yield
    finally:
        _deferred = None
    if received:
        _raise(received[0])


def handle() -> None:
    """Installs that handler, as torch does whenever processes are started."""
    if threading.current_thread() is not threading.main_thread():
        logger.warning(
            "processes are started outside the main thread, where no signal can be handled: stop "
            "them yourself when this process is asked to end"
        )
        return
    chosen = _environment.get(SIGNALS_VARIABLE, DEFAULT_SIGNALS)
    for name in chosen.split(","):
        try:
            (number,) = signal_numbers(name, SIGNALS_VARIABLE)
            signal.signal(number, _terminate_process_handler)
        except (ConfigError, ValueError, OSError):
            logger.warning("TORCHELASTIC_SIGNALS_TO_HANDLE: cannot handle %s", name.strip())
        else:
            logger.info("Registered signal handler for %s", name)


@contextmanager
def stopping(
    names: str, origin: str, stop: Callable[[int], None], *, keeps_own: bool = False
) -> Iterator[Sequence[int]]:
    """Calls ``stop`` for these signals during the block, in the main thread; yields the received.

    A signal within a second of the first one is ignored. A signal that the process ignores stays
    ignored; with ``keeps_own`` a handler of the program stays, too. Nested blocks have no effect.
    """
    global _is_in_block, _owner
    received: list[int] = []
    first_at = 0.0
    if threading.current_thread() is not threading.main_thread() or _is_in_block:
        yield received
        return

    def handler(number: int, _: FrameType | None) -> None:
        nonlocal first_at
        if _ends_fork(number) or (received and time.monotonic() - first_at < ECHO_S):
            return
        first_at = first_at or time.monotonic()
        received.append(number)
        stop(number)

    saved = {}
    _owner = os.getpid()
    for number in signal_numbers(names, origin):
        before = signal.getsignal(number)
        is_own = before not in (signal.SIG_DFL, signal.default_int_handler)
        if before is not signal.SIG_IGN and not (keeps_own and is_own):
            saved[number] = signal.signal(number, handler)
    _is_in_block = True
    try:
        yield received
    finally:
        _is_in_block = False
        for number, before in saved.items():
            # None: the handler is not Python's, and only its library can install it again.
            signal.signal(number, signal.SIG_DFL if before is None else before)


def forget(*, every: bool = False) -> None:
    """In a forked child: resets the handlers, which are not for this copy of the process.

    ``every``: also handlers of the program.
    """
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler is _terminate_process_handler or (every and callable(handler)):
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when the thread of ``parent`` that started it ends."""
    import ctypes  # needed in such a child only

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before that call
        os._exit(1)


def end_with_writer(pipe: Connection) -> None:
    """Makes the kernel kill this process when the last process that can write to the pipe ends."""
    descriptor = pipe.fileno()
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)  # in place of SIGIO
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    if pipe.poll():  # the writer ended before that call
        os._exit(1)
