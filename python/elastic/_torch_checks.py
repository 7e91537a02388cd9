"""What cannot continue in place, for ``elastic.torch.membership``."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from elastic import _torch_nccl


def check(
    model: torch.nn.Module, optimizers: Iterable[object], backend: str, is_in_place: bool
) -> None:
    """Raises ``ValueError`` for what cannot continue in place, if it is to.

    ``optimizers``: and whatever else has a state.
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
    if not _torch_nccl.is_supported():
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
    """That of its first parameter; the CPU, if it has none."""
    return next(model.parameters(), torch.empty(0)).device
