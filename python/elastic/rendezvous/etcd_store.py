"""torch's module of this name, a store in etcd's v2 interface, is not offered."""

from elastic import _lazy

_WHY = "every round has a store of its own; use elastic.StoreServer and elastic.StoreClient"
__getattr__ = _lazy.refuse(__name__, _WHY, "EtcdStore", "cas_delay")
