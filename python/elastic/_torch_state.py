"""The state of a training, which one rank sends to others, for ``elastic.torch.membership``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch


class Stateful(Protocol):
    """What has a state of its own: a scheduler, a gradient scaler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class State:
    """The state of a model, its optimizer and other objects."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        also: Mapping[str, Stateful],
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._also = also

    def whole(self) -> dict[str, Any]:
        saved = self._module.state_dict()
        return {
            "model": saved,
            "buffers": {
                name: buffer for name, buffer in self._module.named_buffers() if name not in saved
            },
            "optimizer": self._optimizer.state_dict(),
            "also": {name: one.state_dict() for name, one in self._also.items()},
        }

    def load_whole(self, state: Mapping[str, Any]) -> None:
        self._module.load_state_dict(state["model"])
        with torch.no_grad():
            own = dict(self._module.named_buffers())
            for name, buffer in state["buffers"].items():
                own[name].copy_(buffer)
        self._optimizer.load_state_dict(state["optimizer"])
        for name, one in self._also.items():
            one.load_state_dict(state["also"][name])
