"""torch's module of this name: what programs import instead of the package ``etcd``.

That package is a client of etcd's v2 interface. elastic uses the v3 interface, through etcd3gw.
"""

from __future__ import annotations

from typing import Any, NoReturn


class EtcdStubError(ImportError):
    """The package ``etcd`` is needed."""

    def __init__(self) -> None:
        super().__init__("the package etcd, a client of the v2 interface, is needed")


class _Unusable(Exception):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise EtcdStubError


class EtcdException(_Unusable):
    pass


class EtcdAlreadyExist(_Unusable):
    pass


class EtcdCompareFailed(_Unusable):
    pass


class EtcdKeyNotFound(_Unusable):
    pass


class EtcdWatchTimedOut(_Unusable):
    pass


class EtcdEventIndexCleared(_Unusable):
    pass


class EtcdResult:
    def __init__(self) -> None:
        raise EtcdStubError


class Client:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise EtcdStubError

    def read(self, key: str) -> NoReturn:
        raise EtcdStubError

    def write(self, key: str, value: Any, ttl: int | None = None, **kwargs: Any) -> NoReturn:
        raise EtcdStubError

    def test_and_set(
        self, key: str, value: Any, prev_value: Any, ttl: int | None = None
    ) -> NoReturn:
        raise EtcdStubError
