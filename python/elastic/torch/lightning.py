"""Keeps the state of a Lightning trainer in memory that outlives its process.

saves = SnapshotCallback()
Trainer(callbacks=[saves]).fit(model, ckpt_path=saves.checkpoint())

docs/snapshots.md says what is kept, and when.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from elastic._unnamed_file import unnamed_file
from elastic.torch._snapshots import Snapshots

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        from pytorch_lightning import Callback


class SnapshotCallback(Callback):
    """``every``: steps between two snapshots. ``replicated``: as of ``Snapshots``."""

    def __init__(self, every: int = 1, replicated: bool = False) -> None:
        self._every = every
        self._held = _Held()
        self._snapshots = Snapshots(trainer=self._held, replicated=replicated)

    def checkpoint(self) -> str | None:
        """The path of a checkpoint, in memory, from which all ranks continue; None: there is none.

        It exists as long as this process.
        """
        if self._snapshots.restore() is None:
            return None
        file = unnamed_file("elastic-checkpoint")
        with os.fdopen(os.dup(file), "wb") as out:
            torch.save(self._held.state, out)
        self._held.state = {}
        return f"/proc/{os.getpid()}/fd/{file}"

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step % self._every != 0:
            return
        # Of this rank: trainer.save_checkpoint() writes the file on rank 0 alone.
        self._held.state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        self._snapshots.save(trainer.global_step)
        self._held.state = {}


class _Held:
    """A checkpoint, while it is copied to or from a snapshot."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state
