"""Trainers of Lightning and Hugging Face that continue from snapshots after a killed worker."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.launching import launch

MODEL = """
import os, signal
import torch
from elastic import worker

torch.manual_seed(0)

def may_die(step):
    if worker.round() == 0 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
"""

LIGHTNING = """
from lightning.pytorch import LightningModule, Trainer
from elastic.torch.lightning import SnapshotCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.first = None
    def training_step(self, batch, _):
        may_die(self.global_step)
        self.first = self.global_step if self.first is None else self.first
        return (self.layer(batch[0]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), 2)
saves = SnapshotCallback()
trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False, callbacks=[saves])
model = Model()
trainer.fit(model, data, ckpt_path=saves.checkpoint())
print("from", model.first, "to", trainer.global_step)
"""

TRANSFORMERS = """
from transformers import Trainer, TrainerCallback, TrainingArguments
from elastic.torch.transformers import SnapshotCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

class Steps(TrainerCallback):
    first = None
    def on_step_begin(self, args, state, control, **_):
        may_die(state.global_step)
        self.first = state.global_step if self.first is None else self.first

data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(32)]
arguments = TrainingArguments("out", max_steps=8, per_device_train_batch_size=2, report_to=[],
                              use_cpu=True, disable_tqdm=True, save_strategy="no")
steps = Steps()
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[SnapshotCallback(), steps])
trainer.train()
print("from", steps.first, "to", trainer.state.global_step)
"""


@pytest.mark.parametrize(
    ("package", "script"), [("lightning", LIGHTNING), ("transformers", TRANSFORMERS)]
)
def test_a_trainer_continues_at_the_step_of_its_last_snapshot(
    package: str, script: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    path = tmp_path / "train.py"
    path.write_text(MODEL + script)
    done = launch("--standalone", "--max-restarts=1", str(path), cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "from 5 to 8"
