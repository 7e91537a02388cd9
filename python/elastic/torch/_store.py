"""A store client for ``torch.distributed``.

::

    store = elastic.torch.Store(elastic.StoreClient(host, port))
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)

It can replace a ``torch.distributed.TCPStore`` client, also below a ``PrefixStore`` and with
PyTorch's servers. Unlike that client, every call keeps its deadline, and a blocked call does not
delay calls of other threads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from elastic import errors
from elastic._C import StoreClient

_P = ParamSpec("_P")
_T = TypeVar("_T")

_Text = str | bytes


class StoreTimeout(errors.StoreTimeout, dist.DistStoreError):
    """A deadline passed. Handlers of elastic's error and of torch's both match it."""


class StoreUnavailable(errors.StoreUnavailable, dist.DistNetworkError):
    """The server refused, reset or closed the connection."""


class StoreQueueEmpty(errors.QueueEmpty, dist.QueueEmptyError):
    """``queue_pop(block=False)`` found no element."""


def _as_torch(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Calls, and converts elastic's exceptions to classes that also derive from torch's."""
    try:
        return call(*args, **kwargs)
    except errors.StoreTimeout as error:
        raise StoreTimeout(str(error)) from None
    except errors.StoreUnavailable as error:
        raise StoreUnavailable(str(error)) from None
    except errors.QueueEmpty as error:
        raise StoreQueueEmpty(str(error)) from None


# torch's C++ code (a PrefixStore, a process group) keeps a store without a reference that Python
# can see, and calls the Python object. So each store is kept alive until close().
_open_stores: set[Store] = set()


class Store(dist.Store):
    """``client`` as a ``torch.distributed.Store``.

    The store has its own timeout (``timeout``, ``set_timeout``), which torch's C++ code reads and
    sets; its initial value is the client's. A store lives until ``close()`` or the end of the
    process, because process groups may use it without a Python reference.
    """

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client
        _open_stores.add(self)
        self.set_timeout(timedelta(seconds=min(client.timeout, timedelta.max.total_seconds())))

    def __repr__(self) -> str:
        return f"elastic.torch.Store({self._client!r})"

    def set(self, key: _Text, value: _Text) -> None:
        _as_torch(self._client.set, key, value, timeout=self.timeout)

    def get(self, key: _Text) -> bytes:
        return _as_torch(self._client.get, key, timeout=self.timeout)

    def add(self, key: _Text, amount: int) -> int:
        return _as_torch(self._client.add, key, amount, timeout=self.timeout)

    def check(self, keys: Sequence[_Text]) -> bool:
        return _as_torch(self._client.check, keys, timeout=self.timeout)

    def wait(self, keys: Sequence[_Text], timeout: timedelta | None = None) -> None:
        _as_torch(self._client.wait, keys, timeout=self.timeout if timeout is None else timeout)

    def compare_set(self, key: _Text, expected_value: _Text, desired_value: _Text) -> bytes:
        return _as_torch(
            self._client.compare_set, key, expected_value, desired_value, timeout=self.timeout
        )

    def append(self, key: _Text, value: _Text) -> None:
        _as_torch(self._client.append, key, value, timeout=self.timeout)

    def delete_key(self, key: _Text) -> bool:
        return _as_torch(self._client.delete_key, key, timeout=self.timeout)

    def multi_get(self, keys: Sequence[_Text]) -> list[bytes]:
        return _as_torch(self._client.multi_get, keys, timeout=self.timeout)

    def multi_set(self, keys: Sequence[_Text], values: Sequence[_Text]) -> None:
        _as_torch(self._client.multi_set, keys, values, timeout=self.timeout)

    def num_keys(self) -> int:
        return _as_torch(self._client.num_keys, timeout=self.timeout)

    def list_keys(self) -> list[str]:
        return _as_torch(self._client.list_keys, timeout=self.timeout)

    def queue_push(self, key: _Text, value: _Text) -> None:
        _as_torch(self._client.queue_push, key, value, timeout=self.timeout)

    def queue_pop(self, key: _Text, block: bool = True) -> bytes:
        return _as_torch(self._client.queue_pop, key, block, timeout=self.timeout)

    def queue_len(self, key: _Text) -> int:
        return _as_torch(self._client.queue_len, key, timeout=self.timeout)

    def barrier(self, key: _Text, world_size: int, timeout: timedelta | None = None) -> None:
        limit = self.timeout if timeout is None else timeout
        _as_torch(self._client.barrier, key, world_size, timeout=limit)

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set work."""
        return True

    def clone(self) -> Store:
        clone = Store(_as_torch(self._client.clone))
        clone.set_timeout(self.timeout)
        return clone

    def close(self) -> None:
        """Closes the client. Call it when no process group uses this store any longer."""
        self._client.close()
        _open_stores.discard(self)

    # The names of these methods in torch's C++ code.
    deleteKey = delete_key
    getNumKeys = num_keys


WORKER_SERVER_START_S = 30.0


def worker_server(socket_path: str) -> Any:
    """torch's HTTP server of a worker, at a Unix socket, which answers. ``shutdown`` ends it."""
    from torch._C._distributed_c10d import _WorkerServer

    server = _WorkerServer(socket_path)
    # torch's shutdown() never returns if it is called before the server's thread runs.
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WORKER_SERVER_START_S)
        client.connect(socket_path)
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.recv(1)
    return server
