"""Counting CPUs and GPUs, in prepared file trees and on this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from elastic._host import cgroup, devices
from elastic.errors import ConfigError

V2_MOUNT = "30 23 0:27 {root} /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
V1_MOUNT = "32 31 0:29 {root} /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"


def lay_out(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def v2(group: str, files: dict[str, str], mount_root: str = "/") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": V2_MOUNT.format(root=mount_root),
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }


def v1(group: str, files: dict[str, str], mount_root: str = "/") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"5:memory:{group}\n2:cpu,cpuacct:{group}\n0::/\n",
        "proc/self/mountinfo": V1_MOUNT.format(root=mount_root, name="cpu,cpuacct")
        + V1_MOUNT.format(root=mount_root, name="memory"),
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }


QUOTAS = [
    ("v2 container", v2("/", {"cpu.max": "200000 100000\n"}), 2.0),
    ("v2 no limit", v2("/", {"cpu.max": "max 100000\n"}), None),
    ("v2 root group has no file", v2("/", {}), None),
    (
        "v2 the tightest of group and parents",
        v2(
            "/a/b",
            {"cpu.max": "max 100000", "a/cpu.max": "150000 100000", "a/b/cpu.max": "800 100"},
        ),
        1.5,
    ),
    (
        "v2 mount begins at the group",
        v2("/pod/c", {"cpu.max": "50000 100000"}, mount_root="/pod/c"),
        0.5,
    ),
    (
        "v2 mount hides the group",
        v2("/pod/c", {"cpu.max": "50000 100000"}, mount_root="/other"),
        0.5,
    ),
    (
        "v1 quota",
        v1(
            "/g",
            {
                "cpu,cpuacct/g/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/g/cpu.cfs_period_us": "100000\n",
            },
        ),
        2.5,
    ),
    (
        "v1 no quota",
        v1("/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}),
        None,
    ),
    ("nothing mounted", {"proc/self/cgroup": "0::/\n"}, None),
    ("garbage", v2("/", {"cpu.max": "\x00 lots"}), None),
    ("no proc", {}, None),
]


@pytest.mark.parametrize(
    ("files", "expected"), [row[1:] for row in QUOTAS], ids=[row[0] for row in QUOTAS]
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    assert cgroup.cpu_quota(lay_out(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"),
    [(8, 0.0, 8), (8, 2.0, 2), (8, 1.5, 2), (8, 0.1, 1), (2, 16.0, 2)],
)
def test_usable_cpus_are_affinity_within_quota(affinity: int, quota: float, expected: int) -> None:
    assert devices.usable_cpus(affinity, quota) == expected


def test_usable_cpus_of_this_machine_are_within_its_affinity() -> None:
    assert 1 <= devices.usable_cpus() <= len(os.sched_getaffinity(0))


UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("visible", "uuids", "expected"),
    [
        (None, UUIDS, 3),
        (None, [], 0),
        (None, None, None),
        ("", None, 0),
        ("  ", UUIDS, 0),
        ("0", UUIDS, 1),
        ("2, 0", UUIDS, 2),
        ("GPU-cccc-3,GPU-aabb", UUIDS, 2),
        ("0,1", None, None),
        ("3", UUIDS, None),
        ("0,0", UUIDS, None),
        ("-1", UUIDS, None),
        ("GPU-aa", UUIDS, None),
        ("MIG-123", UUIDS, None),
        ("0,", UUIDS, None),
        ("none", UUIDS, None),
    ],
)
def test_visible_gpus_are_counted_only_when_certain(
    visible: str | None, uuids: Sequence[str] | None, expected: int | None
) -> None:
    assert devices.visible_gpus(visible, lambda: uuids) == expected


def test_numbers_and_cpu_need_no_interpreter() -> None:
    assert devices.worker_count("12", {}, "/no/python") == 12
    assert devices.worker_count("cpu", {}, "/no/python") == devices.usable_cpus()


def interpreter(tmp_path: Path, program: str) -> str:
    """A substitute for the workers' interpreter, which runs ``program`` instead of the probe."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return str(path)


def test_auto_without_accelerators_means_cpus(tmp_path: Path) -> None:
    asked = interpreter(tmp_path, "echo chatter; echo 0")
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    assert devices.worker_count("auto", environ, asked) == devices.usable_cpus()


def test_workers_interpreter_counts_devices_that_the_launcher_cannot_count(tmp_path: Path) -> None:
    assert devices.worker_count("xpu", {}, interpreter(tmp_path, "echo 5")) == 5


def test_gpu_without_a_visible_gpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no GPU is visible here"):
        devices.worker_count("gpu", {"CUDA_VISIBLE_DEVICES": ""}, "/no/python")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("echo first >&2; echo 'ImportError: broken' >&2; exit 1", "ImportError: broken"),
        ("exit 3", "exit status 3"),
        ("echo many", "could not count the devices: many"),
    ],
)
def test_failed_probe_is_reported(tmp_path: Path, program: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        devices.worker_count("xpu", {}, interpreter(tmp_path, program))


def test_missing_interpreter_is_reported() -> None:
    with pytest.raises(ConfigError, match="cannot run /no/python"):
        devices.worker_count("xpu", {}, "/no/python")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("cuda: Optional[str] = None\nhip = None\n", 0),
        ("cuda = '12.4'\n", 8),
        ("", 8),
    ],
)
def test_gpus_are_not_counted_for_a_torch_without_cuda(
    version: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('not imported')")
    (package / "version.py").write_text(version)
    spec = importlib.util.spec_from_file_location("torch", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(devices, "nvml_devices", lambda: [f"GPU-{one}" for one in range(8)])
    monkeypatch.setattr(devices, "_ask_interpreter", lambda *_: 0)
    cpus = devices.usable_cpus()
    assert devices.worker_count("auto", {}, sys.executable) == (expected or cpus)
