"""Jobs whose coordinator moves: the time until the job continues without the lost host.

Every agent has a loopback address of its own, which counts as a host. The agents' event log says
when the job is replicated, and when each node has found the new coordinator. torch is not measured:
its job is lost with the host of its store.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import proc
from harness.figures import Findings, Missing
from harness.jobs import Job, examples, free_port, job, last_ns
from scenes import Plan
from scenes.sessions import coordinator

NODE_TIMEOUT_S = 1.0
PAUSE_S = 0.2


def succession(plan: Plan) -> Findings:
    findings = Findings()
    worker = plan.programs.built("stamp_worker")
    _host_is_killed(plan, findings, worker)
    _host_of_two_is_killed(plan, findings, worker, "file")
    if plan.quick:
        return findings
    try:
        plan.programs.installed("etcd")
        _host_of_two_is_killed(plan, findings, worker, "etcd")
    except Missing as missing:
        findings.skip("etcd", missing)
    _host_is_told_to_stop(plan, findings, worker)
    _separate_coordinator_is_killed(plan, findings, worker)
    _links_go_down(plan, findings, worker, 3, 1, 1600)
    _links_go_down(plan, findings, worker, 5, 2, 4000)
    _restart_with_voters(plan, findings, worker)
    return findings


class Log:
    """The event log of all agents of a job."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def events(self, name: str) -> list[dict[str, Any]]:
        # The last line may still be written.
        whole = self._path.read_text().rpartition("\n")[0]
        lines = (json.loads(line) for line in whole.splitlines())
        return [one for one in lines if one["event"] == name]

    def await_events(self, name: str, count: int, text: str = "") -> list[dict[str, Any]]:
        deadline = time.monotonic() + 60
        while True:
            found = [one for one in self.events(name) if text in one.get("message", "")]
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(found)} of {count} events {name!r} in a minute")
            time.sleep(0.005)


@contextmanager
def _replicated(
    plan: Plan, worker: str, nnodes: str, conf: str, **settings: str
) -> Iterator[tuple[Job, Log]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        log = Log(Path(directory) / "events")
        options = {"max_restarts": "1000", "event_log": str(Path(directory) / "events"), **settings}
        launcher = plan.programs.launcher("elastic")
        with job(launcher, worker, nnodes, conf=f"last_call_timeout=30,{conf}", **options) as made:
            yield made, log


def _start(made: Job, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        made.start(options=[f"--local-addr=127.0.0.{number}"])


def _await_voters(log: Log, losses: str = "any one host") -> None:
    log.await_events("waiting", 1, f"survives the loss of {losses}")
    time.sleep(PAUSE_S)


def _start_replicated(made: Job, log: Log) -> None:
    _start(made, 3)
    made.pipe.next("start", 3)
    _await_voters(log)


def _host_is_killed(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2:3 job, voters=3, the coordinator's host killed, to the survivors with world 2"
    for _ in range(plan.times(20)):
        with _replicated(plan, worker, "2:3", "voters=3") as (made, log):
            _start_replicated(made, log)
            begun_ns = made.agents[0].kill_all()
            findings.add(
                case, "elastic", "ms", (last_ns(made.pipe.next("start", 2)) - begun_ns) / 1e6
            )
    _at_most(findings, case, 300)


def _host_of_two_is_killed(plan: Plan, findings: Findings, worker: str, store: str) -> None:
    case = f"2 nodes, {store} keeps the record, the coordinator's host killed, to the other running"
    with _store(store) as endpoint:
        for number in range(plan.times(20)):
            settings = {"rdzv_backend": store, "rdzv_id": f"bench-{number}"}
            with _replicated(plan, worker, "1:2", "node_timeout=5", **settings) as (made, _):
                made.endpoint = endpoint
                _start(made, 1)
                _await_coordinator(f"{store}://{endpoint}", settings["rdzv_id"])
                _start(made, 1, first=2)
                made.pipe.next("start", 2)
                time.sleep(PAUSE_S)
                begun_ns = made.agents[0].kill_all()
                took = (last_ns(made.pipe.next("start", 1)) - begun_ns) / 1e6
                findings.add(case, "elastic", "ms", took)
    _at_most(findings, case, 300)


def _await_coordinator(store: str, run_id: str) -> None:
    from elastic import observe

    deadline = time.monotonic() + 60
    while True:
        try:
            observe.find(store, run_id)
        except observe.RendezvousError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def _store(kind: str) -> Iterator[str]:
    """The endpoint of a store."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        if kind == "file":
            yield f"{directory}/record"
            return
        from elastic.rendezvous.etcd_server import EtcdServer

        server = EtcdServer(data_dir=directory)
        server.start(stderr=subprocess.DEVNULL)
        try:
            yield server.get_endpoint()
        finally:
            server.stop()


def _host_is_told_to_stop(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2:3 job, voters=3, SIGTERM to the hosting agent"
    for _ in range(plan.times(20)):
        with _replicated(plan, worker, "2:3", "voters=3") as (made, log):
            _start_replicated(made, log)
            host = made.agents[0]
            leaving = set(proc.descendants(host.process.pid))
            host.process.send_signal(signal.SIGTERM)
            stamps = made.pipe.collect("start", 2)
            stopped = [at for what, pid, at in stamps if what == "term" and pid not in leaving]
            started = [at for what, _, at in stamps if what == "start"]
            findings.add(f"{case}: stopped to new ones running", "elastic", "ms",
                         (max(started) - max(stopped)) / 1e6)  # fmt: skip
            for moved in log.await_events("coordinator_moved", 2):
                took = moved["durations"]["move"] * 1000
                findings.add(f"{case}: hand-over, each node", "elastic", "ms", took)
    _at_most(findings, f"{case}: stopped to new ones running", 100)
    _at_most(findings, f"{case}: hand-over, each node", 30)


def _separate_coordinator_is_killed(plan: Plan, findings: Findings, worker: str) -> None:
    case = "4 nodes, a separate coordinator (voters=3) killed, to the last node's new session"
    for _ in range(plan.times(20)):
        with (
            coordinator(plan, options=["--voters=3"]) as (port, pid),
            _replicated(plan, worker, "4", "voters=3,is_host=false") as (made, log),
        ):
            made.endpoint = f"127.0.0.1:{port}"
            _start_clients(made, 4)
            before = {pid for pid, _ in made.pipe.next("start", 4)}
            time.sleep(1.0)  # the coordinator's own log says when it has voters
            begun = time.time()
            os.kill(pid, signal.SIGKILL)
            moved = log.await_events("coordinator_moved", 4)
            findings.add(case, "elastic", "ms", (max(one["time"] for one in moved) - begun) * 1000)
            lost = [one for one in before if not Path(f"/proc/{one}").exists()]
            findings.add("the same: workers restarted", "elastic", "workers",
                         len(lost) + len(made.pipe.seen("start")))  # fmt: skip
    _at_most(findings, case, 300)
    _at_most(findings, "the same: workers restarted", 0)


def _start_clients(made: Job, count: int) -> None:
    for number in range(1, count + 1):
        made.start(is_host=False, options=[f"--local-addr=127.0.0.{number}"])


def _links_go_down(
    plan: Plan, findings: Findings, worker: str, count: int, losses: int, limit_ms: float
) -> None:
    case = (
        f"{count} nodes, voters={count}, node_timeout={NODE_TIMEOUT_S:g}, links of {losses} with "
        "the coordinator's go down, to the survivors running"
    )
    sys.path.insert(0, str(examples()))
    import namespaces

    if why_not := namespaces.why_not():
        findings.skip(case, why_not)
        return
    with namespaces.Network() as network:
        hosts = [network.add_host() for _ in range(count)]
        conf = f"voters={count},node_timeout={NODE_TIMEOUT_S},store_grace=5"
        for _ in range(plan.times(10)):
            with _replicated(plan, worker, f"2:{count}", conf) as (made, log):
                made.endpoint = f"{hosts[0].address}:{free_port()}"
                for host in hosts:
                    made.start(host.command())
                made.pipe.next("start", count)
                _await_voters(log, "any two hosts" if count == 5 else "any one host")
                begun_ns = time.monotonic_ns()
                for host in hosts[:losses]:
                    host.unplug()
                started = _of_last_round(made, count - losses)
                findings.add(case, "elastic", "ms", (started - begun_ns) / 1e6)
                for host in hosts[:losses]:
                    host.plug_in()
    _at_most(findings, case, limit_ms)


def _of_last_round(made: Job, count: int) -> int:
    """When the survivors run; two losses may end two rounds one after the other."""
    latest = last_ns(made.pipe.next("start", count))
    while True:
        try:
            latest = last_ns(made.pipe.next("start", count, seconds=2.0))
        except RuntimeError:
            return latest


def _restart_with_voters(plan: Plan, findings: Findings, worker: str) -> None:
    def kill_one(made: Job, pids: list[int]) -> float:
        time.sleep(PAUSE_S)
        begun_ns = time.monotonic_ns()
        os.kill(pids[0], signal.SIGKILL)
        started = made.pipe.next("start", len(pids))
        pids[:] = [pid for pid, _ in started]
        return (last_ns(started) - begun_ns) / 1e6

    case = "3 agents with 2 workers each, one killed, to 6 new running"
    voters: dict[str, Callable[[], Any]] = {
        name: lambda conf=conf: _replicated(plan, worker, "3", conf, nproc_per_node="2")
        for name, conf in (("one voter", "voters=1"), ("three voters", "voters=3"))
    }
    with voters["one voter"]() as (single, _), voters["three voters"]() as (several, log):
        pids = {}
        for name, made in (("one voter", single), ("three voters", several)):
            _start(made, 3)
            pids[name] = [pid for pid, _ in made.pipe.next("start", 6)]
        _await_voters(log)
        for _ in range(plan.times(20)):
            for name, made in (("one voter", single), ("three voters", several)):
                findings.add(case, name, "ms", kill_one(made, pids[name]))
    above = findings.median(case, "three voters") - findings.median(case, "one voter")
    findings.at_most(f"{case}: three voters above one, ms", above, 1.5)


def _at_most(findings: Findings, case: str, limit: float) -> None:
    if findings.has(case, "elastic"):
        findings.at_most(f"{case}, ms", findings.median(case, "elastic"), limit)
