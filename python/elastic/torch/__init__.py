"""What a training script that uses torch imports.

``membership`` keeps a training's processes when members of the job change, and ``GlobalBatches``
divides its samples. ``Snapshots`` keeps the state of a rank in memory that outlives its process.
``Store`` is a store client for ``torch.distributed``.
"""

import torch

from elastic import _lazy

TYPE_CHECKING = False  # type checkers know the name
if TYPE_CHECKING:
    from elastic.torch._batches import GlobalBatches
    from elastic.torch._snapshots import Snapshots
    from elastic.torch._store import Store, StoreQueueEmpty, StoreTimeout, StoreUnavailable
    from elastic.torch._training import Change, TrainingMembership, membership

__all__ = [
    "Change",
    "GlobalBatches",
    "Snapshots",
    "Store",
    "StoreQueueEmpty",
    "StoreTimeout",
    "StoreUnavailable",
    "TrainingMembership",
    "membership",
]

# A `Step` in a checkpoint is the call int(number): torch.load(weights_only=True) may make it.
if hasattr(torch.serialization, "add_safe_globals"):  # torch 2.4 and later
    torch.serialization.add_safe_globals([int])

_HOMES = {
    "elastic.torch._batches": "GlobalBatches",
    "elastic.torch._snapshots": "Snapshots",
    "elastic.torch._store": "Store StoreQueueEmpty StoreTimeout StoreUnavailable",
    "elastic.torch._training": "Change TrainingMembership membership",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
