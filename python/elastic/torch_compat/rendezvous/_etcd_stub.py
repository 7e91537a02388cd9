"""torch's module of this name: what programs import instead of the package ``etcd``.

That package is a client of etcd's v2 interface. elastic uses the v3 interface, through etcd3gw.
"""

from __future__ import annotations

from typing import Any


class EtcdStubError(ImportError):
    """The package ``etcd`` is needed."""

    def __init__(self) -> None:
        super().__init__("the package etcd, a client of the v2 interface, is needed")


class _Unusable:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise EtcdStubError


class Client(_Unusable): ...


class EtcdResult(_Unusable): ...


class EtcdException(_Unusable, Exception): ...


class EtcdAlreadyExist(_Unusable, Exception): ...


class EtcdCompareFailed(_Unusable, Exception): ...


class EtcdKeyNotFound(_Unusable, Exception): ...


class EtcdWatchTimedOut(_Unusable, Exception): ...


class EtcdEventIndexCleared(_Unusable, Exception): ...
