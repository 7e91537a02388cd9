"""An HTTP health check of the launching process, and torch's extension point to replace it.

``TORCHELASTIC_HEALTH_CHECK_PORT`` starts it in the launcher; ``elastic_launch`` takes an object.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

logger = logging.getLogger(__name__)

PAUSE_S = 0.1


def pause_after_errors(server: TCPServer) -> None:
    """Makes a server without a free descriptor for a connection pause.

    The connection stays in the queue and the socket readable, so ``serve_forever`` would use a
    whole CPU until a descriptor is free.
    """
    accept = server.get_request

    def get_request() -> tuple[Any, Any]:
        try:
            return accept()
        except OSError:
            time.sleep(PAUSE_S)
            raise

    server.get_request = get_request  # type: ignore[method-assign]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request to the health check failed", exc_info=True)


class HealthCheckServer:
    """Replies 200 to GET on every path while ``alive_callback`` is recent, else 503.

    A derived class may override ``start`` and ``stop``. Port 0 selects a free port.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Called before the agent joins the rendezvous. An unusable port is only logged."""
        try:
            self._server = _Server(("", self._port), self._handler())
        except OSError as error:
            logger.warning("no health check: cannot listen on port %d: %s", self._port, error)
            return
        pause_after_errors(self._server)
        self._port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, name="elastic-health-check", daemon=True
        ).start()
        logger.info("health check at port %d", self._port)

    def stop(self) -> None:
        """Called after the agent has ended."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def alive_callback(self) -> Callable[[], int]:
        """Returns the time of the last sign of life, in Unix seconds."""
        return self._alive_callback

    @property
    def port(self) -> int:
        return self._port

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                silence = time.time() - server._alive_callback()
                is_alive = silence <= server._timeout
                text = b"alive\n" if is_alive else b"no progress for %d s\n" % silence
                self.send_response(200 if is_alive else 503)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                logger.debug(format, *args)

        return Handler


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    return HealthCheckServer(alive_callback, port, timeout)
