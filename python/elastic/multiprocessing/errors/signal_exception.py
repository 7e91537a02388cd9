"""The exception of a launch that a signal ended."""

from __future__ import annotations

import signal


class SignalException(Exception):
    """The launching process received ``sigval`` and stopped its workers."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[type[SignalException], tuple[str, signal.Signals]]:
        return type(self), (str(self), self.sigval)
