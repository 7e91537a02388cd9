"""Options of the NUMA binding, with torch's names; ``LaunchConfig.numa_options`` takes either."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["AffinityMode", "NumaOptions"]


class AffinityMode(str, Enum):
    """Which CPUs a worker may use, by the NUMA node of the device with its local rank."""

    NODE = "node"  # the CPUs of the NUMA node
    SOCKET = "socket"  # the CPUs of all NUMA nodes of the same socket
    EXCLUSIVE = "exclusive"  # an equal share of the node's cores, which no other worker uses
    CORE_COMPLEX = "core-complex"  # the cores that share one last-level cache of the node


@dataclass(frozen=True)
class NumaOptions:
    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False  # a warning instead of an error
