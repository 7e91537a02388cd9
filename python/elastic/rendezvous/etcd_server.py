"""torch's module of this name, which starts an etcd for tests, is not offered."""

from elastic import _lazy

_WHY = (
    "it needs etcd's v2 interface, which etcd 3.6 has removed; for tests without a service use "
    "--rdzv-backend=file or elastic.StoreServer"
)
__getattr__ = _lazy.refuse(__name__, _WHY, "EtcdServer", "find_free_port", "stop_etcd")
