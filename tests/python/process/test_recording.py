"""What agents record: the event log, torch's events and metrics, Prometheus."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from elastic import WorkerSpec, metrics
from elastic.agent.server import LocalElasticAgent, timeline

from support.launching import (
    clean_environment,
    free_endpoint,
    free_port,
    launch,
    launched,
    run_isolated,
    shell_job,
)
from support.receivers import Values

# Waits until both workers of the round run: a worker that fails before keeps the other one from its
# start.
BOTH_RUN = (
    "touch $MARKS.$ELASTIC_ROUND.$RANK; "
    "until test -e $MARKS.$ELASTIC_ROUND.0 -a -e $MARKS.$ELASTIC_ROUND.1; do sleep 0.02; done; "
)
# Fails in the first round, on the rank that is named.
FAILS_ONCE = f"{BOTH_RUN}test $ELASTIC_ROUND = 0 && test $RANK = $FAILING && exit 7; exit 0"


def sh(script: str) -> list[str]:
    return ["--no-python", "/bin/sh", "-c", script]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fetch(port: int, path: str = "/") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.smoke
def test_the_event_log_has_every_transition(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    begun = time.time() - 1  # the clocks are read one after the other
    done = launch(
        *(f"--event-log={log}", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=job7"),
        *sh(FAILS_ONCE),
        environ=clean_environment(FAILING="1", MARKS=str(tmp_path / "mark")),
    )
    assert done.returncode == 0, done.stderr
    lines = lines_of(log)
    assert {(line["schema"], line["job"]) for line in lines} == {(1, "job7")}
    assert all(begun <= line["time"] <= time.time() for line in lines)
    names = [line["event"] for line in lines if not line["event"].startswith("worker_")]
    del names[names.index("round_starting") + 1 : names.index("restarting")]  # a race of the fault
    assert names == [
        "agent_started",
        "round_starting",
        "restarting",
        "round_starting",
        "workers_running",
        "incident",
        "finished",
    ]
    started = [line for line in lines if line["event"] == "worker_started"]
    assert sorted((line["round"], line["rank"]) for line in started) == [
        (0, 0), (0, 1), (1, 0), (1, 1)
    ]  # fmt: skip
    failed = next(line for line in lines if line.get("exit_code") == 7)
    assert (failed["event"], failed["rank"], failed["stopped"]) == ("worker_exited", 1, False)
    incident = next(line for line in lines if line["event"] == "incident")
    assert (incident["cause"], incident["round"], incident["next_round"]) == ("worker_failed", 0, 1)
    assert (incident["local_rank"], incident["exit_code"]) == (1, 7)
    assert (incident["failure_class"], incident["failure_cause"]) == ("user worker", "exit code")
    assert list(incident["phases"]) == ["detect", "decide", "stop", "rendezvous", "start"]
    assert sum(incident["phases"].values()) == pytest.approx(incident["seconds"], abs=1e-4)
    last = lines[-1]
    assert (last["state"], last["exit_code"], last["restart_count"]) == ("SUCCEEDED", 0, 1)


STEPS = """
import os, sys
from elastic import _C, worker

with _C.StoreClient(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as store:
    for key in range(100):
        store.set(f"{os.environ['RANK']}/{key}", b"")
    store.wait(["0/99", "1/99"])  # the process group exists when the last rank has joined it
first = 5 if worker.is_restart() else 0
for step in range(first + 1, 11):
    worker.progress(step)
sys.exit(7 if os.environ["ELASTIC_ROUND"] == "0" and os.environ["RANK"] == "1" else 0)
"""


def test_an_incident_continues_to_the_first_step_and_counts_the_lost_ones(tmp_path: Path) -> None:
    script, log, result = (tmp_path / name for name in ("steps.py", "events", "result.json"))
    script.write_text(STEPS)
    done = launch(
        *(f"--event-log={log}", f"--result-json={result}", "--nproc-per-node=2"),
        *("--max-restarts=1", str(script)),
    )
    assert done.returncode == 0, done.stderr
    steps = [line for line in lines_of(log) if line["event"] == "first_step"]
    found = [(step["round"], step["step"], step["incident"], step["lost_steps"]) for step in steps]
    assert found == [(0, 1, None, None), (1, 6, 1, 5)]
    for step in steps:
        assert list(step["phases"]) == ["interpreter", "imports", "process_group", "first_step"]
        assert sum(step["phases"].values()) == pytest.approx(step["seconds"], abs=1e-4)
        assert step["phases"]["process_group"] > 0
    (incident,) = json.loads(result.read_text())["incidents"]
    assert (incident["round"], incident["next_round"], incident["lost_steps"]) == (0, 1, 5)
    assert list(incident["phases"]) == [
        *("detect", "decide", "stop", "rendezvous", "start"),
        *("interpreter", "imports", "process_group", "first_step"),
    ]
    assert sum(incident["phases"].values()) == pytest.approx(incident["seconds"], abs=1e-4)


def test_phases_add_up_whatever_the_order_of_their_ends() -> None:
    for marks in ([0, 1, 2, 9, 5], [0, None, 7, 3, 5], [0, 1, 2, 3, 5], [0, 9, 9, 9, 5]):
        phases = timeline._consecutive(marks)
        assert sum(phase or 0 for phase in phases) == 5, marks
    assert timeline._consecutive([0, None, None, None]) == [None] * 3


@pytest.mark.parametrize(
    ("incident", "interpreter", "imports", "seconds", "hint"),
    [
        (1, 0.3, 4.0, 4.4, "4.3 s of it"),
        (1, None, 4.0, 4.4, "4 s of it"),
        (None, 0.3, 4.0, 4.4, ""),  # the first round: there was no restart
        (1, 0.3, 0.6, 1.0, ""),  # little to save
        (1, 0.3, 4.0, 60.0, ""),  # the script's own start takes longer
    ],
)
def test_warm_workers_are_recommended_where_the_start_is_most_of_a_restart(
    incident: int | None, interpreter: float | None, imports: float, seconds: float, hint: str
) -> None:
    phases = {"interpreter": interpreter, "imports": imports, "process_group": None}
    step = {"incident": incident, "phases": phases, "seconds": seconds}
    assert hint in (timeline.warm_hint(step) or "")
    assert bool(timeline.warm_hint(step)) == bool(hint)


def test_agents_of_one_host_share_an_event_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    options = ("--max-restarts=1", f"--event-log={log}")
    with shell_job(free_endpoint(), "2", FAILS_ONCE, *options) as job:
        for _ in range(2):
            job.start(FAILING="1", MARKS=str(tmp_path / "mark"))
        job.succeed()
    incidents = [line for line in lines_of(log) if line["event"] == "incident"]
    assert [one["cause"] for one in incidents] == ["worker_failed"] * 2
    assert len({one["agent"] for one in incidents}) == 2
    # Only the node of the failed worker knows when and how it failed.
    assert [one["failure_class"] for one in incidents].count("user worker") == 1
    assert [one["phases"]["detect"] is None for one in incidents].count(True) == 1


def test_a_full_disk_does_not_end_the_job() -> None:
    done = launch("--event-log=/dev/full", *sh("exit 0"), check=True)
    assert done.stderr.count("cannot write the event log /dev/full") == 1


def test_a_job_without_receivers_loads_no_recorder() -> None:
    program = (
        "from elastic.cli.main import main; main(['--no-python', '/bin/true']);"
        "print([name for name in sys.modules if 'recording' in name or 'elastic.events' in name"
        " or 'elastic.metrics' in name or 'timeline' in name or 'http' in name])"
    )
    assert run_isolated(program) == "[]\n"


def test_torchs_events_are_recorded_beside_the_event_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    done = launch(
        *("--event-log-handler=console", f"--event-log={log}", "--nproc-per-node=2"),
        *sh(f"{BOTH_RUN}exit $RANK"),
        environ=clean_environment(MARKS=str(tmp_path / "mark")),
    )
    assert done.returncode == 1
    last = lines_of(log)[-1]
    assert (last["failure_class"], last["failure_cause"]) == ("user worker", "exit code")
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    names = Counter((event["name"].rpartition(".")[2], event["source"]) for event in events)
    assert names == {
        ("RENDEZVOUS", "AGENT"): 1,
        ("ASSIGN_WORKER_RANKS", "AGENT"): 1,
        ("START", "WORKER"): 2,
        ("FAILED", "WORKER"): 1,
        ("TERMINATED", "WORKER"): 1,
        ("FAILED", "AGENT"): 1,
    }
    assert all(event["timestamp"] > 0 for event in events)
    failed = next(
        event for event in events if (event["source"], event["metadata"]["state"])
        == ("WORKER", "FAILED")
    )  # fmt: skip
    inner = json.loads(failed["metadata"]["metadata"])
    assert (failed["metadata"]["global_rank"], inner["exit_code"]) == (1, 1)
    assert failed["metadata"]["worker_id"] == str(inner["worker_pid"])


class Raises(metrics.MetricHandler):
    def emit(self, metric_data: metrics.MetricData) -> None:
        raise RuntimeError("no such server")


def spec(script: str, **more: Any) -> WorkerSpec:
    return WorkerSpec("trainer", 2, entrypoint="/bin/sh", args=("-c", script), **more)


def test_torchs_metrics_reach_a_programs_handler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = Values()
    monkeypatch.setattr("elastic.metrics.api._default", [values])
    agent = LocalElasticAgent(
        spec(FAILS_ONCE, max_restarts=3),
        environment={"PATH": os.environ["PATH"], "FAILING": "0", "MARKS": str(tmp_path / "mark")},
    )
    assert agent.run().exit_code == 0
    got = values.by_name()
    assert got["workers.trainer.run_success_with_retries"] == 1
    assert got["workers.trainer.run_failed_no_retries"] == 0
    assert got["workers.trainer.remaining_restarts"] == 2
    assert got["workers.trainer.flakiness"] == 25
    assert {"workers.trainer.healthy", "workers.trainer.succeeded"} <= got.keys()
    for name in (
        "SimpleElasticAgent.run",
        "SimpleElasticAgent._rendezvous",
        "SimpleElasticAgent._initialize_workers",
        "SimpleElasticAgent._restart_workers",
        "LocalElasticAgent._start_workers",
        "LocalElasticAgent._stop_workers",
    ):
        assert got[f"{name}.success"] == 1
        assert got[f"{name}.duration.ms"] >= 0


def test_a_metric_handler_that_raises_does_not_end_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("elastic.metrics.api._default", [Raises()])
    with caplog.at_level(logging.WARNING):
        assert LocalElasticAgent(spec("exit 0")).run().exit_code == 0
    assert caplog.text.count("the metric handler failed") == 1


def test_prometheus_metrics_are_served_while_the_job_runs() -> None:
    pytest.importorskip("prometheus_client")
    port = free_port()
    script = "test $ELASTIC_ROUND = 0 && exit 3; echo ready; read line"
    with launched(f"--metrics-port={port}", "--max-restarts=1", "--role=r", *sh(script)) as job:
        assert job.stdout.readline() == "ready\n"
        status, text = fetch(port, "/metrics")
        while "elastic_incidents_total{" not in text:  # the event follows the worker's line
            status, text = fetch(port, "/metrics")
        job.stdin.write("go\n")
        job.stdin.flush()
    assert (status, job.returncode) == (200, 0)
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = {key.partition("{")[0]: value for key, value in shown.items()}
    assert labels["elastic_round"] == "1.0"
    assert labels["elastic_restarts"] == "1.0"
    assert labels["elastic_worker_failures_total"] == "1.0"
    assert labels["elastic_workers_running"] == "1.0"
    assert any('cause="worker_failed"' in key and value == "1.0" for key, value in shown.items())
