"""One more run, alone, of a test that failed beside others: ``--flaky-dir=build/flaky``.

A test of real processes may fail because the machine was busy. With the option, each failed test of
the folders process and with_torch is run once more, in a pytest of its own, after all others. If it
passes, the session passes, too, and its summary has a line ``FLAKY <test>``. The reports of both
runs are kept in the directory, so that a test that needs its second run is seen and mended.

Not run again: tests of other folders; what no load explains (a process that was left behind, death
by a signal, a sanitizer's report, a crashed pytest worker); and no test at all if many have failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDERS = ("process", "with_torch")
FAILURES_MAX = 5
UNEXPLAINED = re.compile(
    r"LeftoverProcesses|Sanitizer|runtime error: |Fatal Python error|Segmentation fault"
    r"|SIG(SEGV|BUS|ILL|ABRT|FPE)|^E .*\B-(4|6|7|8|11)\b|worker '\w+' crashed",
    re.MULTILINE,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--flaky-dir",
        metavar="DIRECTORY",
        help="run a failed test of processes once more, alone, and keep the reports of both runs",
    )


def pytest_configure(config: pytest.Config) -> None:
    directory = config.getoption("--flaky-dir")
    if directory is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Retrying(Path(directory)))


def text_of(report: pytest.TestReport) -> str:
    sections = [f"--- {name}\n{text}" for name, text in report.sections]
    return "\n".join([report.longreprtext, *sections])


def may_run_again(report: pytest.TestReport) -> bool:
    folder = Path(report.nodeid.partition("::")[0]).parent.name
    return folder in FOLDERS and not UNEXPLAINED.search(text_of(report))


class Retrying:
    """A plug-in of the process that starts pytest's workers, if there are any."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._flaky: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not self._failed:
            return
        if len(self._failed) > FAILURES_MAX or session.testsfailed > len(self._failed):
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        for name, reports in self._failed.items():
            if all(may_run_again(report) for report in reports) and self._passes(
                session.config.rootpath, name, reports
            ):
                self._flaky.append(name)
        if len(self._flaky) == len(self._failed):
            session.exitstatus = pytest.ExitCode.OK

    def _passes(self, root: Path, name: str, reports: list[pytest.TestReport]) -> bool:
        """Runs the test once more, and keeps what both runs printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
        of_this_run = ("PYTEST_CURRENT", "PYTEST_XDIST", "PYTEST_ADDOPTS", "PYTEST_PLUGINS")
        environ = {k: v for k, v in os.environ.items() if not k.startswith(of_this_run)}
        done = subprocess.run(
            command, cwd=root, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        texts = [text_of(report) for report in reports]
        texts += [f"=== Run once more, alone (exit code {done.returncode})", done.stdout]
        file = re.sub(r"\W+", "-", name.rpartition("/")[2]).strip("-")
        (self._directory / f"{file}.txt").write_text("\n".join(texts))
        return done.returncode == 0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._flaky:
            terminalreporter.write_line(
                f"FLAKY {name} (its reports: {self._directory})", yellow=True
            )
