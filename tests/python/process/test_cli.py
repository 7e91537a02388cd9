"""The command line: real processes, exit codes, and output."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support import coordinators
from support.launching import (
    await_line,
    children,
    clean_environment,
    launch,
    launched,
    launcher_command,
    run_isolated,
    run_program,
)


def sh(program: str, *options: str, **more: object) -> subprocess.CompletedProcess[str]:
    return launch(*options, "--no-python", "/bin/sh", "-c", program, **more)


@pytest.mark.smoke
def test_a_successful_job_prints_what_its_workers_print_and_nothing_else() -> None:
    done = sh("echo rank $RANK", "--nproc-per-node=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]


@pytest.mark.parametrize(
    ("program", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 77", 77), ("exit 255", 255), ("kill -9 $$", 137),
     ("kill -11 $$", 139)],
)  # fmt: skip
def test_the_exit_code_is_the_workers(program: str, code: int) -> None:
    assert sh(program).returncode == code


def test_the_exit_code_is_that_of_the_first_to_fail(tmp_path: Path) -> None:
    # Rank 0 fails only because it is stopped after rank 1 has failed.
    # Its shell may report on stderr that its "sleep" was stopped, too.
    ready = tmp_path / "ready"
    program = (
        f"[ $RANK = 1 ] && {{ until test -e {ready}; do sleep 0.02; done; exit 5; }}; exec 2>&-; "
        f"trap 'exit 6' TERM; touch {ready}; while :; do sleep 0.05; done"
    )
    done = sh(program, "--nproc-per-node=2")
    assert done.returncode == 5
    assert "rank 1 (local rank 1, pid " in done.stderr.splitlines()[0]
    assert "exited with code 5" in done.stderr.splitlines()[0]
    assert "stopped by the launcher, not failed: rank 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("options", "times"), [((), 1), (("--nproc-per-node=2",), 2)])
def test_the_stderr_of_the_only_worker_is_shown_once(options: Sequence[str], times: int) -> None:
    program = "[ $RANK = 0 ] || exec sleep 1000; echo broken >&2; exit 3"
    done = sh(program, *options)
    assert (done.returncode, done.stderr.count("broken\n")) == (3, times), done.stderr


def test_a_script_of_standard_input_is_whole_for_every_worker_and_round(tmp_path: Path) -> None:
    (tmp_path / "beside_the_launcher.py").touch()
    script = (
        "import os, sys, beside_the_launcher\n"
        "os.write(1, ('%s %s %s\\n' % (os.environ['RANK'], __name__, sys.argv[1:])).encode())\n"
        "sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n"
    ) + "#" * 200_000  # more than one read of a pipe
    command = launcher_command("--nproc-per-node=2", "--max-restarts=1", "-", "-x")
    done = run_program(command, cwd=tmp_path, input=script, check=True)
    lines = set(done.stdout.splitlines())
    assert lines == {"0 __main__ ['-x']", "1 __main__ ['-x']"}, done.stdout
    dry = run_program(launcher_command("--dry-run", "-"))
    assert f"{sys.executable} -u -\n" in dry.stdout


def test_a_killed_guardian_is_reported_before_a_worker_that_failed_too(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Rank 1 fails when rank 0 has its trap, and rank 0 does not end when it is stopped.
    work = f"trap 'echo stopping' TERM; echo >{gate}; while :; do sleep 0.05; done"
    program = f"[ $RANK = 1 ] && read line <{gate} && exit 3; exec 2>&-; {work}"
    words = ["--nproc-per-node=2", "--shutdown-timeout=600", "--no-python", "/bin/sh", "-c"]
    with launched(*words, program) as process:
        assert process.stdout.readline() == "stopping\n"
        [guardian] = children(process.pid)
        os.kill(guardian, signal.SIGKILL)
        _, stderr = process.end(71)
    stopped, first, *rest = stderr.splitlines()
    assert stopped.endswith("exited with code 3; stopping the other workers, which have 10 min")
    reason = f"the guardian (pid {guardian}) was killed by signal 9; its workers were killed"
    assert first == f"elastic-launch: /bin/sh failed: {reason}"
    worker = r"also failed here: rank 1 \(local rank 1, pid \d+\) exited with code 3"
    assert any(re.fullmatch(worker, line) for line in rest), stderr


# Each message has its test in unit/test_config.py.
@pytest.mark.parametrize(
    "words", [[], ["--nproc-per-node=x", "/bin/true"], ["--log-dir=/proc/nothing", "/bin/true"]]
)
def test_bad_input_is_one_line_on_stderr_and_code_2(words: list[str]) -> None:
    done = launch(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("elastic-launch: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.smoke
def test_a_mistyped_option_is_reported_with_the_nearest_one() -> None:
    done = launch("--rdzv_endpont=a", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    expected = "there is no option --rdzv_endpont; did you mean --rdzv-endpoint?"
    assert done.stderr.startswith(f"elastic-launch: {expected}"), done.stderr


def test_an_unknown_variable_is_a_warning_or_with_strict_bad_input() -> None:
    message = "PET_NPROC is an unknown variable and is ignored (did you mean PET_NPROC_PER_NODE?)"
    environ = clean_environment(PET_NPROC="2", PET_STORE_PORT="tcp://10.0.0.7:80")
    done = launch("--no-python", "/bin/true", environ=environ, check=True)
    assert len(done.stderr.splitlines()) == 1
    assert "PET_STORE_PORT" not in done.stderr
    environ = clean_environment(PET_NPROC="2")
    refused = launch("--strict", "--no-python", "/bin/true", environ=environ)
    assert refused.returncode == 2
    assert refused.stderr == f"elastic-launch: {message} (an error, because of --strict)\n"


def test_a_host_name_that_cannot_be_resolved_is_tried_until_the_join_timeout() -> None:
    # The resolver refuses so long a name itself; a name server may take longer than the timeout.
    host = ".".join(["a" * 63] * 5)
    words = [f"--master-addr={host}", "--rdzv-conf=join_timeout=4"]
    done = launch(*words, "--no-python", "/bin/true")
    assert done.returncode == 75
    waiting, result = done.stderr.splitlines()
    assert re.search(r"cannot resolve 'aaaa.*'.*gives up at \d\d:\d\d:\d\d$", waiting)
    assert result.endswith("; gave up after 4 s")


def test_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = launch(f"--master-port={port}", "--no-python", "/bin/true")
    assert done.returncode == 73
    assert len(done.stderr.splitlines()) == 1
    assert re.search(rf"\b{port}\b.*\b{os.getpid()}\b", done.stderr), "the holder is named"


def test_program_that_cannot_be_executed_has_its_own_code(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    done = launch("--no-python", "--max-restarts=3", str(program))
    assert done.returncode == 72
    assert "could not be started" in done.stderr
    assert "Traceback" not in done.stderr


DUMP = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump({"env": dict(os.environ), "argv": sys.argv}, file)
"""


@pytest.mark.smoke
def test_workers_have_the_variables_and_arguments_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    words = ["--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=job", "--role=trainer"]
    others = ["$$", "$HOME", "--fail", "--worker", "3"]
    launch(*words, str(script), str(tmp_path), "log-${local_rank}", *others, check=True)
    for rank in (0, 1):
        dumped = json.loads((tmp_path / str(rank)).read_text())
        assert dumped["argv"][2:] == [f"log-{rank}", *others]
        env = dumped["env"]
        expected = {
            "RANK": f"{rank}",
            "LOCAL_RANK": f"{rank}",
            "ROLE_RANK": f"{rank}",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "ROLE_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "trainer",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
        assert {name: env.get(name) for name in expected} == expected
        assert 0 < int(env["MASTER_PORT"]) < 65536
        assert int(env["OMP_NUM_THREADS"]) >= 1
        assert os.path.isabs(env["TORCHELASTIC_ERROR_FILE"])


def test_too_few_devices_for_virtual_local_ranks_are_bad_input() -> None:
    environ = clean_environment(CUDA_VISIBLE_DEVICES="3")
    words = ["--virtual-local-rank", "--nproc-per-node=2", "--no-python", "/bin/true"]
    done = launch(*words, environ=environ)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.smoke
def test_failed_worker_is_restarted_and_reported(tmp_path: Path) -> None:
    done = sh(
        "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]",
        "--max-restarts=3",
    )
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["attempt 0", "attempt 1"]
    [line] = done.stderr.splitlines()
    assert "exited with code 1; restarting, 2 of 3 restarts left" in line


def test_a_failure_is_logged_before_the_other_workers_have_stopped(tmp_path: Path) -> None:
    gate, ignores = tmp_path / "gate", tmp_path / "ignores"
    os.mkfifo(gate)
    os.mkfifo(ignores)
    # Rank 1 fails when rank 0 ignores SIGTERM, and rank 0 ends when the line was read.
    program = (
        "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
        f"[ $RANK = 1 ] && read line < {ignores} && exit 3; "
        f"trap '' TERM; echo > {ignores}; read line < {gate}"
    )
    words = ["--nproc-per-node=2", "--max-restarts=1", "--no-python", "sh", "-c", program]
    with launched(*words) as job:
        found = await_line(job, r"rank 1 \(.*\) exited with code 3; (.*)")
        assert found[1] == "stopping the other workers, which have 30 s"
        gate.write_text("\n")  # only now rank 0 ends
        _, stderr = job.end(0)
        [line] = stderr.splitlines()
        assert line.endswith(": restarting, 0 of 1 restarts left")


@pytest.mark.smoke
def test_redirected_and_teed_output_goes_to_its_targets(tmp_path: Path) -> None:
    words = ["--nproc-per-node=2", "--log-dir", str(tmp_path), "--rdzv-id=job", "-r0:3", "-t1:1"]
    done = sh("echo out $RANK; echo err $RANK >&2", *words)
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["[default1]:out 1"]
    assert done.stderr.splitlines() == ["err 1"]
    [run] = tmp_path.glob("job_*")
    files = {str(path.relative_to(run)): path.read_text() for path in sorted(run.rglob("*.log"))}
    assert files == {
        "attempt_0/0/stderr.log": "err 0\n",
        "attempt_0/0/stdout.log": "out 0\n",
        "attempt_0/1/stdout.log": "out 1\n",
    }


def test_the_prefix_of_teed_lines_can_be_chosen() -> None:
    environ = clean_environment(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="${role_name}/${rank}| ")
    done = sh("echo hi", "--role=r", "-t3", environ=environ)
    assert done.stdout == "r/0| hi\n"


def test_only_filtered_ranks_reach_the_console() -> None:
    done = sh("echo $RANK; echo $RANK >&2", "--nproc-per-node=3", "--local-ranks-filter=1")
    assert (done.stdout, done.stderr) == ("1\n", "1\n")


def test_redirection_without_a_directory_creates_and_names_one(tmp_path: Path) -> None:
    done = sh("echo out", "-r3", environ=clean_environment(TMPDIR=str(tmp_path)))
    [directory] = tmp_path.iterdir()
    assert done.stdout == ""
    assert str(directory) in done.stderr
    assert [path.read_text() for path in directory.rglob("stdout.log")] == ["out\n"]


@pytest.mark.parametrize(
    ("options", "program"),
    [([], "exit 0"), (["-t3"], "exit 1"), (["-t3", "--max-restarts=1"], "kill -9 $$")],
)
def test_nothing_is_left_on_the_disk(tmp_path: Path, options: list[str], program: str) -> None:
    sh(program, *options, environ=clean_environment(TMPDIR=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "more"),
    [
        ("elastic", []),
        ("elastic.rendezvous", ["elastic.rendezvous"]),
        (
            "elastic.worker",
            [
                "elastic._environment",
                "elastic._worker",
                "elastic.constants",
                "elastic.worker",
                "elastic.worker._cause",
                "elastic.worker._channel",
            ],
        ),
    ],
)
def test_an_import_loads_few_modules(module: str, more: list[str]) -> None:
    costly = ("elastic", "logging", "multiprocessing", "socket", "torch")
    program = f"import {module}; print(sorted(n for n in sys.modules if n.startswith({costly})))"
    assert (
        run_isolated(program)
        == f"{sorted(['elastic', 'elastic._aliases', 'elastic._lazy', *more])}\n"
    )


def test_the_launcher_imports_neither_torch_nor_numpy() -> None:
    program = (
        "from elastic.cli.main import main; code = main(['--no-python', '/bin/false']);"
        "print(code, [name for name in ('torch', 'numpy', 'dataclasses', 'inspect')"
        " if name in sys.modules])"
    )
    assert run_isolated(program) == "1 []\n"


def test_help_and_version_go_to_stdout() -> None:
    for command, an_option in (
        (launcher_command(), "--nproc-per-node"),
        ([coordinators.program()], "--state-file FILE"),
    ):
        helped, version = run_program([*command, "--help"]), run_program([*command, "--version"])
        assert (helped.returncode, helped.stderr) == (0, "")
        assert an_option in helped.stdout
        assert (version.returncode, version.stderr) == (0, "")
        assert version.stdout.startswith(("elastic-launch ", "elastic-coordinator "))


def test_what_a_subcommand_prints_reaches_a_pipe() -> None:
    done = launch("status", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: elastic-launch status")


def test_state_changes_are_logged_at_info() -> None:
    done = sh("exit 0", "--rdzv-id=job", environ=clean_environment(LOGLEVEL="INFO"))
    assert "run_id=job round=0 state=SUCCEEDED finished" in done.stderr


def test_a_low_limit_of_open_files_is_named_and_is_not_a_usage_error() -> None:
    words = [sys.executable, "-m", "elastic", "--no-python", "/bin/true"]
    done = run_program(["/bin/sh", "-c", 'ulimit -n 12 && exec "$@"', "sh", *words])
    assert done.returncode == 71, done.stderr
    assert "the limit of open files is 12; raise it with ulimit -n" in done.stderr
