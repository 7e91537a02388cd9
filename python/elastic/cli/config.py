"""A checked job, as far as this node is concerned: what ``resolve`` makes of a command line.

Named tuples, because importing ``dataclasses`` would cost the launcher 4 ms at every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic.constants import SHARED

if TYPE_CHECKING:
    from elastic import _C
    from elastic.multiprocessing.logs import LogOptions
    from elastic.rendezvous.api import RendezvousHandler


class RendezvousConfig(NamedTuple):
    """A node's way to the others: either endpoint or shared_state says where they are."""

    backend: str
    min_nodes: int
    max_nodes: int
    # Where the coordinator is; "": there is none.
    endpoint_host: str = ""
    endpoint_port: int = 0
    is_host: bool | None = None  # None: found out by looking at the endpoint's address
    # Where a shared state is kept, as given, and what its backend is told; "": there is none.
    shared_state: str = ""
    parameters: Mapping[str, str] = {}
    node_rank: int = -1  # -1: no wish
    topology: str = ""
    on_node_loss: str = "replace"
    max_membership_changes: int = -1
    timings: Mapping[str, float] = {}  # seconds; those not given are the native defaults

    def is_handler(self) -> bool:
        """Whether the backend is a rendezvous handler of another distribution."""
        if not self.shared_state or self.backend in SHARED:
            return False
        from elastic.rendezvous import registry

        return registry.is_plugged_in_handler(self.backend)

    def handler(self, run_id: str, local_addr: str) -> RendezvousHandler:
        from elastic.rendezvous import RendezvousParameters, get_rendezvous_handler

        endpoint = "" if self.shared_state == self.backend else self.shared_state
        return get_rendezvous_handler(
            RendezvousParameters(
                self.backend,
                endpoint,
                run_id,
                self.min_nodes,
                self.max_nodes,
                local_addr or None,
                **self.parameters,
            )
        )

    def options(self, run_id: str, local_addr: str) -> _C.RendezvousOptions:
        """As the agent takes it. ``local_addr``: where other nodes reach this one; "": as seen."""
        from elastic import _C

        backend = None
        if self.shared_state:
            from elastic.rendezvous import backends

            backend = backends.create(self.backend, self.shared_state, run_id, self.parameters)
        timings: dict[str, Any] = dict(self.timings)
        return _C.RendezvousOptions(
            endpoint_host=self.endpoint_host,
            endpoint_port=self.endpoint_port,
            is_host=self.is_host,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            local_addr=local_addr,
            node_rank=self.node_rank,
            topology=self.topology,
            static_ranks=self.backend == "static",
            on_loss=_C.LossPolicy.__members__[self.on_node_loss.upper()],
            max_membership_changes=self.max_membership_changes,
            backend=backend,
            **timings,
        )


class NodeConfig(NamedTuple):
    """All that the options say about nodes."""

    rendezvous: RendezvousConfig | None  # None: the job has one node
    run_id: str  # "": not given
    local_addr: str  # numeric on one node; "": what the rendezvous sees
    master_port: int  # 0: a free one in each round
    worker_ports: tuple[int, int]
    notes: list[tuple[bool, str]]  # for the log, each with whether it is a warning


class LaunchConfig(NamedTuple):
    entrypoint: tuple[str, ...]  # the program and its arguments, before ${local_rank} is replaced
    name: str  # how messages call it
    nproc: int
    environment: dict[str, str]  # what every worker inherits
    run_id: str
    role: str
    max_restarts: int
    start_timeout: float
    restart_backoff: float
    shutdown_timeout: float
    failure_grace: float
    exit_barrier_timeout: float | None  # None: no limit
    stop_scope: str  # "group" or "leader"
    signals: tuple[int, ...]
    rendezvous: RendezvousConfig | None  # None: this node is alone
    local_addr: str  # "" on several nodes: the address from which the rendezvous is reached
    master_port: int  # 0: a free one in each round
    worker_ports: tuple[int, int]  # first and last; (0, 0): any
    share_store: bool  # False: rank 0's worker hosts the store itself
    capture_stderr: bool  # pass on what workers inherit, and report its last lines
    logs: LogOptions
    line_prefix: str
    virtual_local_rank: bool
    log_level: int
    log_records: bool  # whether log lines have time and level: LOGLEVEL was given
    error_file: str  # where the launcher's parent looks for the first error; "": nowhere
    notes: tuple[tuple[int, str], ...] = ()  # (level, sentence) for the log, once it is set up
