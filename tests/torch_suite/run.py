"""Runs torch's own tests of torch elastic against elastic, with the import paths replaced.

::

    python tests/torch_suite/run.py --pytorch CHECKOUT [--keep DIR] [NAME ...]

CHECKOUT is a PyTorch source tree. Its test files are copied to a temporary directory, where the
names of modules are changed, and imported names that elastic does not have (private ones, and those
that docs/migrating-from-torchrun.md lists as not offered) become mocks, so that the other tests of
the file run. NAME selects test files by a part of their path. torch's test utilities need the
package ``expecttest``.

``not_passing.txt`` has the id of every test that does not pass, under the reason. Any other
failure, and a test that is listed but passes, makes the exit code 1. The list belongs to the tests
of torch 2.1; those of another version may have further tests of private names.
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

LIST = Path(__file__).with_name("not_passing.txt")


class Listed(NamedTuple):
    """The list, for one test file: classes and names of tests."""

    failing: set[str]
    not_run: set[str]


def listed(file: str) -> Listed:
    found = Listed(set(), set())
    for line in LIST.read_text().splitlines():
        _, space, name = line.rpartition(" ")
        path, _, test = name.partition("::")
        if path == file and not line.startswith(("#", "[")):
            (found.not_run if space else found.failing).add(test)
    return found


def convert(text: str) -> str:
    for pattern, ours in RENAMED:
        text = pattern.sub(ours, text)
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


def copy(checkout: Path, target: Path, names: list[str]) -> list[Path]:
    """Copies all files of the folders, and returns the test files that were selected."""
    tests = []
    for folder in FOLDERS:
        for path in sorted((checkout / folder).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            copied = target / path.relative_to(checkout / "test")
            copied.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                copied.write_text(convert(path.read_text()))
            else:
                shutil.copy(path, copied)
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


def run(test: Path, root: Path, timeout: float) -> list[str]:
    """Runs one file in a process of its own; returns what differs from the list."""
    report = test.with_suffix(".xml")
    name = str(test.relative_to(root))
    known = listed(name.removeprefix("distributed/"))
    # Without capture, since tests redirect the descriptors of stdout and stderr.
    command = [sys.executable, "-m", "pytest", "-q", "--capture=no", "--import-mode=importlib",
               f"--rootdir={root}", f"--junitxml={report}", str(test)]  # fmt: skip
    if known.not_run:
        names = [one.rpartition("::")[2] for one in sorted(known.not_run)]
        command += ["-k", " and ".join(f"not {one}" for one in names)]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=os.environ | {"PYTHONPATH": f"{test.parent}{os.pathsep}{package_root(test)}"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{name}: no end after {timeout:g} s")
        return [f"{name}: no end"]
    if not report.exists():
        print(f"{name}: did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
        return [f"{name}: did not run"]
    differences, counts = [], Counter({"passed": 0, "listed": len(known.not_run)})
    for case in ElementTree.parse(report).iter("testcase"):
        test_name = f"{str(case.get('classname')).rpartition('.')[2]}::{case.get('name')}"
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is None and case.find("skipped") is None:
            counts["passed"] += 1
            if test_name in known.failing:
                differences.append(f"{name}::{test_name}: passes, but is listed")
        elif wrong is not None and test_name in known.failing:
            counts["listed"] += 1
        elif wrong is not None:
            message = (wrong.get("message") or "failed").splitlines()[0]
            differences.append(f"{name}::{test_name}: {message}")
    passed, expected = counts["passed"], counts["listed"]
    print(f"{name}: {passed} passed, {expected} listed, {len(differences)} differ")
    for difference in differences:
        print(f"  {difference}")
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pytorch", type=Path, required=True, help="a PyTorch source tree")
    parser.add_argument("--keep", type=Path, help="copy the files here, and leave them")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each file")
    parser.add_argument("names", nargs="*", help="parts of the paths of test files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torch_suite_") as temporary:
        root = args.keep or Path(temporary)
        tests = copy(args.pytorch, root, args.names)
        if not tests:
            parser.error(f"{args.pytorch} has no test files in {' or '.join(FOLDERS)}")
        differences = [one for test in tests for one in run(test, root, args.timeout)]
    print(f"{len(tests)} files, {len(differences)} differences from the list")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
