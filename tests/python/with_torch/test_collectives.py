"""Which rank the others wait for in a collective operation, with a plain script and gloo."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.collective_scenes import check_scene
from support.launching import launch


@pytest.mark.parametrize("name", ["not-entered", "order"])
def test_the_report_of_a_hang_names_the_cause(name: str, tmp_path: Path) -> None:
    check_scene(name, tmp_path)


START = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
"""


def run_one_worker(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(script)
    return launch("--standalone", "--nproc-per-node=1", str(tmp_path / "train.py"))


def test_a_process_that_takes_long_to_exit_keeps_its_exit_code(tmp_path: Path) -> None:
    # A handler that was registered before torch's is called after torch's: sleep(3).
    late = "import ctypes\nlibrary = ctypes.CDLL(None)\nlibrary.on_exit(library.sleep, None)\n"
    done = run_one_worker(tmp_path, late + START + "raise SystemExit(3)\n")
    assert (done.returncode, "exited with code 3" in done.stderr) == (3, True), done.stderr


def test_a_thread_whose_name_is_no_text_harms_nothing(tmp_path: Path) -> None:
    set_name = "import ctypes\nctypes.CDLL(None).prctl(15, b'\\xe8\\xae', 0, 0, 0)\n"
    read = "import time\ntime.sleep(6)\n"  # the operations are read after some four seconds
    done = run_one_worker(tmp_path, set_name + START + read)
    assert done.returncode == 0, done.stderr
