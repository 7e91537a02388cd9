"""The built-in check of GPUs, with a driver that is made up."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from elastic.checks import gpu


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


NOT_SUPPORTED, LOST, RESET_REQUIRED, NO_DRIVER, UNKNOWN_ERROR = 3, 15, 16, 9, 999


class Driver:
    """As the module pynvml. A fact that is an exception is raised."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_ERROR_GPU_IS_LOST = LOST
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 271
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, *gpus: dict[str, Any], init: Exception | None = None) -> None:
        self.gpus = gpus
        self.init = init

    def nvmlInit(self) -> None:
        if self.init is not None:
            raise self.init

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if self.gpus[index].get("lost"):
            raise NVMLError(LOST)
        return self.gpus[index]

    def _get(self, gpu: dict[str, Any], name: str) -> Any:
        value = gpu.get(name, NVMLError(NOT_SUPPORTED))
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> str:
        return self._get(gpu, "uuid")

    def nvmlDeviceGetFieldValues(self, gpu: dict[str, Any], fields: list[int]) -> list[Any]:
        value = SimpleNamespace(uiVal=self._get(gpu, "recovery"))
        return [SimpleNamespace(nvmlReturn=0, value=value) for _ in fields]

    def nvmlDeviceGetRemappedRows(self, gpu: dict[str, Any]) -> tuple[int, ...]:
        return self._get(gpu, "rows")

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], *_: int) -> int:
        return self._get(gpu, "errors")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: dict[str, Any]) -> int:
        return self._get(gpu, "reasons")

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: dict[str, Any]) -> list[Any]:
        return self._get(gpu, "processes")


HEALTHY: dict[str, Any] = {
    "uuid": "GPU-aa", "recovery": 0, "rows": (1, 0, 0, 0), "errors": 0, "reasons": 0x25,
    "processes": [],
}  # fmt: skip


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu, "DRIVER_GPUS", "/no/such/folder")


def verdict(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    driver: Driver | None,
    *words: str,
) -> tuple[int, str, str]:
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # None: the import fails
    code = gpu.main(words)
    said = json.loads(capsys.readouterr().out)
    return code, said["verdict"], said["reason"]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"lost": True}, "GPU 1: it is lost"),
        ({"rows": NVMLError(LOST)}, "GPU 1: it is lost"),
        ({"errors": NVMLError(RESET_REQUIRED)}, "GPU 1: it needs a reset"),
        ({"recovery": 1}, "GPU 1: it needs a reset"),
        ({"recovery": 2}, "GPU 1: the host needs a reboot"),
        ({"recovery": 9}, "GPU 1: its driver wants recovery action 9"),
        ({"rows": (0, 1, 1, 0)}, "GPU 1: rows of its memory are to be remapped: it needs a reset"),
        ({"rows": (0, 1, 1, 1)}, "GPU 1: rows of its memory could not be remapped"),
        ({"errors": 2}, "GPU 1: 2 uncorrected memory errors"),
        ({"reasons": 0x80}, "GPU 1: an external power brake slows its clocks down"),
    ],
)
def test_faults(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    facts: dict[str, Any],
    reason: str,
) -> None:
    driver = Driver(HEALTHY, HEALTHY | facts)
    assert verdict(monkeypatch, capsys, driver) == (1, "bad", reason)


def test_good_and_what_a_model_does_not_support(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verdict(monkeypatch, capsys, Driver(HEALTHY, {})) == (0, "good", "2 GPUs")


def test_absent_driver_or_package_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, reason = verdict(monkeypatch, capsys, None)
    assert (code, said) == (3, "unknown") and "nvidia-ml-py is not installed" in reason
    driver = Driver(init=NVMLError(NO_DRIVER))
    assert verdict(monkeypatch, capsys, driver)[:2] == (3, "unknown")


def test_a_driver_that_fails_for_one_gpu_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = HEALTHY | {"rows": NVMLError(UNKNOWN_ERROR)}
    code, said, reason = verdict(monkeypatch, capsys, Driver(failing, HEALTHY))
    assert (code, said) == (3, "unknown")
    assert reason == "GPU 0: the driver does not answer: error 999"
    found = verdict(monkeypatch, capsys, Driver(failing, HEALTHY | {"lost": True}))
    assert found == (1, "bad", "GPU 1: it is lost")


def test_missing_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    driver = Driver(HEALTHY)
    found = verdict(monkeypatch, capsys, driver, "--count", "2")
    assert found == (1, "bad", "1 of 2 GPUs are there")
    monkeypatch.setattr(gpu, "DRIVER_GPUS", str(tmp_path))
    for bus in ("0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"):
        (tmp_path / bus).mkdir()
    assert verdict(monkeypatch, capsys, driver) == (1, "bad", "1 of 3 GPUs are there")


def test_processes_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    large = 1 << 30
    own = [process(os.getpid(), large), process(os.getppid(), large)]
    gone = [process(2**22 + 1, large), process(1, 1 << 20), process(1, None)]
    driver = Driver(HEALTHY | {"processes": own + gone})
    assert verdict(monkeypatch, capsys, driver)[1] == "good"
    driver = Driver(HEALTHY | {"processes": [process(1, large)]})
    code, said, reason = verdict(monkeypatch, capsys, driver)
    assert (code, said) == (1, "bad") and reason.startswith("GPU 0: process 1 (")
    assert reason.endswith("uses 1024 MiB of it")
    assert verdict(monkeypatch, capsys, driver, "--allow-other-processes")[1] == "good"


@pytest.mark.parametrize(
    ("visible", "said"), [("0", "good"), ("GPU-b", "bad"), ("1,0", "bad"), ("", "good")]
)
def test_only_the_gpus_of_the_job_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], visible: str, said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver = Driver(HEALTHY, HEALTHY | {"uuid": "GPU-bb", "errors": 1})
    assert verdict(monkeypatch, capsys, driver)[1] == said


class OldDriver(Driver):
    """As an older version of the package, which lacks a function."""

    nvmlDeviceGetRemappedRows = property()  # type: ignore[assignment]


class ForgetfulDriver(Driver):
    def nvmlDeviceGetCount(self) -> int:
        raise NVMLError(NO_DRIVER)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (OldDriver(HEALTHY), "the check failed: AttributeError: "),
        (ForgetfulDriver(), "the check failed: NVMLError: error 9"),
        (Driver(HEALTHY | {"rows": (1, 0)}), "the check failed: ValueError: "),
        (Driver(init=OSError("a\nb")), "the check failed: OSError: a b"),
    ],
)
def test_a_check_that_fails_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    driver: Driver,
    reason: str,
) -> None:
    code, said, why = verdict(monkeypatch, capsys, driver)
    assert (code, said) == (3, "unknown") and why.startswith(reason)


def test_wrong_option_is_unknown() -> None:
    assert gpu.main(["--no-such-option"]) == 3
