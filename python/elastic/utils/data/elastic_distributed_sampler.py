"""torch's module of this name; torch is imported on the first use of a name."""

from elastic import _lazy

_HOMES = {"ElasticDistributedSampler": "torch.distributed.elastic.utils.data"}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
