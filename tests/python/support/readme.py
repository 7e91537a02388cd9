"""The snippets of the README and of other pages, and how they are run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from support.launching import clean_environment, run_program
from support.paths import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(language: str, page: str = "README.md") -> list[str]:
    found = FENCE.findall((ROOT / page).read_text())
    return [text for name, text in found if name == language]


def run(command: list[str], timeout: float, **variables: str) -> str:
    """Runs a command in the repository with this interpreter's programs first in PATH."""
    environ = clean_environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    environ |= variables
    done = run_program(
        command, cwd=ROOT, environ=environ, check=True, timeout=timeout, grace_s=60.0
    )
    return done.stdout


def shell_commands(page: str = "README.md") -> list[str]:
    return [line for text in snippets("bash", page) for line in text.splitlines() if line]


def check_accuracy(output: str) -> None:
    accuracies = re.findall(r"accuracy[ =:]+([0-9.]+)", output)
    assert accuracies and float(accuracies[-1]) > 0.9, output[-2000:]
