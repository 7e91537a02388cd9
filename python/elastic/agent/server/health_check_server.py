"""The extension point for a health check of the launching process, as in torch."""

from __future__ import annotations

from collections.abc import Callable


class HealthCheckServer:
    """Does nothing. A class derived from it can be passed to ``elastic_launch``."""

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout

    def start(self) -> None:
        """Called before the agent joins the rendezvous."""

    def stop(self) -> None:
        """Called after the agent has ended."""

    @property
    def alive_callback(self) -> Callable[[], int]:
        """Returns the time of the last sign of life, in seconds."""
        return self._alive_callback


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    return HealthCheckServer(alive_callback, port, timeout)
