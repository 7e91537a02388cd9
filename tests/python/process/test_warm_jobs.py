"""Jobs whose workers are forked by a template process (--warm)."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.launching import (
    DEADLINE_S,
    Process,
    clean_environment,
    launch,
    launched,
    marked,
    python_path,
)
from support.paths import EXAMPLES
from support.warm_modules import SCRIPT, lines_of


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(tail: str = "", name: str = "script.py") -> str:
        (tmp_path / name).write_text(SCRIPT + tail)
        return str(tmp_path / name)

    return write


def template_pids(environ: dict[str, str]) -> list[int]:
    found = []
    for pid in marked(environ):
        try:
            command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(command) > 2 and command[2].endswith(b"_warm/template.py"):
            found.append(pid)
    return found


@pytest.mark.smoke
def test_first_round_of_several_workers_is_forked(script: Callable[..., str]) -> None:
    done = launch("--standalone", "--nproc-per-node=3", "--preload=colorsys", script())
    assert (done.returncode, done.stderr) == (0, "")
    assert lines_of(done) == [f"forked rank {rank} round 0" for rank in range(3)]


def test_single_worker_does_not_wait_and_is_forked_in_the_next_round(
    script: Callable[..., str], tmp_path: Path
) -> None:
    """The first worker fails when the template is ready: it waits for the template's mark."""
    (tmp_path / "slow.py").write_text(
        "import os\nfrom time import sleep\nwhile not os.path.exists('go'): sleep(0.01)\n"
        "open('imported', 'w').close()\n"
    )
    tail = (
        "if how == 'executed':\n"
        "    open('go', 'w').close()\n"
        "    while not os.path.exists('imported'): sleep(0.01)\n"
        "    sleep(2)\n"
        "    sys.exit(1)\n"
    )
    done = launch(
        "--standalone", "--max-restarts=3", "--preload=colorsys,slow", script(tail), cwd=tmp_path
    )
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "executed rank 0 round 0"
    assert lines[-1].startswith("forked rank 0 round ")


def test_restarted_workers_are_forked_and_write_files(
    script: Callable[..., str], tmp_path: Path
) -> None:
    # Rank 1 fails when the other one has printed its line.
    tail = (
        "round = os.environ['ELASTIC_ROUND']\n"
        "if os.environ['RANK'] == '0': open(sys.argv[1] + round, 'w').close()\n"
        "if round < '2' and os.environ['RANK'] == '1':\n"
        "    while not os.path.exists(sys.argv[1] + round): sleep(0.01)\n"
        "    sys.exit(3)\n"
    )
    launch(
        "--standalone", "--nproc-per-node=2", "--max-restarts=2", "--restart-backoff=0",
        "--preload=colorsys", f"--log-dir={tmp_path / 'logs'}", "--redirects=3", script(tail),
        str(tmp_path / "printed."), check=True,
    )  # fmt: skip
    written = {
        str(path.relative_to(tmp_path / "logs")).partition("/")[2]: path.read_text()
        for path in (tmp_path / "logs").rglob("stdout.log")
    }
    assert written == {
        f"attempt_{n}/{rank}/stdout.log": f"forked rank {rank} round {n}\n"
        for n in range(3)
        for rank in range(2)
    }


def test_exit_code_and_traceback_of_a_forked_worker_are_reported(
    script: Callable[..., str],
) -> None:
    words = ("--standalone", "--nproc-per-node=2", "--preload=colorsys")
    fails = script("if os.environ['RANK'] == '1': raise ValueError('from the script')\n")
    done = launch(*words, fails)
    assert done.returncode == 1
    assert "ValueError: from the script" in done.stderr
    assert "template.py" not in done.stderr
    done = launch(*words, script("os.kill(os.getpid(), 9)"))
    assert done.returncode == 128 + signal.SIGKILL


UNFIT = {
    "import os\nos.open('/', os.O_RDONLY)": "the import of hostile left the descriptor",
    "print('x' * 70_000)": "the import of hostile printed more than 64 KiB",
    "import os\nos._exit(3)": "the template process exited with code 3 while it imported hostile",
    "import os\nos.kill(os.getpid(), 9)": "killed by signal 9 (SIGKILL) while it imported hostile",
}


@pytest.mark.parametrize("source", UNFIT)
def test_workers_are_executed_if_the_template_is_unfit(
    source: str, script: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "hostile.py").write_text(source)
    done = launch(
        "--standalone", "--nproc-per-node=2", "--preload=colorsys,hostile", script(), cwd=tmp_path
    )
    assert done.returncode == 0
    assert lines_of(done) == ["executed rank 0 round 0", "executed rank 1 round 0"]
    assert len(done.stderr.splitlines()) == 1
    assert UNFIT[source] in done.stderr
    assert "--warm is off, workers start as usual" in done.stderr


def test_each_worker_prints_what_an_import_prints(
    script: Callable[..., str], tmp_path: Path
) -> None:
    """As torch does where the deprecated package pynvml is installed."""
    (tmp_path / "talking.py").write_text(
        "import os, sys, warnings\nprint('hello')\nwarnings.warn('old', FutureWarning)\n"
        "os.write(2, b'native\\n')\n"
    )
    arguments = ("--standalone", "--nproc-per-node=2", "--preload=colorsys,talking")
    done = launch(*arguments, script(), cwd=tmp_path, check=True)
    assert lines_of(done) == ["forked rank 0 round 0", "forked rank 1 round 0", "hello", "hello"]
    assert done.stderr.count("FutureWarning: old") == done.stderr.count("native\n") == 2
    assert "--warm is off" not in done.stderr


def test_workers_are_executed_if_an_import_takes_too_long(
    script: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text("from time import sleep\nsleep(600)\n")
    done = launch(
        "--standalone", "--nproc-per-node=2", "--preload=slow", "--start-timeout=10", script(),
        cwd=tmp_path, check=True,
    )  # fmt: skip
    assert lines_of(done) == ["executed rank 0 round 0", "executed rank 1 round 0"]
    assert len(done.stderr.splitlines()) == 1
    assert "is executed, not forked: the template process still imports slow" in done.stderr


def test_stop_while_workers_wait_for_the_template(
    script: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "from time import sleep\nopen('begun', 'w').close()\nsleep(600)\n"
    )
    os.mkfifo(tmp_path / "begun")
    with launched(
        "--standalone", "--nproc-per-node=2", "--preload=slow", script(), cwd=tmp_path
    ) as job:
        (tmp_path / "begun").read_bytes()
        job.send_signal(signal.SIGTERM)
        stdout, _ = job.end(128 + signal.SIGTERM)
    assert stdout == ""


def test_stop_while_the_template_still_has_what_it_passed_to_a_worker(
    script: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nfrom elastic._warm.link import FORKED, Link\nsend = Link.send\n"
        "def send_slowly(link, kind, *args, **kwargs):\n"
        "    send(link, kind, *args, **kwargs)\n"
        "    if kind == FORKED: time.sleep(1)\n"
        "Link.send = send_slowly\n"
    )
    with launched(
        "--standalone", "--nproc-per-node=2", "--preload=colorsys,slow", "--shutdown-timeout=3600",
        script(WAIT), cwd=tmp_path,
    ) as job:  # fmt: skip
        assert "forked rank" in job.stdout.readline()
        job.send_signal(signal.SIGTERM)
        job.end(128 + signal.SIGTERM)


def test_slow_template_has_five_seconds_for_each_worker(
    script: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\nos.register_at_fork(after_in_parent=lambda: time.sleep(0.5))\n"
    )
    done = launch(
        *("--standalone", "--nproc-per-node=11", "--preload=colorsys,slow", script()), cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert lines_of(done) == sorted(f"forked rank {rank} round 0" for rank in range(11))


WAIT = "sys.stdout.flush()\nsleep(600)\n"


def is_worker(pid: int) -> bool:
    try:
        return b"script.py" in Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")[2]
    except (OSError, IndexError):
        return False


@contextmanager
def running(script: Callable[..., str]) -> Iterator[tuple[Process, list[str], int, int]]:
    """Two forked workers, which wait in the first round: job, their lines, template, one worker."""
    environ = clean_environment(PET_RESTART_BACKOFF="0")
    tail = "if os.environ['ELASTIC_ROUND'] == '0':\n    sleep(600)\n"
    with launched(
        "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--preload=colorsys",
        script(tail), environ=environ,
    ) as job:  # fmt: skip
        lines = [job.stdout.readline().rstrip() for _ in range(2)]
        (template,) = template_pids(environ)
        worker = next(pid for pid in marked(environ) if is_worker(pid))
        yield job, lines, template, worker


def test_killed_template_is_replaced(script: Callable[..., str]) -> None:
    with running(script) as (job, lines, template, worker):
        os.kill(template, signal.SIGKILL)
        notice = job.stderr.readline()
        os.kill(worker, signal.SIGKILL)
        stdout, _ = job.communicate(timeout=DEADLINE_S)
    assert "the template process was killed by signal 9 (SIGKILL); a new one is started" in notice
    assert sorted(lines + stdout.splitlines()) == [
        f"forked rank {rank} round {number}" for rank in range(2) for number in range(2)
    ]


def test_workers_are_executed_if_the_template_does_not_answer(script: Callable[..., str]) -> None:
    with running(script) as (job, lines, template, worker):
        os.kill(template, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        stdout, stderr = job.communicate(timeout=DEADLINE_S)
    assert sorted(lines) == ["forked rank 0 round 0", "forked rank 1 round 0"]
    assert sorted(stdout.splitlines()) == ["executed rank 0 round 1", "executed rank 1 round 1"]
    assert "the template process did not answer within five seconds" in stderr


def test_killed_agent_leaves_neither_template_nor_workers(script: Callable[..., str]) -> None:
    with launched("--standalone", "--nproc-per-node=2", "--preload=colorsys", script(WAIT)) as job:
        for _ in range(2):
            assert job.stdout.readline().startswith("forked")
        job.kill()


def test_changed_module_is_imported_again(script: Callable[..., str], tmp_path: Path) -> None:
    # The sizes differ: Python finds a compiled module stale by its size and by whole seconds.
    (tmp_path / "mine.py").write_text("value = 1\n")
    tail = (
        "import mine\nsys.stdout.write(f'value {mine.value}\\n')\n"
        "if os.environ['ELASTIC_ROUND'] == '0' and os.environ['RANK'] == '0':\n"
        "    with open('mine.py', 'w') as file: file.write('value = 22\\n')\n"
        "    sys.exit(1)\n"
        "if os.environ['ELASTIC_ROUND'] == '0':\n    sleep(600)\n"
    )
    done = launch(
        "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--preload=mine", script(tail),
        cwd=tmp_path, check=True,
    )  # fmt: skip
    assert lines_of(done)[-2:] == ["value 22", "value 22"]
    assert "mine.py was changed: workers are executed until" in done.stderr


def test_warm_needs_a_python_program() -> None:
    done = launch("--standalone", "--warm", "--no-python", "/bin/true", check=True)
    assert "--warm has no effect: the workers do not run in Python" in done.stderr


def memory_kib(pid: int) -> int:
    text = Path("/proc", str(pid), "smaps_rollup").read_text()
    return int(re.search(r"^Private_Dirty:\s+(\d+)", text, re.M)[1])  # type: ignore[index]


@pytest.mark.alone
@pytest.mark.parametrize("rounds", [20])
def test_rounds_leave_no_process_descriptor_or_memory(
    rounds: int, script: Callable[..., str]
) -> None:
    """`python bench/warm_rounds.py 1000` is the long variant."""
    sys.path.insert(0, str(EXAMPLES.parent / "bench"))
    try:
        import warm_rounds
    finally:
        del sys.path[0]
    found = warm_rounds.measure([sys.executable, "-m", "elastic"], rounds, clean_environment())
    assert found.processes == found.expected_processes
    before, after = found.descriptors_before, found.descriptors_after
    assert all(count <= limit for count, limit in zip(after, before, strict=True)), found
    assert found.growth_kib < 1024


def test_module_that_a_worker_imports_lazily_is_preloaded_in_a_later_round(tmp_path: Path) -> None:
    optimizer = tmp_path / "torch" / "optim" / "optimizer.py"
    optimizer.parent.mkdir(parents=True)
    optimizer.write_text("hooks = []\nregister_optimizer_step_post_hook = hooks.append\n")
    (tmp_path / "torch" / "compiler.py").write_text("def is_compiling(): return False\n")
    (tmp_path / "torch" / "__init__.py").write_text("from torch import compiler\n")
    (tmp_path / "script.py").write_text(
        "import os, sys, threading\n"
        "if 'sched' in sys.modules:\n"
        "    print('ELASTIC_FIRST_STEP_MODULES' in os.environ)\n"
        "    sys.exit()\n"
        "import sched, torch.optim.optimizer\n"
        "for hook in torch.optim.optimizer.hooks: hook(None)\n"
        "threading.Event().wait(0.5)\n"
        "sys.exit(1)\n"
    )
    options = ("--preload=json", "--max-restarts=60", "--restart-backoff=0")
    environ = clean_environment(PYTHONPATH=python_path(tmp_path))
    done = launch("--standalone", *options, str(tmp_path / "script.py"), environ=environ)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
