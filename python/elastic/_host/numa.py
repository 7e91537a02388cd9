"""NUMA binding of the workers of this node: their devices, and the CPUs near each.

The kernel's sysfs has the CPUs near a device. Without devices the workers are spread evenly over
the NUMA nodes that have usable CPUs.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elastic._host.devices import ask_torch
from elastic.constants import NUMA_MODES
from elastic.errors import ConfigError
from elastic.text import parse_ranges

logger = logging.getLogger(__name__)

# Present if a driver for accelerators is loaded; otherwise torch is not asked for devices.
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel*")

# Prints the PCI addresses of the visible devices, in torch's order.
_PROBE = """
try:
    import torch
except ModuleNotFoundError:
    sys.exit()
module = None
for kind in ("cuda", "xpu"):
    found = getattr(torch, kind, None)
    if found is not None and found.is_available():
        module = found
        break
if module is not None:
    for index in range(module.device_count()):
        one = module.get_device_properties(index)
        print(f"{one.pci_domain_id:04x}:{one.pci_bus_id:02x}:{one.pci_device_id:02x}.0", end=" ")
"""


def devices(environ: Mapping[str, str], python: str) -> list[str]:
    """The PCI addresses of the accelerators that workers see, in torch's order."""
    if not any(glob.glob(pattern) for pattern in _DEVICE_FILES):
        return []
    return ask_torch(_PROBE, [], python, environ, "NUMA binding").split()


def worker_cpus(
    options: Any, nproc: int, environ: Mapping[str, str], python: str
) -> list[list[int]]:
    """The CPUs of each local rank; empty lists without options: no binding.

    ``options``: torch's or elastic's ``NumaOptions``, or the name of a mode.
    """
    if options is None:
        return [[] for _ in range(nproc)]
    mode = getattr(options, "affinity_mode", options)
    try:
        return cpus_by_rank(str(getattr(mode, "value", mode)), nproc, devices(environ, python))
    except ConfigError as error:
        if not getattr(options, "should_fall_back_if_binding_fails", False):
            raise
        logger.warning("%s; the workers are not bound to CPUs", error)
        return [[] for _ in range(nproc)]


@contextmanager
def bound(cpus: Sequence[int]) -> Iterator[None]:
    """Processes that this thread starts in the block run on these CPUs; empty: no change."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpus_by_rank(
    mode: str,
    nproc: int,
    devices: Sequence[str],
    allowed: frozenset[int] | None = None,
    root: str = "/sys",
) -> list[list[int]]:
    """The CPUs of each local rank; ``devices`` are the PCI addresses of the devices by local rank.

    ``allowed``: the affinity mask; None: this process's.
    """
    if mode not in NUMA_MODES:
        raise ConfigError(f"the NUMA binding is {mode!r}: expected one of {', '.join(NUMA_MODES)}")
    if devices and nproc > len(devices):
        raise ConfigError(
            f"NUMA binding: local rank {len(devices)} has no device, because only {len(devices)} "
            "are visible"
        )
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    sysfs = _Sysfs(Path(root), allowed)
    try:
        if devices:
            nodes = [sysfs.node_of(device) for device in devices]
        else:
            usable = sysfs.nodes_with_cpus()
            nodes = [usable[rank * len(usable) // nproc] for rank in range(nproc)]
        return [sorted(_cpus(mode, sysfs, nodes, rank)) for rank in range(nproc)]
    except OSError as error:
        raise ConfigError(
            f"NUMA binding: cannot read {error.filename}: {error.strerror}"
        ) from error


def _cpus(mode: str, sysfs: _Sysfs, nodes: list[int], rank: int) -> frozenset[int]:
    node = nodes[rank]
    cpus = sysfs.cpus_of(node)
    if not cpus:
        raise ConfigError(f"NUMA binding: none of the CPUs of NUMA node {node} may be used here")
    if mode == "socket":
        cpus = sysfs.cpus_of_socket(sysfs.socket_of(node))
    sharing = [index for index, other in enumerate(nodes) if other == node]
    position = sharing.index(rank)
    if mode == "exclusive":
        return _share(sysfs.cores(cpus), len(sharing), position, node)
    if mode == "core-complex":
        complexes = sysfs.complexes(cpus)
        return complexes[position % len(complexes)]
    return cpus


def _share(cores: list[frozenset[int]], count: int, position: int, node: int) -> frozenset[int]:
    """This position's part of the cores; the first positions have one core more."""
    each, left = divmod(len(cores), count)
    if each == 0:
        raise ConfigError(
            f"NUMA binding: {count} workers cannot have exclusive cores, because NUMA node {node} "
            f"has {len(cores)}"
        )
    begin = position * each + min(position, left)
    return frozenset().union(*cores[begin : begin + each + (1 if position < left else 0)])


class _Sysfs:
    def __init__(self, root: Path, allowed: frozenset[int]) -> None:
        self._root = root
        self._allowed = allowed

    def node_of(self, device: str) -> int:
        text = (self._root / "bus/pci/devices" / device.lower() / "numa_node").read_text()
        return max(int(text), 0)  # -1: the machine has one node

    def cpus_of(self, node: int) -> frozenset[int]:
        path = self._root / f"devices/system/node/node{node}/cpulist"
        return parse_ranges(path.read_text()) & self._allowed

    def nodes_with_cpus(self) -> list[int]:
        nodes = parse_ranges((self._root / "devices/system/node/online").read_text())
        found = [node for node in sorted(nodes) if self.cpus_of(node)]
        if not found:
            raise ConfigError("NUMA binding: no NUMA node has CPUs that may be used here")
        return found

    def socket_of(self, node: int) -> int:
        first = min(self.cpus_of(node))
        return int((self._cpu(first) / "topology/physical_package_id").read_text())

    def cpus_of_socket(self, socket: int) -> frozenset[int]:
        nodes = [node for node in self.nodes_with_cpus() if self.socket_of(node) == socket]
        return frozenset().union(*map(self.cpus_of, nodes))

    def cores(self, cpus: frozenset[int]) -> list[frozenset[int]]:
        """The usable CPUs of each physical core, by the lowest CPU of the core."""
        return _grouped(cpus, self._siblings)

    def complexes(self, cpus: frozenset[int]) -> list[frozenset[int]]:
        """The usable CPUs of each last-level cache, the largest group first."""
        groups = _grouped(cpus, self._cache_siblings)
        return sorted(groups, key=lambda group: -len(group))

    def _cpu(self, cpu: int) -> Path:
        return self._root / f"devices/system/cpu/cpu{cpu}"

    def _siblings(self, cpu: int) -> frozenset[int]:
        return parse_ranges((self._cpu(cpu) / "topology/thread_siblings_list").read_text())

    def _cache_siblings(self, cpu: int) -> frozenset[int]:
        level, siblings = -1, frozenset({cpu})
        for cache in (self._cpu(cpu) / "cache").glob("index[0-9]*"):
            if (cache / "type").read_text().strip() not in ("Unified", "Data"):
                continue
            if (found := int((cache / "level").read_text())) > level:
                level = found
                siblings = parse_ranges((cache / "shared_cpu_list").read_text())
        return siblings


def _grouped(
    cpus: frozenset[int], siblings_of: Callable[[int], frozenset[int]]
) -> list[frozenset[int]]:
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(min(siblings_of(cpu)), set()).add(cpu)
    return [frozenset(groups[key]) for key in sorted(groups)]
