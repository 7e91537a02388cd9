"""Shows a job whose nodes join, are lost and leave, while the processes of the others go on.

    python3 examples/watch_it_grow_and_shrink.py [--local]

Trains with --on-membership-change=inplace (docs/in-place.md) on nodes that are network namespaces;
without root, or with --local, they are agents on localhost. Needs what watch_it_recover.py needs.
Exits with 0 if no process of a remaining node was started again and the accuracy is good.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from pathlib import Path

import namespaces
from watch_it_recover import EXAMPLES, Failed, Stage, stage_of

OPTIONS = ("--on-membership-change=inplace", "--warm", "--restart-backoff=0")
CONF = "last_call_timeout=0,settle=0"
RANK = re.compile(r"^rank (\d+) of (\d+): pid (\d+), step (\d+)$")


class InPlace(Stage):
    """A job that tells which process has which rank after each change."""

    def training(self, folder: Path) -> list[str]:
        self._end_of_delay = folder / "no-delay"
        return [
            # Slow until all changes have happened: a new node imports torch before it joins.
            *(str(EXAMPLES / "train_inplace.py"), "--steps", "1500", "--delay-per-step", "0.1"),
            *("--delay-until", str(self._end_of_delay), "--report-every", "20"),
            *("--checkpoint", str(folder / "digits.pt")),
        ]

    def end_delay(self) -> None:
        self._end_of_delay.touch()

    def add_node(self, name: str) -> None:
        host = self.add_host()
        if name == "node1":
            self.set_endpoint_host(host)
        self.start_agent(host, name, "2:3", CONF, *OPTIONS)

    def kill_node(self, name: str, worker: int) -> None:
        """Kills a node as a power failure does: its launcher and its worker, at once."""
        os.kill(worker, signal.SIGKILL)
        self.kill(name)

    def leave(self, name: str) -> None:
        self.log(f"{name} leaves: SIGTERM to its launcher")
        self.stop(name)

    def members(self, world: int) -> tuple[dict[str, int], int]:
        """Waits until a round has this many ranks; the process of each node, and the step."""
        found: dict[str, int] = {}
        step = 0
        while len(found) < world:
            line = self.wait_for_line(RANK.pattern, unless="^finished")
            match = RANK.match(line.text or "")
            assert match is not None
            if int(match[2]) == world:
                found[line.program] = int(match[3])
                step = int(match[4])
        self.wait_for("^step ", unless="^finished")  # training goes on
        return found, step


def show(stage: InPlace) -> list[str]:
    """Lets the members change; returns what happened, in sentences."""
    for name in ("node1", "node2"):
        stage.add_node(name)
    told = []
    before, _ = stage.members(2)
    told.append(f"Two nodes began at step 0: {listed(before)}.")
    first = before["node1"]

    def change(what: str, world: int) -> None:
        nonlocal before
        now, step = stage.members(world)
        kept = {name: pid for name, pid in now.items() if before.get(name) == pid}
        new = {name: pid for name, pid in now.items() if name not in before}
        again = sorted(set(now) - set(kept) - set(new))
        if again:
            raise Failed(f"started again although the node was not hit: {', '.join(again)}")
        state = f"; {listed(new)} got the state from them" if new else ""
        told.append(f"{what}: {listed(kept)} went on at step {step}{state}.")
        before = now

    stage.add_node("node3")
    change("node3 joined", 3)
    stage.kill_node("node2", before["node2"])
    change("node2 was killed", 2)
    stage.add_node("node4")
    change("node4 joined", 3)
    stage.leave("node3")
    change("node3 left", 2)
    stage.end_delay()
    accuracy = stage.finish()
    told.append(f"Process {first} of node1 trained from the first step to the last.")
    told.append(f"The accuracy is {accuracy}.")
    return told


def listed(processes: dict[str, int]) -> str:
    return " and ".join(f"process {pid} of {name}" for name, pid in sorted(processes.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--local", action="store_true", help="do not use namespaces")
    why_local = "--local was given" if parser.parse_args().local else namespaces.why_not()
    if why_local:
        print(f"all nodes are on localhost: {why_local}", flush=True)
    with stage_of(why_local, InPlace) as stage:
        try:
            told = show(stage)
        except Failed as failure:
            print(f"FAILED: {failure}", flush=True)
            return 1
    print("\nWhat happened:")
    for sentence in told:
        print(f"  {sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
