"""Runs torch's own tests of torch elastic against elastic, with the import paths replaced.

::

    python tests/torch_suite/run.py --pytorch CHECKOUT [--keep DIR] [NAME ...]

CHECKOUT is a PyTorch source tree of the version of torch that is installed. Its test files are
copied to a temporary directory, where the names of modules are changed, and imported names that
elastic does not have (private ones, and those that docs/migrating-from-torchrun.md lists as not
offered) become mocks, so that the other tests of the file run. NAME selects test files by a part of
their path. The result is one line for each file and one for each test that failed; tests in
``EXPECTED``, and tests that use such a name, are listed with the reason for which they cannot pass.
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
from pathlib import Path

FOLDERS = ("test/distributed/elastic", "test/distributed/launcher")

RENAMED = (
    (re.compile(r"\btorch\.distributed\.elastic\b"), "elastic"),
    (re.compile(r"\btorch\.distributed\.launcher\b"), "elastic.launcher"),
    (re.compile(r"\btorch\.distributed\.run\b"), "elastic.run"),
    (re.compile(r"\bfrom torch\.distributed import run\b"), "from elastic import run"),
)

OWN_WORDS = "the right exception, with a message of elastic's own"

# Parts of test names, with the reason for which elastic behaves in another way.
EXPECTED = {
    "test_failure_incorrect_reply_file": "an unreadable error file does not hide the failure",
    "test_process_failure_no_error_file": "the message is a sentence of elastic's own",
    "test_format_msg_enriches_root_signal_failure": "there is no handler to replace at build time",
    "etcd_rendezvous_test": "etcd's v2 interface has been removed",
    "etcd_server_test": "etcd's v2 interface has been removed",
    "test_watchdog_call_count": "the server waits for requests and expiries instead of polling",
    "file_based_local_timer_test.py::test_expired_timers": "process ids below 1 are refused",
    "file_based_local_timer_test.py::test_valid_timers": "process ids below 1 are refused",
    "dynamic_rendezvous_test": "the decisions are native, and their Python classes do not exist",
    "test_construct_and_record_rdzv_event_does_not_run_if_invalid_dest": (
        "handlers that a program adds to the logger receive events"
    ),
    "test_barrier_timeout_rank_tracing": "every rank names the missing ones, not rank 0 alone",
    "test_barrier_timeout_operations": "the order of operations on a simulated store",
    "elastic_distributed_sampler": "torch's own sampler works in workers",
}


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


def withheld(test: Path) -> dict[str, str]:
    """By test: the reason for which it cannot pass, as far as its source shows it."""
    text = test.read_text()
    names = set(re.findall(r"^(\w+) = _Missing$", text, re.MULTILINE)) | {"etcd"}
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            source = ast.get_source_segment(text, node) or ""
            used = next((one for one in sorted(names) if one in source), None)
            if used is not None:
                found[node.name] = f"it uses {used}, which is not offered"
    return found


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


def expected(test: str) -> str:
    return next((reason for part, reason in EXPECTED.items() if part in test), "")


def package_root(test: Path) -> Path:
    """The directory from which workers import the test's module."""
    folder = test.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def run(test: Path, root: Path, timeout: float) -> list[str]:
    """Runs one file in a process of its own; returns the failures that were not expected."""
    report = test.with_suffix(".xml")
    # Without capture, since tests redirect the descriptors of stdout and stderr.
    command = [sys.executable, "-m", "pytest", "-q", "--capture=no", "--import-mode=importlib",
               f"--rootdir={root}", f"--junitxml={report}", str(test)]  # fmt: skip
    name = str(test.relative_to(root))
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
        print(f"{name}: no end after {timeout:g} s  {expected(name)}")
        return [] if expected(name) else [name]
    if not report.exists():
        print(f"{name}: did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
        return [name]
    failures, count, reasons = [], 0, withheld(test)
    for case in ElementTree.parse(report).iter("testcase"):
        count += 1
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is None:
            continue
        title = f"{name}::{case.get('name')}"
        text = wrong.get("message") or ""
        is_worded = text.startswith("AssertionError: ") and '" does not match "' in text
        reason = (
            expected(title)
            or (OWN_WORDS if is_worded else "")
            or reasons.get(str(case.get("name")).partition("[")[0], "")
        )
        message = (wrong.get("message") or "").splitlines()
        print(f"  {title}: {reason or (message[0] if message else 'failed')}")
        if not reason:
            failures.append(title)
    print(f"{name}: {count} tests, {len(failures)} failed")
    return failures


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
        failures = [failure for test in tests for failure in run(test, root, args.timeout)]
    print(f"{len(tests)} files, {len(failures)} unexpected failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
