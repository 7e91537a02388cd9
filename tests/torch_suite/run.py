"""Runs torch's own tests of torch elastic against elastic, with the import paths replaced.

::

    python tests/torch_suite/run.py --pytorch CHECKOUT [--keep DIR] [NAME ...]

CHECKOUT is a PyTorch source tree. Its test files are copied to a temporary directory, where the
names of modules are changed, ``start_processes`` gets its log options as since torch 2.3, and
imported names that elastic does not have (private ones) become mocks, so that the other tests of
the file run. ``EtcdServer`` starts a real etcd, which must be installed. NAME selects test files
by a part of their path. torch's test utilities need the package ``expecttest``.

``not_passing/VERSION.txt`` has the id of every test of that version that does not pass, under the
reason. Any other failure, and a test that is listed but passes, makes the exit code 1. The version
is that of CHECKOUT/version.txt; for a version without a list, the newest list is used. Tests that
torch itself skips or does not pass on this machine can be found with ``--torch``, which leaves the
names of modules as they are.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("test/distributed/elastic", "test/distributed/launcher")

RENAMED = (
    (re.compile(r"\btorch\.distributed\.elastic\b"), "elastic"),
    (re.compile(r"\btorch\.distributed\.launcher\b"), "elastic.launcher"),
    (re.compile(r"\btorch\.distributed\.run\b"), "elastic.run"),
    (re.compile(r"\bfrom torch\.distributed import run\b"), "from elastic import run"),
)

HERE = Path(__file__).resolve().parent
LISTS = HERE / "not_passing"
# Its arguments for logs moved to `logs_specs` in torch 2.3.
TAKES_LOGS_SPECS = "start_processes"
LOGS_SPECS = "__import__('elastic.multiprocessing', fromlist=['_']).DefaultLogsSpecs"


class Listed(NamedTuple):
    """The list, for one test file: classes and names of tests."""

    failing: set[str]
    not_run: set[str]


def version(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.read_text())[:2])


def list_for(checkout: Path) -> Path:
    """The list of the checkout's version, or else the newest one."""
    lists = {tuple(map(int, path.stem.split("."))): path for path in LISTS.glob("*.txt")}
    stated = checkout / "version.txt"
    wanted = version(stated) if stated.exists() else max(lists)
    if wanted not in lists:
        print(f"there is no list for torch {'.'.join(map(str, wanted))}")
    chosen = lists.get(wanted, lists[max(lists)])
    print(f"tests that are not expected to pass: {chosen.name}")
    return chosen


def listed(path: Path, file: str) -> Listed:
    found = Listed(set(), set())
    for line in path.read_text().splitlines():
        _, space, name = line.rpartition(" ")
        test_file, _, test = name.partition("::")
        if test_file == file and not line.startswith(("#", "[")):
            (found.not_run if space else found.failing).add(test)
    return found


def with_logs_specs(text: str) -> str:
    """Passes the arguments for logs as torch's own tests do since version 2.3."""
    edits = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        of_logs = [one for one in node.keywords if one.arg in ("log_dir", "redirects", "tee")]
        if name != TAKES_LOGS_SPECS or not of_logs:
            continue
        specs = ast.Call(ast.parse(LOGS_SPECS, mode="eval").body, [], of_logs)
        node.keywords = [one for one in node.keywords if one not in of_logs]
        node.keywords.append(ast.keyword("logs_specs", specs))
        edits.append((node, ast.unparse(node)))
    lines = text.splitlines(keepends=True)
    for node, new in sorted(edits, key=lambda edit: -edit[0].lineno):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        begin = lines[first].encode()[: node.col_offset].decode()
        end = lines[last].encode()[node.end_col_offset :].decode()
        lines[first : last + 1] = [begin + new + end] + [""] * (last - first)
    return "".join(lines)


def convert(text: str) -> str:
    for pattern, ours in RENAMED:
        text = pattern.sub(ours, text)
    text = with_logs_specs(text)
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("elastic"):
            continue
        missing = [alias for alias in node.names if not is_offered(node.module or "", alias.name)]
        if missing and node.col_offset == 0:
            kept = ", ".join(ast.unparse(one) for one in node.names if one not in missing)
            new = f"from {node.module} import {kept}\n" if kept else ""
            new += "from unittest.mock import MagicMock as _Missing\n"
            new += "".join(f"{one.asname or one.name} = _Missing\n" for one in missing)
            lines[node.lineno - 1 : node.end_lineno] = [new] + [""] * (
                (node.end_lineno or node.lineno) - node.lineno
            )
    return "".join(lines)


def is_offered(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def copy(checkout: Path, target: Path, names: list[str], *, is_ours: bool) -> list[Path]:
    """Copies all files of the folders, and returns the test files that were selected."""
    tests = []
    for folder in FOLDERS:
        for path in sorted((checkout / folder).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            copied = target / path.relative_to(checkout / "test")
            copied.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                text = path.read_text()
                copied.write_text(convert(text) if is_ours else text)
            else:
                shutil.copy(path, copied)
            if "bin" in path.parts:
                copied.chmod(0o755)
            is_test = path.name.endswith("_test.py") or path.name.startswith("test_")
            wanted = not names or any(name in str(path) for name in names)
            if path.suffix == ".py" and is_test and "bin" not in path.parts and wanted:
                tests.append(copied)
    return tests


def package_root(test: Path) -> Path:
    """The directory from which workers import the test's module."""
    folder = test.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def run(test: Path, root: Path, timeout: float, chosen: Path | None) -> list[str]:
    """Runs one file in a process of its own; returns what differs from the list."""
    report = test.with_suffix(".xml")
    name = str(test.relative_to(root))
    known = listed(chosen, name.removeprefix("distributed/")) if chosen else Listed(set(), set())
    # Without capture, since tests redirect the descriptors of stdout and stderr.
    command = [sys.executable, "-m", "pytest", "-q", "--capture=no", "--import-mode=importlib",
               f"--rootdir={root}", f"--junitxml={report}", str(test)]  # fmt: skip
    if known.not_run:
        names = [one.rpartition("::")[2] for one in sorted(known.not_run)]
        command += ["-k", " and ".join(f"not {one}" for one in names)]
    paths = (str(test.parent), str(package_root(test)), os.environ.get("PYTHONPATH", ""))
    output = test.with_suffix(".log")  # a pipe would be held by processes that a test leaves
    try:
        with output.open("w") as log:
            subprocess.run(
                command,
                cwd=root,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdout=log,
                stderr=log,
                timeout=timeout,
                check=False,
            )
    except subprocess.TimeoutExpired:
        print(f"{name}: no end after {timeout:g} s")
        return [f"{name}: no end"]
    if not report.exists():
        print(f"{name}: did not run: {output.read_text()[-1000:]}")
        return [f"{name}: did not run"]
    outcomes: dict[str, str | None] = {}  # the message of a failure; None: passed
    for case in ElementTree.parse(report).iter("testcase"):
        test_name = f"{str(case.get('classname')).rpartition('.')[2]}::{case.get('name')}"
        test_name = re.sub(r" .*", "", test_name)  # subtests have their values in the name
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is not None:
            outcomes[test_name] = (wrong.get("message") or "failed").splitlines()[0]
        elif case.find("skipped") is None:
            outcomes.setdefault(test_name, None)
    differences, counts = [], Counter({"passed": 0, "listed": len(known.not_run)})
    for test_name, wrong_message in outcomes.items():
        if wrong_message is None:
            counts["passed"] += 1
            if test_name in known.failing:
                differences.append(f"{name}::{test_name}: passes, but is listed")
        elif test_name in known.failing:
            counts["listed"] += 1
        else:
            differences.append(f"{name}::{test_name}: {wrong_message}")
    passed, expected = counts["passed"], counts["listed"]
    print(f"{name}: {passed} passed, {expected} listed, {len(differences)} differ")
    for difference in differences:
        print(f"  {difference}")
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pytorch", type=Path, required=True, help="a PyTorch source tree")
    parser.add_argument("--keep", type=Path, help="copy the files here, and leave them")
    parser.add_argument("--torch", action="store_true", help="test torch itself, without a list")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each file")
    parser.add_argument("names", nargs="*", help="parts of the paths of test files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torch_suite_") as temporary:
        root = args.keep or Path(temporary)
        tests = copy(args.pytorch, root, args.names, is_ours=not args.torch)
        if not tests:
            parser.error(f"{args.pytorch} has no test files in {' or '.join(FOLDERS)}")
        chosen = None if args.torch else list_for(args.pytorch)
        differences = [one for test in tests for one in run(test, root, args.timeout, chosen)]
    print(f"{len(tests)} files, {len(differences)} differences from the list")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
