"""elastic's rendezvous for torch's own agent: ``torchrun --rdzv-backend=elastic``.

torch loads this module, through the entry points ``torchrun.handlers``, while it imports its
rendezvous package. No module of elastic imports it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed.elastic.rendezvous.api as torch_rendezvous

from elastic import errors
from elastic.rendezvous.api import RendezvousParameters
from elastic.rendezvous.errors import RendezvousGracefulExitError
from elastic.rendezvous.handlers import create
from elastic.torch import Store


class RendezvousHandler(torch_rendezvous.RendezvousHandler):
    """elastic's rendezvous for torch's own agent: ``torchrun --rdzv-backend=elastic``."""

    def __init__(self, params: torch_rendezvous.RendezvousParameters) -> None:
        given = dict(params.config)
        given.pop("timeout", None)  # torchrun adds it to every backend
        self._handler = create(
            RendezvousParameters(
                "c10d",
                params.endpoint,
                params.run_id,
                params.min_nodes,
                params.max_nodes,
                params.local_addr,
                **given,
            )
        )

    def get_backend(self) -> str:
        return "elastic"

    @property
    def use_agent_store(self) -> bool:
        return self._handler.use_agent_store

    def next_rendezvous(self) -> torch_rendezvous.RendezvousInfo:
        try:
            found = self._handler.next_rendezvous()
        except RendezvousGracefulExitError as error:
            raise torch_rendezvous.RendezvousGracefulExitError(str(error)) from None
        except errors.RendezvousClosed as error:
            raise torch_rendezvous.RendezvousClosedError(str(error)) from None
        except errors.RendezvousTimeout as error:
            raise torch_rendezvous.RendezvousTimeoutError(str(error)) from None
        except errors.RendezvousUnavailable as error:
            raise torch_rendezvous.RendezvousConnectionError(str(error)) from None
        where = found.bootstrap_store_info
        return torch_rendezvous.RendezvousInfo(
            Store(found.store),
            found.rank,
            found.world_size,
            torch_rendezvous.RendezvousStoreInfo(where.master_addr, where.master_port),
        )

    def is_closed(self) -> bool:
        return self._handler.is_closed()

    def set_closed(self) -> None:
        self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        return self._handler.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        return self._handler.shutdown()


def rendezvous_handlers() -> Callable[[torch_rendezvous.RendezvousParameters], RendezvousHandler]:
    """The entry point ``elastic`` of the group ``torchrun.handlers``."""
    return RendezvousHandler
