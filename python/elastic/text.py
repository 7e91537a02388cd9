"""Numbers, addresses and the local rank in the text of options, variables and arguments.

A ``ConfigError`` names the origin of the text.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from elastic._C import duration_text
from elastic.constants import (
    COORDINATED,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    JOIN_TIMEOUT_S,
    LOOPBACK,
    PORT_MAX,
    SHUTDOWN_TIMEOUT_VARIABLE,
)
from elastic.errors import ConfigError

NUMBER_DIGITS_MAX = 18
ENDPOINTS_MAX = 64  # of one job: kEndpointsMax in csrc/core/session/session_wire.h
RANGE_MAX = 2**20  # more than the CPUs of any host
LABEL_BYTES_MAX = 63  # of a part of a host name


class UnresolvedHost(ConfigError):
    """A host name that cannot be resolved: the caller should retry for ``timeout`` seconds."""

    timeout = JOIN_TIMEOUT_S


def is_number(text: str) -> bool:
    """Whether the text is a whole number from 0, of a size that int() and C++ take."""
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX


def truth(text: str, origin: str) -> bool:
    if text.lower() in ("1", "true", "t", "yes", "y"):
        return True
    if text.lower() in ("0", "false", "f", "no", "n"):
        return False
    raise ConfigError(f"{origin} is {text!r}: expected true or false")


def plural(count: int | str, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


def seconds(text: str, origin: str, *, positive: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        bound = "greater than 0" if positive else "from 0"
        raise ConfigError(f"{origin} is {text!r}: expected a number of seconds {bound}")
    return value


def signal_numbers(names: str, origin: str) -> tuple[signal.Signals, ...]:
    """The signals of ``SIGTERM,INT,...``, each once."""
    found = []
    for name in names.split(",") if names else ():
        name = name.strip().upper()
        number = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
        if number is None:
            raise ConfigError(f"{origin}: there is no signal {name!r}")
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise ConfigError(f"{origin}: {number.name} cannot be handled")
        if number not in found:
            found.append(number)
    return tuple(found)


def shutdown_timeout(environ: Mapping[str, str]) -> float:
    """The seconds from SIGTERM to SIGKILL that the variable sets, else the default."""
    text = environ.get(SHUTDOWN_TIMEOUT_VARIABLE, f"{DEFAULT_SHUTDOWN_TIMEOUT_S}")
    return seconds(text, SHUTDOWN_TIMEOUT_VARIABLE)


def between(begin: float | None, end: float | None) -> float | None:
    """The seconds from one time to another, not less than 0; None if one of them is unknown."""
    return None if begin is None or end is None else round(max(end - begin, 0.0), 6)


# A duration in seconds, in the format of all messages: ``50 ms``, ``2.5 s``, ``1 h 5 min``.
duration = duration_text


def split_endpoint(endpoint: str, origin: str) -> tuple[str, str]:
    """Host and port ("" if there is none) of ``HOST[:PORT]`` or ``[ADDRESS][:PORT]``.

    More than one colon without brackets is an IPv6 address without a port.
    """
    host, port = endpoint, ""
    if endpoint.startswith("["):
        host, bracket, rest = endpoint[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"{origin} is {endpoint!r}: expected [ADDRESS]:PORT")
        port = rest[1:]
    elif endpoint.count(":") == 1:
        host, _, port = endpoint.partition(":")
    if port and not (is_number(port) and int(port) <= PORT_MAX):
        raise ConfigError(f"{origin} is {endpoint!r}: {port!r} is not a port")
    if not host:
        raise ConfigError(f"{origin} is {endpoint!r}: the host is missing")
    check_host(host, origin)
    return host, port


def check_host(host: str, origin: str) -> None:
    """Refuses a text that no name service can ever resolve."""
    problem = ""
    if "$" in host or "{" in host:
        problem = "a variable in it was not replaced"
    elif "/" in host:
        problem = "expected HOST[:PORT], without a scheme or a path"
    elif is_number(host):
        problem = "expected the name or the address of a host, not only a number"
    elif any(letter.isspace() or letter in "()<>|&;,'\"\\@?*#=" for letter in host):
        problem = "expected the name or the address of a host"
    elif ":" in host:
        problem = _address_problem(host)
    else:
        labels = host.removesuffix(".").split(".")
        longest = max(len(label.encode(errors="surrogateescape")) for label in labels)
        if not all(labels) or longest > LABEL_BYTES_MAX:
            problem = f"a host name has parts of 1 to {LABEL_BYTES_MAX} characters between dots"
    if problem:
        raise ConfigError(f"{origin} is {host!r}: {problem}")


def _address_problem(host: str) -> str:
    """What is wrong with a text that can only be an IPv6 address."""
    import socket

    address, percent, scope = host.partition("%")
    try:
        packed = socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        start, _, port = host.rpartition(":")
        return f"it is no IPv6 address; with a port write [{start}]:{port}"
    if packed[0] == 0xFE and packed[1] & 0xC0 == 0x80 and not (percent and scope):
        return f"a link-local address needs the interface: write {address}%eth0"
    return ""


def split_endpoints(text: str, origin: str, default_port: int) -> list[tuple[str, int]]:
    """The addresses of ``HOST[:PORT],...``, each at most once."""
    found: list[tuple[str, int]] = []
    for one in text.split(","):
        host, port = split_endpoint(one.strip(), origin)
        endpoint = host, int(port) if port else default_port
        if endpoint in found:
            raise ConfigError(f"{origin} is {text!r}: {one.strip()!r} is listed twice")
        found.append(endpoint)
    if len(found) > ENDPOINTS_MAX:
        raise ConfigError(f"{origin} has {len(found)} endpoints: list at most {ENDPOINTS_MAX}")
    return found


def endpoints_in(texts: Iterable[str], default_port: int) -> dict[tuple[str, int], None]:
    """The endpoints that can be read, each once, in this order."""
    found: dict[tuple[str, int], None] = {}
    for text in texts:
        with suppress(ConfigError):
            found |= dict.fromkeys(split_endpoints(text, "", default_port))
    return found


def join_endpoints(endpoints: Sequence[tuple[str, int | str]]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                    for host, port in endpoints)  # fmt: skip


def member(kind: Any, word: str, origin: str) -> Any:
    """The member of an enumeration of ``_C`` that an option names in lower case."""
    known = {name.lower(): value for name, value in kind.__members__.items()}
    if word not in known:
        raise ConfigError(f"{origin} is {word!r}: expected one of {', '.join(known)}")
    return known[word]


def parse_ranges(text: str, least: int = 0, most: int = RANGE_MAX) -> frozenset[int]:
    """``"0-2,4"`` as the numbers 0, 1, 2 and 4; none for an empty text.

    Raises ValueError if a part of the text is no number and no range from ``least`` to ``most``.
    """
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (is_number(first) and is_number(last) and least <= int(first) <= int(last) <= most):
            raise ValueError(f"{part!r} is no range of numbers from {least} to {most}")
        numbers.update(range(int(first), int(last) + 1))
    return frozenset(numbers)


def parse_exit_codes(text: str, what: str, example: str = "3,64-78") -> frozenset[int]:
    """Exit codes of workers that failed, with ranges. ``what``: the text, for the ConfigError."""
    try:
        return parse_ranges(text, 1, 255)
    except ValueError:
        problem = f"{what}: expected exit codes from 1 to 255, as in {example}"
        raise ConfigError(problem) from None


def format_ranges(numbers: Iterable[int]) -> str:
    """The numbers 0, 1, 2 and 4 as ``"0-2,4"``."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def port_range(text: str, origin: str) -> tuple[int, int]:
    """Reads FIRST:LAST. (0, 0): the text is empty."""
    if not text:
        return 0, 0
    first, _, last = (part.strip() for part in text.partition(":"))
    if not is_number(first) or not is_number(last) or not 0 < int(first) <= int(last) <= PORT_MAX:
        raise ConfigError(
            f"{origin} is {text!r}: expected FIRST:LAST, two ports from 1 to {PORT_MAX}"
        )
    return int(first), int(last)


def is_loopback(host: str) -> bool:
    """Whether the text is a loopback address or its name; resolves nothing."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_only_node(backend: str, endpoint: str, store_type: str, origin: str) -> bool:
    """Whether no other node can join a job of at most one node, so that it needs no rendezvous.

    An agent on another host can be a spare for the only node; one on this host has no use.
    """
    if backend not in COORDINATED:
        return False
    if backend == "static" or not endpoint:
        return True
    if store_type == "file":
        return False  # the endpoint is a path
    host, port = split_endpoint(endpoint.partition(",")[0], origin)
    return is_loopback(host) or port == "0"


def own_address(host: str, origin: str) -> str:
    """The first numeric address of the host that this node can bind."""
    if host in (LOOPBACK, "localhost"):
        return LOOPBACK
    import socket  # rarely needed, and the import is slow

    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    check_host(host, origin)
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnresolvedHost(f"{origin}: cannot resolve {host!r}: {error}") from error
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return str(address[0])
    raise ConfigError(f"{origin}: {host} is not an address of this node")


def substitutes(text: str) -> bool:
    """Whether ``substitute`` would change the text."""
    return "$" in text and substitute(text, 0) != text


def substitute(text: str, local_rank: int) -> str:
    """Replaces ``${local_rank}`` and ``$local_rank``; every other ``$``, also ``$$``, stays."""
    if "$" not in text:
        return text
    import re

    pattern = r"\$\$|\$(?:local_rank(?![A-Za-z0-9_])|\{local_rank\})"
    return re.sub(pattern, lambda found: "$$" if found[0] == "$$" else str(local_rank), text)
