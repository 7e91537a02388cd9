"""The agent in a Python program."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic import (
    _C,
    ConfigError,
    LocalElasticAgent,
    LogOptions,
    ProcessFailure,
    Std,
    WorkerSpec,
    WorkerState,
)
from elastic.rendezvous import RendezvousParameters, get_rendezvous_handler

from support.launching import DEADLINE_S, free_port, run_program, started
from support.waiting import together


def agent(program: str, **more: Any) -> LocalElasticAgent:
    logs = more.pop("logs", None)
    rendezvous = more.pop("rendezvous", None)
    fields = {"role": "default", "local_world_size": 2, "max_restarts": 0} | more
    spec = WorkerSpec(entrypoint="/bin/sh", args=("-c", program), **fields)
    return LocalElasticAgent(
        spec, logs, environment=dict(os.environ), shutdown_timeout=5.0, rendezvous=rendezvous
    )


def test_success_has_no_failures_and_an_agent_runs_once() -> None:
    runner = agent("exit 0")
    assert runner.get_worker_group().state is WorkerState.INIT
    result = runner.run()
    assert (result.state, result.exit_code, result.failures) == (WorkerState.SUCCEEDED, 0, {})
    assert not result.is_failed()
    group = runner.get_worker_group()
    assert (group.group_rank, group.group_world_size, group.state) == (0, 1, result.state)
    assert [worker.global_rank for worker in group.workers] == [0, 1]
    assert all(worker.id and worker.world_size == 2 for worker in group.workers)
    with pytest.raises(RuntimeError, match="once"):
        runner.run()


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_workers_have_torchs_default_for_errors_of_nccl(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NCCL_ASYNC_ERROR_HANDLING", raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    check = f'[ "${name}" = {expected} ]'
    spec = WorkerSpec("default", 1, entrypoint="/bin/sh", args=("-c", check))
    assert LocalElasticAgent(spec).run().state is WorkerState.SUCCEEDED


def test_failures_are_by_rank_with_torchs_fields(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    fails = f"until test -e {begun}; do sleep 0.02; done; echo why >&2; kill -9 $$"
    program = f"[ $RANK = 1 ] && {{ {fails}; }}; touch {begun}; while :; do sleep 0.05; done"
    result = agent(program, logs=LogOptions(str(tmp_path), Std.NONE, {1: Std.ERR})).run()
    assert result.is_failed()
    assert (result.exit_code, result.stopped) == (137, (0,))
    [failure] = result.failures.values()
    assert isinstance(failure, ProcessFailure)
    assert (failure.rank, failure.exitcode, failure.signal_name()) == (1, -9, "SIGKILL")
    assert failure.stderr_tail == ("why",)
    assert Path(failure.log_dir, "stderr.log").read_text() == "why\n"


@pytest.mark.smoke
def test_restarts_are_counted() -> None:
    result = agent("exit $((2 - TORCHELASTIC_RESTART_COUNT))", max_restarts=3).run()
    assert (result.state, result.restart_count) == (WorkerState.SUCCEEDED, 2)


def test_stop_request_before_the_start_is_kept() -> None:
    runner = agent("while :; do sleep 0.05; done")
    runner.request_stop(signal.SIGTERM)
    assert runner.run().exit_code == 128 + signal.SIGTERM


MEETING = _C.RendezvousOptions(endpoint_host="127.0.0.1", endpoint_port=1)


@pytest.mark.parametrize(
    ("fields", "more", "expected"),
    [
        ({"entrypoint": ""}, {}, "the entry point is empty"),
        ({"local_world_size": 0}, {}, "local_world_size is 0"),
        ({"max_restarts": -1}, {}, "max_restarts is -1"),
        ({"master_addr": "127.0.0.1", "local_addr": "127.0.0.2"}, {}, "different addresses"),
        ({"local_addr": "127.0.0.1"}, {"rendezvous": MEETING}, "rendezvous"),
        ({}, {"stop_scope": "x"}, "stop_scope is 'x': expected one of group, leader, handler"),
    ],
)
def test_invalid_settings_are_rejected(
    fields: dict[str, Any], more: dict[str, Any], expected: str
) -> None:
    spec = WorkerSpec(**({"role": "r", "local_world_size": 1, "entrypoint": "/bin/true"} | fields))
    with pytest.raises(ConfigError, match=expected):
        LocalElasticAgent(spec, environment={}, **more)


def test_agents_of_several_nodes_share_one_rendezvous() -> None:
    port = free_port()
    runners = []
    for is_host in (True, False):
        meeting = _C.RendezvousOptions(
            endpoint_host="127.0.0.1",
            endpoint_port=port,
            is_host=is_host,
            min_nodes=2,
            max_nodes=2,
        )
        runners.append(
            agent(
                "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 4; "
                "test $RANK = 3 && exit 3; sleep 1000",
                max_restarts=1,
                rendezvous=meeting,
            )
        )
    one, other = together(*(runner.run for runner in runners))
    assert (one.exit_code, other.exit_code) == (4, 4)
    assert (one.restart_count, other.restart_count) == (1, 1)
    assert one.job is not None and other.job is not None
    assert one.job.outcome == _C.JobOutcome.FAILED and "exit_code=4" in repr(one.job)
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert (one.job.node, one.job.rank) == (other.job.node, other.job.rank)
    assert sorted(runner.get_worker_group().group_rank or 0 for runner in runners) == [0, 1]
    ranks = [
        worker.global_rank for runner in runners for worker in runner.get_worker_group().workers
    ]
    assert sorted(ranks) == [0, 1, 2, 3]


def test_master_addr_of_a_spec_replaces_that_of_the_rendezvous(tmp_path: Path) -> None:
    handler = get_rendezvous_handler(
        RendezvousParameters(
            "c10d", f"127.0.0.1:{free_port()}", "job", 1, 2, last_call_timeout=0.1, is_host=True
        )
    )
    spec = WorkerSpec(
        role="r", local_world_size=1, entrypoint="/bin/sh", rdzv_handler=handler,
        args=("-c", f"echo $MASTER_ADDR > {tmp_path / 'seen'}"), master_addr="node0.example",
        local_addr="127.0.0.1",
    )  # fmt: skip
    runner = LocalElasticAgent(spec)
    assert runner.run().exit_code == 0
    assert (tmp_path / "seen").read_text() == "node0.example\n"
    assert runner.get_worker_group().master_addr == "node0.example"


SIGNALLED = """
import signal, sys
from elastic import LocalElasticAgent, WorkerSpec
from elastic.multiprocessing import SignalException

class Overriding(LocalElasticAgent):
    def _start_workers(self, worker_group):
        return super()._start_workers(worker_group)

script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
kind = Overriding if sys.argv[1] == "overriding" else LocalElasticAgent
agent = kind(WorkerSpec("trainer", 1, entrypoint="/bin/sh", args=("-c", script)))
if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, lambda number, _: agent.request_stop(number))
try:
    print(agent.run().state.name)
except SignalException as error:
    print(error.sigval.name, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


@pytest.mark.parametrize(
    ("kind", "printed"),
    [
        ("plain", "SIGTERM True"),
        ("overriding", "SIGTERM True"),
        ("handled", "STOPPED"),
    ],
)
def test_a_signal_stops_the_workers_unless_the_program_handles_it(kind: str, printed: str) -> None:
    with started([sys.executable, "-c", SIGNALLED, kind]) as program:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        stdout, stderr = program.communicate(timeout=DEADLINE_S)
    assert (stdout, program.returncode) == (f"saved\n{printed}\n", 0), stderr


# The signal arrives when the worker runs, and before the call that starts it has returned.
INTERRUPTED = """
import os, signal, sys
from elastic import LocalElasticAgent, WorkerSpec, _C
from elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes
from elastic.torch_compat.processes import subprocess_context

def receive():
    with open("ready") as pipe:
        pipe.read()
    os.kill(os.getpid(), signal.SIGTERM)

class Group(_C.WorkerGroup):
    def start(self, commands):
        super().start(commands)
        receive()

class Overriding(LocalElasticAgent):
    def _start_workers(self, worker_group):
        return super()._start_workers(worker_group)

def started(*arguments, start=subprocess_context.get_subprocess_handler):
    handler = start(*arguments)
    receive()
    return handler

_C.WorkerGroup, subprocess_context.get_subprocess_handler = Group, started
command = "-c", "trap 'echo saved; exit 0' TERM; echo > ready; while :; do sleep 0.1; done"
os.mkfifo("ready")
try:
    if sys.argv[1] == "agent":
        Overriding(WorkerSpec("trainer", 1, entrypoint="/bin/sh", args=command)).run()
    else:
        start_processes("trainer", "/bin/sh", {0: command}, {0: {}}, DefaultLogsSpecs())
except SignalException as error:
    print(error.sigval.name)
"""


@pytest.mark.parametrize("kind", ["agent", "processes"])
def test_a_signal_while_workers_are_started_stops_them(kind: str, tmp_path: Path) -> None:
    ran = run_program([sys.executable, "-c", INTERRUPTED, kind], cwd=tmp_path)
    assert (ran.stdout, ran.returncode) == ("saved\nSIGTERM\n", 0), ran.stderr
