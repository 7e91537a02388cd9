"""A training's state, and how one rank sends it to others, for ``elastic.torch.membership``."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

# The digest of a larger tensor is made from the sums of its columns, on its device.
_COPIED_BYTES = 1 << 14
_COLUMNS = 1 << 9
_BUCKET_BYTES = 64 << 20  # of a state that is sent


class Position(NamedTuple):
    """How far a rank is, the digest of its extras, and where it is in the script."""

    has_state: bool
    step: int
    updates: int  # of the parameters, in the step
    is_intact: bool  # no update was interrupted
    extras: int
    ended: int = 0  # the largest total of steps that all ranks have completed, as far as it knows
    training: int = 1  # which of the trainings of the script
    layout: int = 0  # the digest of what a state is loaded into

    @property
    def progress(self) -> tuple[int, ...]:
        """Greater for a rank that is further."""
        return self[:4]

    @property
    def next_step(self) -> int:
        return self.step + (self.updates > 0)


def gathered(own: Position, world_size: int, wire: torch.device) -> list[Position]:
    """The positions of all ranks, which all call it."""
    found = [torch.empty(len(own), dtype=torch.int64, device=wire) for _ in range(world_size)]
    dist.all_gather(found, torch.tensor(own, dtype=torch.int64, device=wire))
    return [
        Position(bool(has_state), step, updates, bool(is_intact), *rest)
        for has_state, step, updates, is_intact, *rest in torch.stack(found).tolist()
    ]


@dataclass(frozen=True)
class Transfer:
    source: int  # the lowest of the ranks that are furthest
    receivers: frozenset[int]
    is_whole: bool  # else of the extras


def transfer_between(ranks: Sequence[Position], *, shares_start: bool) -> Transfer:
    """Which ranks must receive state, and from which rank, so that all equal the furthest one.

    ``shares_start``: also before the first step, when no rank has a state of the training.
    """
    furthest = max(one.progress for one in ranks)
    source = next(i for i, one in enumerate(ranks) if one.progress == furthest)
    has_begun = ranks[source].has_state
    behind = {i for i, one in enumerate(ranks) if one.progress != furthest}
    # Parts of an update differ between ranks.
    if (shares_start and not has_begun) or not ranks[source].is_intact:
        behind = set(range(len(ranks))) - {source}
    # Ranks that a change has interrupted between the same updates, but not at the same line.
    other = {i for i, one in enumerate(ranks) if has_begun and one.extras != ranks[source].extras}
    return Transfer(source, frozenset(behind | other), bool(behind))


class Stateful(Protocol):
    """What has a state of its own: a scheduler, a gradient scaler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class State:
    """The state of a model, its optimizer and other objects."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        also: Mapping[str, Stateful],
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._also = also
        others = [one for one in also.values() if isinstance(one, torch.optim.Optimizer)]
        self.optimizers = (optimizer, *others)

    def taken(self, is_whole: bool) -> dict[str, Any]:
        """What is sent: the whole state, or only the extras."""
        if not is_whole:
            return self._extras()
        saved = self._module.state_dict()
        buffers = self._module.named_buffers()
        return {
            "model": saved,
            "buffers": {name: buffer for name, buffer in buffers if name not in saved},
            # A layer that was frozen or unfrozen: DistributedDataParallel reduces the others only.
            "trained": [one.requires_grad for one in self._module.parameters()],
            "optimizer": self._optimizer.state_dict(),
            "also": {name: one.state_dict() for name, one in self._also.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        if "model" in state:
            self._module.load_state_dict(state["model"])
            for name, buffer in state["buffers"].items():
                self._load_buffer(name, buffer)
            for parameter, is_trained in zip(
                self._module.parameters(), state["trained"], strict=True
            ):
                parameter.requires_grad_(is_trained)
            self._optimizer.load_state_dict(state["optimizer"])
        else:
            for optimizer, groups in zip(self.optimizers, state["options"], strict=True):
                for group, options in zip(optimizer.param_groups, groups, strict=True):
                    group.update(options)
        for name, saved in state["also"].items():
            self._also[name].load_state_dict(saved)

    def _load_buffer(self, name: str, buffer: torch.Tensor) -> None:
        """One that the module does not save, such as a cache: it may have another shape here."""
        path, _, leaf = name.rpartition(".")
        module = self._module.get_submodule(path)
        own = getattr(module, leaf, None)
        if isinstance(own, torch.Tensor) and own.shape == buffer.shape:
            with torch.no_grad():
                own.copy_(buffer)
        elif leaf in module._buffers:
            module._buffers[leaf] = buffer.clone()
        else:
            module.register_buffer(leaf, buffer.clone(), persistent=False)

    def layout(self) -> int:
        """64 bits of what must be equal before a state is sent: equal in two equal models."""
        saved = self._module.state_dict()
        found = hashlib.blake2b(digest_size=8)
        for name, one in saved.items():
            if isinstance(one, torch.Tensor):
                found.update(f"{name} {tuple(one.shape)} {one.dtype} ".encode())
        groups = [[len(group["params"]) for group in one.param_groups] for one in self.optimizers]
        found.update(str(groups).encode())
        return int.from_bytes(found.digest(), "little", signed=True)

    # What a script changes without an update of the parameters: options of optimizers, and `also`.
    def _extras(self) -> dict[str, Any]:
        return {
            "options": [_options(one) for one in self.optimizers],
            "also": {
                name: one.state_dict()
                for name, one in self._also.items()
                if not isinstance(one, torch.optim.Optimizer)
            },
        }

    def digest(self) -> int:
        """64 bits of the extras: equal in two processes whose extras are equal."""
        found = hashlib.blake2b(digest_size=8)
        _add(self._extras(), found.update)
        return int.from_bytes(found.digest(), "little", signed=True)


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


# A pickle of the whole would depend on the identity of objects and on the order of keys.
def _add(value: Any, update: Callable[[bytes], None]) -> None:
    if isinstance(value, torch.Tensor):
        update(f"{value.dtype} {tuple(value.shape)} ".encode())
        update(_content(value))
    elif isinstance(value, Mapping):
        update(f"{len(value)} items ".encode())
        for key in sorted(value, key=repr):
            update(f"{key!r} ".encode())
            _add(value[key], update)
    elif isinstance(value, (list, tuple)):
        update(f"{len(value)} values ".encode())
        for one in value:
            _add(one, update)
    else:
        update(pickle.dumps(value))


def _content(tensor: torch.Tensor) -> bytes:
    flat = as_bytes(tensor.detach(), tensor.device)
    if flat.numel() > _COPIED_BYTES:
        if flat.storage_offset() % 8:
            flat = flat.clone()
        end = flat.numel() - flat.numel() % (8 * _COLUMNS)
        sums = flat[:end].view(torch.int64).reshape(-1, _COLUMNS).sum(dim=0)
        flat = torch.cat([sums.view(torch.uint8), flat[end:]])
    return bytes(flat.cpu().numpy())


# A state is sent as nested containers with places for its tensors, and then the tensors.


@dataclass(frozen=True)
class _Place:
    """Where a tensor was in the state."""

    index: int


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return _Place(len(tensors) - 1)
    return _rebuilt(value, lambda one: _take_tensors(one, tensors))


def _put_tensors(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.index]
    return _rebuilt(value, lambda one: _put_tensors(one, tensors))


def _rebuilt(value: Any, convert: Callable[[Any], Any]) -> Any:
    """A plain container with converted items; another value as it is."""
    if type(value) is OrderedDict:
        found = OrderedDict((key, convert(one)) for key, one in value.items())
        found.__dict__.update(vars(value))  # versions, in the state of a module
        return found
    if type(value) in (dict, defaultdict):
        return {key: convert(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(convert(one) for one in value)
    return value


_Kind = tuple[tuple[int, ...], torch.dtype, bool]


def broadcast(
    state: Any,
    source: int,
    is_receiver: bool,
    device: torch.device,
    wire: torch.device,
    confirm: Callable[[], None],
) -> Any:
    """The state that the rank ``source`` passes. All ranks call it; None if not a receiver.

    Tensors of the source that are not on the CPU are put on ``device``, if that has room for them.
    They are sent from ``wire``. ``confirm`` raises an error if what was received may be incomplete.
    """
    tensors: list[torch.Tensor] = []
    content = b""
    if dist.get_rank() == source:
        tree = _take_tensors(state, tensors)
        kinds = [(tuple(one.shape), one.dtype, one.device.type == "cpu") for one in tensors]
        content = pickle.dumps((tree, kinds))
    tree, kinds = pickle.loads(_broadcast_bytes(content, source, wire, confirm))
    place = _place_for(kinds, device) if is_receiver else device
    received: list[torch.Tensor] = []
    for first, last in _buckets([_bytes(shape, dtype) for shape, dtype, _ in kinds]):
        part = kinds[first:last]
        sizes = [_bytes(shape, dtype) for shape, dtype, _ in part]
        if tensors:
            flat = torch.cat([as_bytes(one, wire) for one in tensors[first:last]])
        else:
            flat = torch.empty(sum(sizes), dtype=torch.uint8, device=wire)
        dist.broadcast(flat, src=source)
        if not is_receiver:
            continue
        for (shape, dtype, is_on_cpu), one in zip(part, flat.split(sizes), strict=True):
            # A copy: the part may not be aligned for the type.
            tensor = one.clone().view(dtype).reshape(shape)
            received.append(tensor.to("cpu" if is_on_cpu else place))
    confirm()
    return _put_tensors(tree, received) if is_receiver else None


def _broadcast_bytes(
    content: bytes, source: int, wire: torch.device, confirm: Callable[[], None]
) -> bytes:
    size = torch.tensor(len(content), device=wire)
    dist.broadcast(size, src=source)
    confirm()
    if dist.get_rank() == source:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(wire)
    else:
        data = torch.empty(int(size), dtype=torch.uint8, device=wire)
    dist.broadcast(data, src=source)
    confirm()
    return bytes(data.cpu().numpy())


# Until everything has been received the device holds the old state, too.
def _place_for(kinds: Sequence[_Kind], device: torch.device) -> torch.device:
    if device.type != "cuda":
        return device
    sizes = [_bytes(shape, dtype) for shape, dtype, is_on_cpu in kinds if not is_on_cpu]
    free, _ = torch.cuda.mem_get_info(device)
    room = 2 * max([_BUCKET_BYTES, *sizes])  # a bucket, and the copy of a tensor in it
    return device if sum(sizes) + room < free else torch.device("cpu")


def _buckets(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = filled = 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= _BUCKET_BYTES or index == len(sizes) - 1:
            yield first, index + 1
            first, filled = index + 1, 0


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return int(torch.Size(shape).numel() * dtype.itemsize)


def as_bytes(tensor: torch.Tensor, wire: torch.device) -> torch.Tensor:
    return tensor.to(wire).contiguous().reshape(-1).view(torch.uint8)
