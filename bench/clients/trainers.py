"""A worker that trains with a trainer of another package, and saves every tenth step.

    trainers.py transformers | lightning | fsdp FOLDER [--until-preloaded]

Stamps its first step, and trains without end, from the last step that FOLDER has. With
--until-preloaded rank 1 ends itself by SIGKILL after twenty steps, and the next round trains again,
until the module that takes longest to import was there at the start of the script.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path

from stamping import stamp

ENDLESS = 10_000_000
SAVED_EVERY = 10
SLOWEST = {
    "transformers": "transformers.trainer",
    "lightning": "lightning.pytorch",
    "fsdp": "torch.distributed.fsdp",
}


class Progress:
    """What is done after each step."""

    def __init__(self, is_preloaded: bool) -> None:
        self._is_preloaded = is_preloaded
        self._made = 0

    def note(self) -> None:
        self._made += 1
        if "BENCH_STAMPS" in os.environ:
            if self._made == 1:
                stamp("step")
            time.sleep(0.1)
        elif self._made == 2 * SAVED_EVERY and not self._is_preloaded and os.environ["RANK"] == "1":
            time.sleep(1)  # the template imports meanwhile
            os.kill(os.getpid(), signal.SIGKILL)


def train_transformers(folder: Path, steps: int, progress: Progress) -> None:
    import torch
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Sequences(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 65536

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.arange(index, index + 16) % 64
            return {"input_ids": ids, "labels": ids}

    class Note(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            progress.note()

    settings = TrainingArguments(
        output_dir=str(folder), use_cpu=True, max_steps=steps, per_device_train_batch_size=2,
        save_steps=SAVED_EVERY, save_total_limit=2, report_to=[], disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    shape = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, bos_token_id=0, eos_token_id=0, **shape))
    trainer = Trainer(model=model, args=settings, train_dataset=Sequences(), callbacks=[Note()])
    saved = any(folder.glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=saved or None)


def train_lightning(folder: Path, steps: int, progress: Progress) -> None:
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Note(Callback):
        def on_train_batch_end(self, *_: object) -> None:
            progress.note()

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(65536, 4)), 2)
    saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=SAVED_EVERY, save_last=True)
    trainer = Trainer(
        accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_steps=steps, logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, callbacks=[Note(), saving],
    )  # fmt: skip
    last = folder / "last.ckpt"
    trainer.fit(Model(), data, ckpt_path=str(last) if last.exists() else None)


def train_fsdp(folder: Path, steps: int, progress: Progress) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    saved = [int(one.parent.name) for one in folder.glob("*/.metadata")]
    first = max(saved, default=0)
    if saved:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=folder / str(first))
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"]
        )
    for step in range(first + 1, steps + 1):
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVED_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / str(step))
        progress.note()
    dist.destroy_process_group()


TRAINERS = {"transformers": train_transformers, "lightning": train_lightning, "fsdp": train_fsdp}


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    is_preloaded = SLOWEST[kind] in sys.modules
    is_tested = "--until-preloaded" in sys.argv
    round_ = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    steps = (round_ + 2) * 2 * SAVED_EVERY if is_tested else ENDLESS
    importlib.import_module(SLOWEST[kind])
    TRAINERS[kind](folder, steps, Progress(is_preloaded))
    sys.stdout.write(f"rank {os.environ['RANK']} preloaded {is_preloaded}\n")


if __name__ == "__main__":
    main()
