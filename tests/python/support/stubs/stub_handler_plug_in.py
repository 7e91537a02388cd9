"""A third-party rendezvous handler: a counter in a store for each round."""

from __future__ import annotations

from typing import Any

from elastic import StoreClient, StoreServer
from elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo


class RoundStore:
    """The keys of one round in a store of all rounds."""

    def __init__(self, client: StoreClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def set(self, key: str, value: str) -> None:
        self._client.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        return self._client.get(self._prefix + key)

    def add(self, key: str, amount: int) -> int:
        return self._client.add(self._prefix + key, amount)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self._client.wait([self._prefix + key for key in keys], timeout)


class CountingHandler(RendezvousHandler):
    """Every round has max_nodes nodes, ranked by arrival."""

    def __init__(self, params: Any) -> None:
        self._params = params
        host, _, port = params.endpoint.rpartition(":")
        self._client = StoreClient(host, int(port), timeout=60)
        self._round = 0
        self._server: StoreServer | None = None

    def get_backend(self) -> str:
        return "counting"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        self._round += 1
        store = RoundStore(self._client, f"{self._params.run_id}/{self._round}/")
        rank = store.add("joined", 1) - 1
        if rank + 1 == self._params.max_nodes:
            store.set("full", "1")
        store.wait(["full"])
        if rank == 0:
            self._server = StoreServer("127.0.0.1", 0)
        port = self._server.port if self._server and rank == 0 else None
        where = RendezvousStoreInfo.build(rank, store, "127.0.0.1", port)
        return RendezvousInfo(store, rank, self._params.max_nodes, where)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing to do: a round is never refused."""

    def num_nodes_waiting(self) -> int:
        return self._client.add(f"{self._params.run_id}/{self._round + 1}/joined", 0)

    def get_run_id(self) -> str:
        return str(self._params.run_id)

    def shutdown(self) -> bool:
        return True


def make() -> type[CountingHandler]:
    return CountingHandler
