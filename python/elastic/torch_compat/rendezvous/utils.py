"""torch's module of this name."""

from __future__ import annotations

from elastic.rendezvous.keys import split
from elastic.text import split_endpoint


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Host and port; an empty endpoint is localhost."""
    if not endpoint or not endpoint.strip():
        return "localhost", default_port
    host, port = split_endpoint(endpoint.strip(), "the rendezvous endpoint")
    return host, int(port) if port else default_port


def _parse_rendezvous_config(config_str: str) -> dict[str, str]:
    """The keys and values of ``KEY=VALUE,...``."""
    return split(config_str.strip(), "the rendezvous configuration")
