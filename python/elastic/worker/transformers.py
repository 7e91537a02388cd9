"""Reports a Hugging Face Trainer's progress, and stops it at the agreed step with a checkpoint.

Trainer(..., callbacks=[ElasticCallback()])

``train()`` returns after a stop, too: then ``elastic.worker.has_stopped()`` is True.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from elastic import worker
from elastic.worker._channel import section


class ElasticCallback(TrainerCallback):
    def __init__(self) -> None:
        self._evaluation: section | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if worker.should_stop(state.global_step):
            control.should_save = True
            control.should_training_stop = True
        return control

    # There is no event for the begin of an evaluation.
    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._evaluation is None:
            self._evaluation = section("evaluation")
            self._evaluation.__enter__()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._leave()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._evaluation is not None:
            self._evaluation.__exit__()
            self._evaluation = None
