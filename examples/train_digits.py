"""Trains a small network on handwritten digits with DistributedDataParallel and survives restarts.

    elastic-launch --standalone --nproc-per-node=2 --max-restarts=3 \\
        examples/train_digits.py --checkpoint /tmp/digits.pt

The 1797 images are part of scikit-learn, so nothing is downloaded. Every rank keeps its state in
memory that outlives its process (docs/snapshots.md), and restarted workers continue from there.
Rank 0 writes a checkpoint after every epoch, and when the job stops at an agreed step
(docs/preemption.md): a later job, or a round of another size, continues from it. The result depends
on the seed and on the number of workers, not on the number of interruptions.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from elastic import worker
from elastic.torch import Snapshots
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEST_SAMPLES = 360


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step, all workers")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="file to continue from and to write")
    parser.add_argument(
        "--delay-per-step", type=float, default=0.0, help="seconds; slows the training down"
    )
    parser.add_argument(
        "--pid-dir", type=Path, help="directory for the file rank<N>.pid of every worker"
    )
    return parser.parse_args()


class Position:
    """Where the training continues: after `step` steps, `batch` of them in this epoch."""

    def __init__(self, device: torch.device) -> None:
        self.step = self.epoch = self.batch = 0
        # Sum of losses and number of samples in this epoch, of this rank.
        self.totals = torch.zeros(2, device=device)

    def advance(self, loss: torch.Tensor, samples: int) -> None:
        self.step += 1
        self.batch += 1
        self.totals += torch.stack([loss.detach() * samples, torch.ones_like(loss) * samples])

    def end_epoch(self) -> float:
        """Returns the epoch's loss, averaged over all ranks."""
        dist.all_reduce(self.totals)
        total, samples = self.totals.tolist()
        self.epoch += 1
        self.batch = 0
        self.totals.zero_()
        return float(total / samples)

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.epoch, self.batch = state["step"], state["epoch"], state["batch"]
        self.totals.copy_(state["totals"])


class Digits:
    """The images as tensors on one device, with the same split on every rank."""

    def __init__(self, device: torch.device, seed: int) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
        labels = torch.tensor(digits.target, dtype=torch.int64)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
        self.train_images, self.train_labels = images[train].to(device), labels[train].to(device)
        self.test_images, self.test_labels = images[test].to(device), labels[test].to(device)

    def shard(self, seed: int, epoch: int, rank: int, world_size: int) -> torch.Tensor:
        """This rank's part of the epoch's shuffled sample numbers; the same length on all ranks."""
        generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
        order = torch.randperm(len(self.train_labels), generator=generator)
        padding = -len(order) % world_size
        return torch.cat([order, order[:padding]])[rank::world_size]


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def save_checkpoint(path: Path, **stateful: Any) -> None:
    """Replaces the file atomically: a process that is killed leaves the old file intact."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        torch.save({name: one.state_dict() for name, one in stateful.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load_checkpoint(path: Path, **stateful: Any) -> None:
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, one in stateful.items():
        one.load_state_dict(state[name])


def train_batch(
    model: nn.Module, optimizer: torch.optim.SGD, data: Digits, batch: torch.Tensor
) -> torch.Tensor:
    """One step; returns the loss of this rank's samples."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data.train_images[batch]), data.train_labels[batch])
    loss.backward()
    optimizer.step()
    return loss


@torch.no_grad()
def test_accuracy(model: nn.Module, data: Digits, rank: int, world_size: int) -> float:
    """Every worker evaluates its share of the test images."""
    predicted = model(data.test_images[rank::world_size]).argmax(dim=1)
    correct = (predicted == data.test_labels[rank::world_size]).sum()
    dist.all_reduce(correct)
    return int(correct) / TEST_SAMPLES


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = Digits(device, args.seed)
    network = build_model().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=args.lr, momentum=0.9)
    position = Position(device)
    state = {"model": network, "optimizer": optimizer, "position": position}
    # Rank 0 writes a checkpoint only after a collective step, so all ranks read the same one.
    if args.checkpoint and args.checkpoint.exists():
        load_checkpoint(args.checkpoint, **state)
        if rank > 0:
            position.totals.zero_()  # rank 0 has the sums of all ranks
    snapshots = Snapshots(**state)
    snapshots.restore(newer_than=position.step)
    if rank == 0 and position.step > 0:
        print(f"continuing with epoch {position.epoch}, batch {position.batch}", flush=True)
    model = DistributedDataParallel(network, [device.index] if device.type == "cuda" else None)

    per_worker = max(1, args.batch_size // world_size)
    accuracy = test_accuracy(network, data, rank, world_size)
    while position.epoch < args.epochs:
        samples = data.shard(args.seed, position.epoch, rank, world_size)
        batches = samples.split(per_worker)
        batch = batches[position.batch]
        position.advance(train_batch(model, optimizer, data, batch), len(batch))
        if args.delay_per_step > 0:
            time.sleep(args.delay_per_step)
        if position.batch == len(batches):
            loss = position.end_epoch()
            accuracy = test_accuracy(network, data, rank, world_size)
            if rank == 0 and args.checkpoint:
                save_checkpoint(args.checkpoint, **state)
            if rank == 0:
                text = f"epoch {position.epoch - 1} loss {loss:.4f} accuracy {accuracy:.4f}"
                print(text, flush=True)
        snapshots.save(position.step)
        # True at the same step on every rank.
        if worker.should_stop(position.step) and position.epoch < args.epochs:
            dist.all_reduce(position.totals)
            if rank == 0 and args.checkpoint:
                save_checkpoint(args.checkpoint, **state)
                print(f"stopped in epoch {position.epoch} after batch {position.batch}", flush=True)
            dist.barrier()
            return
    if rank == 0:
        print(f"finished: accuracy {accuracy:.4f} with {world_size} workers", flush=True)
    dist.barrier()  # all ranks end together


def main() -> None:
    args = parse_args()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if args.pid_dir:
        args.pid_dir.mkdir(parents=True, exist_ok=True)
        (args.pid_dir / f"rank{rank}.pid").write_text(f"{os.getpid()}\n")
    use_gpu = torch.cuda.device_count() > local_rank
    device = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if use_gpu else "gloo")
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # A thread of gloo, which outlives the process group, may still be releasing the last
    # collective's tensors, which needs the GIL. An interpreter that ends would end that thread, and
    # the process with "terminate called without an active exception".
    sys.stdout.flush()
    os._exit(0)
