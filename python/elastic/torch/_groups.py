"""The process groups of a member: what they need, how ranks meet for one, and how NCCL's end.

For ``elastic.torch.membership``. A process that waits for its first round makes a trial of one
(``try_round``). What it does first takes longer than later: torch loads parts of itself, and the
kernel maps their pages. The ranks that are kept would wait for that.

Operations of NCCL run on the device. If another rank is lost they never end, and neither do the
operations that are queued behind them or the first call that needs their results. No error is
raised. When their communicator is aborted they end with unfinished results, and the script would
continue with those. Three rules make that safe:

* A thread aborts the communicators when the launcher has reported that the round is over, so that a
  blocked call returns. Nothing else aborts them: torch's watchdog is switched off.
* Results count only if they were complete before the round was over, see :meth:`Groups.confirm`.
  It is called before parameters are updated, and before something that was received is used.
* Operations that have not ended within the timeout of the process group, without a notice from the
  launcher, are an error, as they are with torch's watchdog.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from elastic import _environment
from elastic.torch import _state
from elastic.worker import Membership

_CPU = torch.device("cpu")
_CONNECT_TIMEOUT = timedelta(seconds=2)
_INTERVAL_S = 0.25  # between two looks at the deadline


def check(
    model: torch.nn.Module, optimizers: Iterable[object], backend: str, is_in_place: bool
) -> None:
    """Raises ``ValueError`` for what cannot continue in place, if it is to.

    ``optimizers``: all objects that have a state.
    """
    names = {cls.__name__ for module in model.modules() for cls in type(module).__mro__}
    if "DistributedDataParallel" in names:
        raise ValueError("the model is wrapped already: pass the module itself")
    if not is_in_place:
        return
    if names & {"FullyShardedDataParallel", "FSDPModule"} or any(
        type(one).__name__ == "DTensor" for one in model.parameters()
    ):
        raise ValueError(
            "the model is sharded over the ranks (FSDP, DTensor): a lost rank takes its part with "
            "it, so members cannot change in place; use --on-membership-change=restart"
        )
    if any(
        cls.__name__ == "ZeroRedundancyOptimizer" for one in optimizers for cls in type(one).__mro__
    ):
        raise ValueError(
            "ZeroRedundancyOptimizer keeps a part of the state on each rank, so members cannot "
            "change in place; use --on-membership-change=restart"
        )
    if backend not in ("gloo", "nccl", "cpu:gloo,cuda:nccl"):
        raise ValueError(
            f"the backend is {backend!r}: members change in place with gloo and with nccl; use "
            "--on-membership-change=restart"
        )
    if "nccl" not in backend:
        return
    if not is_nccl_supported():
        raise ValueError(
            f"members change in place with nccl from torch 2.6 on, and this is {torch.__version__}:"
            " use --on-membership-change=restart"
        )
    if device_of(model).type != "cuda":
        raise ValueError(
            f"the model is on {device_of(model)}: move it to this process's GPU before "
            "elastic.torch.membership, for backend='nccl'"
        )


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of its first parameter; the CPU if it has none."""
    return next(model.parameters(), torch.empty(0)).device


# By round: how often this process has begun to form a group. In a round each rank does it equally
# often: once for each training of the script. If it fails because members change, a round follows.
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
    _state.broadcast(state, 0, False, _CPU, _CPU, lambda: None)
    wrapped = DistributedDataParallel(model)
    with torch.enable_grad():
        wrapped(torch.zeros(2, 4, device=_CPU)).sum().backward()
    optimizer.step()


def is_nccl_supported() -> bool:
    """Whether this torch can abort a process group (2.6 or later)."""
    return hasattr(distributed_c10d, "_abort_process_group")


class NcclGroups:
    """The process groups of a member, with NCCL. Used by one thread; :meth:`close` it."""

    def __init__(self, members: Membership, device: torch.device, timeout: float) -> None:
        self._members = members
        self._device = device
        self._timeout = timeout
        self._lock = threading.Lock()
        self._may_abort = threading.Event()  # the round has groups; cleared when they are aborted
        self._deadline: float | None = None  # of confirm()
        self._is_late = False
        self._is_closed = False
        threading.Thread(target=self._watch, name="elastic-nccl", daemon=True).start()

    def join(
        self, backend: str, *, store: dist.Store, rank: int, world_size: int, **rest: Any
    ) -> None:
        """As ``torch.distributed.init_process_group``; also connects the ranks.

        Call it within ``Membership.sockets(port)``, with the store's port: if a rank is lost
        meanwhile, the cut of the connections ends it.
        """
        # NCCL waits for the other ranks with a listening socket, which is not cut.
        if store.add("arrived", 1) == world_size:
            store.set("all_arrived", "1")
        store.wait(["all_arrived"], timedelta(seconds=self._timeout))
        _environment.update({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
        group = {"store": store, "rank": rank, "world_size": world_size}
        dist.init_process_group(backend, device_id=self._device, **group, **rest)
        self._is_late = False
        self._may_abort.set()
        dist.all_reduce(torch.ones(1, device=self._device))
        self.confirm()

    def confirm(self) -> None:
        """Waits until what is queued on the current stream is complete.

        Raises ``DistBackendError`` if it may not be: the round is over, or the timeout has passed.
        """
        done = torch.cuda.Event(blocking=True)
        done.record(torch.cuda.current_stream(self._device))
        if not done.query():
            self._deadline = time.monotonic() + self._timeout
            done.synchronize()
            self._deadline = None
        if self._is_late:
            raise dist.DistBackendError(
                f"NCCL's operations did not end within {self._timeout:g} s, the timeout of the "
                "process group, and were aborted"
            )
        if self._members.is_over():
            raise dist.DistBackendError("the round is over: NCCL's operations were aborted")

    def leave(self, *, has_failed: bool = False) -> None:
        """Destroys all groups, including the script's.

        ``has_failed``: the other ranks may not do the same. Without that their communicators are
        destroyed together, which waits for all operations.
        """
        with self._lock:
            is_aborted = not self._may_abort.is_set() or self._members.is_over() or has_failed
            self._may_abort.clear()
        if not dist.is_initialized():  # by the script
            return
        if is_aborted:
            distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed = True
        self._may_abort.set()

    def _watch(self) -> None:
        while True:
            self._may_abort.wait()
            if self._is_closed:
                return
            self._members.wait_until_over(_INTERVAL_S)
            with self._lock:
                if not self._may_abort.is_set() or self._is_closed:
                    continue
                # Asked anew: the groups may be those of the next round by now.
                is_over = self._members.is_over()
                deadline = self._deadline
                self._is_late = not is_over and deadline is not None and deadline < time.monotonic()
                if is_over or self._is_late:
                    self._may_abort.clear()
                    # The script may be destroying a group. What stays blocked, the launcher ends.
                    with suppress(Exception):
                        _abort()


# As torch's _abort_process_group, but the script's thread may use the groups meanwhile: they stay
# registered. Communicators are aborted together, because one may wait for another.
def _abort() -> None:
    groups = distributed_c10d._world.pg_names
    backend = distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    backend._group_start()
    try:
        for group in sorted(groups, key=lambda group: groups[group], reverse=True):
            with suppress(RuntimeError):  # a backend without the operation
                group.abort()
    finally:
        backend._group_end()
