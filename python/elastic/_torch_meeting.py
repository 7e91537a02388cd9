"""Where the ranks of a round meet to form a process group, for ``elastic.torch.membership``.

A process that waits for its first round makes a trial of one. What it does first takes longer than
later: torch loads parts of itself, and the kernel maps their pages. The ranks that are kept would
wait for that.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from elastic import _environment, _torch_transfer
from elastic.worker import Membership

_CPU = torch.device("cpu")
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


def try_round() -> None:
    """Forms a gloo group of this process, makes one step of a small model, and destroys it.

    The script's model, its gradients and its random numbers are not touched. An error has no
    consequence: the round itself will show it.
    """
    if dist.is_initialized():
        return
    with suppress(Exception), torch.random.fork_rng(devices=[]):
        try:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            _step()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _step() -> None:
    number = torch.zeros(1, dtype=torch.int64, device=_CPU)
    dist.all_gather([torch.empty_like(number)], number)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4, device=_CPU), torch.nn.ReLU(), torch.nn.Linear(4, 1, device=_CPU)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    _torch_transfer.broadcast(state, 0, False, _CPU, _CPU, lambda: None)
    wrapped = DistributedDataParallel(model)
    with torch.enable_grad():
        wrapped(torch.zeros(2, 4, device=_CPU)).sum().backward()
    optimizer.step()
