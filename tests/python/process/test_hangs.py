"""Hangs of real ranks: the verdict, the suspected rank, what follows, and stacks on demand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from elastic import observe

from support.coordinators import listening
from support.hanging import idle_seconds
from support.launching import (
    DEADLINE_S,
    Job,
    await_line,
    clean_environment,
    free_endpoint,
    job_at,
    launch,
    launched,
    launcher_command,
    python_path,
    run_program,
)
from support.ras_server import ras_server, report
from support.succession import ELECTED, REPLICATED, Nodes
from support.waiting import eventually

# The limit of most tests: the ranks of a busy host may begin seconds after one another.
LIMIT_S = 3

# Without torch: a rank that reports steps and then waits, for tests of one aspect. The ranks begin
# together: each makes a file in the directory of the second argument.
STEPS = """
import os, sys, threading
from elastic import worker
hangs_after = int(sys.argv[1])
def meets():
    os.close(os.open(os.path.join(sys.argv[2], os.environ["RANK"]), os.O_CREAT))
    while len(os.listdir(sys.argv[2])) < int(os.environ["WORLD_SIZE"]):
        threading.Event().wait(0.01)
if len(sys.argv) > 2:
    meets()
for step in range(1, 10**9):
    if step > hangs_after and not worker.is_restart():
        def waits_for_no_rank():
            threading.Event().wait()
        waits_for_no_rank()
    if worker.is_restart():
        sys.stdout.write(f"continued in round {worker.round()}\\n")  # one write
        break
    worker.progress(step)
"""

# They wait for a third file there.
WAITS_FOR_THREE = STEPS.replace("""< int(os.environ["WORLD_SIZE"])""", "< 3")


@pytest.fixture
def steps(tmp_path: Path) -> str:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return str(path)


@pytest.fixture
def meeting(tmp_path: Path) -> Path:
    (path := tmp_path / "meeting").mkdir()
    return path


def standalone(*options: str) -> tuple[str, ...]:
    return ("--standalone", f"--hang-timeout={LIMIT_S}", *options)


def test_hang_is_reported_and_the_job_continues(steps: str) -> None:
    with launched(*standalone(), steps, "3") as job:
        seen = []
        for line in job.stderr:
            seen.append(line)
            if "in wait (steps.py:" in line:
                break
        assert "the job hangs: no rank has made progress for " in "".join(seen)
        assert idle_seconds("".join(seen)) >= LIMIT_S
        assert job.poll() is None
        job.terminate()
        job.communicate(timeout=DEADLINE_S)


# The only thread of rank 1 waits for a child that has not begun its program, which opens a pipe
# before.
ASLEEP = """
            if os.environ["RANK"] == "1":
                os.mkfifo("pipe")
                opening = (os.POSIX_SPAWN_OPEN, 0, "pipe", os.O_RDONLY, 0)
                os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opening])
"""


def test_a_rank_in_uninterruptible_sleep_is_named(meeting: Path, tmp_path: Path) -> None:
    begin, end = STEPS.split("        def waits_for_no_rank():\n")
    script = tmp_path / "steps.py"
    script.write_text(f"{begin}        def waits_for_no_rank():{ASLEEP}{end}")
    options = standalone("--nproc-per-node=2", "--hang-action=fail")
    done = launch(*options, str(script), "3", str(meeting), cwd=tmp_path)
    assert done.returncode == 128 + 9, done.stderr
    sleeps = r"rank 1 in uninterruptible sleep in the kernel( \(\w+\))? and does not answer"
    assert re.search(rf"^ *{sleeps}: suspected$", done.stderr, re.M), done.stderr


@pytest.mark.smoke
@pytest.mark.parametrize("how", [(), ("--preload=colorsys",)], ids=["executed", "forked"])
def test_hang_restarts_the_job_within_its_budget(
    how: tuple[str, ...], steps: str, meeting: Path
) -> None:
    options = ("--nproc-per-node=2", "--hang-action=restart", "--max-restarts=1", *how)
    done = launch(*standalone(*options), steps, "3", str(meeting), check=True)
    assert "2 ranks (0-1) in wait (steps.py:" in done.stderr
    assert "hung: no rank made progress for " in done.stderr
    assert idle_seconds(done.stderr) >= LIMIT_S
    assert done.stdout.count("continued in round 1") == 2
    assert "executed" not in done.stderr


def test_nccls_own_count_is_a_second_witness(steps: str, meeting: Path, tmp_path: Path) -> None:
    replies = [json.dumps(report([4, 3], second)).encode() for second in (1, 6)]
    result = tmp_path / "result.json"
    package = tmp_path / "nvidia_nccl_cu13-2.29.7.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: nvidia-nccl-cu13\nVersion: 2.29.7\n")
    with ras_server(replies) as ((host, port), _):
        env = clean_environment(NCCL_RAS_ADDR=f"{host}:{port}", PYTHONPATH=python_path(tmp_path))
        options = standalone("--nproc-per-node=2", f"--result-json={result}")
        with launched(*options, steps, "3", str(meeting), environ=env) as job:
            await_line(job, "NCCL's RAS: rank 1 launched 3 AllReduce, 1 rank 4")
            job.terminate()
            job.communicate(timeout=DEADLINE_S)
    (hang,) = json.loads(result.read_text())["hangs"]
    assert hang["nccl"] == "rank 1 launched 3 AllReduce, 1 rank 4"


def test_hang_fails_the_job_and_the_report_says_so(steps: str, tmp_path: Path) -> None:
    log = f"--event-log={tmp_path / 'events'}"
    result = tmp_path / "result.json"
    options = ("--hang-action=fail", "--max-restarts=5", log, f"--result-json={result}")
    done = launch(*standalone(*options), steps, "3")
    assert done.returncode == 128 + 9, done.stderr
    assert "hung: no rank made progress for " in done.stderr
    assert idle_seconds(done.stderr) >= LIMIT_S
    assert "0 of 5 restarts used" in done.stderr
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    (hang,) = [event for event in events if event["event"] == "hang"]
    assert "in wait (steps.py:" in hang["message"]
    (found,) = json.loads(result.read_text())["hangs"]
    assert (found["round"], found["message"]) == (0, hang["message"])


# ---- Ranks that still run long after the exit of the first one.

# Rank 1 waits for ever, and rank 0 ends; no rank reports a step.
PARTIAL = """
import os, sys, threading
import elastic.worker
def waits():
    os.close(os.open(sys.argv[1], os.O_CREAT)); threading.Event().wait()
if os.environ["RANK"] == "1":
    waits()
while not os.path.exists(sys.argv[1]):
    threading.Event().wait(0.01)
"""


@pytest.fixture
def partial(tmp_path: Path) -> list[str]:
    path = tmp_path / "partial.py"
    path.write_text(PARTIAL)
    return [str(path), str(tmp_path / "waits")]


def test_rank_that_waits_for_one_that_has_succeeded_is_a_hang(partial: list[str]) -> None:
    steps = PARTIAL.replace("import elastic.worker", "from elastic.worker import progress")
    Path(partial[0]).write_text(steps.replace("def waits", "progress(1)\ndef waits"))
    options = ("--nproc-per-node=2", "--hang-action=fail", "--max-restarts=5")
    done = launch(*standalone(*options), *partial)
    assert done.returncode == 128 + 9, done.stderr
    assert "in wait (partial.py:6)" in done.stderr
    assert "rank 1 (" in done.stderr


def test_ranks_that_run_long_after_another_one_end_the_job(
    partial: list[str], tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    logs = tmp_path / "logs"
    done = launch(
        "--standalone", "--nproc-per-node=2", "--max-restarts=3", "--straggler-timeout=2",
        f"--log-dir={logs}", f"--result-json={result}", *partial,
    )  # fmt: skip
    assert done.returncode == 81, done.stderr
    assert "partial exit: rank 0 exited with 0, and " in done.stderr
    assert "later still running: rank 1" in done.stderr
    assert "rank 1 in wait (partial.py:5)" in done.stderr
    assert "user worker (partial exit)" in done.stderr
    data = json.loads(result.read_text())
    assert (data["exit_code"], data["class"], data["restarts"]) == (81, "user worker", 0)
    assert data["first_failure"] is None
    assert "still running: rank 1" in data["message"]
    (stacks,) = logs.rglob("stacks.txt")
    assert f"the stacks of the workers are in {stacks}" in done.stderr
    text = stacks.read_text()
    assert text.startswith("partial exit: rank 0")
    assert "\nrank 1: in wait (partial.py:5)\n" in text
    assert "in waits" in text and "line 7 in <module>" in text


def test_node_without_stragglers_ends_with_the_same_code(partial: list[str]) -> None:
    """The node of rank 1 lacks the option; only the node whose rank exits first needs it."""
    endpoint = free_endpoint()
    common = ("--nnodes=2", f"--rdzv-endpoint={endpoint}", "--rdzv-id=partial")
    nodes = [
        launched(*common, "--rdzv-conf=last_call_timeout=0,settle=0", *options, *partial)
        for options in (("--straggler-timeout=2", "--node-rank=0"), ("--node-rank=1",))
    ]
    with nodes[0] as first, nodes[1] as second:
        for job in (first, second):
            _, stderr = job.end(81)
            assert "later still running: rank 1" in stderr
            assert "in wait (partial.py:5)" in stderr


def test_hang_that_began_before_the_coordinator_was_lost_is_found(
    steps: str, tmp_path: Path
) -> None:
    endpoint = free_endpoint()
    options = ("--hang-timeout=20", "--hang-action=fail")
    with (
        listening("--bind", endpoint, "--voters=3") as coordinator,
        job_at(endpoint, "3", [steps, "3"], *options, run_id="hangs") as job,
    ):
        nodes = Nodes(job, host=0)
        nodes.start(1, 2, 3)
        await_line(coordinator, REPLICATED)
        # The ranks have reported their last step, and send nothing of their own afterwards.
        with observe.connect(endpoint, "hangs") as seen:
            reached: dict[str, int] = {}
            while (reached.get("ranks"), reached.get("slowest_step")) != (3, 3):
                snapshot = seen.next(DEADLINE_S)
                assert snapshot is not None
                reached = snapshot["progress"] or {}
        coordinator.kill()
        done = job.finish()
    for node in done:
        assert re.search(rf"the coordinator of the job is at \S+ {ELECTED}", node.stderr)
        assert "the job hangs: no rank has made progress for" in node.stderr, node.stderr
        assert "(the slowest is at step 3)" in node.stderr
        assert node.returncode == 137


def test_worker_that_exits_with_the_code_of_the_launcher_is_the_first_failure(
    tmp_path: Path,
) -> None:
    result = tmp_path / "result.json"
    for code in (80, 81):
        script = ("--no-python", "sh", "-c", f"exit {code}")
        done = launch("--standalone", f"--result-json={result}", *script)
        assert done.returncode == code
        assert f"exited with code {code}" in done.stderr
        assert json.loads(result.read_text())["first_failure"]["exit_code"] == code


# ---- The stacks of workers that are stopped because a worker failed.

# Rank 0 fails when the others wait; the argument is a directory for their marks.
FAILS = """
import os, pathlib, signal, sys, threading
import elastic.worker
marks = pathlib.Path(sys.argv[1]) / os.environ["ELASTIC_ROUND"]
def waits():
    os.symlink(str(os.getpid()), f"{marks}/{os.environ['RANK']}")  # no frame of Python's own
    while True:
        signal.pause()  # returns when the stacks are requested
marks.mkdir(parents=True, exist_ok=True)
if os.environ["RANK"] == "0":
    while len(list(marks.iterdir())) < int(os.environ["WORLD_SIZE"]) - 1:
        threading.Event().wait(0.01)
    sys.exit(3)
waits()
"""


@pytest.mark.smoke
def test_stacks_are_kept_before_the_stop_after_a_failure(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    options = ("--standalone", "--nproc-per-node=3", "--stacks-on-failure", "--max-restarts=1")
    logs = tmp_path / "logs"
    done = launch(*options, f"--log-dir={logs}", str(script), str(tmp_path / "marks"))
    assert done.returncode == 3, done.stderr
    files = sorted(logs.rglob("stacks.txt"))
    assert [file.parent.name for file in files] == ["attempt_0", "attempt_1"]
    for number, file in enumerate(files):
        text = file.read_text()
        assert text.startswith(
            f"stacks before the stop after a failure, in round {number}\n"
            "rank 1: in waits (fails.py:"
        ), text
        assert "rank 2: in waits (fails.py:" in text and "rank 0" not in text
        assert f"the stacks of the workers are in {file}" in done.stderr
    # Without a log directory they are logged.
    done = launch(*options[:-1], str(script), str(tmp_path / "more marks"))
    assert "rank 2: in waits (fails.py:" in done.stderr
    assert not list(tmp_path.rglob("stacks.txt"))[2:]


def test_worker_that_can_write_no_stack_delays_the_stop_by_the_limit_only(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    stops = "os.kill(os.getpid(), signal.SIGSTOP)"
    # Rank 0 fails when the other one has stopped.
    state = "pathlib.Path('/proc', os.readlink(marks / '1'), 'stat').read_text()"
    is_stopped = f"while ') T ' not in {state}: pass\n    sys.exit(3)"
    script.write_text(FAILS.replace("signal.pause()", stops).replace("sys.exit(3)", is_stopped))
    done = launch(
        "--standalone", "--nproc-per-node=2", "--stacks-on-failure", "--failure-grace=0",
        str(script), str(tmp_path / "marks"),
    )  # fmt: skip
    assert done.returncode == 3
    assert "rank 1: stopped by a signal" in done.stderr


def test_section_with_a_limit_is_no_hang(tmp_path: Path) -> None:
    script = tmp_path / "section.py"
    script.write_text(
        "import os, select\n"
        "from elastic import worker\n"
        "worker.progress(1)\n"
        "with worker.section('evaluation', limit=300):\n"
        f"    select.select([], [], [], {LIMIT_S + 1.5})\n"
        "worker.progress(2)\n"
        "os.write(1, b'done\\n')\n"
        "os._exit(0)\n"
    )
    done = launch(*standalone("--hang-action=fail"), str(script))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_every_node_shows_the_screen_and_stacks_are_sent_on_demand(
    steps: str, meeting: Path
) -> None:
    """The ranks wait first where none has reported a step, and hang when their stacks were seen."""
    endpoint = free_endpoint()
    options = (f"--hang-timeout={LIMIT_S}", "--hang-action=fail")
    Path(steps).write_text(WAITS_FOR_THREE)
    with job_at(endpoint, "2", [steps, "3", str(meeting)], *options) as job:
        for _ in range(2):
            job.start()
        stacks = request_stacks(endpoint)
        assert "2 ranks (0-1) in wait (steps.py:" in stacks
        assert "stack of rank 0" in stacks
        (meeting / "third").touch()
        nodes = job.finish()
    for node in nodes:
        assert node.returncode == 128 + 9, node.stderr
        assert "the job hangs" in node.stderr
        assert "2 ranks (0-1) in wait (steps.py:" in node.stderr


def test_a_hang_of_a_job_with_a_token_is_found_while_a_spare_waits(
    steps: str, meeting: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.touch(mode=0o600)
    secret.write_text("correct-horse-battery-staple-0123")
    Path(steps).write_text(WAITS_FOR_THREE)
    options = (f"--hang-timeout={LIMIT_S}", "--hang-action=fail", f"--token-file={secret}")
    with job_at(free_endpoint(), "2", [steps, "3", str(meeting)], *options) as job:
        for _ in range(2):
            job.start()
        eventually(lambda: len(list(meeting.iterdir())) == 2)
        await_line(job.start(), "spare")
        (meeting / "third").touch()
        nodes = job.finish()
    assert [node.returncode for node in nodes] == [128 + 9] * 3, [node.stderr for node in nodes]
    for node in nodes[:2]:
        assert "2 ranks (0-1) in wait (steps.py:" in node.stderr


# Ranks that hang after the third step: rank 1 only, or all.
LAGS = """
import os, select
from elastic import worker
for step in range(1, 10**9):
    if os.environ["RANK"] == "1" and step > 3:
        select.select([], [], [], None)
    worker.progress(step)
    select.select([], [], [], 0.02)
"""


def lagging(endpoint: str, script: Path, *words: str) -> Job:
    options = ("--nproc-per-node=2", "--rdzv-conf=last_call_timeout=0", "--shutdown-timeout=1")
    return job_at(endpoint, "1:2", [str(script)], *options, *words, run_id="lags")


def test_rank_that_lags_is_named_in_events_and_status(tmp_path: Path) -> None:
    script, events, endpoint = tmp_path / "lags.py", tmp_path / "events", free_endpoint()
    script.write_text(LAGS)
    with lagging(endpoint, script, "--hang-timeout=6", f"--event-log={events}") as job:
        node = job.start()
        line = next(line for line in node.stderr if "while other ranks advance" in line)
        assert re.search(r"rank 1 on \S+ is at step 3 and has made no progress for", line)
        # A rank 0 that gets no CPU for so long makes the job hang, and rank 1 is no straggler.
        eventually(lambda: "straggling   rank 1 on" in status(endpoint))
        eventually(lambda: stragglers(status(endpoint, "--json")) == [(1, 3)])
        assert node.poll() is None
    kinds = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert kinds.count("straggling") == 1


def test_status_shows_that_a_job_hangs_and_how_long_it_trained(tmp_path: Path) -> None:
    script, endpoint = tmp_path / "hangs.py", free_endpoint()
    script.write_text(LAGS.replace('os.environ["RANK"] == "1" and ', ""))
    with lagging(endpoint, script, "--hang-timeout=1") as job:
        node = job.start()
        next(line for line in node.stderr if "the job hangs" in line)
        shown = status(endpoint)
        assert "job lags: HUNG at" in shown
        assert re.search(r"hung         no rank has made progress for \d.*, since step 3\n", shown)
        first, second = (json.loads(status(endpoint, "--json")) for _ in range(2))
        assert second["hang"]["idle_seconds"] >= first["hang"]["idle_seconds"] >= 1
        assert second["hang"]["step"] == 3
        assert second["running_seconds"] == first["running_seconds"]
        assert second["goodput"] <= first["goodput"]
        assert node.poll() is None


def status(endpoint: str, *options: str) -> str:
    return launch("status", endpoint, "--rdzv-id=lags", *options).stdout


def stragglers(shown: str) -> list[tuple[int, int]]:
    return [(one["rank"], one["step"]) for one in json.loads(shown)["stragglers"]]


def request_stacks(endpoint: str, ranks: int = 2) -> str:
    """The stacks once all ranks wait; asks again while the job forms."""
    shown = ""

    def wait_all() -> bool:
        nonlocal shown
        shown = run_program(launcher_command("stacks", endpoint)).stdout
        return f"{ranks} ranks (0-{ranks - 1}) in wait (steps.py:" in shown

    eventually(wait_all)
    return shown
