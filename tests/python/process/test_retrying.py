"""--flaky-dir: a failed test of processes is run once more, and is not forgotten if it passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.launching import clean_environment, python_path, run_program
from support.paths import ROOT

# Fails in its first run, with a text, and passes in the second one.
FAILS_ONCE = """
from pathlib import Path
def test_it():
    has_run = Path(__file__).with_suffix(".has_run")
    if not has_run.exists():
        has_run.touch()
        raise AssertionError("{}")
"""
ALWAYS_FAILS = "def test_it():\n    assert not 'as before'\n"


def run(directory: Path, tests: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text("[pytest]\n")
    for name, source in tests.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return run_program(
        [sys.executable, "-m", "pytest", "-p", "support.retrying", "--flaky-dir=flaky", *words],
        environ=clean_environment(
            PYTHONPATH=python_path(ROOT / "tests/python"), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
        ),
        cwd=directory,
    )


def flaky(done: subprocess.CompletedProcess[str]) -> list[str]:
    lines = [line.split() for line in done.stdout.splitlines()]
    return [words[1] for words in lines if words[:1] == ["FLAKY"]]


def test_failure_of_a_busy_machine_passes(tmp_path: Path) -> None:
    tests = {"process/test_late.py": FAILS_ONCE.format("too late")}
    done = run(tmp_path, tests, "-p", "xdist", "-n1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert flaky(done) == ["process/test_late.py::test_it"]
    (kept,) = (tmp_path / "flaky").iterdir()
    assert "too late" in kept.read_text() and "1 passed" in kept.read_text()


def test_other_failures_remain(tmp_path: Path) -> None:
    tests = {
        "process/test_always.py": ALWAYS_FAILS,
        "process/test_left.py": FAILS_ONCE.format("LeftoverProcesses: {}"),
        "process/test_signal.py": FAILS_ONCE.format("exited by SIGSEGV"),
        "unit/test_unit.py": FAILS_ONCE.format("once"),
    }
    done = run(tmp_path, tests)
    assert done.returncode == 1, done.stdout + done.stderr
    assert flaky(done) == []
    (kept,) = (tmp_path / "flaky").iterdir()
    assert kept.read_text().count("as before") >= 2  # the reports of both runs
