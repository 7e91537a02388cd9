"""Runs every snippet of the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.installing import INSTALL_LIBRARY
from support.launching import DEADLINE_S, free_endpoint
from support.paths import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(language: str) -> list[str]:
    found = FENCE.findall((ROOT / "README.md").read_text())
    return [text for name, text in found if name == language]


def run(command: list[str], timeout: float) -> str:
    """Runs a command in the repository with this interpreter's programs first in PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def shell_commands() -> list[str]:
    return [line for text in snippets("bash") for line in text.splitlines() if line]


def test_readme_has_the_commands_that_are_tested_here() -> None:
    """A command that is added to the README needs a test below."""
    assert shell_commands() == [
        "bash examples/demo.sh",
        "bash examples/demo.sh --kill-a-worker",
        "bash examples/demo.sh --watch-it-recover",
        "pip install .",
        *INSTALL_LIBRARY,  # in test_install.py
        "elastic-launch --standalone --nproc-per-node=2 --max-restarts=3 examples/all_reduce.py",
        "elastic-launch --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=sum "
        "--rdzv-endpoint=node0:29400 examples/all_reduce.py",
        "bash tests/run.sh",
    ]


def test_demo_sets_everything_up_and_trains() -> None:
    # This is also `pip install .` in a bare virtual environment: the script makes one.
    output = run(shell_commands()[0].split(), timeout=3600)
    accuracies = re.findall(r"accuracy[ =:]+([0-9.]+)", output)
    assert accuracies and float(accuracies[-1]) > 0.9, output[-2000:]


def test_demo_recovers_from_a_killed_worker() -> None:
    output = run(shell_commands()[1].split(), timeout=3600)
    accuracies = re.findall(r"accuracy[ =:]+([0-9.]+)", output)
    assert accuracies and float(accuracies[-1]) > 0.9, output[-2000:]
    assert "continuing with epoch" in output, output[-2000:]


def test_demo_watches_nodes_recover() -> None:
    # All scenes run in test_many_nodes.py; one shows that the command finds what it needs.
    output = run([*shell_commands()[2].split(), "add-a-node"], timeout=3600)
    accuracies = re.findall(r"accuracy[ =:]+([0-9.]+)", output)
    assert accuracies and float(accuracies[-1]) > 0.9, output[-2000:]


def test_command_line_snippet_runs() -> None:
    output = run(shell_commands()[7].split(), timeout=DEADLINE_S)
    assert "rank 0" in output and "rank 1" in output


def test_the_same_line_on_two_nodes_makes_one_job() -> None:
    with ThreadPoolExecutor() as nodes:
        command = shell_commands()[8].replace("node0:29400", free_endpoint()).split()
        outputs = list(nodes.map(lambda _: run(command, timeout=DEADLINE_S), range(2)))
    assert all(f"rank {rank} of 4" in "".join(outputs) for rank in range(4)), outputs


def test_readme_test_command_is_the_one_that_ci_runs() -> None:
    assert shell_commands()[-1] in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("code", snippets("python"))
def test_python_snippet_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(code)
    assert "never" in run([sys.executable, str(script)], timeout=DEADLINE_S)


def test_report_of_a_failure_is_that_of_the_readme(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        # One line, as in the README: both ranks run when one of them fails.
        "import os, signal, threading; open('at.' + os.environ['RANK'], 'w').close(); "
        "[threading.Event().wait(0.01) for _ in iter(lambda: len(os.listdir()) == 3, True)]\n"
        'if os.environ["RANK"] == "0":\n'
        "    signal.pause()\n"
        'raise ValueError("loss is nan at step 1200")\n'
    )
    command = [sys.executable, "-m", "elastic", "--standalone", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1

    def without_variable_parts(text: str) -> str:
        text = re.sub(r"pid \d+", "pid N", text)
        text = re.sub(r'File ".*train.py"', 'File "train.py"', text)
        return re.sub(r"^    (time|host|run) +[^,\n]*", r"    \1", text, flags=re.MULTILINE)

    printed = done.stderr[done.stderr.index("elastic-launch: ") :]
    assert without_variable_parts(printed) == without_variable_parts(snippets("text")[0])
