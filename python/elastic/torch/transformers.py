"""Keeps the state of a Hugging Face Trainer in memory that outlives its process.

Trainer(..., callbacks=[SnapshotCallback()])

The step, the model, the optimizer and its schedule continue; the data begin with the first batch
again. docs/snapshots.md says what is kept, and when.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from elastic.torch._snapshots import Snapshots


class SnapshotCallback(TrainerCallback):
    """``every``: steps between two snapshots. ``replicated``: as of ``Snapshots``."""

    def __init__(self, every: int = 1, replicated: bool = False) -> None:
        self._every = every
        self._replicated = replicated
        self._snapshots: Any = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **objects: Any
    ) -> None:
        self._snapshots = Snapshots(
            model=model,
            optimizer=objects["optimizer"],
            scheduler=objects["lr_scheduler"],
            replicated=self._replicated,
        )
        step = self._snapshots.restore()
        if step is not None:
            state.global_step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._every == 0:
            self._snapshots.save(state.global_step)
