"""elastic's rendezvous for torch's own agent: ``torchrun --rdzv-backend=elastic``.

torch loads this module, through the entry points ``torchrun.handlers``, while it imports its
rendezvous package. So it imports nothing else before a job uses it: a job that uses another
rendezvous starts without a traceback, too, if elastic's extension cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch.distributed.elastic.rendezvous.api as theirs

_P = ParamSpec("_P")
_T = TypeVar("_T")


def rendezvous_handlers() -> type[RendezvousHandler]:
    """The entry point ``elastic`` of the group ``torchrun.handlers``."""
    return RendezvousHandler


def _as_torch(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Calls; converts elastic's exceptions that do not derive from torch's rendezvous errors."""
    from elastic import errors

    try:
        return call(*args, **kwargs)
    except (errors.RendezvousError, errors.ConfigError):
        raise
    except errors.StoreError as error:
        raise theirs.RendezvousConnectionError(str(error)) from None
    except errors.ElasticError as error:
        raise theirs.RendezvousError(str(error)) from None


class RendezvousHandler(theirs.RendezvousHandler):
    def __init__(self, params: theirs.RendezvousParameters) -> None:
        from elastic import _torch_bases
        from elastic.torch_compat.rendezvous.api import RendezvousParameters
        from elastic.torch_compat.rendezvous.handlers import create

        _torch_bases.update()
        given = dict(params.config)
        given.pop("timeout", None)  # torchrun adds it to every backend
        self._handler = _as_torch(
            create,
            RendezvousParameters(
                "c10d",
                params.endpoint,
                params.run_id,
                params.min_nodes,
                params.max_nodes,
                params.local_addr,
                **given,
            ),
        )

    def get_backend(self) -> str:
        return "elastic"

    @property
    def use_agent_store(self) -> bool:
        return self._handler.use_agent_store

    def next_rendezvous(self) -> theirs.RendezvousInfo:
        from elastic.torch import Store

        found = _as_torch(self._handler.next_rendezvous)
        where = found.bootstrap_store_info
        return theirs.RendezvousInfo(
            Store(found.store),
            found.rank,
            found.world_size,
            theirs.RendezvousStoreInfo(where.master_addr, where.master_port),
        )

    def is_closed(self) -> bool:
        return _as_torch(self._handler.is_closed)

    def set_closed(self) -> None:
        _as_torch(self._handler.set_closed)

    def num_nodes_waiting(self) -> int:
        return _as_torch(self._handler.num_nodes_waiting)

    def get_run_id(self) -> str:
        return _as_torch(self._handler.get_run_id)

    def shutdown(self) -> bool:
        return _as_torch(self._handler.shutdown)
