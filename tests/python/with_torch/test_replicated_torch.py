"""The state of a DDP model continues with another number of ranks, bit by bit."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from process.test_replicated_snapshots import ALONE, OPTIONS, await_pauses
from process.test_snapshot_copies import GUEST, lose
from support.launching import free_endpoint, job_at

WARM = ("--nproc-per-node=2", "--warm")
TRAINING = """
import hashlib, os, time
import torch
import torch.distributed as dist
from elastic import worker
from elastic.torch import Snapshots
from torch import nn

dist.init_process_group("gloo")
rank, world, count = dist.get_rank(), dist.get_world_size(), worker.round()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 8))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def digest():
    found = hashlib.sha256()
    for one in model.state_dict().values():
        found.update(one.numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for name in sorted(state):
            found.update(state[name].numpy().tobytes())
    return found.hexdigest()

def say(text):
    os.write(1, f"{count} {rank} {world} {text}\\n".encode())

torch.manual_seed(100 + rank)
seeded = torch.get_rng_state()
snapshots = Snapshots(model=model, optimizer=optimizer, replicated=True)
step = snapshots.restore() or 0
if step:
    say(f"from {step} {digest()} {torch.equal(seeded, torch.get_rng_state())}")
while step < {0: 5, 1: 8}.get(count, 10):
    optimizer.zero_grad()
    model(torch.rand(32, 64)).square().mean().backward()
    optimizer.step()
    step += 1
    assert snapshots.save(step)
say(f"at {step} {digest()}")
if count < 2:
    say("waits")
    time.sleep(1000)
dist.destroy_process_group()
"""


# 1 x 2 -> 2 x 2 -> 1 x 2
def test_a_model_continues_with_more_ranks_and_with_fewer(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    with job_at(free_endpoint(), "1:2", [str(path)], *OPTIONS, *WARM) as nodes:
        first = nodes.start(ALONE)
        text = await_pauses(first, 2)
        second = nodes.start(GUEST)
        for node in (first, second):
            text += await_pauses(node, 2)
        lose(second)
        text += nodes.finish_with(0, -signal.SIGKILL)[0].stdout

    def digests(count: int, world: int, what: str) -> list[str]:
        return re.findall(rf"^{count} \d {world} {what} (\d+ \w+)", text, re.MULTILINE)

    first_saved, second_saved = digests(0, 2, "at"), digests(1, 4, "at")
    assert len(first_saved) == 2 and len(second_saved) == 4, text
    assert digests(1, 4, "from") == [first_saved[0]] * 4, text
    assert digests(2, 2, "from") == [second_saved[0]] * 2, text
    assert len({*first_saved}) == len({*second_saved}) == 1, text
    assert text.count(" True\n") == 6, "the random generators are as the script has seeded them"
