"""Rendezvous handlers of others under elastic's agents, and elastic's handler under torchrun."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from elastic import StoreServer, WorkerSpec, WorkerState, run
from elastic.agent.server import (
    HandlerElasticAgent,
    LocalElasticAgent,
    RunResult,
    WorkerGroup,
)
from elastic.launcher import LaunchConfig, elastic_launch
from elastic.multiprocessing import ChildFailedError, SignalException
from elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)

from support import launch_functions
from support.launching import Job, clean_environment, launch, launched
from support.plug_ins import options, plug_in
from support.receivers import Values, recorded_events
from support.remote_agent import RemoteAgent
from support.stubs.stub_handler_plug_in import CountingHandler
from support.waiting import together


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", 0) as server:
        yield server


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a launcher that finds the handler's distribution."""
    return clean_environment(PYTHONPATH=plug_in(tmp_path))


@pytest.mark.smoke
def test_a_failure_on_one_node_restarts_the_other(
    server: StoreServer, environ: dict[str, str], tmp_path: Path
) -> None:
    # Rank 3 fails when the others have printed their line.
    script = f"""
        exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT || exit 6
        echo "$RANK $GROUP_RANK $ELASTIC_ROUND"
        [ $ELASTIC_ROUND = 1 ] && exit 0
        touch {tmp_path}/begun.$RANK
        until [ $RANK = 3 -a $(ls {tmp_path} | grep -c begun) = 4 ]; do sleep 0.05; done
        exit 5
    """
    words = options(server, "--no-python", "--max-restarts=1")
    with Job(words, ["/bin/bash", "-c", script]) as nodes:
        for _ in range(2):
            nodes.start(PYTHONPATH=environ["PYTHONPATH"])
        done = nodes.succeed()
    rounds = [line.split()[2] for node in done for line in node.stdout.splitlines()]
    assert (rounds.count("0"), rounds.count("1")) == (4, 4)


def test_the_event_log_and_the_metrics_of_a_job_with_a_plugged_in_handler(
    server: StoreServer, environ: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    # Rank 1 fails when all workers are known to run.
    script = f"""
        [ $ELASTIC_ROUND = 1 ] && exit 0
        until [ $RANK = 1 ] && grep -q workers_running {log}; do sleep 0.05; done
        exit 5
    """
    words = options(server, "--no-python", "--max-restarts=1", f"--event-log={log}", nodes=1)
    launch(*words, "/bin/sh", "-c", script, environ=environ, check=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    names = [line["event"] for line in lines if not line["event"].startswith("worker_")]
    assert names == [
        *("agent_started", "round_starting", "workers_running", "stopping"),
        *("restarting", "round_starting", "workers_running", "incident", "finished"),
    ]
    exits = [line for line in lines if line["event"] == "worker_exited"]
    assert sorted((one["round"], one["rank"], one["stopped"]) for one in exits) == [
        (0, 0, True), (0, 1, False), (1, 0, False), (1, 1, False)
    ]  # fmt: skip
    incident = next(line for line in lines if line["event"] == "incident")
    assert (incident["round"], incident["next_round"]) == (0, 1)
    assert (incident["cause"], incident["local_rank"]) == ("worker_failed", 1)
    assert (incident["failure_class"], incident["failure_cause"]) == ("user worker", "exit code")
    assert all(seconds is not None for seconds in incident["phases"].values())
    assert (lines[-1]["state"], lines[-1]["restart_count"]) == ("SUCCEEDED", 1)


def test_one_warning_lists_the_options_that_a_plugged_in_handler_lacks(
    server: StoreServer, environ: dict[str, str]
) -> None:
    words = options(server, "--log-max-bytes=1M", "--merge-lines", "-t3", nodes=1)
    given = [*words, "--no-python", "/bin/true"]
    done = launch(*given, environ=environ, check=True)
    expected = "--log-max-bytes, --merge-lines have no effect with the rendezvous handler"
    assert done.stderr.count(expected) == 1
    strict = launch("--strict", *given, environ=environ)
    assert (strict.returncode, strict.stderr.count(expected)) == (2, 1)


def test_the_workers_code_is_reported_and_a_signal_stops_in_order(
    server: StoreServer, environ: dict[str, str]
) -> None:
    words = options(server, "--no-python", nodes=1)
    failed = launch(*words, "/bin/sh", "-c", "exit $((RANK + 4))", environ=environ)
    assert failed.returncode in (4, 5), failed.stderr
    assert "exited with code" in failed.stderr
    script = "echo up; while :; do sleep 0.05; done"
    words = [*words, "--rdzv-id=other", "/bin/sh", "-c", script]
    with launched(*words, environ=environ) as stopped:
        assert stopped.stdout.readline() == "up\n"
        stopped.send_signal(signal.SIGTERM)
        stopped.end(128 + signal.SIGTERM)


@pytest.mark.parametrize("option", ["--log-dir", "TMPDIR"])
def test_a_lost_log_directory_ends_the_job_with_one_sentence(
    option: str, server: StoreServer, environ: dict[str, str], tmp_path: Path
) -> None:
    (lost := tmp_path / "lost").mkdir()
    more = [f"--log-dir={lost}"] if option == "--log-dir" else []
    if not more:
        environ["TMPDIR"] = str(lost)
    script = f"rm -r {lost}; : >{lost}; exit 5"
    words = options(server, "--max-restarts=1", "--nproc-per-node=1", *more, nodes=1)
    done = launch(*words, "--no-python", "sh", "-c", script, environ=environ)
    assert done.returncode == 74, done.stderr
    assert f"cannot create the log files of the workers: {lost}/" in done.stderr
    assert "exited with code 5" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_cannot_be_executed_has_its_own_code(
    server: StoreServer, environ: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    words = options(server, "--max-restarts=0", "--no-python", nodes=1)
    done = launch(*words, str(program), environ=environ)
    assert done.returncode == 72, done.stderr
    assert "could not be started" in done.stderr
    assert "    error " not in done.stderr, "there is none besides the reason"


TIMED = """
import os, signal
from elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
hangs = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
with timer.expires(after=0.05 if hangs else 600, scope="step"):
    signal.pause() if hangs else None
"""


def test_watchdog_timers_work_with_a_plugged_in_handler(
    server: StoreServer, environ: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TIMED)
    environ |= {"TMPDIR": str(tmp_path), "TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    words = options(server, "--max-restarts=1", "--nproc-per-node=1", nodes=1)
    done = launch(*words, str(script), environ=environ, check=True)
    assert "the timer of step expired" in done.stderr


def test_functions_run_in_the_rounds_of_a_plugged_in_handler(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rendezvous_handler_registry._registry, "counting", CountingHandler)
    config = LaunchConfig(
        2, 2, 2, run_id="fn", rdzv_backend="counting",
        rdzv_endpoint=f"{server.host}:{server.port}",
    )  # fmt: skip
    call = functools.partial(elastic_launch(config, launch_functions.rank_and), "x")
    first, second = together(call, call)
    assert first | second == {rank: (rank, "x") for rank in range(4)}


class EndingHandler(CountingHandler):
    """Counts its shutdowns; fails in the rendezvous or in the shutdown."""

    def __init__(self, params: RendezvousParameters) -> None:
        super().__init__(params)
        self.shutdowns = 0

    def get_backend(self) -> str:
        return str(self._params.backend)

    def next_rendezvous(self) -> RendezvousInfo:
        if self._params.get("fails") == "rendezvous":
            raise RendezvousConnectionError("the store is gone")
        return super().next_rendezvous()

    def shutdown(self) -> bool:
        self.shutdowns += 1
        if self._params.get("fails") == "shutdown":
            raise OSError("the store is gone")
        return True


def by_function(endpoint: str, fails: str) -> None:
    config = LaunchConfig(1, 1, 1, run_id="job", rdzv_backend="ending", rdzv_endpoint=endpoint,
                          rdzv_configs={"fails": fails}, max_restarts=0)  # fmt: skip
    elastic_launch(config, "/bin/false")()


def by_command(endpoint: str, fails: str) -> None:
    run.main(["--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=ending", "--rdzv-id=job",
              f"--rdzv-endpoint={endpoint}", f"--rdzv-conf=fails={fails}", "--no-python",
              "/bin/false"])  # fmt: skip


@pytest.mark.parametrize("launch_it", [by_function, by_command])
def test_a_handler_is_shut_down_after_an_error_and_does_not_hide_it(
    launch_it: Callable[[str, str], None],
    server: StoreServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers: list[EndingHandler] = []

    def create(params: RendezvousParameters) -> EndingHandler:
        handlers.append(EndingHandler(params))
        return handlers[-1]

    monkeypatch.setattr(rendezvous_handler_registry, "_registry", {"ending": create})
    endpoint = f"{server.host}:{server.port}"
    with pytest.raises(RendezvousConnectionError):
        launch_it(endpoint, "rendezvous")
    with pytest.raises(ChildFailedError):
        launch_it(endpoint, "shutdown")
    assert [handler.shutdowns for handler in handlers] == [1, 1]
    assert "the shutdown of the rendezvous handler failed" in caplog.text


def remote_agent(server: StoreServer, run_id: str, *states: WorkerState) -> RemoteAgent:
    endpoint = f"{server.host}:{server.port}"
    handler = CountingHandler(RendezvousParameters("counting", endpoint, run_id, 1, 1))
    spec = WorkerSpec("trainer", 4, handler, None, "unused", (), 1, 3600.0)
    return RemoteAgent(spec, list(states))


def test_a_subclass_records_torchs_events_and_metrics(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Values()
    monkeypatch.setattr("elastic.metrics.api._default", [received])
    with recorded_events("null") as lines:
        remote_agent(server, "r", WorkerState.FAILED, WorkerState.SUCCEEDED).run("trainer")
    recorded = [json.loads(line) for line in lines]
    names = [event["name"].rpartition(".")[2] for event in recorded]
    round_events = ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", *["START"] * 4]
    assert names == [*round_events, *round_events, *["SUCCEEDED"] * 5]
    start = recorded[2]["metadata"]
    assert (start["worker_id"], start["role"]) == ("host0:9000", "trainer")
    values = received.by_name()
    assert values["workers.trainer.run_success_with_retries"] == 1
    assert values["SimpleElasticAgent.run.success"] == 1
    assert values["SimpleElasticAgent._restart_workers.success"] == 1


def test_agents_have_torchs_events_of_their_end(server: StoreServer) -> None:
    spec = WorkerSpec("trainer", 1, None, entrypoint="/bin/true", run_id="local")
    for agent in (remote_agent(server, "r", WorkerState.SUCCEEDED), LocalElasticAgent(spec)):
        agent.run("trainer")
        done = agent.get_event_succeeded()
        assert (done.name, done.source.value) == ("torchelastic.worker.status.SUCCEEDED", "AGENT")
        assert (done.metadata["role"], done.metadata["raw_error"]) == ("trainer", None)
        try:
            raise ValueError("broken")
        except ValueError:
            failed = agent.get_event_failed()
        assert failed.metadata["state"] == "FAILED"
        assert "ValueError: broken" in str(failed.metadata["raw_error"])


def test_a_subclass_starts_watches_and_stops_workers_with_opaque_ids(server: StoreServer) -> None:
    agent = remote_agent(
        server, "a", WorkerState.HEALTHY, WorkerState.FAILED, WorkerState.HEALTHY,
        WorkerState.SUCCEEDED,
    )  # fmt: skip
    result = agent.run("trainer")
    assert (result.state, result.exit_code) == (WorkerState.SUCCEEDED, 0)
    assert agent.calls == ["start", "stop", "start", "shutdown"]
    ids = [worker.id for worker in agent.get_worker_group("trainer").workers]
    assert ids == ["host0:9000", "host1:9001", "host0:9002", "host1:9003"]
    spent = remote_agent(server, "b", *[WorkerState.FAILED] * 2)
    result = spent.run()
    assert result.is_failed() and (result.restart_count, result.exit_code) == (1, 9)
    assert {rank: one.exitcode for rank, one in result.failures.items()} == {1: 9}
    assert spent.calls == ["start", "stop", "start", "stop", "shutdown"]


def test_a_subclass_is_shut_down_with_torchs_arguments(server: StoreServer) -> None:
    given: list[Any] = []

    class TorchsAgent(RemoteAgent):
        def _shutdown(self, *args: Any, **keywords: Any) -> None:
            given.append((args, keywords))

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result = super()._monitor_workers(worker_group)
            if result.state is WorkerState.HEALTHY:
                raise SignalException("interrupted", signal.SIGINT)
            return result

    for run_id, state in (("a", WorkerState.SUCCEEDED), ("b", WorkerState.HEALTHY)):
        agent = remote_agent(server, run_id, state)
        ended = TorchsAgent(agent.get_worker_group().spec, [state])
        with suppress(SignalException):
            ended.run()
    assert given == [((), {"timeout": 30}), ((signal.SIGINT,), {"timeout": 30})]


def test_nodes_with_other_roles_and_sizes_get_dense_ranks(server: StoreServer) -> None:
    sizes = [("a", 1), ("b", 1), ("a", 2)]
    found: list[Any] = []

    def node(role: str, size: int) -> None:
        handler = CountingHandler(
            RendezvousParameters("counting", f"{server.host}:{server.port}", "r", 3, 3)
        )
        spec = WorkerSpec(role, size, handler, entrypoint="/bin/true")
        agent = HandlerElasticAgent(spec, environment=dict(os.environ))
        agent.run()
        group = agent.get_worker_group()
        found.append(
            (group.group_rank, role, [(w.global_rank, w.role_rank, w.world_size,
                                       w.role_world_size) for w in group.workers])
        )  # fmt: skip

    together(*(functools.partial(node, *part) for part in sizes))
    ranks = [rank for _, _, part in sorted(found) for rank, *_ in part]
    assert ranks == [0, 1, 2, 3]
    for role, total in (("a", 3), ("b", 1)):
        of_role = [one for _, name, part in sorted(found) if name == role for one in part]
        assert [one[1] for one in of_role] == list(range(total))
        assert {one[2:] for one in of_role} == {(4, total)}
