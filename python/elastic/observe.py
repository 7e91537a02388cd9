"""A look into a running job: the data of ``elastic-launch status`` and ``dashboard``.

::

    with observe.connect("node0:29400") as job:
        print(job.next()["round"])

``docs/observing.md`` has the schema. Observers are read only: the job does not wait for them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, NamedTuple

from elastic import _C, _environment, _local_jobs
from elastic.constants import COORDINATOR_PORT
from elastic.errors import (
    ConfigError,
    RendezvousClosed,
    RendezvousError,
    RendezvousUnavailable,
)
from elastic.text import between, endpoints_in, join_endpoints, seconds, split_endpoints

SCHEMA = 1
STORE = "://"  # between a backend and its endpoint
# How long a first snapshot waits for the agents' reports about their workers.
REPORTS_TIMEOUT_S = 1.0


class Observation:
    """A session with the coordinator of one job. Use it as a context manager."""

    def __init__(
        self, endpoints: list[tuple[str, int]], start: Callable[[str, int], _C.Observer]
    ) -> None:
        self._endpoints, self._start = endpoints, start
        self._errors: list[str] = []  # of the endpoints that were tried
        self._native = start(*endpoints[0])

    def next(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The newest snapshot that was not returned before; None after the timeout.

        Raises RendezvousUnavailable if the coordinator cannot be reached or has ended, and
        RendezvousClosed if it has no such job.
        """
        facts = self._next_facts(timeout)
        return None if facts is None else view(facts)

    def _next_facts(self, timeout: float | None) -> dict[str, Any] | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                facts = self._native.next(left)
            except (RendezvousUnavailable, RendezvousClosed) as error:
                self._try_next(error)
                continue
            if facts is not None:
                self._endpoints, self._errors = self._endpoints[:1], []
            return facts

    def _try_next(self, error: RendezvousError) -> None:
        """Tries the next endpoint. Raises the error when it was the last one."""
        if not self._endpoints or (len(self._endpoints) == 1 and not self._errors):
            raise error
        host, port = self._endpoints.pop(0)
        self._errors.append(f"{host}:{port}: {error}")
        if not self._endpoints:
            raise type(error)("; ".join(self._errors)) from None
        self._native.close()
        self._native = self._start(*self._endpoints[0])

    def next_stacks(self, timeout: float | None = None) -> str:
        """The stacks that ``connect(stacks=True)`` requested; "" if they have not arrived."""
        facts = self._next_facts(timeout)
        return "" if facts is None else str(facts["stacks"])

    def next_drain(self, timeout: float | None = None) -> tuple[bool, str] | None:
        """The answer to ``connect(drain=...)``: whether a step is agreed, and a sentence.

        None: it has not arrived.
        """
        facts = self._next_facts(timeout)
        if facts is None or not facts["drain"]:
            return None
        return bool(facts["is_drain_agreed"]), str(facts["drain"])

    def next_host_answer(self, timeout: float | None = None) -> tuple[bool, str] | None:
        """The answer to ``connect(host_request=...)``: whether it is done, and a sentence.

        None: it has not arrived.
        """
        facts = self._next_facts(timeout)
        if facts is None or not facts["host_answer"]:
            return None
        return bool(facts["is_host_done"]), str(facts["host_answer"])

    def first(self, timeout: float | None = None) -> dict[str, Any] | None:
        """A snapshot with the workers of all nodes that report them within a second."""
        snapshot = self.next(timeout)
        deadline = time.monotonic() + REPORTS_TIMEOUT_S
        while snapshot is not None and _awaits_reports(snapshot):
            left = deadline - time.monotonic()
            newer = self.next(left) if left > 0 else None
            if newer is None:
                break
            snapshot = newer
        return snapshot

    def close(self) -> None:
        self._native.close()

    def __enter__(self) -> Observation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    endpoint: str,
    run_id: str = "",
    *,
    workers: bool = True,
    stacks: bool = False,
    drain: float | None = None,
    drain_reason: str = "",
    drain_node: str = "",
    host_request: str = "",
    host: str = "",
    host_reason: str = "",
    timeout: float = 5.0,
    token_file: str = "",
) -> Observation:
    """Begins to connect to the coordinator at ``HOST[:PORT]``, or to the job at one of a list.

    ``unix:PATH`` is the socket of a job with one node on this host (``local_jobs()``).
    ``BACKEND://ENDPOINT``, as in ``etcd://etcd0:2379`` or ``file:///shared/job``, is the store that
    keeps the record of the job ``run_id``, and names its coordinator (``find``).
    Without a ``run_id`` the coordinator must have one job. ``workers``: with pid and state of each
    rank, which the agents report while such an observer is connected. ``stacks``: request the
    stacks of all workers once. ``drain``: request once that all ranks stop at one step within so
    many seconds, because of ``drain_reason``; ``drain_node``: that only this node leaves at one.
    ``host_request``: "exclude" or "readmit", once, the host of this name or address, because of
    ``host_reason``. ``token_file``: the file with the token of the job or of its observers, which
    only reads; without it the variables are used.
    """
    from elastic.rendezvous import token

    if drain is not None:
        seconds(str(drain), "drain", positive=True)
    options: dict[str, Any] = {
        "run_id": run_id,
        "workers": workers,
        "stacks": stacks,
        "drain": drain,
        "drain_reason": drain_reason,
        "drain_node": drain_node,
        "host_request": host_request,
        "excluded_host": host,
        "host_reason": host_reason,
    }
    if endpoint.startswith(_local_jobs.UNIX):
        options["socket_path"] = endpoint.removeprefix(_local_jobs.UNIX)
        return Observation([(endpoint, 0)], lambda _, port: _C.Observer("", port, **options))
    if STORE in endpoint:
        endpoint = find(endpoint, run_id)
    found = split_endpoints(endpoint, "the endpoint", COORDINATOR_PORT)
    if any(number == 0 for _, number in found):
        raise ConfigError(f"the endpoint is {endpoint!r}: 0 is no port")
    environ = _environment.inherited()
    secret = token.find(token_file, environ)
    if "token" in secret:  # a file may be repaired while its reader waits
        token.check(secret, run_id, environ)
    options |= {"connect_timeout": timeout / len(found), **secret}
    return Observation(found, lambda host, port: _C.Observer(host, port, **options))


def find(store: str, run_id: str) -> str:
    """``HOST:PORT`` of the coordinator of a job, from the record in a store.

    ``store`` is ``BACKEND://ENDPOINT``, the values of ``--rdzv-backend`` and ``--rdzv-endpoint``.
    Raises RendezvousClosed if the store has no such job, and RendezvousUnavailable if no process
    coordinates it now or the store cannot be reached.
    """
    from elastic.rendezvous.keepers import backends

    name, _, endpoint = store.partition(STORE)
    if not run_id:
        raise ConfigError(f"{store} may keep several jobs: give the run id (--rdzv-id)")
    found = _C.find_coordinator(backends.create(name, endpoint, run_id, {}))
    if found is None:
        raise RendezvousClosed(f"{store} has no record of a job {run_id}")
    if not found:
        raise RendezvousUnavailable(f"no process coordinates the job {run_id} in {store} now")
    return found


class LocalJob(NamedTuple):
    """A job of this user with an agent on this host."""

    run_id: str  # "": unknown
    endpoint: str  # for ``connect``
    pids: tuple[int, ...]  # of the agents
    snapshot: dict[str, Any] | None  # without workers; None: there is no answer
    error: str = ""  # why


def agents() -> list[_local_jobs.LocalJob]:
    """The agents of this user on this host."""
    return _local_jobs.find(_local_jobs.directories(_environment.inherited()))


def is_local(run_id: str) -> bool:
    """Whether a job with a coordinator has an agent of this user on this host."""
    return any(agent.run_id == run_id for agent in agents())


def agents_endpoints(run_id: str, ports: Collection[int]) -> list[str]:
    """Where the agents of this user on this host find the coordinator of a job.

    ``ports``: of the endpoints at which the job was. Another job of the same id has others.
    """
    found = []
    for agent in agents():
        known = [text for text in (agent.moved_to, agent.endpoint) if text]
        at = {port for _, port in endpoints_in(known, COORDINATOR_PORT)}
        if agent.run_id == run_id and not at.isdisjoint(ports):
            found += known
    return found


def local_jobs(timeout: float = 1.0) -> list[LocalJob]:
    """The jobs of this user whose agents run on this host, ordered by their ids.

    Those of agents that use the rendezvous handler of a plug-in are not found.
    """
    pids_at: dict[tuple[str, str], list[int]] = {}
    moved: dict[tuple[str, str], str] = {}
    for agent in agents():
        pids_at.setdefault((agent.run_id, agent.endpoint), []).append(agent.pid)
        if agent.moved_to:
            texts = f"{agent.moved_to},{agent.endpoint}".split(",")
            known = endpoints_in(texts, COORDINATOR_PORT)
            moved[agent.run_id, agent.endpoint] = join_endpoints(list(known))
    with ExitStack() as stack:
        started: list[tuple[LocalJob, Observation | None]] = []
        for (run_id, started_at), pids in pids_at.items():
            endpoint = moved.get((run_id, started_at), started_at)
            found = LocalJob(run_id, endpoint, tuple(sorted(pids)), None)
            if not endpoint:
                started.append((found._replace(error="no round has begun yet"), None))
                continue
            try:
                job = connect(endpoint, run_id, workers=False, timeout=timeout)
                stack.callback(job.close)
                started.append((found, job))
            except (RendezvousError, ConfigError) as error:
                started.append((found._replace(error=str(error)), None))
        end = time.monotonic() + timeout
        seen = [one if job is None else _seen(one, job, end) for one, job in started]
    return sorted(seen, key=lambda one: (one.run_id, one.pids))


def _seen(found: LocalJob, job: Observation, end: float) -> LocalJob:
    try:
        snapshot = job.next(max(0.0, end - time.monotonic()))
    except RendezvousError as error:
        return found._replace(error=str(error))
    if snapshot is None:
        return found._replace(error="it does not answer")
    return found._replace(run_id=snapshot["job"], snapshot=snapshot)


def _awaits_reports(snapshot: dict[str, Any]) -> bool:
    return snapshot["result"] is None and any(
        node["workers"] is None and node["connected"] and node["state"] in ("working", "done")
        for node in snapshot["nodes"]
    )


def view(facts: dict[str, Any]) -> dict[str, Any]:
    """The documented form of a snapshot: plain values, times in seconds since 1970."""
    offset = facts["wall_time"] - facts["now"]

    def wall(at: float | None) -> float | None:
        return None if at is None else round(at + offset, 6)

    began = facts["began"]
    elapsed = facts["now"] - began if began is not None else 0.0
    rounds = [_round(one, wall) for one in facts["rounds"]]
    for one, following in itertools.pairwise(rounds):
        _add_following(one, following)
    nodes = sorted((_node(node) for node in facts["nodes"]), key=_node_order)
    host = next((node["name"] for node in nodes if node["hosts_coordinator"]), None)
    return {
        "schema": SCHEMA,
        "job": facts["id"],
        "time": round(facts["wall_time"], 6),
        "phase": facts["phase"],
        "description": facts["description"],
        "coordinator": {
            "incarnation": f"{facts['coordinator']:016x}",
            "term": facts["term"],
            "node": host,
            **_incumbent(facts["incumbent"]),
        },
        "settings": {
            "min_nodes": facts["min_nodes"],
            "max_nodes": facts["max_nodes"],
            "max_restarts": facts["max_restarts"],
            "node_timeout": facts["node_timeout"],
        },
        "round": facts["round"] if facts["has_round"] else None,
        "generation": facts["generation"],
        "nodes_in_round": facts["nodes_in_round"],
        "world_size": facts["world_size"],
        "master_addr": facts["master_addr"],
        "master_port": facts["master_port"],
        "restarts": facts["restarts"],
        "membership_changes": facts["membership_changes"],
        "waiting_nodes": facts["waiting_nodes"],
        "spare_nodes": facts["spare_nodes"],
        "began": wall(began),
        "running_seconds": round(facts["running"], 6),
        "goodput": round(facts["running"] / elapsed, 4) if elapsed > 0 else None,
        "rounds": rounds,
        "stragglers": facts["stragglers"],
        "hang": _hang(facts["hang"]),
        "stall": _stall(facts["stall"]),
        "mismatch": facts["mismatch"],
        "findings": [
            {
                "host": one["host"],
                "text": one["text"],
                "time": wall(facts["now"] - one["age"]),
            }
            for one in facts["findings"]
        ],
        "excluded": [
            {
                "host": one["host"],
                "left_seconds": round(one["left"], 3),
                "until": round(facts["wall_time"] + one["left"], 3),
                "reason": one["reason"],
                "times": one["times"],
            }
            for one in facts["excluded"]
        ],
        "progress": _progress(facts["progress"]),
        "saved": facts["saved"]
        and {
            "step": facts["saved"]["step"],
            "age_seconds": round(facts["saved"]["age"], 3),
            "copied_step": None if facts["saved"]["copied"] < 0 else facts["saved"]["copied"],
            "memory": _memory(facts["saved"]["memory"], facts["nodes"]),
        },
        "result": _result(facts["result"]),
        "nodes": nodes,
    }


def _memory(facts: dict[str, Any] | None, nodes: list[dict[str, Any]]) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "snapshot_bytes": facts["own"],
        "copy_bytes": facts["copies"],
        "node": next((node["name"] for node in nodes if node["id"] == facts["node"]), None),
        "needed_bytes": facts["needed"],
        "limit_bytes": facts["limit"] or None,
    }


def _hang(facts: dict[str, Any] | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "idle_seconds": round(facts["idle_seconds"], 3),
        "step": facts["step"] if facts["step"] >= 0 else None,
        "rank": facts["rank"] if facts["rank"] >= 0 else None,
        "place": facts["place"] or None,
    }


def _stall(facts: dict[str, Any] | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "idle_seconds": round(facts["idle_seconds"], 3),
        "rank": facts["rank"] if facts["rank"] >= 0 else None,
        "message": facts["message"],
        "place": facts["place"] or None,
    }


def _progress(facts: dict[str, Any] | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    step_time = facts["step_time"]
    return {
        "step": facts["step"],
        "slowest_step": facts["slowest"] if facts["slowest"] >= 0 else None,
        "ranks": facts["ranks"],
        "step_seconds": round(step_time, 6) if step_time > 0 else None,
    }


def _incumbent(facts: dict[str, Any] | None) -> dict[str, Any]:
    known = facts or {"address": "", "lineage": "", "voters": []}
    return {
        "address": known["address"] or None,
        "lineage": known["lineage"] or None,
        "voters": list(known["voters"]),
    }


def _round(facts: dict[str, Any], wall: Any) -> dict[str, Any]:
    ended, failed, stopped = facts["ended"], facts["failed"], facts["stopped"]
    return {
        "round": facts["round"],
        "nodes": facts["nodes"],
        "world_size": facts["world_size"],
        "restarts": facts["restarts"],
        "formed": wall(facts["formed"]),
        "first_step": wall(facts["first_step"]),
        "ended": wall(ended),
        "cause": facts["cause"],
        "reason": facts["reason"],
        "node": facts["node"] or None,
        "rank": facts["rank"] if facts["rank"] >= 0 else None,
        "exit_code": facts["exit_code"] if facts["rank"] >= 0 else None,
        "rule": facts["rule"] or None,
        "phases": {
            "detect": between(failed, ended),
            "stop": between(ended, stopped),
            "rendezvous": None,
            "first_step": None,
        },
    }


def _add_following(ended: dict[str, Any], following: dict[str, Any]) -> None:
    """The time from the last worker's end, else the round's, to the next round; its first step."""
    phases = ended["phases"]
    if ended["ended"] is not None and following["formed"] is not None:
        since = ended["ended"] + (phases["stop"] or 0.0)
        phases["rendezvous"] = between(since, following["formed"])
    phases["first_step"] = between(following["formed"], following["first_step"])


def _result(result: _C.JobResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    return {
        "outcome": _outcome(result),
        "cause": result.cause.name.lower(),
        "exit_code": result.launcher_exit_code,
        "rank": result.rank if result.rank >= 0 else None,
        "node": result.node or None,
        "message": result.message,
        "lost": list(result.lost),
        "evidence": _evidence(result.evidence),
    }


def _evidence(evidence: _C.FailureEvidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {
        "host": evidence.host or None,
        "time": evidence.time or None,
        "class": evidence.failure_class,
        "cause": evidence.cause,
        "error": evidence.error or None,
        "hint": evidence.hint or None,
        "output": evidence.output,
    }


def _outcome(result: _C.JobResult) -> str:
    is_requested = result.cause == _C.JobCause.REQUESTED
    if is_requested and result.exit_code == _C.EXIT_STOPPED_AT_STEP:
        return "stopped"
    return result.outcome.name.lower()


def _node(facts: dict[str, Any]) -> dict[str, Any]:
    name = facts["name"]
    return {
        "name": name,
        "host": facts["host"] or name.partition("_")[0],
        "address": facts["address"] or None,
        "role": facts["role"] or None,
        "rank": facts["rank"] if facts["rank"] >= 0 else None,
        "state": facts["state"],
        "connected": facts["is_connected"],
        "hosts_coordinator": facts["hosts_coordinator"],
        "last_beat_seconds": round(facts["silence"], 3),
        "local_world_size": facts["local_world_size"],
        "workers_round": facts["workers_round"],
        "workers": facts["workers"],
    }


def _node_order(node: dict[str, Any]) -> tuple[bool, int, str]:
    rank = node["rank"]
    return rank is None, -1 if rank is None else rank, node["name"]
