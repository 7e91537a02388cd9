"""The callbacks of elastic.worker in the trainers of Lightning and Hugging Face, and accelerate.

Lightning and transformers are not part of the test extra: CONTRIBUTING.md has the command.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.launching import launch
from support.paths import ROOT

# The step on the worker's page, as the guardian reads it.
REPORTED = """
import os, struct
from elastic import _worker
def reported():
    page = os.pread(_worker.stacks_descriptor(), 40, 256)
    _, step, _, _, _, depth = struct.unpack("qqqqII", page)
    return step, depth
"""

LIGHTNING = """
import torch
from lightning.pytorch import LightningModule, Trainer
from elastic.worker.lightning import ElasticCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch[0]).sum()
    def validation_step(self, batch, _):
        sections.append(reported()[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

sections = []
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(12, 4)), 2)
trainer = Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False,
                  num_sanity_val_steps=0, callbacks=[ElasticCallback()])
trainer.fit(Model(), data, data)
print("step", reported()[0], "in a section", all(sections))
"""

TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
from elastic.worker.transformers import ElasticCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(16)]
arguments = TrainingArguments("out", max_steps=5, per_device_train_batch_size=2, report_to=[],
                              use_cpu=True, disable_tqdm=True, save_strategy="no",
                              eval_strategy="steps", eval_steps=5)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data,
        callbacks=[ElasticCallback()]).train()
print("step", reported()[0])
"""


def run(tmp_path: Path, script: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(REPORTED + script)
    done = launch("--standalone", str(path), cwd=tmp_path, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)
def test_lightning_trainer_reports_its_steps(tmp_path: Path) -> None:
    assert run(tmp_path, LIGHTNING) == "step 12 in a section True"


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_hugging_face_trainer_reports_its_steps(tmp_path: Path) -> None:
    assert run(tmp_path, TRANSFORMERS) == "step 5"


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)
def test_accelerate_example_saves_and_continues(tmp_path: Path) -> None:
    command = ("--standalone", "--nproc-per-node=2", str(ROOT / "examples/accelerate_digits.py"),
               f"--checkpoint={tmp_path / 'state'}")  # fmt: skip
    for steps in (10, 15):
        done = launch(*command, f"--steps={steps}", check=True)
        assert f"stopped after {steps} steps" in done.stdout
