"""The exceptions of elastic.

::

    ElasticError
    ├── ConfigError           also ValueError: an invalid argument or option
    ├── StoreError            a call of a key-value store failed
    │   ├── StoreTimeout      also TimeoutError: the deadline passed; the client stays usable
    │   ├── StoreUnavailable  also ConnectionError: refused, reset or closed
    │   ├── StoreProtocolError   the peer is not a TCPStore server
    │   └── QueueEmpty        also LookupError: queue_pop(block=False) on an empty queue
    ├── RendezvousError       the nodes could not agree on a round
    │   ├── RendezvousClosed     the job has ended: no node can join it
    │   ├── RendezvousTimeout    also TimeoutError: no round within the join timeout
    │   └── RendezvousUnavailable   also ConnectionError: the coordinator is unreachable
    └── ResourceExhausted     the system has no file descriptor, process or memory left
"""

from __future__ import annotations

import errno
import os
from typing import Any

from elastic import _C
from elastic._C import (
    ConfigError,
    ElasticError,
    QueueEmpty,
    RendezvousClosed,
    RendezvousError,
    RendezvousTimeout,
    RendezvousUnavailable,
    ResourceExhausted,
    StoreError,
    StoreProtocolError,
    StoreTimeout,
    StoreUnavailable,
)

__all__ = [
    "ConfigError",
    "ElasticError",
    "QueueEmpty",
    "RendezvousClosed",
    "RendezvousError",
    "RendezvousTimeout",
    "RendezvousUnavailable",
    "ResourceExhausted",
    "StoreError",
    "StoreProtocolError",
    "StoreTimeout",
    "StoreUnavailable",
]

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class NodeFault(ElasticError):
    """This node cannot continue the job. Its launcher exits with ``exit_code``."""

    def __init__(self, exit_code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exit_code, str(self))


def fault_of(error: Exception) -> NodeFault | None:
    """The fault of this node that an error reports; None: it reports something else.

    Without a free descriptor plug-ins raise errors of all classes.
    """
    if isinstance(error, NodeFault):
        return error
    text = str(error)
    if not isinstance(error, ResourceExhausted):
        if getattr(error, "errno", None) not in _EXHAUSTED and _has_descriptor():
            return None
        text = (
            "this node has no descriptor or memory left (ulimit -n): "
            f"{type(error).__name__}: {' '.join(text.split())}"
        )
    return NodeFault(_C.EXIT_SUPERVISION_LOST, text)


def _has_descriptor() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _EXHAUSTED
    return True
