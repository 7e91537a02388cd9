"""Where the ranks of a round meet to form a process group, for ``elastic.torch.membership``."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from elastic import _environment
from elastic.worker import Membership

_CONNECT_TIMEOUT = timedelta(seconds=2)

# By round: how often this process has begun to form a group. In a round each rank does it as often:
# once for each training of the script. If it fails because members change, another round follows.
_meetings: Counter[int] = Counter()


def next_store(members: Membership, timeout: timedelta) -> tuple[dist.Store, int, int]:
    """A store in which no group has been formed, the rank, and the world size."""
    number = _meetings[members.round]
    _meetings[members.round] += 1
    store, rank, world_size = _connected_store(members, timeout)
    _forget_group_names()
    # The host of the store may be the same in several rounds.
    store = dist.PrefixStore(f"elastic/round_{members.round}/{number}", store)
    return store, rank, world_size


# A client of torch's store that cannot connect retries until its timeout, also when its connection
# is shut down because the round is over.
def _connected_store(members: Membership, timeout: timedelta) -> tuple[Any, int, int]:
    if _environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[no-any-return]
    limit = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            store, rank, world_size = next(dist.rendezvous("env://", timeout=_CONNECT_TIMEOUT))
        except dist.DistError:
            if members.is_over() or time.monotonic() >= limit:
                raise
            continue
        store.set_timeout(timeout)
        return store, rank, world_size


# torch names a process group by a counter, and the names are part of the keys by which ranks meet.
# A group whose forming failed has counted on some ranks and not on others. As in torch's
# destroy_process_group, which only resets it after a group was formed.
def _forget_group_names() -> None:
    world = getattr(distributed_c10d, "_world", None)
    if world is not None:
        world.group_count = 0
