"""Jobs of accelerate, Lightning and torchx with two nodes, a failure and a restart.

Lightning and torchx are not part of the test extra: CONTRIBUTING.md has the command.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from elastic.cli import install_shim

from support.launching import clean_environment, free_port, launcher_command, run_program
from support.waiting import together

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)

DEADLINE_S = 300.0  # two rounds, in each of which every worker imports its library

# The last rank fails in the first round. Restarts and rank are in the line of each other worker.
END = """
import os, sys
if int(os.environ["RANK"]) == total - 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
sys.stdout.write(f"rank {rank} of {total} round {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
"""
ACCELERATED = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(2, 1))
accelerator.backward(model(torch.ones(4, 2)).sum())
accelerator.wait_for_everyone()
rank, total = accelerator.process_index, accelerator.num_processes
"""
TRAINED = """
import os
import torch
from lightning.pytorch import LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer = Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
                  num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", max_epochs=1,
                  enable_progress_bar=False, enable_model_summary=False, logger=False,
                  enable_checkpointing=False)
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=2))
rank, total = trainer.global_rank, trainer.world_size
"""


def run_nodes(commands: list[list[str]], folder: Path, **more: str) -> str:
    """Runs one command for each node at once; all must succeed. Returns their output."""
    run = functools.partial(
        run_program, environ=clean_environment(**more), cwd=folder, check=True, timeout=DEADLINE_S
    )
    ended = together(*(functools.partial(run, command) for command in commands))
    return "".join(done.stdout + done.stderr for done in ended)


def lines_of(output: str) -> list[str]:
    return sorted(re.findall(r"rank \d of \d round \d", output))


RESTARTED = ["rank 0 of 2 round 1", "rank 1 of 2 round 1"]


def test_accelerate_restarts_two_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCELERATED + END)
    common = ["--multi_gpu", "--num_machines=2", "--num_processes=2", "--max_restarts=1",
              "--main_process_ip=127.0.0.1", f"--main_process_port={free_port()}"]  # fmt: skip
    nodes = [
        [sys.executable, "-m", "elastic.torchrun", "accelerate", "launch", *common,
         f"--machine_rank={rank}", "train.py"]
        for rank in range(2)
    ]  # fmt: skip
    assert set(RESTARTED) <= set(lines_of(run_nodes(nodes, tmp_path)))


def test_lightning_restarts_two_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINED + END)
    node = launcher_command(
        "--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-id=job",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "train.py",
    )  # fmt: skip
    assert set(RESTARTED) <= set(lines_of(run_nodes([node, node], tmp_path)))


@pytest.mark.skipif(shutil.which("torchx") is None, reason="torchx is not installed")
@pytest.mark.parametrize("shape", ["1x2", "2x1"])
def test_torchx_restarts_its_nodes(shape: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCELERATED + END)
    assert install_shim.run([str(tmp_path / "bin")]) == 0
    command = ["torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", shape, "--script=train.py",
               f"--rdzv_port={free_port()}", "--env=PET_MAX_RESTARTS=1"]  # fmt: skip
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert set(RESTARTED) <= set(lines_of(run_nodes([command], tmp_path, PATH=path)))
