"""The network that the workers' collectives use, if this host's name leads to another one.

gloo listens at the address of the host name. Where that is a loopback address (Debian maps it to
127.0.1.1) or unknown, the ranks of other nodes could not connect, though the launcher knows at
which address they reach this node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from elastic import _C, _files
from elastic.text import is_loopback

logger = logging.getLogger(__name__)

# Longer than a resolver of a working network needs. A worker would wait for it as well.
NAME_LIMIT_S = 1.0
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # for documentation: every default route covers them


def of_interface(name: str) -> dict[str, str]:
    """For libraries that would choose an interface themselves. NCCL takes a name for a prefix."""
    return dict(zip(VARIABLES, (name, f"={name}"), strict=True))


def worker_variables(
    environment: Mapping[str, str], endpoint: str, local_addr: str
) -> dict[str, str]:
    """The variables of workers of a job with several nodes; {}: the host's name can be used.

    ``endpoint``: the host of the rendezvous, or "". ``local_addr``: this node's address, if given.
    """
    if any(name in environment for name in VARIABLES) or is_loopback(local_addr or endpoint):
        return {}
    problem = _problem_of_name()
    interface = problem and _interface(endpoint, local_addr)
    if not interface:
        return {}
    found = of_interface(interface)
    names = " and ".join(f"{name}={text}" for name, text in found.items())
    logger.info("%s, so workers have %s for the other nodes", problem, names)
    return found


def _problem_of_name() -> str:
    import socket

    name = socket.gethostname()
    try:
        address = _files.within(NAME_LIMIT_S, lambda: _first(name))
    except TimeoutError:
        return f"the host name {name} was not resolved within {NAME_LIMIT_S:g} s"
    except (OSError, UnicodeError):
        return f"the host name {name} cannot be resolved"
    return f"the host name {name} is {address} here" if is_loopback(address) else ""


def _interface(endpoint: str, local_addr: str) -> str:
    """The interface of this node's address for other nodes; "": unknown."""
    try:
        published = _files.within(
            NAME_LIMIT_S, lambda: _first(local_addr) if local_addr else _source(endpoint)
        )
    except (OSError, UnicodeError):
        return ""
    known = [one for one in _C.host_addresses() if not is_loopback(one[1])]
    return next((interface for interface, address in known if address == published), "")


def _first(host: str) -> str:
    import socket

    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _source(endpoint: str) -> str:
    """This node's address towards the endpoint, which may be the node itself; sends nothing."""
    import socket

    for target in (endpoint, *_ELSEWHERE) if endpoint else _ELSEWHERE:
        try:
            found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
            with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
                probe.connect(found[0][4])
                address = str(probe.getsockname()[0])
        except (OSError, UnicodeError):
            continue
        if not is_loopback(address):
            return address
    return ""
