"""torch's module of this name: nodes with given ranks, and node 0 at a given address."""

from __future__ import annotations

from elastic.errors import ConfigError
from elastic.text import join_endpoints
from elastic.torch_compat.rendezvous.api import RendezvousHandler, RendezvousParameters
from elastic.torch_compat.rendezvous.handlers import DynamicRendezvousHandler, create

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler for the backend ``static``; ``params.config`` has this node's ``rank``."""
    if params.backend != "static":
        raise ConfigError(f"the rendezvous backend is {params.backend!r}: expected static")
    return create(params)


class StaticTCPRendezvous(DynamicRendezvousHandler):
    """The same handler, with torch's arguments."""

    def __init__(
        self,
        master_addr: str,
        master_port: int,
        rank: int,
        world_size: int,
        run_id: str,
        timeout: int,
    ) -> None:
        made = create(
            RendezvousParameters(
                "static",
                join_endpoints([(master_addr, master_port)]),
                run_id,
                world_size,
                world_size,
                rank=rank,
                timeout=timeout,
            )
        )
        assert isinstance(made, DynamicRendezvousHandler)
        super().__init__(made.get_backend(), made.native_options, made.settings)
        self.master_addr = master_addr
        self.master_port = master_port
        self.rank = rank
        self.world_size = world_size
        self.run_id = run_id
