"""What the messages say about an etcd that does not answer."""

from __future__ import annotations

from typing import Any

import pytest
from elastic.rendezvous.keepers import etcd
from elastic.torch_compat.rendezvous.api import RendezvousConnectionError


class Unreachable:
    """A client whose exceptions have no text, as in etcd3gw; their causes have it."""

    host, port = "etcd0", 2379

    def transaction(self, _: Any) -> dict[str, Any]:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError:
            try:
                raise RuntimeError("the pool of /v3/kv/txn")
            except RuntimeError:
                raise ValueError  # noqa: B904

    def lease(self, _: int) -> Any:
        raise TimeoutError("timed out")


def test_an_error_names_the_endpoint_and_the_first_cause() -> None:
    backend = etcd.EtcdRendezvousBackend(Unreachable(), "job")
    with pytest.raises(RendezvousConnectionError) as raised:
        backend.get_state()
    assert str(raised.value) == "etcd at etcd0:2379 did not answer: Connection refused"
    with pytest.raises(RendezvousConnectionError) as raised:
        backend.set_state(b"x")
    assert str(raised.value) == "etcd at etcd0:2379 granted no lease: timed out"
