"""A plain training script that makes one step, and then waits in collective operations."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from support.launching import (
    DEADLINE_S,
    await_line,
    clean_environment,
    free_endpoint,
    job_at,
    launch,
    launched,
)


class Scene(NamedTuple):
    ranks: int
    body: str  # after the first step; `dist`, `rank`, `ones` and `sleep` are there
    expected: str  # in the report of the hang
    suspect: int | None = None
    variables: Mapping[str, str] = MappingProxyType({})


UNSEEN = ", which the flight recorder does not show"

SCRIPT = """
import ctypes
import os
import signal
import threading
import time

import torch
import torch.distributed as dist

def sleep():
    time.sleep(600)

dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(4)
for _ in range(3):
    dist.all_reduce(ones)
weights = torch.ones(2, requires_grad=True)
weights.sum().backward()
torch.optim.SGD([weights], lr=0.1).step()
"""

# The last rank receives 4 values into a tensor of 8, which gloo does not notice; another rank would
# pass them on. In the other group the ranks have different sizes, as they may.
MISMATCHES = """
uneven = dist.new_group(list(range(dist.get_world_size())))
size = dist.get_world_size()
while not os.path.exists("go"):
    for _ in range(8):
        dist.all_reduce(ones)
        dist.broadcast(torch.zeros(8 if rank == size - 1 else 4), src=0)
        dist.all_reduce(torch.ones(4).reshape((2, 2) if rank == 1 else (4,)), group=uneven)
        splits = [rank + 1] * size
        received = torch.zeros(sum(range(1, size + 1)))
        dist.all_to_all_single(
            received, torch.ones(size * (rank + 1)), list(range(1, size + 1)), splits, group=uneven
        )
        dist.all_gather_object([None] * size, "x" * (rank + 1), group=uneven)
        dist.gather_object("y" * rank, [None] * size if rank == 0 else None, group=uneven)
        dist.broadcast_object_list(["z" * rank], group=uneven)
    time.sleep(0.1)
"""

SCENES = {
    "not-entered": Scene(
        3,
        "if rank == 1: sleep()\ndist.all_reduce(ones)\n",
        "rank 1 has not entered all_reduce #4 of the default group, for which 2 ranks wait since "
        r"[\d.]+ s; it is in sleep \(train.py:12\)",
        1,
    ),
    "locked-interpreter": Scene(
        2,
        "if rank == 1: ctypes.PyDLL(None).sleep(600)\ndist.all_reduce(ones)\n",
        "rank 1 has not entered all_reduce #4 of the default group, for which 1 rank waits",
        1,
    ),
    "root": Scene(
        4,
        "one, two = dist.new_group([0, 1]), dist.new_group([2, 3], group_desc='pair')\n"
        "own = one if rank < 2 else two\n"
        "dist.all_reduce(ones, group=own)\n"
        "if rank == 3: sleep()\n"
        "if rank == 2: dist.all_reduce(ones, group=own)\n"
        "dist.barrier()\n",
        r"rank 3 has not entered (barrier #4 of the default group|all_reduce #2 of group pair)",
        3,
    ),
    "other-operation": Scene(
        3,
        "if rank == 1: dist.all_reduce(ones)\ndist.barrier()\n",
        r"rank 1 called all_reduce of \[\[4\]\] as #4 of the default group, and 2 ranks \(0,2\) "
        "barrier",
        1,
    ),
    "order": Scene(
        2,
        "groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]\n"
        "for group in groups if rank == 0 else reversed(groups):\n"
        "    dist.all_reduce(ones, group=group)\n",
        "rank 0 waits in all_reduce #1 of group 1 for rank 1, which waits in all_reduce #1 of "
        "group 2 for rank 0: the ranks call operations in different orders",
    ),
    "another-kind": Scene(
        2,
        "dist.all_reduce(ones) if rank == 1 else dist.broadcast(ones, 0)\n",
        r"rank \d called (all_reduce|broadcast) of \[\[4\]\] as #4 of the default group, and "
        "rank [01] (all_reduce|broadcast)",
    ),
    "receiver-of-a-broadcast": Scene(
        2,
        "if rank == 1: sleep()\ndist.broadcast(torch.ones(1 << 22), 0)\n",
        "rank 1 has not entered broadcast #4 of the default group, for which 1 rank waits",
        1,
    ),
    "asynchronous": Scene(
        4,
        "if rank == 1: sleep()\n"
        "for work in [dist.all_reduce(ones, async_op=True) for _ in range(3)]: work.wait()\n",
        "rank 1 has not entered all_reduce #4 of the default group, for which 3 ranks wait",
        1,
    ),
    "functional": Scene(
        2,
        "import torch.distributed._functional_collectives as functional\n"
        "if rank == 1: sleep()\n"
        "print(functional.all_reduce(ones, 'sum', dist.group.WORLD))\n",
        "rank 1 has not entered all_reduce #4 of the default group, for which 1 rank waits",
        1,
    ),
    "data-parallel": Scene(
        8,
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "loss = model(ones).sum()\n"
        "if rank == 5: sleep()\n"
        "loss.backward()\n",
        r"rank 5 has not entered all_reduce #\d+ of the default group, for which 7 ranks wait",
        5,
    ),
    "fully-sharded": Scene(
        2,
        "from torch.distributed.fsdp import fully_shard\n"
        "model = fully_shard(torch.nn.Linear(4, 4), mesh=dist.init_device_mesh('cpu', (2,)))\n"
        "if rank == 1: sleep()\n"
        "model(ones)\n",
        r"rank 1 has not entered \w*all_?gather\w* #\d+ of .*, for which 1 rank waits",
        1,
    ),
    "exception-in-a-living-process": Scene(
        2,
        "threading.Thread(target=sleep).start()\n"
        "if rank == 1: raise ValueError('bad')\n"
        "dist.all_reduce(ones)\n",
        "rank 1 has not entered all_reduce #4 of the default group, for which 1 rank waits",
        1,
    ),
    "receive-without-send": Scene(
        2,
        "dist.recv(ones, 1) if rank == 0 else sleep()\n",
        r"no rank has made progress for(?!(.|\n)*(has not entered|called|waits in) )(.|\n)*"
        rf"rank 0 in recv \(train.py:\d+\){UNSEEN}",
        1,
    ),
    "send-without-receive": Scene(
        2,
        "dist.send(torch.ones(1 << 22), 1) if rank == 0 else sleep()\n",
        rf"rank 0 in send \(train.py:\d+\){UNSEEN}",
        1,
    ),
    "receive-of-a-rank-that-others-wait-for": Scene(
        4,
        "if rank == 2: sleep()\nif rank == 0: dist.recv(ones, 2)\ndist.all_reduce(ones)\n",
        r"2 ranks \(0,2\) have not entered all_reduce #4 of the default group, for which 2 ranks "
        rf"wait since .*; rank 0 is in recv \(train.py:\d+\){UNSEEN}; rank 2 is in sleep",
        2,
    ),
    "monitored-barrier": Scene(
        3,
        "sleep() if rank == 1 else dist.monitored_barrier()\n",
        rf"2 ranks \(0,2\) in monitored_barrier \(train.py:\d+\){UNSEEN}",
        1,
    ),
    "group-that-not-all-form": Scene(
        2,
        "sleep() if rank == 1 else dist.new_group([0, 1])\n",
        rf"rank 0 in new_group \(train.py:\d+\){UNSEEN}",
        1,
    ),
    "tensor-without-elements": Scene(
        3,
        "dist.all_reduce(torch.ones(0 if rank == 1 else 4))\nif rank == 1: sleep()\n",
        r"rank 1 called all_reduce of \[\[0\]\] as #4 of the default group, and 2 ranks \(0,2\) "
        r"all_reduce of \[\[4\]\]",
        1,
    ),
    # The worker waits for a child that has not begun its program, which opens a pipe before.
    "uninterruptible-sleep": Scene(
        3,
        "if rank == 1:\n"
        "    pipe = os.path.join(os.path.dirname(__file__), 'pipe')\n"
        "    os.mkfifo(pipe)\n"
        "    opening = (os.POSIX_SPAWN_OPEN, 0, pipe, os.O_RDONLY, 0)\n"
        "    os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opening])\n"
        "dist.all_reduce(ones)\n",
        "rank 1 (has not entered|is not seen in) all_reduce #4 of the default group, for which 2 "
        r"ranks wait since .*; it is in <module> \(train.py:\d+\), in uninterruptible sleep in the "
        r"kernel( \(\w+\))?$",
        1,
    ),
    "recorder-off": Scene(
        2,
        "if rank == 1: sleep()\ndist.all_reduce(ones)\n",
        r"the collective operations of 2 ranks \(0-1\) are not seen: torch's flight recorder is "
        r"off \(TORCH_FR_BUFFER_SIZE=0\)",
        1,
        {"TORCH_FR_BUFFER_SIZE": "0"},
    ),
}


# What a plain start logs: the rank, and where it is. `rank` 1 does what the name says.
WAITS = (
    "rank 1 (has not entered|is not seen in) all_reduce #4 of the default group, for which "
    r"2 ranks wait since \d[\d.]* s"
)
EARLY = {
    "sleeps": ("if rank == 1: sleep()\n", r"; it is in sleep \(train.py:12\)"),
    "locked": (
        "lock = threading.Lock()\nlock.acquire()\nif rank == 1: lock.acquire()\n",
        r"; it is in <module> \(train.py:2\d\)",
    ),
    "stopped": (
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n",
        "; it is stopped by a signal",
    ),
    "locked-interpreter": (
        "if rank == 1: ctypes.PyDLL(None).sleep(600)\n",
        r"; it is in <module> \(train.py:2\d\)",
    ),
}


class Stage(NamedTuple):
    """One wait of many in one job: the last rank is late, and then continues."""

    body: str
    waits: str  # the operation in which the others wait
    late: str = "hold({name!r})"
    place: str = r"in hold \(train.py:\d+\)"


DEFAULT = r" #\d+ of the default group"

# Its ranks are in the directory of the script.
STAGES_BEGIN = """
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard

size = dist.get_world_size()
last = size - 1
def hold(name):
    while rank == last and not os.path.exists(name):
        time.sleep(0.1)

halves = [
    dist.new_group(list(range(size // 2)), group_desc="low"),
    dist.new_group(list(range(size // 2, size)), group_desc="high"),
]
two = [dist.new_group(list(range(size))) for _ in range(2)]
replicated = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
sharded = fully_shard(torch.nn.Linear(4, 4), mesh=dist.init_device_mesh("cpu", (size,)))
"""
STAGES = {
    "all_reduce": Stage("dist.all_reduce(ones)", "all_reduce" + DEFAULT),
    "barrier": Stage("dist.barrier()", "barrier" + DEFAULT),
    "objects": Stage("dist.all_gather_object([None] * size, rank)", "all_gather" + DEFAULT),
    # Ranks that have passed the tensor on wait in the next operation.
    "receivers": Stage(
        "dist.broadcast(torch.ones(1 << 22), 0)\ndist.barrier()", "broadcast" + DEFAULT
    ),
    "asynchronous": Stage(
        "for work in [dist.all_reduce(ones, async_op=True) for _ in range(3)]: work.wait()",
        "all_reduce" + DEFAULT,
    ),
    "functional": Stage(
        "print(functional.all_reduce(ones, 'sum', dist.group.WORLD))", "all_reduce" + DEFAULT
    ),
    "replicated": Stage("replicated(ones).sum().backward()", "all_reduce" + DEFAULT),
    "sharded": Stage("sharded(ones)", r"\w*all_?gather\w* #\d+ of .*"),
    # Most wait for ranks of the second half, and those for the last one in their own group.
    "root": Stage(
        "dist.all_reduce(ones, group=halves[rank >= size // 2])\ndist.barrier()",
        rf"(barrier{DEFAULT}|all_reduce #1 of group high)",
    ),
    "stopped": Stage(
        "dist.all_reduce(ones)",
        "all_reduce" + DEFAULT,
        "if rank == last:\n"
        "    with open('new', 'w') as file: print(os.getpid(), file=file)\n"
        "    os.rename('new', 'pid')\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)",
        "stopped by a signal",
    ),
    "interpreter": Stage(
        "dist.all_reduce(ones)",
        "all_reduce" + DEFAULT,
        "if rank == last:\n"
        "    os.mkfifo('pipe')\n"
        "    ctypes.PyDLL(None).open(b'pipe', os.O_RDONLY)",
        r"in <module> \(train.py:\d+\)",
    ),
}
# They do not end.
OTHER_OPERATION = "dist.barrier() if rank == last else dist.all_reduce(ones)\n"
OTHER_ORDER = """
for group in reversed(two) if rank == last else two:
    dist.all_reduce(ones, group=group)
"""


def let_continue(name: str, directory: Path) -> None:
    if name == "stopped":
        os.kill(int((directory / "pid").read_text()), signal.SIGCONT)
    elif name == "interpreter":
        (directory / "pipe").open("w").close()
    else:
        (directory / name).touch()


def check_stages(ranks: int, nodes: int, directory: Path) -> None:
    """The lines of a plain start, on every node."""
    script = directory / "train.py"
    text = f"import os\nos.chdir({str(directory)!r})\n{SCRIPT}{STAGES_BEGIN}"
    for name, stage in STAGES.items():
        text += f"{stage.late.format(name=name)}\n{stage.body}\n"
    script.write_text(text + (OTHER_OPERATION if nodes == 1 else OTHER_ORDER))
    last = ranks - 1
    deadline_s = DEADLINE_S * 3
    options = (f"--nproc-per-node={ranks // nodes}",)
    with job_at(free_endpoint(), str(nodes), [str(script)], *options, deadline_s=deadline_s) as job:
        for _ in range(nodes):
            job.start()
        for name, stage in STAGES.items():
            waiting = r"\d ranks? waits?" if name == "root" else count_of(last)
            for node in job.nodes:
                await_line(
                    node,
                    rf"rank {last} (has not entered|is not seen in) {stage.waits}, for which "
                    rf"{waiting} since \d[\d.]* s; it is {stage.place}",
                )
            let_continue(name, directory)
        wrong = rf"rank {last} called barrier" if ranks > 2 else r"rank \d called \w+"
        for node in job.nodes:
            await_line(
                node,
                rf"{wrong}.* as #\d+ of the default group, and .*rank"
                if nodes == 1
                else rf"rank 0 waits in all_reduce #1 of group \w+ for rank {last}, which waits in "
                r"all_reduce #1 of group \w+ for rank 0: the ranks call operations in different",
            )


def count_of(ranks: int) -> str:
    return "1 rank waits" if ranks == 1 else f"{ranks} ranks wait"


def check_early(name: str, directory: Path, *options: str) -> None:
    """The line of a plain start; the job runs on."""
    body, place = EARLY[name]
    script = directory / "train.py"
    script.write_text(SCRIPT + body + "dist.all_reduce(ones)\n")
    with launched("--standalone", "--nproc-per-node=3", *options, str(script)) as job:
        await_line(job, WAITS + place)
        assert job.poll() is None
        job.kill()


def check_scene(name: str, directory: Path) -> None:
    scene = SCENES[name]
    script = directory / "train.py"
    script.write_text(SCRIPT + scene.body)
    done = launch(
        "--standalone", f"--nproc-per-node={scene.ranks}", "--hang-timeout=8",
        "--hang-action=fail", "--failure-grace=0", str(script),
        environ=clean_environment(**scene.variables),
    )  # fmt: skip
    assert done.returncode != 0
    assert re.search(scene.expected, done.stderr, re.M), done.stderr
    if scene.suspect is not None:
        line = rf"^ *.*rank {scene.suspect}\b.*suspected$"
        assert re.search(line, done.stderr, re.M), done.stderr
