"""Ports on this machine."""

from __future__ import annotations

from elastic.utils.api import get_socket_with_port

__all__ = ["get_free_port", "get_socket_with_port"]


def get_free_port() -> int:
    """A port that was free a moment ago. To keep it, use ``get_socket_with_port``."""
    with get_socket_with_port() as listener:
        return int(listener.getsockname()[1])
