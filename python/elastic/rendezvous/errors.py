"""The exceptions of a rendezvous, as torch names them.

::

    RendezvousError                        elastic.errors.RendezvousError
    ├── RendezvousClosedError              elastic.errors.RendezvousClosed
    ├── RendezvousTimeoutError             elastic.errors.RendezvousTimeout, a TimeoutError
    ├── RendezvousConnectionError          elastic.errors.RendezvousUnavailable, a ConnectionError
    ├── RendezvousStateError               what is stored cannot be read
    └── RendezvousGracefulExitError        the job has succeeded while this node was waiting
"""

from elastic import _torch_bases, errors

RendezvousError = errors.RendezvousError
RendezvousClosedError = errors.RendezvousClosed
RendezvousTimeoutError = errors.RendezvousTimeout
RendezvousConnectionError = errors.RendezvousUnavailable

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
]


class RendezvousStateError(RendezvousError):
    """A backend's content is not the state of a rendezvous."""


class RendezvousGracefulExitError(RendezvousError):
    """The job has succeeded without this node."""


for _name in __all__:
    _torch_bases.derive(globals()[_name], "rendezvous.api", _name)
