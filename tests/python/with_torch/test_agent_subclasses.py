"""Subclasses of LocalElasticAgent that override what torch's agent calls, over real processes."""

from __future__ import annotations

import inspect
import signal
from pathlib import Path
from typing import Any

import pytest
from elastic.agent.server import (
    LocalElasticAgent,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from elastic.launcher import LaunchConfig, elastic_launch
from elastic.multiprocessing import (
    ChildFailedError,
    DefaultLogsSpecs,
    PContext,
    start_processes,
)
from elastic.rendezvous import RendezvousParameters, get_rendezvous_handler

HOOKS = (
    "run", "_invoke_run", "_initialize_workers", "_rendezvous", "_assign_worker_ranks",
    "_start_workers", "_monitor_workers", "_restart_workers", "_stop_workers", "_exit_barrier",
    "_shutdown", "_record_metrics", "_record_worker_events",
)  # fmt: skip

ROUND = ["_initialize_workers", "_rendezvous", "_assign_worker_ranks", "_start_workers"]
# For a job whose workers fail once; torch's agent is compared with it below.
CALLS = [
    *("run", "_invoke_run", *ROUND, "_monitor_workers"),
    *("_restart_workers", "_stop_workers", "_shutdown", *ROUND, "_monitor_workers"),
    *("_exit_barrier", "_record_metrics", "_record_worker_events", "_shutdown"),
]


def recording(base: Any) -> tuple[Any, list[str]]:
    """A subclass of an agent that notes the calls of its methods; repeated checks count once."""
    calls: list[str] = []

    def hook(name: str) -> Any:
        original = getattr(base, name)

        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            if name != "_monitor_workers" or calls[-1] != name:
                calls.append(name)
            return original(self, *args, **keywords)

        return call

    return type("Recording", (base,), {name: hook(name) for name in HOOKS}), calls


def fails_once(folder: Path) -> tuple[str, ...]:
    return ("-c", f"mkdir {folder}/failed.$RANK 2>/dev/null && exit 3; exit 0")


def spec(run_id: str, *args: str, restarts: int = 1, **more: Any) -> WorkerSpec:
    handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", run_id, 1, 1))
    return WorkerSpec(
        "trainer", 1, handler, entrypoint="/bin/sh", args=args, max_restarts=restarts,
        monitor_interval=0.01, **more,
    )  # fmt: skip


def test_every_hook_runs_in_the_order_of_torch(tmp_path: Path) -> None:
    agent, calls = recording(LocalElasticAgent)
    result = agent(spec("order", *fails_once(tmp_path)), DefaultLogsSpecs()).run()
    assert (result.state, result.restart_count) == (WorkerState.SUCCEEDED, 1)
    assert calls == CALLS


def test_the_order_is_that_of_torch(tmp_path: Path) -> None:
    from torch.distributed.elastic.agent.server import api, local_elastic_agent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs as TorchsLogsSpecs
    from torch.distributed.elastic.rendezvous import registry
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters as Parameters

    agent, calls = recording(local_elastic_agent.LocalElasticAgent)
    handler = registry.get_rendezvous_handler(Parameters("c10d", "localhost:0", "order", 1, 1))
    torchs = api.WorkerSpec(
        "trainer", 1, handler, entrypoint="/bin/sh", args=fails_once(tmp_path), max_restarts=1,
        monitor_interval=0.01,
    )  # fmt: skip
    saved = {number: signal.getsignal(number) for number in (2, 3, 15, 1)}
    try:
        result = agent(torchs, TorchsLogsSpecs(), exit_barrier_timeout=1).run()
    finally:
        for number, previous in saved.items():
            signal.signal(number, previous)
    assert result.state == WorkerState.SUCCEEDED
    assert calls == CALLS
    ours = inspect.signature(LocalElasticAgent).parameters
    theirs = inspect.signature(local_elastic_agent.LocalElasticAgent).parameters
    assert list(ours)[: len(theirs)] == list(theirs)


def test_only_a_class_without_hooks_runs_the_native_agent() -> None:
    class Named(LocalElasticAgent):
        def __init__(self, *args: Any, name: str, **more: Any) -> None:
            super().__init__(*args, **more)
            self.name = name

    named = Named(WorkerSpec("r", 1, entrypoint="/bin/true"), name="x")
    assert isinstance(named, SimpleElasticAgent)
    assert named._native_agent is not None
    assert named.run().exit_code == 0

    class Watched(LocalElasticAgent):
        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            return super()._monitor_workers(worker_group)

    watched = Watched(WorkerSpec("r", 1, entrypoint="/bin/true"))
    assert watched._native_agent is None
    assert watched.run().exit_code == 0


class StartsItself(LocalElasticAgent):
    """Starts its own processes and runs its own loop, as the agents of DeepSpeed and HyperPod."""

    def __init__(self, spec: WorkerSpec, env: dict[str, str], start_method: str = "spawn") -> None:
        super().__init__(spec, DefaultLogsSpecs(), start_method)
        self.env = env

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        assert worker_group.store is not None
        envs = {}
        for worker in worker_group.workers:
            envs[worker.local_rank] = {
                **self.env,
                "RANK": str(worker.global_rank),
                "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
                "RESTARTS": str(spec.max_restarts - self._remaining_restarts),
            }
        self._setup_local_watchdog(envs=envs)
        self._setup_healthcheck()
        self._pcontext = start_processes(
            spec.role,
            str(spec.entrypoint),
            dict.fromkeys(envs, spec.args),
            envs,
            self._logs_specs,
            start_method=self._start_method,
        )
        return self._pcontext.pids()

    def _invoke_run(self, role: str = "default") -> RunResult:
        group = self._worker_group
        self._initialize_workers(group)
        while True:
            result = self._monitor_workers(group)
            group.state = result.state
            if result.state is WorkerState.SUCCEEDED:
                self._exit_barrier()
                return result
            if result.state is WorkerState.FAILED:
                if self._remaining_restarts == 0:
                    self._stop_workers(group)
                    return result
                self._remaining_restarts -= 1
                self._restart_workers(group)
            else:
                assert result.state is WorkerState.HEALTHY
                self._pcontext.wait(0.05)


def test_a_subclass_starts_its_own_processes_in_its_own_loop() -> None:
    script = 'test "$MARK$RESTARTS" = x1'
    agent = StartsItself(spec("own", "-c", script), {"MARK": "x"})
    result = agent.run()
    assert (result.state, result.restart_count) == (WorkerState.SUCCEEDED, 1)
    failed = StartsItself(spec("failing", "-c", "exit 7", restarts=0), {}).run()
    assert (failed.state, failed.exit_code, failed.failures[0].exitcode) == (
        WorkerState.FAILED, 7, 7
    )  # fmt: skip


def test_a_subclass_sees_the_guardians_workers_as_processes(tmp_path: Path) -> None:
    seen: list[Any] = []
    go = tmp_path / "go"

    class Watches(LocalElasticAgent):
        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            context = self._pcontext
            seen.append((isinstance(context, PContext), context.pids()[0], context.wait(0.01)))
            go.touch()
            return super()._monitor_workers(worker_group)

    script = f"until [ -e {go} ]; do sleep 0.05; done"
    agent = Watches(spec("watched", "-c", script, restarts=0))
    assert agent.run().state is WorkerState.SUCCEEDED
    pid = agent.get_worker_group().workers[0].id
    assert seen[0] == (True, pid, None)


def test_a_launch_with_a_replaced_agent_fails_with_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class GivesUp(LocalElasticAgent):
        def run(self, role: str = "default") -> RunResult:
            return RunResult(WorkerState.FAILED, failures=super().run(role).failures)

    monkeypatch.setattr("elastic.launcher.api.LocalElasticAgent", GivesUp)
    config = LaunchConfig(1, 1, 1, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
    with pytest.raises(ChildFailedError):
        elastic_launch(config, "/bin/false")()
