"""``--iface`` and ``--subnet``: this node's address, by the network that it belongs to.

The same options can be given to every host, unlike an address.
"""

from __future__ import annotations

import ipaddress
import socket

from elastic import _C
from elastic.cli.command_line import CommandLine, Value
from elastic.errors import ConfigError
from elastic.text import UnresolvedHost


class MissingAddress(UnresolvedHost):
    """No interface has the address yet: networks of containers are attached after the start."""


def resolve(line: CommandLine) -> tuple[CommandLine, str]:
    """The command line with ``--local-addr``, and the interface; "": neither option was given."""
    name, subnet = line.text("iface"), line.text("subnet")
    if not name and not subnet:
        return line, ""
    origins = [line.origin(option) for option in ("iface", "subnet") if line.text(option)]
    if line.text("local-addr"):
        raise ConfigError(
            f"{' and '.join([*origins, line.origin('local-addr')])}: give the address of this node "
            "or the network that it belongs to, not both"
        )
    network = _network(subnet, line.origin("subnet")) if subnet else None
    interface, address = _find(name, network, line, _C.host_addresses())
    value = Value(address, " and ".join(origins))
    return line._replace(values=line.values | {"local-addr": value}), interface


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str, origin: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(
            f"{origin} is {text!r}: expected a network such as 10.1.0.0/16 or fd00:1::/64"
        ) from None


def _find(
    name: str, network: Network | None, line: CommandLine, known: list[tuple[str, str]]
) -> tuple[str, str]:
    """The interface and its address: IPv4 before IPv6, then in the kernel's order."""
    found = [one for one in known if name in ("", one[0])]
    if not found:
        names = ", ".join(dict.fromkeys(interface for interface, _ in known)) or "none"
        exists = name in (interface for _, interface in socket.if_nameindex())
        raise (MissingAddress if exists else ConfigError)(
            f"{line.origin('iface')} is {name}: this host has no such interface that is up and has "
            f"an address (it has: {names})"
        )
    if network is not None:
        within = [one for one in found if ipaddress.ip_address(one[1]) in network]
        if not within:
            which = f"{name} of this host" if name else "this host"
            has = ", ".join(f"{address} on {interface}" for interface, address in found)
            raise MissingAddress(
                f"{line.origin('subnet')} is {network}: {which} has no address in it "
                f"(it has: {has})"
            )
        found = within
    return min(found, key=lambda one: ":" in one[1])
