"""The exception of a launch that a signal ended."""

from __future__ import annotations

import signal

from elastic import _torch_bases


class _Base(Exception):
    """A base to which torch's can be added."""


class SignalException(_Base):
    """The launching process received ``sigval`` and stopped its workers."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)  # not torch's, which has more arguments
        self.sigval = sigval

    def __reduce__(self) -> tuple[type[SignalException], tuple[str, signal.Signals]]:
        return type(self), (str(self), self.sigval)


_torch_bases.derive(SignalException, "multiprocessing.api", "SignalException")
