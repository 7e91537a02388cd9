"""The snippets of the README and of other pages, and how they are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(language: str, page: str = "README.md") -> list[str]:
    found = FENCE.findall((ROOT / page).read_text())
    return [text for name, text in found if name == language]


def run(command: list[str], timeout: float, **variables: str) -> str:
    """Runs a command in the repository with this interpreter's programs first in PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def shell_commands(page: str = "README.md") -> list[str]:
    return [line for text in snippets("bash", page) for line in text.splitlines() if line]


def check_accuracy(output: str) -> None:
    accuracies = re.findall(r"accuracy[ =:]+([0-9.]+)", output)
    assert accuracies and float(accuracies[-1]) > 0.9, output[-2000:]
