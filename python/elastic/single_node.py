"""What the options about other nodes mean for a job of one.

torchrun's command lines name nodes, back ends and endpoints. Values that fit one node are accepted,
others are refused, so that nobody gets a job of another shape than the one that was asked for.
"""

from __future__ import annotations

from elastic.errors import ConfigError
from elastic.options import CommandLine
from elastic.values import integer, is_number, seconds


def check(line: CommandLine) -> None:
    nnodes = line.text("nnodes")
    least, _, most = nnodes.partition(":")
    most = most or least
    if not is_number(least) or not is_number(most) or not 0 < int(least) <= int(most):
        raise ConfigError(f"{line.origin('nnodes')} is {nnodes!r}: expected N or MIN:MAX, from 1")
    if int(most) != 1:
        raise ConfigError(
            f"{line.origin('nnodes')} is {nnodes}: jobs of more than one node are not available yet"
        )
    if integer(line, "node-rank", 0, 2**31 - 1) != 0:
        raise ConfigError(
            f"{line.origin('node-rank')} is {line.text('node-rank')}: the only node has rank 0"
        )
    backend = line.text("rdzv-backend")
    if backend not in ("static", "c10d"):
        raise ConfigError(
            f"{line.origin('rdzv-backend')} is {backend!r}: not available yet; "
            "leave it out on one node"
        )
    _check_rendezvous_settings(line)


# Keys of --rdzv-conf and whether a value fits a job of one node.
_RENDEZVOUS_SECONDS = (
    "timeout", "join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout",
    "keep_alive_interval", "keep_alive_max_attempt", "read_timeout",
)  # fmt: skip
_RENDEZVOUS_FIXED = {
    "rank": ("0",),
    "is_host": ("1", "true", "t", "yes", "y"),
    "store_type": ("tcp",),
}


def _check_rendezvous_settings(line: CommandLine) -> None:
    origin, text = line.origin("rdzv-conf"), line.text("rdzv-conf")
    for item in text.split(",") if text else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise ConfigError(f"{origin}: {item!r} is not of the form KEY=VALUE")
        if key in _RENDEZVOUS_SECONDS:
            seconds(value, f"{origin}: {key}")
        elif key not in _RENDEZVOUS_FIXED:
            known = ", ".join([*_RENDEZVOUS_SECONDS, *_RENDEZVOUS_FIXED])
            raise ConfigError(f"{origin}: there is no key {key!r}; known are {known}")
        elif value.lower() not in _RENDEZVOUS_FIXED[key]:
            raise ConfigError(
                f"{origin}: {key}={value} makes no sense on one node; leave it out or write "
                f"{key}={_RENDEZVOUS_FIXED[key][0]}"
            )


def master(line: CommandLine) -> tuple[str, int]:
    """Address and port of the workers' store, from the four options that may name them."""
    host, port = "", ""
    origin = line.origin("rdzv-endpoint")
    if line.text("rdzv-endpoint"):
        host, port = _split_endpoint(line.text("rdzv-endpoint"), origin)
        own_address(host, origin)
        if line.text("rdzv-backend") == "c10d":
            host, port = "", ""  # where nodes meet, not where workers do
    named = [
        (line.text(name), line.origin(name))
        for name in ("master-addr", "local-addr")
        if name in line.values and line.text(name)
    ]
    if host:
        named.append((host, origin))
    addresses = {own_address(given, where): where for given, where in named}
    if len(addresses) > 1:
        raise ConfigError(
            f"{' and '.join(addresses.values())} name different addresses: "
            f"{' and '.join(addresses)}"
        )
    ports = {}
    if line.text("master-port"):
        ports[integer(line, "master-port", 0, 65535)] = line.origin("master-port")
    if port:
        ports[int(port)] = origin
    if len(ports) > 1:
        raise ConfigError(
            f"{' and '.join(ports.values())} name different ports: {' and '.join(map(str, ports))}"
        )
    return next(iter(addresses), "127.0.0.1"), next(iter(ports), 0)


def _split_endpoint(endpoint: str, origin: str) -> tuple[str, str]:
    host, port = endpoint, ""
    if endpoint.startswith("["):
        host, bracket, rest = endpoint[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"{origin} is {endpoint!r}: expected [ADDRESS]:PORT")
        port = rest[1:]
    elif endpoint.count(":") == 1:
        host, _, port = endpoint.partition(":")
    if port and not (is_number(port) and int(port) <= 65535):
        raise ConfigError(f"{origin} is {endpoint!r}: {port!r} is no port")
    if not host:
        raise ConfigError(f"{origin} is {endpoint!r}: the host is missing")
    return host, port


def own_address(host: str, origin: str) -> str:
    """The numeric form of an address that this node has: the first of the host's that binds."""
    if host in ("127.0.0.1", "localhost"):
        return "127.0.0.1"
    import socket  # a name or another interface is rare, and the import is not cheap

    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{origin}: cannot resolve {host!r}: {error}") from error
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return str(address[0])
    raise ConfigError(f"{origin}: {host} is not an address of this node")
