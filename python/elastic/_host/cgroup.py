"""The CPU quota of this process's control group, from the files of cgroup v1 or v2.

Every function reads below ``root``, so that tests can create their own trees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator


def cpu_quota(root: str = "/") -> float | None:
    """The CPU quota of the group and its parents, in CPUs; None: no limit."""
    limits = [
        limit
        for version, folder in _folders(root, "cpu")
        if (limit := _quota_v2(folder) if version == 2 else _quota_v1(folder)) is not None
    ]
    return min(limits, default=None)


def _quota_v2(folder: str) -> float | None:
    fields = _read(os.path.join(folder, "cpu.max")).split()
    if len(fields) != 2 or not fields[0].isdigit() or not fields[1].isdigit():
        return None  # "max 100000", or no such file at the hierarchy's root
    return int(fields[0]) / int(fields[1]) if int(fields[1]) else None


def _quota_v1(folder: str) -> float | None:
    quota = _read(os.path.join(folder, "cpu.cfs_quota_us"))
    period = _read(os.path.join(folder, "cpu.cfs_period_us"))
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "-1": no quota
    return int(quota) / int(period)


def _folders(root: str, controller: str) -> Iterator[tuple[int, str]]:
    """The group's directory and its parents up to the mount point, with the version of each."""
    mounts = list(_mounts(root, controller))
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if hierarchy == "0" and not controllers else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount_version, mount_root, mount_point in mounts:
            if mount_version != version:
                continue
            # In a container the mount may begin below the group that /proc reports.
            inside = _below(path, mount_root)
            folder = os.path.join(root, mount_point.lstrip("/"))
            yield version, folder
            for part in inside.split("/"):
                if part:
                    folder = os.path.join(folder, part)
                    yield version, folder


def _below(path: str, mount_root: str) -> str:
    if mount_root == "/":
        return path
    if path == mount_root or path.startswith(mount_root + "/"):
        return path[len(mount_root) :]
    return ""


def _mounts(root: str, controller: str) -> Iterator[tuple[int, str, str]]:
    """(version, root within the hierarchy, mount point) of every mount that has the controller."""
    for line in _read(os.path.join(root, "proc/self/mountinfo")).splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            yield 2, fields[3], _unescape(fields[4])
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            yield 1, fields[3], _unescape(fields[4])


def _unescape(path: str) -> str:
    """Decodes the octal escapes by which proc(5) encodes blanks in a mount point."""
    return path.replace("\\040", " ").replace("\\011", "\t")


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
