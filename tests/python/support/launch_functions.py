"""Functions that tests launch in workers."""

from __future__ import annotations

import atexit
import os
import signal
from typing import Any


def rank_and(*args: Any) -> tuple[Any, ...]:
    return (int(os.environ["RANK"]), *args)


def fail_on_rank_1(text: str) -> str:
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    while True:
        signal.pause()


def fail_in_round_0() -> str:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("first attempt")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def send_and_wait(queue: Any, lock: Any, event: Any) -> bool:
    with lock:
        queue.put(int(os.environ["RANK"]))
    return bool(event.wait(60))


def all_reduce() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1) * dist.get_rank()
    dist.all_reduce(value)
    dist.barrier()
    dist.destroy_process_group()
    atexit.register(os._exit, 0)  # a thread of gloo may still need the interpreter
    return float(value)


def exit_with(code: int) -> None:
    raise SystemExit(code)


def interrupt_itself() -> None:
    signal.raise_signal(signal.SIGINT)


def write_ready() -> None:
    os.write(1, b"ready\n")
    while True:
        signal.pause()


def how_it_started(limit: int) -> tuple[str, str, int]:
    """Fails until the round of that number."""
    import sys
    from multiprocessing import current_process

    round_number = int(os.environ["ELASTIC_ROUND"])
    if round_number < limit and os.environ["RANK"] == "0":
        raise ValueError("an early round")
    how = "forked" if "colorsys" in sys.modules else "executed"  # it is only preloaded
    return how, current_process().name, round_number
