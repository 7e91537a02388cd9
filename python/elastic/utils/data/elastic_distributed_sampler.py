"""torch's module of this name; torch is imported on the first use of a name."""

from elastic import _lazy

_HOMES = {"torch.distributed.elastic.utils.data": "ElasticDistributedSampler"}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
