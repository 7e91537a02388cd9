"""Variables, sockets and the local rank in arguments."""

from __future__ import annotations

import socket
from string import Template
from typing import Any

from elastic import _environment


def get_env_variable_or_raise(env_name: str) -> str:
    """The value of a variable, which may be empty."""
    value = _environment.inherited().get(env_name)
    if value is None:
        raise ValueError(f"the environment variable {env_name} is not set")
    return value


def get_socket_with_port() -> socket.socket:
    """A listening TCP socket on a free port of localhost, at its IPv4 address if it has one."""
    found = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
    problems = []
    for family, *_, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        try:
            return socket.create_server(address[:2], family=family, backlog=0)
        except OSError as error:  # for example, an address of a family that is switched off
            problems.append(str(error))
    raise RuntimeError(f"no address of localhost can be used: {'; '.join(problems)}")


class macros:
    """``${local_rank}`` in arguments, replaced for each worker."""

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: list[Any], local_rank: str) -> list[Any]:
        return [
            Template(arg).safe_substitute(local_rank=local_rank) if isinstance(arg, str) else arg
            for arg in args
        ]
