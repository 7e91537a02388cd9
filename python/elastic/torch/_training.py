"""Training that keeps its processes when members of the job change.

::

    with elastic.torch.membership(model, optimizer) as job:
        for step in job.steps(1000):
            with step:
                loss = loss_of(job.model(batch_of(step)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

Run it with ``--on-membership-change=inplace``. Under another launcher, and without that option, it
is ordinary data-parallel training. docs/in-place.md describes what happens at a change.

State is never rolled back. After each change the ranks compare how far they are. The lowest of the
ranks that are furthest sends its state to the ranks that are behind: to new processes, and to a
rank that a change interrupted in a step that others had completed. Ranks that are equally far, but
have a different learning rate or different objects in ``also``, receive these. Then all are equal.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from elastic import _environment, worker
from elastic.torch import _batches, _groups, _state
from elastic.torch._batches import GlobalBatches
from elastic.torch._state import Position, Stateful

__all__ = ["Change", "GlobalBatches", "Step", "TrainingMembership", "membership"]

# Parts of the messages with which a collective raises RuntimeError when a peer is lost. The notice
# of the change follows some milliseconds later.
_SIGNS_OF_LOSS = ("gloo", "nccl", "connection", "broken pipe", "socket", "timed out", "timeout")
_NOTICE_INTERVAL_S = 0.002
_CPU = torch.device("cpu")
_trainings = itertools.count(1)  # that this process begins


@dataclass(frozen=True)
class Change:
    """A change of the members, as this rank saw it. Times are in seconds."""

    round: int
    reason: str
    world_size: int
    previous_world_size: int
    kept: tuple[int, ...]  # ranks, in the new round, whose processes have state
    new: tuple[int, ...]  # ranks whose processes are new
    source: int | None  # the rank that sent its state, or a part; None: no rank needed it
    step: int  # at which the training continues
    out: float  # from the error or the notice until this rank had left the round
    waited: float  # until the launcher had formed the next round
    group: float  # to form the process group
    state: float  # to compare and send the state, and to wrap the model

    def __str__(self) -> str:
        sender = "" if self.source is None else f", state from rank {self.source}"
        return (
            f"round {self.round} ({self.reason}): {self.previous_world_size} -> {self.world_size} "
            f"ranks, {len(self.kept)} kept, {len(self.new)} new, step {self.step}{sender}; "
            f"out {self.out:.3f} s, round {self.waited:.3f} s, group {self.group:.3f} s, "
            f"state {self.state:.3f} s"
        )


class Step(int):
    """The number of a step, and the context in which it runs.

    An error that a change of the members has caused ends the body early and is not raised; the loop
    continues with the same step, or with the next one if a rank has completed it. A step is
    complete when its body has ended without an error, and if a change interrupts it after
    ``optimizer.step()``.
    """

    _job: TrainingMembership
    _is_entered: bool

    def __new__(cls, number: int, job: TrainingMembership) -> Step:
        self = super().__new__(cls, number)
        self._job = job
        self._is_entered = False
        return self

    # In a checkpoint, in a copy and in another process it is only the number.
    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __enter__(self) -> Step:
        self._is_entered = True
        self._job._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if error is None:
            self._job._complete(int(self))
            return False
        return self._job._survives(error)


@dataclass(frozen=True)
class _Times:
    failed: float
    left: float
    began: float
    round: worker.Round


class TrainingMembership:
    """The training as a member of the job. Use it in one thread."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        sampler: GlobalBatches | DistributedSampler[Any] | None = None,
        *,
        also: Mapping[str, Stateful] | None = None,
        start: int = 0,
        backend: str = "gloo",
        timeout: timedelta | None = None,
        ddp: Mapping[str, Any] | None = None,
        notice_timeout: float = 10.0,
    ) -> None:
        """Declares that this process can continue when members of the job change.

        ``model``: the module itself, on its device; ``self.model`` is the wrapped one. ``sampler``:
        is given the rank and the world size of each round. ``also``: other objects with a state
        that new processes need, by names that are equal on all ranks; after a change the states are
        equal, too. ``start``: the step at which the training begins, from a checkpoint; ranks that
        are behind get the state of one that is furthest. ``timeout``: of the process group.
        ``ddp``: arguments for ``DistributedDataParallel``. ``notice_timeout``: how long after an
        error of a collective this process waits for the notice of a change; then the error is
        raised.

        Raises ``ValueError`` for a model, an optimizer or a backend that cannot continue in place.
        """
        also = dict(also or {})
        if start < 0:
            raise ValueError(f"the first step is {start}: expected 0 or more")
        self._members = worker.membership()
        is_in_place = self._members.supported
        _groups.check(model, (optimizer, *also.values()), backend, is_in_place)
        self.module = model
        self.optimizer = optimizer
        self.step = start
        """The number of complete steps."""
        self.last_change: Change | None = None
        """The last change of the members; None: this process has seen none."""
        self._sampler = sampler
        self._also = also
        self._state = _state.State(model, optimizer, also)
        self._backend = backend
        self._timeout = timeout
        self._ddp = dict(ddp or {})
        self._notice_timeout = notice_timeout
        self._wrapped: torch.nn.Module | None = None
        self._owns_group = False
        self._world_size = 0  # of the last round that was formed
        self._has_state = False  # of the training, from a round that was formed
        self._training = 0  # its number in this process
        self._ended = 0  # the largest total of steps that all ranks have completed
        self._is_stopped = False  # by worker.should_stop
        self._is_in_body = False
        self._updates = 0  # of the parameters, in the body of the current step
        self._is_updating = False  # an update has begun, and may be made in part
        self._buffers: dict[str, torch.Tensor] = {}  # at its beginning, if NCCL may spoil them
        self._device = _groups.device_of(model)
        self._nccl: _groups.NcclGroups | None = None
        self._uses_nccl = is_in_place and "nccl" in backend
        self._hooks: list[Any] = []
        self._callbacks: list[Callable[[Change | None], object]] = []

    # Whether ranks compare how far they are; else all of them start together.
    @property
    def _compares(self) -> bool:
        return self._uses_nccl or self._backend == "gloo"

    # Where tensors are that ranks exchange.
    @property
    def _wire(self) -> torch.device:
        return self._device if self._uses_nccl and "gloo" not in self._backend else _CPU

    # ---- What a script uses.

    @property
    def model(self) -> torch.nn.Module:
        """The model of the current round, wrapped in ``DistributedDataParallel``."""
        if self._wrapped is None:
            raise RuntimeError("use the model within `with elastic.torch.membership(…) as job:`")
        return self._wrapped

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    def on_change(self, callback: Callable[[Change | None], object]) -> None:
        """Calls ``callback`` each time the process group has been formed.

        The argument is the change; None: the first time. Within the context it is called at once,
        with None, because the group has been formed. Make other groups (``dist.new_group``)
        and the iterators of the data there. TCP connections that are opened in it are closed at
        the next change. If another change comes meanwhile, it is called again.
        """
        self._callbacks.append(callback)
        if self._wrapped is not None:  # within the context: the process group has been formed
            try:
                with self._members.sockets():
                    callback(None)
            except Exception as error:
                if not self._survives(error):
                    raise

    def confirm(self) -> None:
        """Ends the body of a step whose results of NCCL are unfinished, because members change.

        Call it between a collective of the script and the first use of its result, if the script
        decides something by it: NCCL itself raises no error. ``optimizer.step()`` needs no call.
        It waits for the device; with gloo it does nothing.
        """
        if self._nccl is not None:
            self._nccl.confirm()

    def steps(self, total: int) -> Iterator[Step]:
        """The steps until all ranks have completed ``total``, or ``worker.should_stop`` is true.

        Use each as a context. Without that a step counts as complete when the loop asks for the
        next one, and errors are raised. It can be called again with a greater ``total``, for the
        next epoch: on a new process it ends at once for epochs that the others have completed, and
        on all of them once ``worker.should_stop`` was true.
        """
        while not self._is_stopped:
            if self._members.is_over():
                self._change(time.monotonic())
            elif self.step < total:
                step = Step(self.step, self)
                self._begin()
                yield step
                if not step._is_entered:
                    self._complete(int(step))
                if self.step > step:
                    self._is_stopped = worker.should_stop(self.step)
            elif self._is_ended(total):
                return

    def __enter__(self) -> TrainingMembership:
        self._training = next(_trainings)
        for one in self._state.optimizers:
            self._hooks.append(one.register_step_pre_hook(self._begin_update))
            self._hooks.append(one.register_step_post_hook(self._end_update))
        if self._uses_nccl:
            whole = self._timeout or distributed_c10d.default_pg_nccl_timeout
            self._nccl = _groups.NcclGroups(self._members, self._device, whole.total_seconds())
        try:
            if self._members.awaits_round:
                if not self._uses_nccl:
                    _groups.try_round()
                self._members.next_round()
            self._form(None)
        except BaseException:
            self._close(has_failed=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._close(has_failed=error is not None)

    def _close(self, *, has_failed: bool) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        try:
            self._leave_group(has_failed=has_failed)
        finally:
            if self._nccl is not None:
                self._nccl.close()

    # ---- Steps.

    def _begin(self) -> None:
        self._is_in_body = True
        self._updates = 0
        self._is_updating = False
        # DistributedDataParallel and SyncBatchNorm receive them in each forward pass.
        if self._uses_nccl:
            self._buffers = {name: one.clone() for name, one in self.module.named_buffers()}

    # A closure computes the gradients, before anything is updated. Those of a complete body have
    # been confirmed at its end.
    def _begin_update(
        self, _: object, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._is_in_body:
            self.confirm()

        def confirmed(closure: Callable[[], Any]) -> Callable[[], Any]:
            def call() -> Any:
                value = closure()
                self.confirm()
                self._is_updating = True
                return value

            return call

        if callable(keywords.get("closure")):
            return args, {**keywords, "closure": confirmed(keywords["closure"])}
        if len(args) > 1 and callable(args[1]):  # the first one is the optimizer
            return (args[0], confirmed(args[1]), *args[2:]), keywords
        self._is_updating = True
        return None

    # An update after a body is part of the step that the body has completed.
    def _end_update(self, *_: object) -> None:
        self._updates += self._is_in_body
        self._is_updating = False

    def _complete(self, step: int) -> None:
        # Unfinished gradients may be infinite: then a GradScaler makes no update, which would have
        # confirmed them.
        if self._updates < len(self._state.optimizers):
            try:
                self.confirm()
            except Exception as error:
                if not self._survives(error):
                    raise
                return
        self.step = max(self.step, step + 1)
        self._buffers = {}
        self._updates = 0
        self._is_in_body = False

    # A rank that ends early could not send its state to ranks that a change interrupts. Ranks that
    # have ended this total continue, and do not call its barrier again.
    def _is_ended(self, total: int) -> bool:
        if total <= self._ended or total < self.step:
            return True
        if not dist.is_initialized() or not self._compares:
            return True
        try:
            dist.barrier()
            self.confirm()
        except Exception as error:
            if not self._survives(error):
                raise
            return False
        self._ended = total
        return True

    # Whether a change caused the error; then this rank has entered the next round.
    def _survives(self, error: BaseException) -> bool:
        failed = time.monotonic()
        if not isinstance(error, Exception) or not self._is_change(error):
            return False
        _release_frames(error)
        self._change(failed)
        return True

    def _is_change(self, error: Exception) -> bool:
        if not self._members.supported:
            return False
        text = str(error).lower()
        is_loss = isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS_OF_LOSS)
        )
        limit = time.monotonic() + (self._notice_timeout if is_loss else 0)
        while not self._members.is_over():
            if time.monotonic() >= limit:
                return False
            time.sleep(_NOTICE_INTERVAL_S)
        return True

    # ---- Rounds.

    def _change(self, failed: float) -> None:
        self._is_in_body = False
        self.module.zero_grad(set_to_none=True)
        if self._updates == 0 and self._buffers:
            with torch.no_grad():
                for name, one in self.module.named_buffers():
                    one.copy_(self._buffers.get(name, one))
        self._buffers = {}  # at the next change newer ones may have been received
        for one in self._also.values():
            if isinstance(one, torch.amp.GradScaler):
                # The states of gradients that were unscaled in a step without an update.
                getattr(one, "_per_optimizer_states", {}).clear()
        self._form(self._next_round(failed))

    def _next_round(self, failed: float) -> _Times:
        self._leave_group()
        self._members.leave()
        left = time.monotonic()
        round = self._members.next_round()
        return _Times(failed, left, time.monotonic(), round)

    # Members may change again while the group is formed.
    def _form(self, times: _Times | None) -> None:
        while True:
            try:
                self._join_round(times)
                return
            except Exception as error:
                if not self._is_change(error):
                    raise
                _release_frames(error)
            times = self._next_round(time.monotonic())

    def _join_round(self, times: _Times | None) -> None:
        with self._members.sockets(self._cut_port()):
            self._join_group()
        formed = time.monotonic()
        change = self._share_state(times, formed)
        with self._members.sockets():
            for callback in tuple(self._callbacks):
                callback(change)
        # From here on this rank may be the source of another.
        self._has_state = True
        self._world_size = self.world_size
        if change is not None:
            self.last_change = change

    def _cut_port(self) -> int:
        """The port whose connections are shut down when the round is over; 0: all.

        With NCCL all of them while it connects the ranks, and later only the store's: then NCCL's
        operations are aborted, which takes a second instead of half a second if its connections
        were shut down before (NCCL 2.28).
        """
        return int(_environment.get("MASTER_PORT") or 0) if self._uses_nccl else 0

    def _join_group(self) -> None:
        if dist.is_initialized():
            if self._members.supported:
                raise ValueError(
                    "torch.distributed is initialized already: leave that to "
                    "elastic.torch.membership, which forms a process group in each round"
                )
            return
        if not _environment.get("RANK"):
            return  # one process, which no launcher started
        timeout = {} if self._timeout is None else {"timeout": self._timeout}
        store, rank, world_size = _groups.next_store(
            self._members, self._timeout or dist.default_pg_timeout
        )
        self._owns_group = True
        init = dist.init_process_group if self._nccl is None else self._nccl.join
        init(self._backend, store=store, rank=rank, world_size=world_size, **timeout)

    def _leave_group(self, *, has_failed: bool = False) -> None:
        # The hooks of a reducer that still exists would run in each backward.
        if isinstance(self._wrapped, DistributedDataParallel):
            for name in ("reducer", "logger"):
                self._wrapped.__dict__.pop(name, None)
        self._wrapped = None
        if self._owns_group and self._nccl is not None:
            self._nccl.leave(has_failed=has_failed)
        elif self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    # ---- State.

    def _share_state(self, times: _Times | None, formed: float) -> Change | None:
        if not dist.is_initialized():
            self._wrapped = self.module
            return None
        rank, world_size = self.rank, self.world_size
        extras = self._state.digest() if self._has_state else 0
        own = Position(
            self._has_state, self.step, self._updates, not self._is_updating, extras, self._ended,
            self._training, self._state.layout(),
        )  # fmt: skip
        ranks = [own]
        source = None
        ddp = self._ddp
        if self._compares:
            ranks = _state.gathered(own, world_size, self._wire)
            self.confirm()
            if len({one.training for one in ranks}) > 1:
                raise RuntimeError(
                    "members have changed while ranks were in different trainings of the script "
                    f"(by rank: {', '.join(str(one.training) for one in ranks)}): they cannot "
                    "continue in place"
                )
            if others := [i for i, one in enumerate(ranks) if one.layout != own.layout]:
                raise RuntimeError(
                    "the model or the parameter groups of the optimizer differ between ranks "
                    f"(rank {rank} from {', '.join(map(str, others))}), by names, shapes or types: "
                    "they cannot continue in place; build them alike on every rank, also on one "
                    "that joins later"
                )
            transfer = _state.transfer_between(ranks, shares_start=self._uses_nccl)
            # Each rank has, or receives now, what DistributedDataParallel would send again. With
            # NCCL what it receives could not be confirmed.
            if self._uses_nccl or ranks[transfer.source].has_state:
                ddp = {"init_sync": False, **ddp}
            if transfer.receivers:
                source = transfer.source
                self._transfer(transfer)
            # An update that was made is not repeated.
            self.step = ranks[transfer.source].next_step
            self._ended = max(one.ended for one in ranks)
            self._updates = 0
            self._is_updating = False
        _batches.divide(self._sampler, rank, world_size)
        self._wrapped = DistributedDataParallel(self.module, **ddp)
        if times is None:
            return None
        return Change(
            round=times.round.round,
            reason=times.round.reason,
            world_size=world_size,
            previous_world_size=self._world_size,
            kept=tuple(i for i, one in enumerate(ranks) if one.has_state),
            new=tuple(i for i, one in enumerate(ranks) if not one.has_state),
            source=source,
            step=self.step,
            out=times.left - times.failed,
            waited=times.began - times.left,
            group=formed - times.began,
            state=time.monotonic() - formed,
        )

    # All ranks take part. Nothing is changed before everything has been received.
    def _transfer(self, transfer: _state.Transfer) -> None:
        is_receiver = self.rank in transfer.receivers
        own = self._state.taken(transfer.is_whole) if self.rank == transfer.source else None
        received = _state.broadcast(
            own, transfer.source, is_receiver, self._device, self._wire, self.confirm
        )
        if is_receiver:
            self._state.load(received)
            self._has_state = True  # also if members change before the round is formed


membership = TrainingMembership  # as a script declares it


# The frames that an error has left hold the graph of the step, and with it the gradients of the old
# round. The interpreter holds the traceback while the error is handled.
def _release_frames(error: BaseException) -> None:
    errors: list[BaseException | None] = [error]
    found: set[int] = set()
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in found:
            found.add(id(one))
            traceback.clear_frames(one.__traceback__)
            errors += [one.__context__, one.__cause__]
