"""elastic's rendezvous for torch's own agent: ``torchrun --rdzv-backend=elastic``.

torch loads this module, through the entry points ``torchrun.handlers``, while it imports its
rendezvous package. So it imports nothing that may be missing: a job that uses another rendezvous
starts without a traceback, too, if elastic's extension cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _create(parameters: Any) -> Any:
    from elastic.torch_handler import RendezvousHandler

    return RendezvousHandler(parameters)


def rendezvous_handlers() -> Callable[[Any], Any]:
    """The entry point ``elastic`` of the group ``torchrun.handlers``."""
    return _create
