"""Runs every snippet of the README, and the Python of the store's page."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.installing import INSTALL_LIBRARY
from support.launching import DEADLINE_S, run_program
from support.paths import ROOT
from support.readme import check_accuracy, run, shell_commands, snippets


def test_readme_has_the_commands_that_are_tested_here() -> None:
    """A command that is added to the README needs a test below."""
    assert shell_commands() == [
        "git clone https://github.com/elastic-launch/elastic && cd elastic",
        "pip install . torch",
        "elastic-launch --standalone --nproc-per-node=2 --max-restarts=3 examples/all_reduce.py",
        "bash examples/demo.sh --kill-a-worker",
        "bash tests/run.sh",
    ]
    project = (ROOT / "pyproject.toml").read_text()
    assert f'Homepage = "{shell_commands()[0].split()[2]}"' in project
    assert shell_commands("docs/api.md") == INSTALL_LIBRARY  # in test_install.py


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment that finds torch in this one; elastic is installed by the script."""
    path = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (path / ".installed-torch").write_text("torch present numpy scikit-learn\n")
    return path


@pytest.mark.timeout(1200)  # compiles the package, unless a cache has it
def test_demo_installs_the_package_and_trains(venv: Path) -> None:
    pytest.importorskip("sklearn")
    variables = {"ELASTIC_DEMO_VENV": str(venv), "ELASTIC_TORCH": "present"}
    variables["PIP_NO_BUILD_ISOLATION"] = "false"  # pip's way to say: without isolation
    check_accuracy(run(["bash", "examples/demo.sh"], timeout=1100, **variables))


def test_demo_prints_its_options_and_installs_nothing(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    printed = run(["bash", "examples/demo.sh", "--help"], timeout=60, ELASTIC_DEMO_VENV=str(venv))
    assert "--kill-a-worker" in printed and "ELASTIC_DEMO_VENV" in printed
    assert "#" not in printed and "set -eu" not in printed and not venv.exists()


def test_command_line_snippet_runs() -> None:
    output = run(shell_commands()[2].split(), timeout=DEADLINE_S)
    assert sorted(output.splitlines()) == [f"rank {rank} of 2: sum 1" for rank in range(2)]


def test_readme_test_command_is_the_one_that_ci_runs() -> None:
    assert shell_commands()[-1] in (ROOT / ".ci/run").read_text()


def dry_run(command: list[str], **variables: str) -> str:
    """What a command of the README would start, as a node of a scheduler."""
    assert command[0] == "elastic-launch"
    words = [*command[1:-1], "--dry-run", str(ROOT / "examples/all_reduce.py")]
    return run([sys.executable, "-m", "elastic", *words], timeout=DEADLINE_S, **variables)


def test_slurm_snippet_is_a_job_of_two_nodes() -> None:
    (text,) = snippets("slurm")
    words = text.replace("\\\n", " ").splitlines()[-1].split()
    assert words[:2] == ["srun", "--kill-on-bad-exit=0"] and words[-1] == "train.py"
    plan = dry_run(
        words[2:],
        SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_NODEID="0", SLURM_STEP_NUM_NODES="2",
        SLURM_JOB_NUM_NODES="2", SLURM_STEP_NODELIST="node[1-2]",
    )  # fmt: skip
    assert "8 on this node" in plan and "c10d at node1:29407" in plan


@pytest.mark.parametrize("code", snippets("python", "docs/api.md"))
def test_python_snippet_of_the_store_runs(code: str, tmp_path: Path) -> None:
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
    done = run_program(command, cwd=tmp_path)
    assert done.returncode == 1

    def without_variable_parts(text: str) -> str:
        text = re.sub(r"pid \d+", "pid N", text)
        text = re.sub(r'File ".*train.py"', 'File "train.py"', text)
        return re.sub(r"^    (time|host|run) +[^,\n]*", r"    \1", text, flags=re.MULTILINE)

    # What the rank prints itself may come before the first line, or behind it.
    line, _, report = without_variable_parts(snippets("text")[0]).partition("\n\n")
    printed = without_variable_parts(done.stderr)
    assert f"{line}\n" in printed
    assert printed[printed.index("elastic-launch: train.py failed") :] == report
