"""Programs that use torch under the launcher, and torch's own store at its ports."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic._host import devices
from elastic.launcher import elastic_launch

from support import launch_functions
from support.function_jobs import config
from support.launching import clean_environment, free_port, launch, run_program
from support.paths import ROOT


def test_an_exception_that_torch_recorded_is_in_the_report_and_passed_on(tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    raise ValueError('bad batch')\n"
        "main()\n"
    )
    parent = tmp_path / "parent.json"
    done = launch(str(script), environ=clean_environment(TORCHELASTIC_ERROR_FILE=str(parent)))
    assert done.returncode == 1
    assert "error   ValueError: bad batch" in done.stderr
    message = json.loads(parent.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: bad batch", 1)


def test_probe_counts_in_a_real_interpreter() -> None:
    expected = devices.visible_gpus(None, devices.nvml_devices)
    count = devices.worker_count("auto", dict(os.environ), sys.executable)
    assert count == (expected or devices.usable_cpus())


ACCELERATED = """
import os
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(2, 1))
accelerator.backward(model(torch.ones(4, 2)).sum())
accelerator.wait_for_everyone()
os.write(1, b"rank %d of %d\\n" % (accelerator.process_index, accelerator.num_processes))
os._exit(0)  # a thread of gloo may still need the interpreter
"""


def test_accelerate_launches_by_the_documented_command(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    page = ROOT / "docs" / "start.md"
    found = re.search(r"^python (-m elastic.torchrun .*) train.py$", page.read_text(), re.MULTILINE)
    assert found is not None
    (tmp_path / "train.py").write_text(ACCELERATED)
    command = found[1].replace("--num_processes 8", "--num_processes 2")
    words = [*command.split(), f"--main_process_port={free_port()}", "train.py"]
    done = run_program([sys.executable, *words], cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"], done.stderr


USER = """
import sys
import torch.distributed.launcher as package
from torch.distributed.launch import launch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.run import main
import torch.distributed.run as by_attribute
import torch.distributed

assert by_attribute.main is main and package.elastic_launch is elastic_launch
assert torch.distributed.run.__spec__.name == main.__module__ == "elastic.run", main.__module__
assert not hasattr(package, "__wrapped__") and package.api.LaunchConfig is LaunchConfig
print(sys.argv[1:], __name__, launch.__module__)
"""


def test_a_program_that_imports_torchs_launcher_gets_elastics(tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(USER)
    late = "import torch.distributed.launcher, elastic.torchrun as t; t.install(); t.install()\n"
    (tmp_path / "late.py").write_text(late + USER)
    for words in (["-m", "elastic.torchrun", "user", "-x", "1"], ["late.py", "-x", "1"]):
        done = run_program([sys.executable, *words], cwd=tmp_path)
        assert done.stdout == "['-x', '1'] __main__ elastic.launch\n", done.stderr


# As torchtune's `tune run` does.
PARSER_USER = """
import argparse
from torch.distributed.run import get_args_parser, run

parser = argparse.ArgumentParser(prog="tune")
for action in get_args_parser()._actions:
    if action.dest == "training_script":
        action.dest = "recipe"
    if action.dest != "help":
        parser._add_action(action)
args = parser.parse_args()
args.training_script = args.recipe
args.standalone = args.module = True
run(args)
"""


def test_a_program_that_copies_the_options_of_torchs_parser_runs(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(PARSER_USER)
    recipe = "import os, sys; os.write(1, f\"{os.environ['RANK']} {sys.argv[1:]}\\n\".encode())"
    (tmp_path / "recipe.py").write_text(recipe)
    words = ["elastic.torchrun", "tune", "--nproc_per_node", "2", "recipe", "--config", "x"]
    done = run_program([sys.executable, "-m", *words], cwd=tmp_path)
    lines = sorted(done.stdout.splitlines())
    assert lines == ["0 ['--config', 'x']", "1 ['--config', 'x']"], done.stderr


def test_torchs_worker_server_runs_while_the_main_function_does(tmp_path: Path) -> None:
    socket_path, error_file = str(tmp_path / "socket"), tmp_path / "error.json"
    code = f"""
import os
from elastic.control_plane import worker_main

@worker_main()
def main():
    print(os.path.exists({socket_path!r}))
    raise ValueError("broken")

main()
"""
    done = run_program(
        [sys.executable, "-c", code],
        environ=clean_environment(
            TORCH_WORKER_SERVER_SOCKET=socket_path, TORCHELASTIC_ERROR_FILE=str(error_file)
        ),
    )
    assert done.stdout == "True\n", done.stderr
    assert "ValueError: broken" in json.loads(error_file.read_text())["message"]["message"]


@pytest.mark.parametrize("how", [{}, {"preload": ["torch"]}], ids=["executed", "forked"])
def test_ranks_of_functions_reduce_with_torch(how: dict[str, Any]) -> None:
    launched = elastic_launch(config(3, **how), launch_functions.all_reduce)
    assert launched() == dict.fromkeys(range(3), 3.0)
