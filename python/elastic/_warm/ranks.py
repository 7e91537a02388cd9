"""Modules that compute something of a rank when they are imported.

A template process is no rank: it has none of a rank's variables, and what it imports is the same in
all workers that it forks. A module that reads such a variable at its import would be of rank 0, or
of none, in each of them; a generator of random numbers would give all of them the same numbers.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

# What a worker gets (core/workers/worker_env), and the template has not.
NAMES = frozenset((
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ROLE_NAME",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    "ELASTIC_ROUND", "ELASTIC_RESTART_CAUSE", "ELASTIC_SAME_FAILURES",
    "ELASTIC_ON_MEMBERSHIP_CHANGE", "ELASTIC_AWAITS_ROUND", "ELASTIC_MEMBERSHIP_CHANGE",
))  # fmt: skip
# With --virtual-local-rank different in each worker.
_DEVICES = frozenset(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
# Which of these a module read at its import, and the module.
DEVICES_READ: dict[str, str] = {}
# Each worker computes `rank_zero_only.rank` again, as the module does at its import.
COMPUTED_AGAIN: dict[str, Callable[[Any], int]] = {
    "lightning.fabric.utilities.rank_zero": lambda module: module._get_rank() or 0,
    "lightning_fabric.utilities.rank_zero": lambda module: module._get_rank() or 0,
    "torchmetrics.utilities.prints": lambda _: int(os.environ.get("LOCAL_RANK", 0)),
}
# A read in these modules is one of their caller.
_BETWEEN = frozenset(("os", "_collections_abc", "collections.abc", __name__))
# Their own generators are known: a worker seeds those of random and numpy.
_KNOWN = ("random", "numpy", "torch")
# Generators that modules made without a seed. A worker seeds each from the system's entropy again.
UNSEEDED: list[random.Random] = []


# The variables that were read, and the modules that read them first.
Reads = dict[str, str]


class _Environ(type(os.environ)):  # type: ignore[misc]
    """``os.environ`` while modules are imported."""

    reads: ClassVar[Reads] = {}

    def __getitem__(self, key: str) -> str:
        if key in NAMES and os.fsencode(key) not in os.environb:
            reader = _reader(sys._getframe(1))
            if reader not in COMPUTED_AGAIN:
                type(self).reads.setdefault(key, reader)
        elif key in _DEVICES and not _is_known(reader := _reader(sys._getframe(1))):
            DEVICES_READ.setdefault(key, reader)
        return str(super().__getitem__(key))


def _reader(frame: FrameType | None) -> str:
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


@contextmanager
def noted() -> Iterator[Reads]:
    """Notes reads of a rank's variables in the body, and generators that get no seed."""
    reads: Reads = {}
    _Environ.reads = reads
    kind = os.environ.__class__
    os.environ.__class__ = _Environ
    seed = random.Random.seed
    random.Random.seed = _note_seed(seed)  # type: ignore[method-assign]
    try:
        yield reads
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]
        os.environ.__class__ = kind


def _note_seed(original: Callable[..., None]) -> Callable[..., None]:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        UNSEEDED[:] = [one for one in UNSEEDED if one is not self]
        if a is None:
            UNSEEDED.append(self)
        original(self, a, version)

    return seed


def computed(name: str, reads: Reads, modules: list[str]) -> str:
    """What differs in each rank of a fresh process, as the predicate of a sentence; "": nothing.

    ``modules``: those that the import of ``name`` brought.
    """
    if _is_known(name):  # with its dependencies, such as sympy
        return ""
    for variable, reader in reads.items():
        if _is_known(reader):
            continue
        return f"read {variable}, which only a worker has (in {reader})"
    kinds, own = _generators()
    own += UNSEEDED
    for module in modules:
        if _is_known(module):
            continue
        for attribute, value in list(vars(sys.modules.get(module, sys)).items()):
            if not isinstance(value, kinds) or isinstance(value, random.SystemRandom):
                continue
            if not any(value is one for one in own):
                return f"made a random generator that all ranks would share ({module}.{attribute})"
    return ""


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN


def _generators() -> tuple[tuple[type, ...], list[Any]]:
    """The classes of generators, and the instances that the libraries themselves have."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    kinds: tuple[type, ...] = (random.Random,)
    own: list[Any] = [getattr(random.random, "__self__", None)]
    if numpy is not None:
        kinds += (numpy.Generator, numpy.RandomState)
        own.append(getattr(getattr(numpy, "mtrand", None), "_rand", None))
    if torch is not None and hasattr(torch, "Generator"):
        kinds += (torch.Generator,)
        own.append(torch.default_generator)
    return kinds, own
