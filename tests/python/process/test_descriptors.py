"""Low limits of open files: many idle connections at the endpoint, and an agent at its limit."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from elastic import StoreServer

from support.launching import (
    await_line,
    children,
    clean_environment,
    free_endpoint,
    free_port,
    launched,
    launcher_command,
    run_program,
    shell_job,
)
from support.plug_ins import options, plug_in

VALIDATE = struct.pack("<BI", 0, 0x3C85F7CE)
IDLE = 1100


@contextmanager
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * IDLE:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * IDLE), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("greeting", [b"", VALIDATE], ids=["silent", "validated"])
@pytest.mark.parametrize("limit", ["-Sn", "-n"], ids=["soft limit", "hard limit"])
def test_a_job_restarts_despite_many_idle_connections(
    limit: str, greeting: bytes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    endpoint = free_endpoint()
    script = f"ulimit -Sn; test $TORCHELASTIC_RESTART_COUNT = 1 || {{ read go <{gate}; exit 7; }}"

    def limited(*command: str) -> list[str]:
        return ["sh", "-c", f'ulimit {limit} 1024; exec "$@"', "sh", *command]

    nodes = shell_job(endpoint, "2", script, "--max-restarts=1", "--shutdown-timeout=5")
    with many_descriptors(), ExitStack() as idle, nodes as job:
        for node in (job.start(on=limited), job.start(on=limited)):
            assert node.stdout.readline() == "1024\n", "a worker has the user's limit"
        host, port = endpoint.split(":")
        for _ in range(IDLE):
            connection = idle.enter_context(socket.create_connection((host, int(port)), 30))
            with suppress(OSError):  # closed in favour of a newer one
                connection.sendall(greeting)
        gate.write_text("go\n")
        done = job.succeed()
    assert [node.stdout for node in done] == ["1024\n", "1024\n"]


def allow_no_file(pid: int) -> None:
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    lowest = next(number for number in itertools.count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, lowest))


@pytest.mark.parametrize(("restarts", "code"), [(0, 137), (1, 71)])
def test_a_failure_is_reported_by_an_agent_that_can_open_no_file(restarts: int, code: int) -> None:
    environ = clean_environment(PYTHONVERBOSE="1")
    options = ("--standalone", f"--max-restarts={restarts}", "--no-python")
    script = ["sh", "-c", "echo $$; exec sleep 600"]
    with launched(*options, *script, environ=environ) as agent:
        worker = int(agent.stdout.readline())
        await_line(agent, r"^import 'elastic\.cli\.result_json'")  # loaded when workers run
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, 3))
        os.kill(worker, signal.SIGKILL)
        _, errors = agent.communicate()
    assert agent.returncode == code, errors
    assert f"rank 0 (local rank 0, pid {worker}) killed by signal 9 (SIGKILL)" in errors
    assert ("Too many open files" in errors) is (restarts > 0)
    assert "Traceback" not in errors


# 16 workers have 32 log files; the launcher itself needs fewer than 24 descriptors.
@pytest.mark.parametrize("options", [[], ["--log-max-bytes=1M"]], ids=["files", "limited files"])
def test_log_files_beyond_the_limit_of_open_files_are_one_sentence(
    options: list[str], tmp_path: Path
) -> None:
    words = ["--standalone", "--nproc-per-node=16", "-t3", f"--log-dir={tmp_path}", *options]
    command = launcher_command(*words, "--no-python", "echo", "started")
    done = run_program(["sh", "-c", 'ulimit -n 32; exec "$@"', "sh", *command])
    what = r"the pipe \S+/elastic-run_\S+" if options else rf"{tmp_path}/\S+/attempt_0/\S+\.log"
    advice = r"\(the limit of open files is 32; raise it with ulimit -n\)"
    assert re.fullmatch(
        f"elastic-launch: cannot open {what}: Too many open files {advice}\n", done.stderr
    ), done.stderr
    assert (done.returncode, done.stdout) == (74, "")


def test_log_files_of_a_restart_without_a_descriptor_end_the_job(tmp_path: Path) -> None:
    # A fixed port: the store of the restart needs no descriptor.
    options = (f"--master-port={free_port()}", "--max-restarts=1", "-r3", f"--log-dir={tmp_path}")
    environ = clean_environment(PYTHONVERBOSE="1")
    script = ("--no-python", "sh", "-c", "exec sleep 600")
    with launched(*options, *script, environ=environ) as agent:
        await_line(agent, r"^import 'elastic\.cli\.result_json'")  # loaded when workers run
        [guardian] = children(agent.pid)
        [worker] = children(guardian)
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, 3))
        os.kill(worker, signal.SIGKILL)
        _, errors = agent.communicate()
    assert agent.returncode == 74, errors
    assert re.search(
        rf"cannot create {tmp_path}/\S+/attempt_1/0/stdout\.log: Too many open files "
        r"\(the limit of open files is 3; raise it with ulimit -n\)",
        errors,
    ), errors
    assert f"rank 0 (local rank 0, pid {worker}) killed by signal 9 (SIGKILL)" in errors
    assert "Traceback" not in errors


def test_a_restart_without_a_descriptor_fails_with_a_plug_in_too(tmp_path: Path) -> None:
    environ = clean_environment(PYTHONPATH=plug_in(tmp_path))
    with StoreServer("127.0.0.1", 0) as server:
        words = options(server, "--max-restarts=1", "--nproc-per-node=1", nodes=1)
        script = ["--no-python", "sh", "-c", "echo $$; exec sleep 600"]
        with launched(*words, *script, environ=environ) as agent:
            worker = int(agent.stdout.readline())
            resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, 3))
            os.kill(worker, signal.SIGKILL)
            _, errors = agent.communicate()
    assert agent.returncode == 71, errors
    assert "this node has no descriptor or memory left" in errors
    assert f"rank 0 (local rank 0, pid {worker}) killed by signal 9 (SIGKILL)" in errors
    assert "Traceback" not in errors


# The harness checks that no process is left.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_guardian_that_can_open_no_file_ends_all_processes(number: signal.Signals) -> None:
    script = ["sh", "-c", "setsid sleep 600 & echo started; exec sleep 600"]
    with launched("--standalone", "--no-python", *script) as agent:
        assert agent.stdout.readline() == "started\n"
        [guardian] = children(agent.pid)
        allow_no_file(guardian)
        agent.send_signal(number)
        _, errors = agent.communicate()
    assert agent.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL), errors
