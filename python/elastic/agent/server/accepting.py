"""The pause of an HTTP server that has no free descriptor for a connection.

The connection stays in the queue and the socket readable, so ``serve_forever`` would use a whole
CPU until a descriptor is free.
"""

from __future__ import annotations

import time
from socketserver import TCPServer
from typing import Any

PAUSE_S = 0.1


def pause_after_errors(server: TCPServer) -> None:
    accept = server.get_request

    def get_request() -> tuple[Any, Any]:
        try:
            return accept()
        except OSError:
            time.sleep(PAUSE_S)
            raise

    server.get_request = get_request  # type: ignore[method-assign]
