"""Reports a Lightning trainer's progress, and stops it at the agreed step.

Trainer(callbacks=[ElasticCallback(checkpoint="last.ckpt")])

``fit()`` returns after a stop, too: then ``elastic.worker.has_stopped()`` is True.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from elastic import worker
from elastic.worker._channel import section

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        from pytorch_lightning import Callback


class ElasticCallback(Callback):
    """``checkpoint``: the file that is written when the job stops; None: write none."""

    def __init__(self, checkpoint: str | PathLike[str] | None = None) -> None:
        self._checkpoint = checkpoint
        self._validation = section("validation")

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if not worker.should_stop(trainer.global_step):
            return
        trainer.should_stop = True
        if self._checkpoint is not None:
            trainer.save_checkpoint(self._checkpoint)

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        self._validation.__enter__()

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        self._validation.__exit__()
