"""Launches from a Python program, with the names of ``torch.distributed.launcher``."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.launcher.api import LaunchConfig, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]

_HOMES = {
    "elastic.launcher.api": "LaunchConfig elastic_launch launch_agent",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
