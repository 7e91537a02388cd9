"""Ports on this machine."""

from __future__ import annotations

from elastic import _lazy
from elastic.torch_compat.utils.api import get_socket_with_port

__all__ = ["get_free_port", "get_socket_with_port"]

# torch's own: it makes torch's TCPStore. torch is imported on its first use.
_HOMES = {"torch.distributed.elastic.utils.distributed": "create_c10d_store"}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)


def get_free_port() -> int:
    """A port that was free a moment ago. To keep it, use ``get_socket_with_port``."""
    with get_socket_with_port() as listener:
        return int(listener.getsockname()[1])
