"""The native options of a node's rendezvous, for every agent and handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic import _C


def node_options(
    bounds: tuple[int, int] = (1, 1),
    local_addr: str = "",
    failure_policy: Mapping[str, str] | None = None,
    program: str = "",
    **more: Any,
) -> _C.RendezvousOptions:
    """The options of a node of a job with so many nodes, at least and at most.

    ``local_addr``: this node's address; "": its connections' source. ``failure_policy``: the rules
    as settings of the job, of which all nodes must have the same. ``program``: a surplus node with
    another one is refused; "": any may wait. ``more``: further fields of ``_C.RendezvousOptions``.
    Raises ConfigError for a value that is not allowed.
    """
    settings = {"program": program} if program else {}
    return _C.RendezvousOptions(
        min_nodes=bounds[0],
        max_nodes=bounds[1],
        local_addr=local_addr,
        extra_settings={**settings, **(failure_policy or {})},
        **more,
    )
