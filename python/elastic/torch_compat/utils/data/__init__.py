"""Iteration over data in an elastic job."""

from elastic import _lazy
from elastic.torch_compat.utils.data.cycling_iterator import CyclingIterator

__all__ = ["CyclingIterator", "ElasticDistributedSampler"]

# torch's own: it samples for torch's DataLoader. torch is imported on its first use.
_HOMES = {"torch.distributed.elastic.utils.data": "ElasticDistributedSampler"}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
