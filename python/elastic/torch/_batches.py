"""Which samples each rank uses, for ``elastic.torch.membership``."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.utils.data import DistributedSampler

logger = logging.getLogger(__name__)


class GlobalBatches:
    """The samples of each step, for any number of ranks: the batch of all ranks together is fixed.

    Every sample is used once in an epoch, however often members change. ``batch_size`` counts the
    samples of all ranks; choose a multiple of each possible world size, because ranks with fewer
    samples would weigh them more (a warning is logged). More ranks than ``batch_size`` are a
    ``ValueError``. The last samples of an epoch that do not fill a batch are left out. Pass it to
    :func:`membership` as ``sampler``.
    """

    def __init__(self, samples: int, batch_size: int, *, seed: int = 0) -> None:
        if not 0 < batch_size <= samples:
            raise ValueError(
                f"the batch size is {batch_size}: expected 1 to {samples}, the number of samples"
            )
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.rank, self.world_size = 0, 1
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.samples // self.batch_size

    def epoch(self, step: int) -> int:
        return step // len(self)

    def __getitem__(self, step: int) -> torch.Tensor:
        """The sample numbers of this rank in this step."""
        if self.epoch(step) != self._epoch:
            self._epoch = self.epoch(step)
            generator = torch.Generator().manual_seed(self.seed * 100_003 + self._epoch)
            self._order = torch.randperm(self.samples, generator=generator)
        begin = step % len(self) * self.batch_size
        return self._order[begin : begin + self.batch_size][self.rank :: self.world_size]


def divide(
    sampler: GlobalBatches | DistributedSampler[Any] | None, rank: int, world_size: int
) -> None:
    """Sets the sampler's rank and world size for a round."""
    if isinstance(sampler, GlobalBatches):
        if world_size > sampler.batch_size:
            raise ValueError(
                f"the batch of all ranks has {sampler.batch_size} samples, and the job has "
                f"{world_size} ranks: a rank without a sample would have a loss of NaN; choose a "
                "greater batch size or fewer ranks"
            )
        if rank == 0 and sampler.batch_size % world_size:
            logger.warning(
                "the batch of %d samples is not a multiple of the %d ranks: ranks with fewer "
                "samples weigh them more",
                sampler.batch_size, world_size,
            )  # fmt: skip
        sampler.rank, sampler.world_size = rank, world_size
    elif sampler is not None:
        sampler.rank, sampler.num_replicas = rank, world_size
        # torch's ElasticDistributedSampler begins at an index.
        rest = len(sampler.dataset) - getattr(sampler, "start_index", 0)
        parts = rest // world_size if sampler.drop_last else -(-rest // world_size)
        sampler.num_samples, sampler.total_size = parts, parts * world_size
