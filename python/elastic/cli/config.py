"""The checked configuration of this node's part of a job, as ``resolve`` creates it.

Named tuples, because importing ``dataclasses`` would cost the launcher 4 ms at every start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic.constants import KEEPERS
from elastic.text import join_endpoints, member

if TYPE_CHECKING:
    from elastic import _C
    from elastic.agent.server.api import WorkerSpec
    from elastic.multiprocessing.logs import LogOptions
    from elastic.rendezvous.keys import Keys


class RendezvousConfig(NamedTuple):
    """How a node finds the others: either endpoint or store is set."""

    backend: str
    min_nodes: int
    max_nodes: int
    keys: Keys  # of --rdzv-conf
    # Where the coordinator listens; "": the store names it.
    endpoint_host: str = ""
    endpoint_port: int = 0
    further_endpoints: tuple[tuple[str, int], ...] = ()  # tried when that one does not answer
    is_host: bool | None = None  # None: decided by the endpoint's address
    store: str = ""  # its address, as given; "": there is none
    node_rank: int = -1  # -1: no preferred rank
    native: Mapping[str, Any] = {}  # further fields of ``_C.RendezvousOptions``
    token: Mapping[str, Any] = {}  # token_file or token; empty: sessions are not encrypted
    # A name of the program and its arguments: a surplus node with a different name is refused
    # instead of waiting as a spare. "": any may wait.
    program: str = ""
    failure_policy: Mapping[str, str] = {}  # settings of the job, one for each rule
    is_handler: bool = False  # the backend is a third-party rendezvous handler

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        return ((self.endpoint_host, self.endpoint_port), *self.further_endpoints)

    @property
    def endpoint(self) -> str:
        """The addresses of the coordinator, or the address of the store; "" if it needs none."""
        if not self.store:
            return join_endpoints(self.endpoints)
        return "" if self.store == self.backend else self.store

    def has_plug_in(self) -> bool:
        """Whether the backend may be third-party code."""
        return bool(self.store) and self.backend not in KEEPERS

    def options(self, run_id: str, local_addr: str) -> _C.RendezvousOptions:
        """The agent's options. ``local_addr``: this node's address; "": its connections' source."""
        backend = None
        if self.store:
            from elastic.rendezvous.keepers import backends

            backend = backends.create(self.backend, self.store, run_id, self.keys.parameters)
        return self.keys.options(
            (self.min_nodes, self.max_nodes),
            local_addr,
            self.token,
            endpoint_host=self.endpoint_host,
            endpoint_port=self.endpoint_port,
            further_endpoints=self.further_endpoints,
            is_host=self.is_host,
            node_rank=self.node_rank,
            static_ranks=self.backend == "static",
            backend=backend,
            failure_policy=self.failure_policy,
            program=self.program,
            **{**self.native, "on_loss": self.loss_policy()},
        )

    def loss_policy(self) -> _C.LossPolicy:
        from elastic import _C

        word = self.native.get("on_loss", "replace")
        return member(_C.LossPolicy, word, "--on-node-loss")  # type: ignore[no-any-return]


class NodeConfig(NamedTuple):
    """The settings of all options about nodes."""

    rendezvous: RendezvousConfig | None  # None: the job has one node
    run_id: str  # "": not given
    local_addr: str  # numeric on one node; "": the source address of the rendezvous connection
    master_port: int  # 0: a free one in each round
    worker_ports: tuple[int, int]
    notes: list[str]  # for the log


class JobConfig(NamedTuple):
    spec: WorkerSpec  # the job's id, and this node's workers, as every agent takes them
    warm_template: tuple[str, ...]  # the process that forks the workers; (): they are executed
    warm_modules: str  # what it imports, with commas; "": the default
    name: str  # of the program, in messages
    environment: dict[str, str]  # of every worker
    shutdown_timeout: float
    native: Mapping[str, Any]  # further fields of ``_C.AgentOptions``; missing ones: its defaults
    signals: tuple[int, ...]
    forwarded_signals: tuple[int, ...]  # passed on to the workers, without a stop
    drain_signal: int  # stops all ranks at one step; 0: no signal does
    drain_timeout: float  # after which the workers are stopped without one
    rendezvous: RendezvousConfig | None  # None: the job has one node
    local_addr: str  # "" on several nodes: the address from which the rendezvous is reached
    logs: LogOptions
    line_prefix: str
    worker_cpus: Sequence[Sequence[int]]  # by local rank; empty: not bound
    log_level: int
    log_records: bool  # whether log lines have time and level: LOGLEVEL was given
    error_file: str  # from which the launcher's parent reads the first error; "": none
    event_log: str = ""  # the file for the agent's transitions; "": none
    metrics_port: int = 0  # 0: none
    is_dry_run: bool = False
    result_json: str = ""  # the file for the job's result; "": none
    failure_policy: Mapping[str, str] = {}  # --failure-policy, as settings of the job
    stop_without_progress: int = 0  # the same: after so many rounds; 0: no limit
    policy_function: str = ""  # the same: which decides where no rule matches; "": none
    notes: tuple[tuple[int, str], ...] = ()  # (level, message) for the log, once it is set up
