"""Process groups of NCCL whose round may end, for ``elastic.torch.membership``.

Operations of NCCL run on the device. If another rank is lost they never end, and neither do the
operations that are queued behind them or the first call that needs their results. No error is
raised. When their communicator is aborted they end with unfinished results, and the script would go
on with those. Three rules make that safe:

* A thread aborts the communicators when the launcher has said that the round is over. So a blocked
  call returns. Nobody else aborts: torch's watchdog is told not to.
* Results count only if they were complete before the round was over, see :meth:`Groups.confirm`.
  It is called before parameters are updated, and before something that was received is used.
* Operations that have not ended within the timeout of the process group, without a notice from the
  launcher, are an error, as they are with torch's watchdog.
"""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from elastic import _environment
from elastic.worker import Membership

_INTERVAL_S = 0.25  # between two looks at the deadline


def is_supported() -> bool:
    """Whether this torch can abort a process group (2.6 or later)."""
    return hasattr(distributed_c10d, "_abort_process_group")


class Groups:
    """The process groups of a member. Used by one thread; :meth:`close` it."""

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
        """Destroys all groups, those of the script included.

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
                    with contextlib.suppress(Exception):
                        _abort()


# As torch's _abort_process_group, but the script's thread may use the groups meanwhile: they stay
# registered. Communicators are aborted together, because one may wait for another.
def _abort() -> None:
    groups = distributed_c10d._world.pg_names
    backend = distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    backend._group_start()
    try:
        for group in sorted(groups, key=lambda group: groups[group], reverse=True):
            with contextlib.suppress(RuntimeError):  # a backend without the operation
                group.abort()
    finally:
        backend._group_end()
