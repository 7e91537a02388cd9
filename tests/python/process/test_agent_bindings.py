"""The bindings of the agent and of the worker group."""

import os
import pathlib
import signal
import threading
import time

import pytest
from elastic import _C

from support.launching import DEADLINE_S

Kind = _C.AgentEvent.Kind
ENV = {"PATH": os.environ["PATH"]}


def shell(script: str, **kwargs: object) -> _C.WorkerTemplate:
    return _C.WorkerTemplate(["/bin/sh", "-c", script], **kwargs)


def start(*workers: _C.WorkerTemplate, env: dict[str, str] = ENV, **kwargs: object) -> _C.Agent:
    return _C.Agent(_C.AgentOptions(list(workers), env=env, **kwargs))


def wait_for(agent: _C.Agent, kind: Kind) -> _C.AgentEvent:
    while (event := agent.next_event(timeout=DEADLINE_S)) is not None:
        if event.kind == kind:
            return event
    raise AssertionError(f"no event {kind}")


def finish(agent: _C.Agent) -> _C.AgentResult:
    wait_for(agent, Kind.FINISHED)
    return agent.result


@pytest.mark.smoke
def test_round_is_reported_and_succeeds(tmp_path: pathlib.Path) -> None:
    worker = shell(
        'echo "$RANK $MASTER_PORT $MINE"', env={"MINE": "x"}, stdout_target=_C.StreamTarget.FILE
    )
    begun = time.monotonic()
    with start(worker, run_id="job", role="trainer", log_dir=str(tmp_path)) as agent:
        event = wait_for(agent, Kind.ROUND_STARTING)
        assert (event.round.round, event.round.group_rank, event.round.restart_count) == (0, 0, 0)
        assert [worker.rank for worker in event.round.workers] == [0]
        assert pathlib.Path(event.log_dir).is_relative_to(tmp_path)
        exited = wait_for(agent, Kind.WORKER_EXITED)
        assert exited.exit.kind == _C.ExitKind.EXITED
        assert exited.exit.succeeded
        assert begun <= exited.exit.at <= time.monotonic()
        result = finish(agent)
        assert (result.state, result.exit_code) == (_C.AgentState.SUCCEEDED, 0)
        assert agent.next_event() is None
        log = pathlib.Path(event.log_dir, "0", "stdout.log").read_text()
        assert log == f"0 {event.round.master_port} x\n"


def test_failures_carry_their_exit_and_files() -> None:
    worker = shell("echo why > $TORCHELASTIC_ERROR_FILE; kill -SEGV $$")
    with start(worker, max_restarts=1) as agent:
        result = finish(agent)
        assert result.exit_code == 128 + signal.SIGSEGV
        [failure] = result.failures
        assert failure.exit.signal == signal.SIGSEGV
        assert failure.exit.shell_code == 139
        error_file = pathlib.Path(failure.error_file)
        assert error_file.read_text() == "why\n"
        assert "SIGSEGV" in result.message
    assert not error_file.exists()


def test_invalid_options_are_config_errors() -> None:
    with pytest.raises(_C.ConfigError, match="at least one worker"):
        start()
    with pytest.raises(ValueError, match="null byte"):
        start(_C.WorkerTemplate(["a\0b"]))


def test_next_event_returns_none_at_its_timeout() -> None:
    with start(shell("exec sleep 1000")) as agent:
        wait_for(agent, Kind.WORKERS_RUNNING)
        assert agent.next_event(timeout=0.01) is None
        with pytest.raises(_C.ElasticError, match="finished"):
            _ = agent.result


def test_close_ends_a_call_that_waits_in_another_thread() -> None:
    agent = start(shell("exec sleep 1000"))
    wait_for(agent, Kind.WORKERS_RUNNING)
    closed: list[Exception] = []

    def wait() -> None:
        try:
            while agent.next_event() is not None:
                pass
        except _C.ElasticError as error:
            closed.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    agent.close()
    agent.close()
    waiter.join(DEADLINE_S)
    assert not waiter.is_alive()
    assert [str(error) for error in closed] == ["the agent is closed"]
    with pytest.raises(_C.ElasticError, match="closed"):
        agent.next_event()


# A process that a handler starts inherits the mask.
def test_signal_handlers_run_in_a_wait_with_the_programs_mask_and_may_end_it(
    tmp_path: pathlib.Path,
) -> None:
    masks: list[set[signal.Signals]] = []
    os.mkfifo(handled := tmp_path / "handled")
    main = threading.main_thread().ident
    assert main is not None

    def handler(*_: object) -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        if len(masks) == 1:
            raise KeyError("handled")
        handled.write_text("")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with start(shell(f"read line <{handled}; exit 0")) as agent:
            wait_for(agent, Kind.WORKERS_RUNNING)
            with pytest.raises(KeyError):
                threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGUSR1]).start()
                finish(agent)
            # Its handler runs in the wait's first check, after the brief wait without one.
            threading.Timer(0.001, signal.pthread_kill, [main, signal.SIGUSR1]).start()
            assert finish(agent).exit_code == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert masks == [set(), set()]


def test_a_worker_group_starts_forwards_and_stops(tmp_path: pathlib.Path) -> None:
    Event = _C.WorkerEvent.Kind
    output = tmp_path / "out"
    os.mkfifo(output)
    reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
    script = "trap 'echo got' USR1; echo ready; while :; do sleep 0.01; done"
    with _C.WorkerGroup() as group:
        group.start([_C.WorkerCommand(["/bin/sh", "-c", script], env=ENV, stdout_path=str(output))])
        started = group.next_event(timeout=DEADLINE_S)
        assert (started.kind, started.generation) == (Event.STARTED, 1)
        os.set_blocking(reader, True)
        with os.fdopen(reader) as lines:
            assert lines.readline() == "ready\n"
            group.forward(signal.SIGUSR1, _C.SignalScope.LEADER)
            assert lines.readline() == "got\n"
        group.stop(signal.SIGTERM, DEADLINE_S)
        exited = group.next_event(timeout=DEADLINE_S)
        assert (exited.kind, exited.exit.signal) == (Event.EXITED, signal.SIGTERM)
        assert exited.exit.stopped_by_us
        assert group.next_event(timeout=DEADLINE_S).kind == Event.GROUP_ENDED
        assert group.next_event(timeout=0) is None


def test_an_agent_is_an_error_in_a_forked_child() -> None:
    with start(shell("sleep 1000")) as agent:
        wait_for(agent, Kind.WORKERS_RUNNING)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                agent.next_event(timeout=0)
            except _C.ElasticError as error:
                code = 0 if "the agent belongs to the parent process" in str(error) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        agent.request_stop(signal.SIGTERM)
        assert finish(agent).exit_code == 143


def test_native_values_show_their_fields() -> None:
    assert repr(shell("true")) == (
        "<WorkerTemplate argv=['/bin/sh', '-c', 'true'] stdout_target=<StreamTarget.INHERIT: 0> "
        "stderr_target=<StreamTarget.INHERIT: 0>>"
    )
    with start(shell("exit 3")) as agent:
        event = wait_for(agent, Kind.WORKER_EXITED)
        assert "local_rank=0" in repr(event) and "WORKER_EXITED" in repr(event)
        assert repr(event.round).startswith("<RoundInfo round=0 restart_count=0 group_rank=0")
        assert "rank=0" in repr(event.round.workers[0])
        result = finish(agent)
    assert "exit_code=3" in repr(result) and "<WorkerExit: exited with code 3>" in repr(result)
    for value in (
        _C.AgentOptions([shell("true")], env={}),
        _C.RendezvousOptions(),
        _C.WorkerCommand(["true"], env={}),
        _C.file_backend("/nowhere", "job"),
    ):
        assert " object at 0x" not in repr(value)
