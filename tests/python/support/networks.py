"""Hosts in network namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import namespaces
import pytest


@contextmanager
def hosts_of_two_networks() -> Iterator[list[namespaces.Host]]:
    """Two hosts; the interface data0 of each is in the network 10.78.0.0/24. Skips without root."""
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with namespaces.Network() as network:
        network.add_switch("data")
        hosts = [network.add_host() for _ in range(2)]
        for number, host in enumerate(hosts, 1):
            host.add_interface("data0", f"10.78.0.{number}/24", "data")
        yield hosts
