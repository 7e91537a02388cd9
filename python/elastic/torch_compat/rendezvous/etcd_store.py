"""torch's module of this name: a key-value store for workers in etcd, over etcd's v3 interface.

Agents and handlers of elastic do not use it: each of their rounds has a store of its own. Importing
this module imports torch, if it is installed, because a store for process groups derives from
torch's class.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from elastic.rendezvous.keepers import etcd
from elastic.text import plural
from elastic.torch_compat.rendezvous.api import RendezvousConnectionError

try:
    from torch.distributed import Store
except (ImportError, OSError):
    Store = object

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

__all__ = ["EtcdStore", "cas_delay"]

DEFAULT_TIMEOUT = timedelta(minutes=5)  # torch's
KEYS_OF_A_REQUEST = 100  # etcd's default limit is 128
WATCH_S = 5.0  # then the key is read again: a watch may have lost its connection


def cas_delay() -> None:
    """Sleeps for a short random time, so that two writers do not collide again."""
    time.sleep(random.uniform(0, 0.1))


class EtcdStore(Store):  # type: ignore[misc]
    """A ``torch.distributed.Store`` whose keys are below ``etcd_store_prefix``.

    ``etcd_client`` is an ``etcd3gw.Etcd3Client``. The keys stay in etcd until they are deleted.
    """

    def __init__(
        self, etcd_client: Etcd3Client, etcd_store_prefix: str, timeout: timedelta | None = None
    ) -> None:
        super().__init__()
        self.client = etcd_client
        self.prefix = etcd_store_prefix.rstrip("/") + "/"
        self._limit = DEFAULT_TIMEOUT
        if timeout is not None:
            self.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        return self._limit

    def set_timeout(self, timeout: timedelta) -> None:
        self._limit = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(success=[self._put(key, _bytes(value))])

    def get(self, key: str) -> bytes:
        """The value; waits until the key exists. Raises LookupError at the timeout."""
        return self._wait([key], self._limit)[key]

    def add(self, key: str, num: int) -> int:
        """Adds to a number in decimal notation, which begins at 0, and returns the sum."""
        while True:
            found, revision = self._read([key])[0][key]
            total = int(found or b"0") + num
            if self._put_if(key, revision, str(total).encode()):
                return total
            cas_delay()

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Replaces ``expected``, or sets a key that is missing if that is empty.

        Returns the value afterwards, and ``expected`` if the key is missing.
        """
        old, new = _bytes(expected), _bytes(desired)
        while True:
            found, revision = self._read([key])[0][key]
            if (found or b"") != old:
                return old if found is None else found
            if self._put_if(key, revision, new):
                return new
            cas_delay()

    def wait(self, keys: Iterable[str], override_timeout: timedelta | None = None) -> None:
        """Waits until all keys exist. Raises LookupError at the timeout."""
        self._wait(list(keys), self._limit if override_timeout is None else override_timeout)

    def check(self, keys: Iterable[str]) -> bool:
        """Whether all keys exist now."""
        return all(value is not None for value, _ in self._read(list(keys))[0].values())

    def delete_key(self, key: str) -> bool:
        """Whether the key existed."""
        request = {"request_delete_range": {"key": self._key(key)}}
        answer = self._ask(success=[request])["responses"][0]["response_delete_range"]
        return int(answer.get("deleted", 0)) > 0

    def _wait(self, keys: list[str], limit: timedelta) -> dict[str, bytes]:
        end = time.monotonic() + limit.total_seconds()
        found: dict[str, bytes] = {}
        missing = keys
        while True:
            read, revision = self._read(missing)
            found |= {key: value for key, (value, _) in read.items() if value is not None}
            missing = [key for key in missing if key not in found]
            left = end - time.monotonic()
            if not missing:
                return found
            if left <= 0:
                raise LookupError(
                    f"etcd has no key {missing[0]!r} below {self.prefix} after "
                    f"{limit.total_seconds():g} s ({plural(len(missing), 'key')} missing)"
                )
            self._watch(missing[0], revision + 1, min(left, WATCH_S))

    def _watch(self, key: str, revision: int, limit: float) -> None:
        """Returns at a change of the key since a revision, or at the limit."""
        from etcd3gw.exceptions import WatchTimedOut

        try:
            self.client.watch_once(self.prefix + _text(key), limit, start_revision=revision)
        except WatchTimedOut:
            pass
        except Exception as error:
            raise RendezvousConnectionError(f"etcd did not answer: {error}") from error

    def _read(self, keys: list[str]) -> tuple[dict[str, tuple[bytes | None, int]], int]:
        """The value, None if there is none, and the revision at which each key was written.

        And the revision of the whole store at which the first keys were read.
        """
        read: dict[str, tuple[bytes | None, int]] = {}
        revision = 0
        for first in range(0, len(keys), KEYS_OF_A_REQUEST):
            some = keys[first : first + KEYS_OF_A_REQUEST]
            requests = [{"request_range": {"key": self._key(key)}} for key in some]
            answer = self._ask(success=requests)
            revision = revision or int(answer["header"]["revision"])
            for key, response in zip(some, answer["responses"], strict=True):
                read[key] = etcd.state_of(response) or (None, 0)
        return read, revision

    def _put_if(self, key: str, revision: int, value: bytes) -> bool:
        """Writes a key that has not changed since this revision; 0: that does not exist."""
        unchanged = [etcd.unchanged(self._key(key), revision)]
        answer = self._ask(compare=unchanged, success=[self._put(key, value)])
        return bool(answer.get("succeeded"))

    def _put(self, key: str, value: bytes) -> dict[str, Any]:
        return {"request_put": {"key": self._key(key), "value": etcd.encoded(value)}}

    def _key(self, key: str) -> str:
        return etcd.encoded((self.prefix + _text(key)).encode())

    def _ask(self, **transaction: Any) -> dict[str, Any]:
        return etcd.ask(self.client, transaction, "etcd")


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _text(key: str | bytes) -> str:
    """A key as a part of etcd's key. Bytes that are not UTF-8 have other names than text."""
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
