"""The number of usable CPUs and visible accelerators, for ``--nproc-per-node``.

The launcher never imports torch. NVIDIA's management library counts GPUs if its result certainly
agrees with CUDA's; otherwise a short program asks torch in the workers' interpreter.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from elastic._host import cgroup
from elastic.constants import WORKERS_MAX
from elastic.errors import ConfigError
from elastic.text import is_number

PROBE_TIMEOUT_S = 120.0  # importing torch from a cold network disk takes more than a minute

# The probe is killed when the launcher ends.
_PREFIX = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
"""

# Counts devices in the workers' interpreter and prints one number, 0 without torch.
# AttributeError: torch before 2.6 lacks torch.accelerator.
_PROBE = """
try:
    import torch
except ModuleNotFoundError:
    print(0 if sys.argv[2] in ("auto", "gpu", "xpu") else "unknown")
    sys.exit()
def count(kind):
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None and module.is_available() else 0
try:
    accelerator = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
except AttributeError:
    accelerator = count("cuda") or count("xpu")
wanted = {"gpu": "cuda"}.get(sys.argv[2], sys.argv[2])
if wanted != "auto" and not hasattr(getattr(torch, wanted, None), "device_count"):
    print("unknown")
    sys.exit()
print(count(wanted) if wanted != "auto" else accelerator)
"""


def usable_cpus(affinity: int | None = None, quota: float | None = None) -> int:
    """The number of CPUs in the affinity mask, limited by the cgroup's quota.

    A value of None is read from the system; a quota of 0 means no quota.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0))
    if quota is None:
        quota = cgroup.cpu_quota() or 0.0
    return max(1, min(affinity, math.ceil(quota)) if quota > 0 else affinity)


def worker_count(
    wanted: str, environ: Mapping[str, str], interpreter: str, origin: str = "--nproc-per-node"
) -> int:
    """The number of workers for a value of ``--nproc-per-node``."""
    if is_number(wanted) and 0 < int(wanted) <= WORKERS_MAX:
        return int(wanted)
    if wanted == "cpu":
        return usable_cpus()
    unknown = ConfigError(
        f"{origin} is {wanted!r}: expected a number from 1 to {WORKERS_MAX}, or cpu, gpu, xpu, "
        "auto or another device of torch, such as npu"
    )
    if not re.fullmatch("[a-z][a-z_]{1,30}[a-z0-9]", wanted):
        raise unknown
    count = None
    if wanted in ("auto", "gpu") and not _has_torch_without_cuda(interpreter):
        count = visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"), nvml_devices)
    if count is None or (count == 0 and wanted == "auto"):
        count = _ask_interpreter(wanted, interpreter, environ, origin)
    if count < 0:
        raise unknown
    if count == 0 and wanted == "auto":
        return usable_cpus()
    if count == 0:
        raise ConfigError(f"{origin} is {wanted}: no {wanted.upper()} is visible here")
    return count


def _has_torch_without_cuda(interpreter: str) -> bool:
    """Whether the workers' torch is a build for CPUs, which sees none of NVML's GPUs.

    torch is not imported; False if the interpreter is another one.
    """
    if interpreter != sys.executable:
        return False
    from importlib.util import find_spec

    found = find_spec("torch")
    if found is None or not found.origin:
        return False
    try:
        with open(os.path.join(os.path.dirname(found.origin), "version.py")) as file:
            return re.search(r"^cuda\b[^=]*= *None", file.read(), re.MULTILINE) is not None
    except OSError:
        return False


def visible_gpus(visible: str | None, devices: Callable[[], Sequence[str] | None]) -> int | None:
    """The number of GPUs visible to a worker under ``CUDA_VISIBLE_DEVICES``; None: uncertain.

    ``devices`` returns the UUIDs of the machine's GPUs, or None if they are unknown.
    """
    if visible is not None and not visible.strip():
        return 0
    uuids = devices()
    if uuids is None or visible is None:
        return None if uuids is None else len(uuids)
    chosen = set()
    names = [name.strip() for name in visible.split(",")]
    for name in names:
        if name.isascii() and name.isdigit():
            matches = [int(name)] if int(name) < len(uuids) else []
        elif name.startswith("GPU-"):
            matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(name)]
        else:
            matches = []
        # CUDA stops at an unknown entry and rejects repetitions: leave these cases to the probe.
        if len(matches) != 1 or matches[0] in chosen:
            return None
        chosen.add(matches[0])
    return len(chosen)


def nvml_devices() -> list[str] | None:
    """UUIDs of the GPUs that NVIDIA's management library lists.

    None if the library is missing or fails, or if a GPU is partitioned (MIG): CUDA counts
    partitions by rules of its own.
    """
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        uuids = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            text = ctypes.create_string_buffer(96)
            mode, pending = ctypes.c_uint(), ctypes.c_uint()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
                return None
            # A GPU that cannot be partitioned returns "not supported".
            asked = nvml.nvmlDeviceGetMigMode(device, ctypes.byref(mode), ctypes.byref(pending))
            if asked == 0 and mode.value:
                return None
            if nvml.nvmlDeviceGetUUID(device, text, ctypes.c_uint(len(text))) != 0:
                return None
            uuids.append(text.value.decode("ascii", "replace"))
        return uuids
    except AttributeError:
        return None
    finally:
        nvml.nvmlShutdown()


def _ask_interpreter(wanted: str, python: str, environ: Mapping[str, str], origin: str) -> int:
    why = f"{origin} is {wanted}"
    count = ask_torch(_PROBE, [wanted], python, environ, why)
    if count == "unknown":
        return -1
    if not count.isdigit():
        raise ConfigError(f"{why}: torch could not count the devices: {count or 'no output'}")
    return int(count)


def ask_torch(
    program: str, arguments: list[str], interpreter: str, environ: Mapping[str, str], why: str
) -> str:
    """The last line that a program prints in the workers' interpreter.

    ``why`` begins the message of a ConfigError.
    """
    import subprocess  # slow to import; a number of workers needs no probe

    command = [interpreter, "-c", _PREFIX + program, str(os.getpid()), *arguments]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"{why}: {interpreter} did not list the devices within {PROBE_TIMEOUT_S:g} s; "
            "give a number"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{why}: cannot run {interpreter} to list the devices: {error.strerror}"
        ) from error
    if done.returncode != 0:
        text = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ConfigError(f"{why}: torch could not list the devices: {text}")
    return (done.stdout.strip().splitlines() or [""])[-1]
