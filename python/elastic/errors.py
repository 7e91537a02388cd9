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
