"""Random faults on a cluster of four nodes that trains on handwritten digits.

    python -m bench.soak --minutes 60 --seed 1
    python -m bench.soak --minutes 3 --seed 7 --json soak.json --logs /tmp/soak

First the training runs undisturbed. Then it runs again while one fault after the other hits a node
that the seed chooses; agents that end are started again, as a scheduler does. The exit code is 0 if
the training reaches the same accuracy, each fault was survived, no process is left behind, and the
agents have not grown. Needs root, iproute2, util-linux, torch and scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.faults import actions, report
from bench.faults.actions import Action
from bench.faults.job import KILL_S, Job
from bench.faults.launchers import Launcher, chosen
from bench.faults.reduce import is_training

import namespaces  # isort: skip  (bench.faults makes it importable)
from harness import proc  # isort: skip

NODES = 4
WORKER = Path(__file__).with_name("worker.py")
STEP_DELAY_S = 0.2
EPOCH_S = 8.0  # with the steps that faults repeat
RECOVERY_S = 120.0
ACCURACY_TOLERANCE = 0.02  # the number of workers changes the order of the samples
DESCRIPTORS_MAX, MEMORY_MAX = 8, 8 << 20  # growth of an agent
OPTIONS = ("--max-restarts=100000", "--hang-timeout=60", "--straggler-timeout=60")


@dataclass(slots=True)
class Soak:
    """What a run came to."""

    seed: int
    minutes: float
    accuracy: float | None = None
    undisturbed: float | None = None
    faults: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    recovery_s: list[float] = field(default_factory=list)  # of each fault, to all nodes training
    orphans: int = 0
    descriptors: int = 0  # the largest growth of an agent
    memory: int = 0  # bytes, the same
    wrong: list[str] = field(default_factory=list)
    # The last pid of each node's agent, its descriptors and its memory.
    sizes: dict[int, tuple[int, tuple[int, int]]] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    if why_not := namespaces.why_not():
        print(f"bench.soak: {why_not}", file=sys.stderr)
        return 2
    logs = given.logs or Path(tempfile.mkdtemp(prefix="soak-"))
    launcher = chosen("elastic-launch")
    epochs = max(3, round(given.minutes * 60 / EPOCH_S))
    found = Soak(given.seed, given.minutes)
    found.undisturbed = _undisturbed(launcher, logs / "undisturbed", epochs)
    _disturbed(launcher, logs / "disturbed", epochs, found)
    _judge(found)
    shown = {name: value for name, value in asdict(found).items() if name != "sizes"}
    if given.json is not None:
        result = {"facts": report.facts([launcher]), "soak": shown}
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    for name, value in shown.items():
        print(f"{name:12} {value}")
    print(f"logs: {logs}", file=sys.stderr)
    return 1 if found.wrong else 0


def _undisturbed(launcher: Launcher, folder: Path, epochs: int) -> float | None:
    with ExitStack() as stack:
        job = _started(stack, launcher, folder, epochs, delay=0.0)
        job.wait(lambda: len(job.observed().exits) == NODES, 60.0 + 10.0 * epochs)
        return _accuracy(job)


def _disturbed(launcher: Launcher, folder: Path, epochs: int, found: Soak) -> None:
    chance = random.Random(found.seed)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        job = _started(stack, launcher, folder, epochs, delay=STEP_DELAY_S)
        if not job.wait(lambda: job.is_training(NODES), RECOVERY_S):
            found.wrong.append("the training has not started")
            return
        begun = {node: (agent.pid, _size(agent.pid)) for node, agent in job.agents.items()}
        end = time.monotonic() + 60 * found.minutes
        while time.monotonic() < end and not _is_over(job):
            name, node = chance.choice(list(FAULTS)), chance.randrange(NODES)
            print(f"{time.monotonic():.1f} {name}, node {node}", flush=True)
            at = time.monotonic()
            counts[name] += 1
            with suppress(ProcessLookupError, StopIteration):  # the training is at its end
                FAULTS[name](node)(job)
            if not _recovered(job, at, found):
                if not _is_over(job):
                    found.wrong.append(f"no recovery from {name} of node {node}")
                break
            found.recovery_s.append(round(time.monotonic() - at, 2))
            time.sleep(chance.uniform(0.0, 3.0))
        job.wait(lambda: _revive(job, found) and _is_over(job), RECOVERY_S + 10.0 * epochs)
        job.wait(lambda: len(job.observed().exits) == NODES, RECOVERY_S)
        for node, (pid, (descriptors, memory)) in begun.items():
            last, now = found.sizes.get(node, (0, (0, 0)))
            if last == pid:
                found.descriptors = max(found.descriptors, now[0] - descriptors)
                found.memory = max(found.memory, now[1] - memory)
        found.orphans += _left(job, set(range(NODES)))
        found.accuracy = _accuracy(job)
        found.rounds = len({s.pid for s in job.stamps() if s.kind == "start" and s.rank == 0})
        codes = {node: seen.code for node, seen in job.observed().exits.items()}
        if sorted(codes) != list(range(NODES)) or any(codes.values()):
            found.wrong.append(f"exit codes {codes}")
    found.faults = dict(counts)


def _recovered(job: Job, at: float, found: Soak) -> bool:
    """All nodes train, in the round of before or in a new one."""

    def trains() -> bool:
        _revive(job, found)
        for node, agent in job.agents.items():
            with suppress(OSError):
                found.sizes[node] = (agent.pid, _size(agent.pid))
        seen = job.observed()
        seen.stamps = [s for s in seen.stamps if s.kind == "start" or s.at > at]
        return is_training(seen, NODES)

    return job.wait(lambda: trains() or _is_over(job), RECOVERY_S) and not _is_over(job)


def _revive(job: Job, found: Soak) -> bool:
    """Starts agents again that have ended while the job goes on."""
    if not _is_over(job):
        for node, seen in job.observed().exits.items():
            if seen.code != 0:
                found.orphans += _left(job, {node})
                job.spawn(node)
    return True


def _left(job: Job, nodes: set[int]) -> int:
    def left() -> list[int]:
        return [pid for pid, node in job.marked().items() if node in nodes]

    job.wait(lambda: not left(), KILL_S)
    return len(left())


def _is_over(job: Job) -> bool:
    return any(stamp.kind == "done" for stamp in job.stamps())


def _started(stack: ExitStack, launcher: Launcher, folder: Path, epochs: int, delay: float) -> Job:
    folder.mkdir(parents=True)
    network = stack.enter_context(namespaces.Network())
    hosts = [network.add_host() for _ in range(NODES)]
    arguments = f"--epochs={epochs} --delay-per-step={delay} --checkpoint={folder / 'digits.pt'}"
    job = Job(
        launcher,
        folder,
        hosts,
        nnodes=f"2:{NODES}",
        options=OPTIONS,
        conf="settle=0",
        environ=lambda node: {"SOAK_ARGUMENTS": arguments},
        script=WORKER,
    )
    stack.callback(job.close)
    for node in range(NODES):
        job.spawn(node)
    return job


def _accuracy(job: Job) -> float | None:
    for path in job.folder.glob("node*.log"):
        if found := re.search(r"finished: accuracy ([0-9.]+)", path.read_text()):
            return float(found[1])
    return None


def _size(pid: int) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{pid}/fd")), proc.anonymous_bytes(pid)


def _judge(found: Soak) -> None:
    if found.accuracy is None or found.undisturbed is None:
        found.wrong.append("the training has not finished")
    elif found.accuracy < found.undisturbed - ACCURACY_TOLERANCE:
        found.wrong.append("the accuracy is below that of the undisturbed run")
    if found.orphans:
        found.wrong.append(f"{found.orphans} processes were left behind")
    if found.descriptors > DESCRIPTORS_MAX or found.memory > MEMORY_MAX:
        found.wrong.append("an agent has grown")


# The faults: each ends by itself, or its agent is started again.


def _kill_workers(node: int) -> Action:
    def act(job: Job) -> None:
        for pid in job.workers_of(node):
            os.kill(pid, signal.SIGKILL)

    return act


# An agent that has just been started has none yet.
def _kill_guardian(node: int) -> Action:
    def act(job: Job) -> None:
        if (pid := job.launcher.guardian(job.agents[node].pid)) is not None:
            os.kill(pid, signal.SIGKILL)

    return act


FAULTS: dict[str, Callable[[int], Action]] = {
    "worker killed": _kill_workers,
    "agent killed": lambda node: actions.signal_agent(node, signal.SIGKILL),
    "agent preempted": lambda node: actions.signal_agent(node, signal.SIGTERM),
    "guardian killed": _kill_guardian,
    "agent stopped for 1 s": lambda node: actions.pause_agent(node, 1.0),
    "agent stopped for 6 s": lambda node: actions.pause_agent(node, 6.0),
    "link down for 1 s": lambda node: actions.cut_link(node, 1.0),
    "link down for 6 s": lambda node: actions.cut_link(node, 6.0),
    "node killed": lambda node: actions.kill_node(node),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of faults (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults and their nodes")
    parser.add_argument("--json", type=Path, help="the file for the result")
    parser.add_argument("--logs", type=Path, help="a new directory for logs and stamps")
    return parser


if __name__ == "__main__":
    sys.exit(main())
