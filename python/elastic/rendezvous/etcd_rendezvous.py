"""torch's module of this name, whose classes use etcd's v2 interface, is not offered."""

from elastic import _lazy

_WHY = (
    "etcd 3.6 has removed the v2 interface that it uses; use --rdzv-backend=etcd, or "
    "get_rendezvous_handler with the backend etcd, over the v3 interface"
)
__getattr__ = _lazy.refuse(
    __name__,
    _WHY,
    "EtcdRendezvous",
    "EtcdRendezvousHandler",
    "EtcdRendezvousRetryImmediately",
    "EtcdRendezvousRetryableFailure",
    "create_rdzv_handler",
)
