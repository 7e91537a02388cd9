"""Jobs of several nodes: the time to recover when workers and nodes fail, leave and join.

Each case has a job of its own, with one agent for each node. A subject's job serves all repeats
unless the case ends it. If torch does not react within a minute, the report states
that instead of a figure.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice

from harness import proc
from harness.figures import Findings, Missing
from harness.jobs import LOOPBACK, Agent, Job, examples, free_port, job, last_ns
from scenes import Plan
from scenes.sessions import coordinator

RECONNECT_GRACE_MS = 50.0
NODE_TIMEOUT_S = 1.0
TORCH_TIMES = 3
PAUSE_S = 0.3

# One repeat of a case on a job: milliseconds.
Measure = Callable[[Job], float]


class NoReaction(Exception):
    """The expected reaction did not happen before the time limit."""


def nodes(plan: Plan) -> Findings:
    findings = Findings()
    worker = plan.programs.built("stamp_worker")
    for case in (
        _worker_dies, _node_dies, _node_is_silent, _node_joins, _node_is_told_to_stop,
        _spare_takes_over, _done_and_lost, _budget_is_spent, _all_succeed,
        _coordinator_is_stopped,
    ):  # fmt: skip
        case(plan, findings, worker)
    return findings


def _launchers(plan: Plan, findings: Findings) -> dict[str, Sequence[str]]:
    found = {}
    for name in ("elastic", "torchrun"):
        try:
            found[name] = plan.programs.launcher(name)
        except Missing as missing:
            findings.skip(name, missing)
    return found


def _worker_dies(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2 agents with 2 workers each, one killed, to 4 new running"
    with ExitStack() as stack:
        jobs: dict[str, tuple[Job, list[int]]] = {}
        for name, launcher in _launchers(plan, findings).items():
            made = stack.enter_context(
                job(launcher, worker, "2", nproc_per_node="2", max_restarts="1000")
            )
            made.start(), made.start()
            jobs[name] = made, [pid for pid, _ in made.pipe.next("start", 4)]
        for repeat in range(plan.times(20)):
            for name, (made, pids) in jobs.items():
                if name == "torchrun" and repeat >= TORCH_TIMES:
                    continue
                time.sleep(PAUSE_S)
                begun_ns = time.monotonic_ns()
                os.kill(pids[repeat % 4], signal.SIGKILL)
                started = made.pipe.next("start", 4)
                pids[:] = [pid for pid, _ in started]
                findings.add(case, name, "ms", (last_ns(started) - begun_ns) / 1e6)
    if findings.has(case, "elastic"):
        findings.at_most(f"{case}, ms", findings.median(case, "elastic"), 25)


def _node_dies(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2:3 job, an agent and its workers killed, to the survivors with world 2"

    def kill_one(made: Job) -> float:
        begun_ns = made.agents[2].kill_all()
        return (last_ns(_next(made, 2, plan)) - begun_ns) / 1e6

    _with_three(plan, findings, worker, case, kill_one)
    _at_most(findings, case, RECONNECT_GRACE_MS + 60)


def _spare_takes_over(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2:2 job with a spare, an agent and its workers killed, to 2 running"

    def kill_one(made: Job) -> float:
        time.sleep(PAUSE_S)  # so that the spare has joined
        begun_ns = made.agents.pop(1).kill_all()
        return (last_ns(_next(made, 2, plan)) - begun_ns) / 1e6

    for name, launcher in _launchers(plan, findings).items():
        settings = {"conf": "last_call_timeout=1", "max_restarts": "1000"}
        with job(launcher, worker, "2:2", **settings) as made:
            made.start(), made.start()
            made.pipe.next("start", 2)
            made.start()
            for _ in range(_times(plan, name)):
                if not _measured(findings, case, name, kill_one, made):
                    break
                made.start()
    _at_most(findings, case, RECONNECT_GRACE_MS + 60)


def _with_three(plan: Plan, findings: Findings, worker: str, case: str, measure: Measure) -> None:
    """Uses a new job of three for each repeat, because repeated growth is delayed."""
    for name in ("elastic", "torchrun"):
        # torch waits for the last call in each round, elastic only in the first one.
        last_call = 60 if name == "elastic" else 1
        settings = {"max_restarts": "9", "conf": f"last_call_timeout={last_call}"}
        for made in _fresh(plan, findings, name, worker, "2:3", **settings):
            for _ in range(3):
                made.start()
            made.pipe.next("start", 3)
            time.sleep(PAUSE_S)
            if not _measured(findings, case, name, measure, made):
                break


def _node_is_silent(plan: Plan, findings: Findings, worker: str) -> None:
    case = f"2:3 job, a link goes down, node_timeout={NODE_TIMEOUT_S:g}, to the survivors running"
    sys.path.insert(0, str(examples()))
    import namespaces

    if why_not := namespaces.why_not():
        findings.skip(case, why_not)
        return
    with namespaces.Network() as network:
        hosts = [network.add_host() for _ in range(3)]
        conf = f"node_timeout={NODE_TIMEOUT_S},store_grace=5"
        for made in _fresh(plan, findings, "elastic", worker, "2:3", conf=conf):
            made.endpoint = f"{hosts[0].address}:{free_port()}"
            for host in hosts:
                made.start(host.command())
            made.pipe.next("start", 3)
            time.sleep(PAUSE_S)
            begun_ns = time.monotonic_ns()
            hosts[2].unplug()
            took = (last_ns(made.pipe.next("start", 2)) - begun_ns) / 1e6
            findings.add(case, "elastic", "ms", took)
            hosts[2].plug_in()
    _at_most(findings, case, NODE_TIMEOUT_S * 1000 + 200)


def _node_joins(plan: Plan, findings: Findings, worker: str) -> None:
    """torch loses the job after a minute, so it is not measured."""
    case = "1:3 job, settle=0, a third agent is started, to 3 running"
    floor = "an agent is started alone, to its worker running"
    launcher = _launchers(plan, findings).get("elastic", ())
    conf = "last_call_timeout=0,settle=0"
    for made in _fresh(plan, findings, "elastic", worker, "1:3", conf=conf):
        made.start(), made.start()
        made.pipe.next("start", 2)
        time.sleep(PAUSE_S)
        begun_ns = time.monotonic_ns()
        made.start()
        took = (last_ns(made.pipe.next("start", 3)) - begun_ns) / 1e6
        findings.add(case, "elastic", "ms", took)
        with job(launcher, worker, "1") as alone:
            begun_ns = time.monotonic_ns()
            alone.start()
            took = (last_ns(alone.pipe.next("start", 1)) - begun_ns) / 1e6
            findings.add(floor, "elastic", "ms", took)
    if findings.has(case, "elastic"):
        above = findings.median(case, "elastic") - findings.median(floor, "elastic")
        findings.at_most(f"{case}: above the same alone, ms", above, 100)


def _node_is_told_to_stop(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2:3 job, SIGTERM to an agent: the survivors' workers stopped, to new ones running"

    def stop_one(made: Job) -> float:
        leaver = made.agents[2]
        leaving = set(proc.descendants(leaver.process.pid))
        leaver.process.send_signal(signal.SIGTERM)
        stamps = _collect(made, 2, plan)
        stopped = [at for what, pid, at in stamps if what == "term" and pid not in leaving]
        started = [at for what, _, at in stamps if what == "start"]
        if not stopped:
            raise NoReaction("no worker of a survivor was told to stop")
        return (max(started) - max(stopped)) / 1e6

    _with_three(plan, findings, worker, case, stop_one)
    _at_most(findings, case, 100)


def _done_and_lost(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2 agents, one done, the other one lost, to the first one's exit"
    conf = f"node_timeout={plan.seconds(NODE_TIMEOUT_S, 10)}"  # a check may be on a busy machine
    for made in _fresh(plan, findings, "elastic", worker, "2", conf=conf):
        done, lost = made.start(), made.start()
        started = made.pipe.next("start", 2)
        for pid in done.workers(started):
            os.kill(pid, signal.SIGUSR1)
        made.pipe.next("done", 1)
        time.sleep(PAUSE_S)
        begun_ns = lost.kill_all()
        findings.add(case, "elastic", "ms", (done.wait()[1] - begun_ns) / 1e6)
    _at_most(findings, case, NODE_TIMEOUT_S * 1000 + 500)


def _budget_is_spent(plan: Plan, findings: Findings, worker: str) -> None:
    case = "3 agents with 2 workers each, no restarts left, one worker killed, to all agents exited"
    for made in _fresh(plan, findings, "elastic", worker, "3", nproc_per_node="2"):
        agents = [made.start() for _ in range(3)]
        started = made.pipe.next("start", 6)
        begun_ns = time.monotonic_ns()
        os.kill(started[0][0], signal.SIGKILL)
        ended = _all_gone(agents)
        findings.add(case, "elastic", "ms", (ended - begun_ns) / 1e6)
        codes = {agent.process.returncode for agent in agents}
        if codes != {128 + signal.SIGKILL}:
            raise RuntimeError(f"the agents ended with {codes}")
    _at_most(findings, case, 100)


def _all_succeed(plan: Plan, findings: Findings, worker: str) -> None:
    case = "2 agents with 2 workers each, all succeed, to both agents exited"
    subjects = {
        name: _fresh(plan, findings, name, worker, "2", nproc_per_node="2")
        for name in ("elastic", "torchrun")
    }
    for _ in range(plan.times(20)):
        for name, fresh in subjects.items():
            made = next(fresh, None)
            if made is None:
                continue
            agents = [made.start(), made.start()]
            for pid, _ in made.pipe.next("start", 4):
                os.kill(pid, signal.SIGUSR1)
            done_ns = last_ns(made.pipe.next("done", 4))
            findings.add(case, name, "ms", (_all_gone(agents) - done_ns) / 1e6)
    _at_most(findings, case, 50)


def _coordinator_is_stopped(plan: Plan, findings: Findings, worker: str) -> None:
    case = "3 agents, the coordinator stopped for 3 x node_timeout: workers restarted"
    with coordinator(plan) as (port, pid):
        conf = f"node_timeout={NODE_TIMEOUT_S}"
        for made in islice(_fresh(plan, findings, "elastic", worker, "2:3", conf=conf), 3):
            made.endpoint = f"{LOOPBACK}:{port}"
            for _ in range(3):
                made.start(is_host=False)
            made.pipe.next("start", 3)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(3 * NODE_TIMEOUT_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(2 * NODE_TIMEOUT_S)  # within this time an evicted node would be notified
            findings.add(case, "elastic", "workers", len(made.pipe.seen("start")))
    if findings.has(case, "elastic"):
        findings.at_most(case, max(findings.rows[case, "elastic"].samples), 0)


def _fresh(
    plan: Plan, findings: Findings, name: str, worker: str, nnodes: str, **settings: str
) -> Iterator[Job]:
    """A new job for each repeat."""
    launcher = _launchers(plan, findings).get(name)
    if launcher is None:
        return
    for _ in range(_times(plan, name)):
        with job(launcher, worker, nnodes, **settings) as made:
            yield made


def _all_gone(agents: Sequence[Agent]) -> int:
    return max(agent.wait()[1] for agent in agents)


def _times(plan: Plan, name: str) -> int:
    return min(plan.times(20), TORCH_TIMES) if name == "torchrun" else plan.times(20)


def _next(made: Job, count: int, plan: Plan) -> list[tuple[int, int]]:
    return [(pid, at) for what, pid, at in _collect(made, count, plan) if what == "start"]


def _collect(made: Job, count: int, plan: Plan) -> list[tuple[str, int, int]]:
    """All stamps until `count` workers have started."""
    try:
        return made.pipe.collect("start", count, plan.seconds(60.0, 3.0))
    except RuntimeError as error:
        raise NoReaction(str(error)) from error


def _measured(findings: Findings, case: str, name: str, measure: Measure, made: Job) -> bool:
    """Adds one sample; without a reaction, records the reason as skipped and returns False."""
    try:
        findings.add(case, name, "ms", measure(made))
    except NoReaction as reason:
        findings.skip(f"{name}: {case}", reason)
        return False
    return True


def _at_most(findings: Findings, case: str, limit: float) -> None:
    if findings.has(case, "elastic"):
        findings.at_most(f"{case}, ms", findings.median(case, "elastic"), limit)
