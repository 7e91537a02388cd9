"""NUMA binding of the workers of this node: their devices, and the CPUs near each."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from elastic._host import interpreter, numa
from elastic.errors import ConfigError

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
    return interpreter.ask(_PROBE, [], python, environ, "NUMA binding").split()


def mode_of(options: Any) -> str:
    """The mode of torch's or elastic's ``NumaOptions``, or the name of a mode."""
    mode = getattr(options, "affinity_mode", options)
    return str(getattr(mode, "value", mode))


def worker_cpus(
    options: Any, nproc: int, environ: Mapping[str, str], python: str
) -> list[list[int]]:
    """The CPUs of each local rank; empty lists without options: no binding."""
    if options is None:
        return [[] for _ in range(nproc)]
    try:
        return numa.worker_cpus(mode_of(options), nproc, devices(environ, python))
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
