"""A training with snapshots whose processes are killed at random moments, on nodes of one machine.

Each node is a launcher at a loopback address of its own, which counts as a host. A kill hits a
worker, a guardian, an agent, or all processes of a node; the launcher that is gone is replaced. So
that kills hit every moment, saves follow each other without a pause, and copies take most of the
time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from support.launching import (
    Job,
    Process,
    children,
    clean_environment,
    free_endpoint,
    job_at,
    launch,
    python_path,
)
from support.paths import EXAMPLES
from support.waiting import eventually, stall_for_test

RANKS = 3
# Arguments: the model's kind, the last step, and a file that ends the training.
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from elastic import worker
from elastic.torch import Snapshots
from torch import nn

KIND, LAST, END = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

def say(*words):
    os.write(1, (" ".join(map(str, (worker.round(), rank, *words))) + "\\n").encode())

torch.manual_seed(0)
if KIND == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Dropout(0.3), nn.Linear(1024, 10))
    model = fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    images = torch.rand(1797, 64, generator=torch.Generator().manual_seed(1))
    labels = (images[:, :10].argmax(dim=1)).long()
else:
    from train_digits import Digits, build_model

    # Else DDP makes other buckets after the first step of a process; the place of a number in a
    # bucket decides in which order gloo adds those of three ranks.
    model = nn.Sequential(build_model(), nn.Dropout(0.1))
    model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    data = Digits(torch.device("cpu"), seed=0)
    images, labels = data.train_images, data.train_labels
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)
torch.manual_seed(rank)  # of the dropout, and of the order of the data
snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler)
step = snapshots.restore()
say("start", os.getpid(), step)
step = step or 0
while step < LAST:
    batch = torch.randperm(len(labels))[:32]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    worker.progress(step)
    say("step", step, loss.item().hex())
    snapshots.save(step)
    must_end = torch.tensor(int(os.path.exists(END)))
    dist.all_reduce(must_end, dist.ReduceOp.MAX)
    if must_end:
        break
say("end", step)
dist.barrier()
os._exit(0)
"""


class Losses:
    """What the ranks of a training print."""

    def __init__(self) -> None:
        self.starts: dict[int, dict[int, str]] = defaultdict(dict)  # round, rank: step
        self.pids: dict[int, int] = {}
        self.steps: dict[tuple[int, int], int] = {}  # round, rank: its last
        self.losses: dict[tuple[int, int], str] = {}  # rank, step
        self.faults: list[str] = []
        self.ended = 0

    def read(self, line: str) -> None:
        words = line.split()
        if len(words) < 4 or not words[0].isdigit() or not words[1].isdigit():
            return
        number, rank, kind = int(words[0]), int(words[1]), words[2]
        if kind == "start" and len(words) == 5:
            self.pids[rank] = int(words[3])
            self.starts[number][rank] = words[4]
            if len(set(self.starts[number].values())) > 1:
                self.faults.append(f"round {number} starts at {self.starts[number]}")
        elif kind == "step" and len(words) == 5:
            at = rank, int(words[3])
            self.steps[number, rank] = at[1]
            known = self.losses.setdefault(at, words[4])
            if known != words[4]:
                self.faults.append(f"round {number}: rank, step {at} has {words[4]}, not {known}")
        elif kind == "end":
            self.ended += 1

    def trains(self, number: int) -> bool:
        """Whether all ranks have trained a step in the round."""
        return all((number, rank) in self.steps for rank in range(RANKS))

    def round(self) -> int:
        return max(self.starts, default=-1)


class Campaign:
    def __init__(self, kind: str, kills: int, seed: int, folder: Path) -> None:
        self.kind, self.kills = kind, kills
        self.random = random.Random(seed)
        self.folder = folder
        self.seen = Losses()
        self.log: list[str] = []
        self.nodes: dict[int, Process] = {}
        self.stderr: list[str] = []
        (folder / "train.py").write_text(SCRIPT)

    def run(self, deadline_s: float) -> None:
        words = (
            *("--warm", "--nproc-per-node=1", f"--max-restarts={5 * self.kills}"),
            *("--restart-backoff=0", "--shutdown-timeout=5", "--snapshot-rate=2M"),
        )
        program = [str(self.folder / "train.py"), self.kind, str(1 << 40), str(self.folder / "end")]
        endpoint = free_endpoint()
        with job_at(endpoint, str(RANKS), program, *words, deadline_s=deadline_s) as job:
            for number in range(1, RANKS + 1):
                self.start(job, number)
            self.disturb(job)
            (self.folder / "end").touch()
            eventually(lambda: bool(self.seen.faults) or self.seen.ended == RANKS)
        assert not self.seen.faults, self.describe()

    def start(self, job: Job, number: int) -> None:
        conf = f"--rdzv-conf=last_call_timeout=100,voters=3,is_host={str(number == 1).lower()}"
        variables = {"PYTHONPATH": python_path(EXAMPLES)}
        node = job.start(f"--local-addr=127.0.0.{number}", conf, **variables)
        self.nodes[number] = node
        for stream, take in ((node.stdout, self.seen.read), (node.stderr, self.stderr.append)):
            threading.Thread(target=_read, args=(stream, take), daemon=True).start()

    def disturb(self, job: Job) -> None:
        former = -1
        for count in range(self.kills):
            former = self.await_next_round(job, former)
            stall_for_test(self.random.uniform(0, 0.5))
            self.kill(count)
        self.await_next_round(job, former)

    def await_next_round(self, job: Job, former: int) -> int:
        """The next round in which every rank trains; nodes that have ended are started again."""

        def has_come() -> bool:
            for number, node in self.nodes.items():
                if node.poll() is not None:
                    self.start(job, number)
            return bool(self.seen.faults) or (
                self.seen.round() > former and self.seen.trains(self.seen.round())
            )

        try:
            eventually(has_come)
        except AssertionError:
            self.seen.faults.append(f"no round after {former} trains")
        assert not self.seen.faults, self.describe()
        return self.seen.round()

    def kill(self, count: int) -> None:
        number = self.random.randint(1, RANKS)
        kind = self.random.choice(["worker", "worker", "worker", "guardian", "agent", "node"])
        agent = self.nodes[number].pid
        guardians = children(agent)
        workers = [worker for guardian in guardians for worker in children(guardian)]
        rank = self.random.randrange(RANKS)
        pids = {
            "worker": [self.seen.pids[rank]],
            "guardian": guardians,
            "agent": [agent],
            "node": [agent, *guardians, *workers],
        }[kind]
        self.log.append(f"{count}: {kind} of {rank if kind == 'worker' else number}: {pids}")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def describe(self) -> str:
        return "\n".join([*self.seen.faults, *self.log, *self.stderr[-200:]])


def _read(stream: Iterable[str], take: Callable[[str], None]) -> None:
    for line in stream:
        take(line)


def undisturbed(kind: str, last: int, folder: Path) -> Losses:
    seen = Losses()
    done = launch(
        *("--standalone", f"--nproc-per-node={RANKS}", str(folder / "train.py"), kind, str(last)),
        str(folder / "never"),
        environ=clean_environment(PYTHONPATH=python_path(EXAMPLES)),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        seen.read(line)
    return seen


def check_losses(kind: str, kills: int, seed: int, folder: Path) -> Campaign:
    """Each loss, of each rank after each step, is that of a training that nothing disturbs."""
    campaign = Campaign(kind, kills, seed, folder)
    campaign.run(deadline_s=60.0 * kills + 100.0)
    killed = campaign.seen.losses
    calm = undisturbed(kind, max(step for _, step in killed), folder)
    assert not calm.faults
    different = {at: (one, calm.losses[at]) for at, one in killed.items() if one != calm.losses[at]}
    assert not different, (sorted(different.items())[:3], campaign.describe())
    return campaign
