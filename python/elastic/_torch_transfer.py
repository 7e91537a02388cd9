"""Sends a state (nested containers with tensors) from one rank to others."""

from __future__ import annotations

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
    if type(value) in (dict, OrderedDict, defaultdict):
        return {key: convert(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(convert(one) for one in value)
    return value


_Kind = tuple[tuple[int, ...], torch.dtype, bool]


def _is_on_cpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def broadcast(state: Any, source: int, is_receiver: bool, device: torch.device) -> Any:
    """The state that the rank ``source`` passes. All ranks call it; None if not a receiver.

    Tensors of the source that are not on the CPU are put on ``device``.
    """
    tensors: list[torch.Tensor] = []
    content: list[Any] = [None]
    if dist.get_rank() == source:
        tree = _take_tensors(state, tensors)
        content[0] = tree, [(tuple(one.shape), one.dtype, _is_on_cpu(one)) for one in tensors]
    dist.broadcast_object_list(content, src=source)
    tree, kinds = content[0]
    received: list[torch.Tensor] = []
    for first, last in _buckets([_bytes(shape, dtype) for shape, dtype, _ in kinds]):
        part = kinds[first:last]
        sizes = [_bytes(shape, dtype) for shape, dtype, _ in part]
        if tensors:
            flat = torch.cat([_as_bytes(one) for one in tensors[first:last]])
        else:
            flat = torch.empty(sum(sizes), dtype=torch.uint8)
        dist.broadcast(flat, src=source)
        if not is_receiver:
            continue
        for (shape, dtype, is_on_cpu), one in zip(part, flat.split(sizes), strict=True):
            # A copy: the part may not be aligned for the type.
            tensor = one.clone().view(dtype).reshape(shape)
            received.append(tensor if is_on_cpu else tensor.to(device))
    return _put_tensors(tree, received) if is_receiver else None


def _buckets(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = filled = 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= _BUCKET_BYTES or index == len(sizes) - 1:
            yield first, index + 1
            first, filled = index + 1, 0


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return int(torch.Size(shape).numel() * dtype.itemsize)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
