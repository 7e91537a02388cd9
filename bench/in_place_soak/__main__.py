"""Random losses and joins of the members of a job that changes in place.

    python -m bench.in_place_soak --changes 500 --seed 1
    python -m bench.in_place_soak --changes 20 --nodes 3 --logs /tmp/soak --json soak.json

Each node is an agent with a loopback address of its own. One change after the other hits nodes that
the seed chooses: a worker, an agent or a whole node is killed, an agent is told to stop, two at
once, rank 0, another one while the members change. Lost nodes are started again. With --hosted the
agents host the coordinator, and its host is killed too; two nodes at once would end such a job.

The exit code is 0 if no rank has ever computed another sum than the others, no process was a member
of two rounds at a time, no complete step was lost by processes that went on, most of those that a
change did not hit did, the end is that of an undisturbed run, and the job went on after each
change. Needs torch, and elastic-coordinator on the PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.in_place_soak.changes import Stamp, faults, members, parse

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import proc
from harness.jobs import free_port

WORKER = Path(__file__).with_name("worker.py")
POLL_S = 0.01
RECENT = 2000  # stamps, which are enough to see whether the job goes on
STOP_S = 30.0
# Nodes that join are admitted after up to a minute if each round has lost one soon after its start.
LIMIT_S = 150.0
END_S = 300.0  # for rank 0 to compute the undisturbed run


@dataclass(slots=True)
class Soak:
    """What a run came to."""

    seed: int
    changes: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    steps: int = 0
    kept: int = 0  # processes of nodes that a change did not hit, and that went on
    restarted: int = 0  # the others of these nodes, which were started anew
    wrong: list[str] = field(default_factory=list)


class Cluster:
    def __init__(
        self, folder: Path, nodes: int, *, is_hosted: bool, warm: bool, limit: float
    ) -> None:
        self.folder, self.nodes, self.is_hosted, self._limit = folder, nodes, is_hosted, limit
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stamps").touch()
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._starts: Counter[int] = Counter()
        hosts = [f"127.0.0.{node + 1}" for node in range(nodes if is_hosted else 1)]
        self._endpoints = ",".join(f"{host}:{free_port(host)}" for host in hosts)
        self._coordinator = None if is_hosted else self._start_coordinator()
        self._options = [
            *("--nnodes", f"1:{nodes}", "--rdzv-backend=c10d", "--rdzv-id=soak"),
            *("--rdzv-endpoint", self._endpoints, "--max-restarts=1000000"),
            *("--on-membership-change=inplace", "--shutdown-timeout=5", "--restart-backoff=0"),
            *(["--warm"] if warm else []),
        ]
        self._stamps: list[Stamp] = []
        self._size = 0

    def _start_coordinator(self) -> subprocess.Popen[bytes]:
        installed = Path(sys.executable).with_name("elastic-coordinator")
        program = installed if installed.exists() else shutil.which("elastic-coordinator")
        if program is None:
            raise SystemExit("elastic-coordinator is not on the PATH: build it, or use --hosted")
        with (self.folder / "coordinator.log").open("wb") as log:
            return subprocess.Popen([program, "--bind", self._endpoints], stdout=log, stderr=log)

    # ---- What is done.

    def start(self, node: int) -> None:
        self._starts[node] += 1
        log = (self.folder / f"node{node}.{self._starts[node]}.log").open("wb")
        conf = f"settle=0,last_call_timeout={self._limit:g}"
        conf += ",voters=3" if self.is_hosted else ",is_host=false"
        environ = {
            **os.environ,
            "SOAK_DIR": str(self.folder),
            "SOAK_NODE": str(node),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [
            *(sys.executable, "-m", "elastic", *self._options, "--rdzv-conf", conf),
            *(f"--local-addr=127.0.0.{node + 1}", str(WORKER)),
        ]
        with log:
            self._agents[node] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
            )

    def revive(self) -> list[int]:
        """Starts the agents again that have ended."""
        ended = [n for n in range(self.nodes) if self._agents[n].poll() is not None]
        for node in ended:
            self.start(node)
        return ended

    def signal(self, node: int, number: signal.Signals) -> None:
        self._agents[node].send_signal(number)

    def stop(self, node: int) -> None:
        self.signal(node, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._agents[node].wait(STOP_S)

    def kill_node(self, node: int) -> None:
        agent = self._agents[node].pid
        _kill([agent, *proc.descendants(agent)])

    def kill_worker(self, node: int) -> None:
        own = set(proc.descendants(self._agents[node].pid))
        _kill(sorted(own & {s.pid for s in self.stamps() if s.node == node}))

    def finish(self) -> dict[int, int | None]:
        """Lets the training end; the exit codes of the agents, None: it has not ended."""
        (self.folder / "done").touch()
        deadline = time.monotonic() + END_S
        for agent in self._agents.values():
            with suppress(subprocess.TimeoutExpired):
                agent.wait(max(deadline - time.monotonic(), 0.0))
        return {node: agent.poll() for node, agent in self._agents.items()}

    def close(self) -> None:
        for agent in self._agents.values():
            if agent.poll() is None:
                _kill([*proc.descendants(agent.pid), agent.pid])
                agent.wait()
        if self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator.wait()

    # ---- What is seen.

    def stamps(self) -> list[Stamp]:
        with (self.folder / "stamps").open() as file:
            file.seek(self._size)
            more, newline, _ = file.read().rpartition("\n")
        self._size += len(more) + len(newline)
        self._stamps += parse(more)
        return self._stamps

    def coordinator(self) -> int:
        """The node whose agent runs the coordinator."""
        deadline = time.monotonic() + self._limit
        while time.monotonic() < deadline:
            if (node := self._seen_coordinator()) is not None:
                return node
        raise RuntimeError("no agent runs the coordinator")

    def _seen_coordinator(self) -> int | None:
        command = [
            *(sys.executable, "-m", "elastic", "status", "--json", "--no-workers"),
            *("--rdzv-id=soak", self._endpoints),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STOP_S, check=False)
        with suppress(ValueError, StopIteration, KeyError):
            hosts = (n for n in json.loads(done.stdout)["nodes"] if n["hosts_coordinator"])
            return int(next(hosts)["address"].rpartition(".")[2]) - 1
        return None

    def goes_on(self, world: int | None, after: float) -> dict[int, Stamp]:
        """The members, once they have made steps since then; {}: they have not within the limit."""
        deadline = time.monotonic() + self._limit
        while time.monotonic() < deadline:
            found = members(self.stamps()[-RECENT:], after)
            if found and world in (None, len(found)):
                return found
            time.sleep(POLL_S)
        return {}

    def all_go_on(self) -> dict[int, Stamp]:
        """The same for all nodes; agents that end meanwhile are started again."""
        at = time.monotonic()
        deadline = at + self._limit
        while time.monotonic() < deadline:
            if self.revive():
                at = time.monotonic()
            found = members(self.stamps()[-RECENT:], at)
            if len(found) == self.nodes:
                return found
            time.sleep(POLL_S)
        return {}


Change = Callable[[Cluster, random.Random], set[int]]  # the nodes that it hits


def _one(hit: Callable[[Cluster, int], None]) -> Change:
    def act(cluster: Cluster, chance: random.Random) -> set[int]:
        node = chance.randrange(cluster.nodes)
        hit(cluster, node)
        return {node}

    return act


def _two(cluster: Cluster, chance: random.Random) -> set[int]:
    pair = chance.sample(range(cluster.nodes), 2)
    for node in pair:
        cluster.kill_node(node)
    return set(pair)


def _rank_0(cluster: Cluster, chance: random.Random) -> set[int]:
    node = members(cluster.stamps()[-RECENT:])[0].node
    cluster.kill_node(node)
    return {node}


def _host(cluster: Cluster, chance: random.Random) -> set[int]:
    node = cluster.coordinator()
    cluster.kill_node(node)
    return {node}


def _meanwhile(cluster: Cluster, chance: random.Random) -> set[int]:
    first, second = chance.sample(range(cluster.nodes), 2)
    cluster.kill_node(first)
    time.sleep(chance.uniform(0.0, 0.15))
    chance.choice([cluster.kill_node, cluster.kill_worker])(second)
    return {first, second}


def _newcomer(cluster: Cluster, chance: random.Random) -> set[int]:
    """A node is lost, and its replacement too, as it joins or soon after."""
    node = chance.randrange(cluster.nodes)
    cluster.kill_node(node)
    seen = len(cluster.stamps())
    cluster.revive()
    deadline = time.monotonic() + chance.uniform(0.0, 10.0)
    while time.monotonic() < deadline:
        if any(s.node == node for s in cluster.stamps()[seen:]):
            break
        time.sleep(POLL_S)
    cluster.kill_node(node)
    return {node}


CHANGES: dict[str, Change] = {
    "worker killed": _one(Cluster.kill_worker),
    "agent killed": _one(lambda cluster, node: cluster.signal(node, signal.SIGKILL)),
    "agent told to stop": _one(Cluster.stop),
    "node killed": _one(Cluster.kill_node),
    "two nodes killed": _two,
    "rank 0 killed": _rank_0,
    "another one meanwhile": _meanwhile,
    "newcomer killed": _newcomer,
}
OF_HOSTED = {name: change for name, change in CHANGES.items() if change not in (_two, _meanwhile)}
OF_HOSTED["coordinator's host killed"] = _host


def soak(cluster: Cluster, changes: int, minutes: float, seed: int) -> Soak:
    found = Soak(seed)
    chance = random.Random(seed)
    known = OF_HOSTED if cluster.is_hosted else CHANGES
    counts: Counter[str] = Counter()
    for node in range(cluster.nodes):
        cluster.start(node)
    end = time.monotonic() + minutes * 60
    before = cluster.goes_on(cluster.nodes, 0.0)
    if not before:
        found.wrong.append("the training has not started")
    while before and sum(counts.values()) < changes and time.monotonic() < end:
        name = chance.choice(list(known))
        hit = known[name](cluster, chance)
        at = time.monotonic()
        counts[name] += 1
        print(f"{at:.1f} {name}: nodes {sorted(hit)}", flush=True)
        # Half of the lost nodes come back at once, the others when the job has gone on without.
        waits = chance.random() < 0.5 and len(hit) < cluster.nodes
        if waits and not cluster.goes_on(None, at):
            found.wrong.append(f"the job has not gone on after: {name}, nodes {sorted(hit)}")
            break
        after = cluster.all_go_on()
        if not after:
            found.wrong.append(f"not all nodes are back after: {name}, nodes {sorted(hit)}")
            break
        kept = {s.pid for s in after.values()}
        spared = {s.pid for s in before.values() if s.node not in hit}
        found.kept += len(spared & kept)
        found.restarted += len(spared - kept)
        before = after
        time.sleep(chance.uniform(0.0, 0.2))
    if not found.wrong:
        codes = cluster.finish()
        if any(code != 0 for code in codes.values()):
            found.wrong.append(f"the training has not ended in order; exit codes {codes}")
    cluster.close()
    stamps = cluster.stamps()
    found.changes = dict(counts)
    found.rounds = len({s.round for s in stamps})
    found.steps = max((s.step for s in stamps), default=0)
    found.wrong += faults(stamps)
    if found.restarted > found.kept:
        found.wrong.append(
            f"of the processes that were not hit, {found.kept} went on, {found.restarted} did not"
        )
    if not any(s.kind == "same" for s in stamps) and not found.wrong:
        found.wrong.append("the end was not compared with an undisturbed run")
    return found


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.in_place_soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--changes", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--minutes", type=float, default=600.0, help="no change begins later")
    parser.add_argument("--nodes", type=int, default=4, choices=(2, 3, 4))
    parser.add_argument("--hosted", action="store_true", help="agents host the coordinator")
    parser.add_argument("--seed", type=int, default=1, help="chooses the changes and the nodes")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds until the job goes on"
    )
    parser.add_argument("--no-warm", action="store_true", help="execute each worker")
    parser.add_argument("--json", type=Path, help="the file for the result")
    parser.add_argument("--logs", type=Path, help="a new directory for logs and stamps")
    given = parser.parse_args(argv)
    logs = given.logs or Path(tempfile.mkdtemp(prefix="in-place-soak-"))
    cluster = Cluster(
        logs, given.nodes, is_hosted=given.hosted, warm=not given.no_warm, limit=given.limit
    )
    try:
        found = soak(cluster, given.changes, given.minutes, given.seed)
    finally:
        cluster.close()
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    for name, value in asdict(found).items():
        print(f"{name:10} {value}")
    print(f"logs: {logs}", file=sys.stderr)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
