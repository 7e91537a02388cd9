"""Variables, sockets and the local rank in arguments."""

from __future__ import annotations

import socket
from string import Template
from typing import Any

from elastic import _environment


def get_env_variable_or_raise(env_name: str) -> str:
    value = _environment.get(env_name)
    if not value:
        raise ValueError(f"the environment variable {env_name} is not set")
    return value


def get_socket_with_port() -> socket.socket:
    """A listening TCP socket on a free local port."""
    return socket.create_server(("localhost", 0), backlog=0)


class macros:
    """``${local_rank}`` in arguments, replaced for each worker."""

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: list[Any], local_rank: str) -> list[str]:
        return [Template(str(arg)).safe_substitute(local_rank=local_rank) for arg in args]
