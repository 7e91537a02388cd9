"""torch's module of this name: a rendezvous in etcd with torch's arguments, over its v3 interface.

``EtcdRendezvous`` and ``EtcdRendezvousHandler`` are the membership of ``--rdzv-backend=etcd``, so
that nodes with these classes and nodes with ``elastic-launch`` can join the same job.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from elastic.rendezvous.keepers import etcd
from elastic.torch_compat.rendezvous import handlers
from elastic.torch_compat.rendezvous.api import RendezvousHandler, RendezvousParameters
from elastic.torch_compat.rendezvous.handlers import DynamicRendezvousHandler

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

    from elastic.torch_compat.rendezvous.etcd_store import EtcdStore

__all__ = [
    "EtcdRendezvous",
    "EtcdRendezvousHandler",
    "EtcdRendezvousRetryImmediately",
    "EtcdRendezvousRetryableFailure",
    "create_rdzv_handler",
]

logger = logging.getLogger(__name__)


class EtcdRendezvousRetryableFailure(Exception):
    """Never raised: a change that another node has made first is repeated internally."""


class EtcdRendezvousRetryImmediately(Exception):
    """Never raised, for the same reason."""


class EtcdRendezvous:
    """This node's part in the rendezvous of a job. ``client`` is an ``etcd3gw.Etcd3Client``."""

    def __init__(
        self,
        client: Etcd3Client,
        prefix: str | None,
        run_id: str,
        num_min_workers: int,
        num_max_workers: int,
        timeout: float,
        last_call_timeout: float,
    ) -> None:
        self.client = client
        self._prefix = (prefix or etcd.PREFIX).rstrip("/")
        self._run_id = run_id
        self._parameters = RendezvousParameters(
            "etcd",
            "",
            run_id,
            num_min_workers,
            num_max_workers,
            timeout=timeout,
            last_call_timeout=last_call_timeout,
        )
        self._backend = etcd.EtcdRendezvousBackend(client, run_id, self._prefix)
        self._handler: weakref.ref[DynamicRendezvousHandler] | None = None
        self._own: DynamicRendezvousHandler | None = None

    def rendezvous_barrier(self) -> tuple[int, int, int]:
        """Joins the next round; returns its number, this node's rank and the number of nodes."""
        joined = self._member().next_round()
        return joined.round, joined.group_rank, joined.nodes

    def set_closed(self) -> None:
        self._member().set_closed()

    def setup_kv_store(self, rdzv_version: int) -> EtcdStore:
        """A store in etcd for the members of a round."""
        return self._store(rdzv_version, "kv")

    def store_extra_data(self, rdzv_version: int, key: str, value: str) -> None:
        """Stores a value for the members of a round."""
        self._store(rdzv_version, "extra_data").set(key, value)

    def load_extra_data(self, rdzv_version: int, key: str, timeout: Any = None) -> str:
        """A value that a member of the round stores; waits for it, without a limit as in torch."""
        store = self._store(rdzv_version, "extra_data")
        while timeout is None:
            try:
                return store.get(key).decode()
            except LookupError:
                logger.info("waiting for %s of round %d", key, rdzv_version)
        store.wait([key], timeout)
        return store.get(key).decode()

    def get_path(self, path: str) -> str:
        """The key of etcd below which the job's data are."""
        return f"{self._prefix}/run_{self._run_id}/{path.lstrip('/')}"

    def _store(self, rdzv_version: int, name: str) -> EtcdStore:
        from elastic.torch_compat.rendezvous.etcd_store import EtcdStore  # it imports torch

        return EtcdStore(self.client, self.get_path(f"rdzv/v_{rdzv_version}/{name}"))

    def _made(self, local_addr: str | None) -> DynamicRendezvousHandler:
        self._parameters.local_addr = local_addr
        return handlers.create_handler(None, self._backend, self._parameters)

    def _member(self) -> DynamicRendezvousHandler:
        """The handler of this node; without one the rendezvous joins by itself."""
        handler = None if self._handler is None else self._handler()
        if handler is None and self._own is None:
            self._own = self._made(None)
        return handler or self._own  # type: ignore[return-value]


class EtcdRendezvousHandler(DynamicRendezvousHandler):
    """The handler of a rendezvous in etcd.

    As with every handler of elastic, the store of a round is served by its rank 0, not by etcd;
    ``EtcdRendezvous.setup_kv_store`` creates one in etcd.
    """

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None) -> None:
        made = rdzv_impl._made(local_addr)
        super().__init__("etcd", made.native_options, made.settings)
        self._rdzv_impl = rdzv_impl
        rdzv_impl._handler = weakref.ref(self)


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """The handler for the settings of ``--rdzv-conf``, for example ``timeout``, ``etcd_prefix``,
    ``protocol``, ``cacert``, ``cert`` and ``key``; see docs/cli.md."""
    implementation = EtcdRendezvous(
        etcd.connect("etcd", params.endpoint, params.config),
        params.get("etcd_prefix"),
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        600,
        30,
    )
    implementation._parameters.config = params.config
    return EtcdRendezvousHandler(implementation, params.local_addr)
