"""A worker of the checks: does what its argument says, and prints a line of JSON per result.

With more workers than GPUs they share the devices. NCCL refuses that for ranks of one host, so each
worker then claims to be a host of its own: the ranks exchange data over sockets on loopback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

# What the launcher's template has left behind, before this process uses the device.
BEGAN = time.monotonic()
HAD_CUDA = torch.cuda.is_initialized()

import torch.distributed as dist  # noqa: E402
from elastic import worker  # noqa: E402

RANK = int(os.environ["RANK"])
LOCAL_RANK = int(os.environ["LOCAL_RANK"])
FOLDER = Path(os.environ["GPU_CHECK_DIR"])
ELEMENTS = 16 << 20  # of 4 bytes


def say(**values: object) -> None:
    print(json.dumps({"rank": RANK, "pid": os.getpid(), **values}), flush=True)


def choose_device() -> torch.device:
    count = torch.cuda.device_count()
    device = torch.device("cuda", LOCAL_RANK % count)
    torch.cuda.set_device(device)
    if int(os.environ["WORLD_SIZE"]) > count:
        os.environ["NCCL_HOSTID"] = f"rank-{os.environ.get('GPU_CHECK_NODE', '')}-{RANK}"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    return device


def join() -> torch.device:
    device = choose_device()
    dist.init_process_group("nccl", device_id=device)
    return device


def is_last_rank() -> bool:
    return dist.get_world_size() == RANK + 1


def reduced(device: torch.device) -> bool:
    ones = torch.ones(ELEMENTS, device=device)
    dist.all_reduce(ones)
    return bool((ones == dist.get_world_size()).all())


def all_reduce() -> None:
    device = join()
    is_right = reduced(device)
    data = torch.ones(ELEMENTS, device=device)
    torch.cuda.synchronize()
    begun = time.monotonic()
    for _ in range(5):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    seconds = (time.monotonic() - begun) / 5
    say(
        right=is_right,
        world=dist.get_world_size(),
        device=torch.cuda.get_device_name(device),
        ms=seconds * 1e3,
        had_cuda=HAD_CUDA,
    )
    dist.destroy_process_group()


def restart() -> None:
    device = join()
    is_right = reduced(device)
    say(right=is_right, at=time.monotonic(), began=BEGAN, had_cuda=HAD_CUDA, parent=os.getppid())
    if not worker.is_restart():
        if is_last_rank():
            (FOLDER / "killed").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        reduced(device)  # for ever: the lost rank does not take part
    dist.destroy_process_group()


def wait_for_nobody() -> None:
    (FOLDER / "never").write_text("")
    while not (FOLDER / "go").exists():
        time.sleep(0.1)


def hang() -> None:
    device = join()
    for step in range(6):
        if step == 3 and is_last_rank() and not worker.is_restart():
            wait_for_nobody()
        assert reduced(device)
        worker.progress(step + 1)
    say(right=True)
    dist.destroy_process_group()


def binding() -> None:
    choose_device()
    index = torch.cuda.current_device()
    say(
        cpus=sorted(os.sched_getaffinity(0)),
        local_rank=LOCAL_RANK,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        count=torch.cuda.device_count(),
        device=str(torch.cuda.get_device_properties(index).uuid),
        right=bool(torch.ones(4, device="cuda").sum() == 4),
    )


def train() -> None:
    import elastic.torch

    device = choose_device()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.BatchNorm1d(256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 8),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 64, device=device)
    job = elastic.torch.membership(model, optimizer, backend="nccl")
    is_first = True

    def formed(change: elastic.torch.Change | None) -> None:
        nonlocal is_first
        is_first = True
        say(
            formed=str(change or ""),
            world=job.world_size,
            out=change.out if change else 0,
            waited=change.waited if change else 0,
            group=change.group if change else 0,
            state=change.state if change else 0,
        )

    job.on_change(formed)
    with job:
        for step in job.steps(1_000_000):
            is_last = False
            with step:
                loss = job.model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                words = torch.tensor(
                    [float((FOLDER / "done").exists()), float(job.world_size), float(step)],
                    device=device,
                )
                dist.all_reduce(words)
                job.confirm()
                done, worlds, steps = words.tolist()
                is_last = done > 0
                if worlds != job.world_size**2 or steps != int(step) * job.world_size:
                    say(wrong=[worlds, steps, job.world_size, int(step)])
            if job.step <= step:
                continue
            if is_first:
                say(stepped=int(step), world=job.world_size, at=time.monotonic())
            is_first = False
            if is_last:
                break
        total = torch.cat([one.detach().flatten() for one in model.parameters()]).double().sum()
        say(end=job.step, sum=round(total.item(), 6))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    {
        "all-reduce": all_reduce,
        "restart": restart,
        "hang": hang,
        "binding": binding,
        "train": train,
    }[sys.argv[1]]()
