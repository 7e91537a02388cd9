"""Sends a state (nested containers with tensors) from one rank to others."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_BUCKET_BYTES = 64 << 20


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


def _is_on_cpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


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
        kinds = [(tuple(one.shape), one.dtype, _is_on_cpu(one)) for one in tensors]
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
