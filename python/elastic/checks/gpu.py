"""Checks the NVIDIA GPUs of this host by what their driver knows; needs a second and no memory.

::

    python -m elastic.checks.gpu [--count N] [--allow-other-processes]

Bad is: a GPU that is missing, lost, or needs a reset; rows of its memory whose remapping is pending
or has failed; uncorrected memory errors since the driver was loaded; clocks that the hardware slows
down; a process that is not of this node's job and uses 256 MiB or more of a GPU. Needs the package
nvidia-ml-py; without it, without a driver, or if the driver fails, the verdict is unknown. Looks at
the GPUs in CUDA_VISIBLE_DEVICES, or at all if it is not set.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from elastic import _environment

EXIT_GOOD, EXIT_BAD, EXIT_UNKNOWN = 0, 1, 3

DRIVER_GPUS = "/proc/driver/nvidia/gpus"

# A smaller one is a monitor or a display.
OTHER_PROCESS_BYTES = 256 << 20

# Of nvmlDeviceGetCurrentClocksThrottleReasons: the ones that name a fault or a hot room.
_SLOWDOWNS = {
    0x08: "the hardware slows its clocks down",
    0x40: "the hardware slows its clocks down because it is too hot",
    0x80: "an external power brake slows its clocks down",
}
# Codes of NVML: what they say of a GPU, and those of what a driver or a model does not support.
_ERRORS = {15: "it is lost", 16: "it needs a reset"}
_UNSUPPORTED = {2, 3, 4, 6, 13, 21, 25, 26}
_RECOVERIES = {
    1: "it needs a reset",
    2: "the host needs a reboot",
    3: "its peers must be drained",
    4: "it must be drained and reset",
}


class Unknown(Exception):
    """The driver does not tell."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("elastic.checks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, help="how many GPUs there must be")
    parser.add_argument("--allow-other-processes", action="store_true")
    try:
        options = parser.parse_args(argv)
    except SystemExit as end:  # its code 2 would mean that the host is bad
        return EXIT_UNKNOWN if end.code else EXIT_GOOD
    try:
        faults, gpus = _examine(options.count, not options.allow_other_processes)
    except Unknown as why:
        return _say("unknown", str(why), 0)
    if faults:
        return _say("bad", "; ".join(faults), gpus)
    return _say("good", f"{gpus} GPU{'s' if gpus != 1 else ''}", gpus)


def _say(verdict: str, reason: str, gpus: int) -> int:
    reason = " ".join(reason.split())
    print(json.dumps({"check": "gpu", "verdict": verdict, "reason": reason, "gpus": gpus}))
    return {"good": EXIT_GOOD, "bad": EXIT_BAD}.get(verdict, EXIT_UNKNOWN)


def _examine(count: int | None, finds_processes: bool) -> tuple[list[str], int]:
    """As examine(). Every error is Unknown: a traceback would end with 1, which means bad."""
    try:
        return examine(count, finds_processes)
    except Unknown:
        raise
    except Exception as error:
        raise Unknown(f"the check failed: {type(error).__name__}: {error}") from error


def examine(count: int | None, finds_processes: bool) -> tuple[list[str], int]:
    """What is wrong, and the number of GPUs."""
    try:
        import pynvml as nvml
    except ImportError:
        raise Unknown(
            "the package nvidia-ml-py is not installed: pip install elastic-launch[gpu]"
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise Unknown(f"the driver does not answer: {error}") from None
    found = int(nvml.nvmlDeviceGetCount())
    faults = []
    expected = count if count is not None else _known_to_kernel()
    if found < expected:
        faults.append(f"{found} of {expected} GPUs are there")
    visible = _visible()
    own = _own_processes() if finds_processes else None
    unknown = []
    for index in range(found):
        try:
            faults += [f"GPU {index}: {fault}" for fault in _faults_of(nvml, index, visible, own)]
        except Unknown as why:
            unknown.append(f"GPU {index}: {why}")
    if unknown and not faults:
        raise Unknown("; ".join(unknown))
    return faults, found


def _known_to_kernel() -> int:
    """A GPU that has fallen off the bus is still in this folder."""
    try:
        return len(os.listdir(DRIVER_GPUS))
    except OSError:
        return 0


def _visible() -> list[str] | None:
    """The indices and UUIDs in CUDA_VISIBLE_DEVICES; None: all."""
    text = _environment.inherited().get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [one.strip() for one in text.split(",") if one.strip()]


def _faults_of(
    nvml: Any, index: int, visible: list[str] | None, own: set[int] | None
) -> Iterator[str]:
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        if visible is not None:
            uuid = str(_call(nvml.nvmlDeviceGetUUID, gpu) or "")
            is_named = any(uuid.startswith(one) for one in visible if not one.isdigit())
            if str(index) not in visible and not is_named:
                return
        yield from _state(nvml, gpu)
        if own is not None:
            yield from _other_processes(nvml, gpu, own)
    except nvml.NVMLError as error:
        if error.value in _ERRORS:
            yield _ERRORS[error.value]
        elif error.value not in _UNSUPPORTED:
            raise Unknown(f"the driver does not answer: {error}") from None


def _call(function: Any, *arguments: Any) -> Any:
    """None: not supported, which is no fault."""
    import pynvml as nvml

    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        if error.value not in _UNSUPPORTED:
            raise
        return None


def _state(nvml: Any, gpu: Any) -> Iterator[str]:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = _call(nvml.nvmlDeviceGetFieldValues, gpu, [field]) if field is not None else None
    if values and values[0].nvmlReturn == nvml.NVML_SUCCESS and values[0].value.uiVal != 0:
        action = int(values[0].value.uiVal)
        yield _RECOVERIES.get(action, f"its driver wants recovery action {action}")
    if (rows := _call(nvml.nvmlDeviceGetRemappedRows, gpu)) is not None:
        _, _, is_pending, has_failed = rows
        if has_failed:
            yield "rows of its memory could not be remapped"
        elif is_pending:
            yield "rows of its memory are to be remapped: it needs a reset"
    errors = _call(
        nvml.nvmlDeviceGetTotalEccErrors,
        gpu,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    if errors:
        yield f"{errors} uncorrected memory error{'s' if errors != 1 else ''}"
    reasons = _call(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0
    yield from (text for bit, text in _SLOWDOWNS.items() if reasons & bit)


def _other_processes(nvml: Any, gpu: Any, own: set[int]) -> Iterator[str]:
    for process in _call(nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ():
        used = process.usedGpuMemory or 0
        # In a container, processes of others have no entry here: they cannot be told from its own.
        if process.pid in own or used < OTHER_PROCESS_BYTES or not _name(process.pid):
            continue
        yield f"process {process.pid} ({_name(process.pid)}) uses {used >> 20} MiB of it"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _own_processes() -> set[int]:
    """This process, and all below the parent of it: the workers of the node and their children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            children.setdefault(_parent(int(entry)), []).append(int(entry))
    own: set[int] = set()
    unseen = [os.getppid()]
    while unseen:
        pid = unseen.pop()
        if pid not in own:
            own.add(pid)
            unseen += children.get(pid, [])
    return own


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


if __name__ == "__main__":
    sys.exit(main())
