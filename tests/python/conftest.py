"""What every test may rely on, however the tests were started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # nohup, and a shell that starts a job in the background, have signals ignored on behalf of the
    # user, and every child inherits that. The tests send these signals and expect an effect.
    standard = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
    }
    for number, handler in standard.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
