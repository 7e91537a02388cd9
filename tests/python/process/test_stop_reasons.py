"""Why workers are stopped, and why they run again, as a script learns it."""

from __future__ import annotations

import json
import re
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from support.channels import MemberWorker, alone, run_script
from support.launching import Process, await_line, free_endpoint, job_at, launch

DOCUMENT = Path(__file__).parents[3] / "docs" / "scripts.md"

# What the documented lines need, and what they are for.
BEFORE = """
import json, os, signal, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
number = os.environ["ELASTIC_ROUND"]


def write(what, /, **values):
    path = folder / f"{what}-{number}-{os.environ['RANK']}.json"
    path.with_suffix(".part").write_text(json.dumps(values))
    path.with_suffix(".part").replace(path)


class tracker:
    @staticmethod
    def finish(status):
        why = worker.stop_reason()
        write("stopped", status=status, rank=why.rank, node=why.node, text=str(why))


def checkpoints():
    return ["good", "bad"]


def load(name):
    cause = worker.restart().cause
    write(
        "loaded",
        name=name,
        same=worker.restart().same_failures,
        kind=cause and cause.kind,
        rank=cause and cause.rank,
        code=cause and cause.exit_code,
    )


"""
AFTER = """
if saved[-1] == "bad" and os.environ["RANK"] == "1":
    while not (folder / f"loaded-{number}-0.json").exists():
        time.sleep(0.02)
    raise ValueError(f"the checkpoint of round {number} is damaged")
print("running in", number, flush=True)
while True:
    signal.pause()
"""


def documented_lines() -> str:
    section = DOCUMENT.read_text().split("## Why it is stopped, and why it runs again")[1]
    found = re.search(r"```python\n(.*?)```", section, re.S)
    assert found is not None
    return found[1]


@pytest.mark.smoke
def test_all_nodes_learn_why_and_go_back_to_the_checkpoint_that_loads(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEFORE + documented_lines() + AFTER)

    def told(name: str) -> dict[str, Any]:
        return dict(json.loads((tmp_path / f"{name}.json").read_text()))

    options = ("--max-restarts=5", "--restart-backoff=0", "--rdzv-conf=settle=0")
    with job_at(free_endpoint(), "1:2", [str(script), str(tmp_path)], *options) as nodes:
        first = nodes.start()
        await_line(first, "as host")
        second = nodes.start()
        # Two failures of rank 1; in the third round both ranks take the checkpoint before.
        for node in (first, second):
            assert any(line == "running in 2\n" for line in iter(node.stdout.readline, ""))
        second.send_signal(signal.SIGTERM)
        assert first.stdout.readline() == "running in 3\n"
        first.send_signal(signal.SIGTERM)
        nodes.finish()
    for rank in (0, 1):
        assert told(f"loaded-0-{rank}")["kind"] is None
        assert told(f"loaded-2-{rank}") == {
            "name": "good",
            "same": 2,
            "kind": "worker-failed",
            "rank": 1,
            "code": 1,
        }
    for number in (0, 1):
        stopped = told(f"stopped-{number}-0")
        assert (stopped["status"], stopped["rank"]) == ("worker-failed", 1)
    assert told("stopped-2-1")["status"] == "preempted"
    assert told("stopped-2-0")["status"] == "preempted"
    assert told("stopped-2-0")["node"] == told("stopped-2-1")["node"]
    last = told("loaded-3-0")
    assert (last["kind"], last["same"], last["name"]) == ("preempted", 0, "bad")
    assert told("stopped-3-0")["status"] == "preempted"


REASONS = """
import os, signal, sys, threading
from elastic import worker


def write(text):
    os.write(1, f"{text}\\n".encode())  # print() writes twice


def stop(*_):
    write(f"stopped: {worker.stop_reason().kind}")
    sys.exit(143)


signal.signal(signal.SIGTERM, stop)
if worker.is_restart():
    write(f"again: {worker.restart().cause.kind}")
    sys.exit()
write("runs")
step = 0
while not (step and worker.should_stop(step)):
    if len(sys.argv) == 1 or step < 4 - int(os.environ["RANK"]):  # rank 1 is behind
        step += 1
        worker.progress(step)
    threading.Event().wait(0.02)
stop()
"""


@pytest.fixture
def reasons(tmp_path: Path) -> list[str]:
    path = tmp_path / "reasons.py"
    path.write_text(REASONS)
    return [str(path)]


def printed(node: Process) -> list[str]:
    return [node.stdout.readline().rstrip() for _ in range(2)]


def test_a_drained_job_tells_its_scripts(reasons: list[str]) -> None:
    endpoint = free_endpoint()
    with job_at(endpoint, "1:2", reasons, "--rdzv-conf=last_call_timeout=0") as nodes:
        node = nodes.start()
        assert node.stdout.readline() == "runs\n"
        done = launch("drain", endpoint, "--rdzv-id=job", "--deadline=60")
        assert node.stdout.readline() == "stopped: drained\n", done.stderr
        nodes.finish()


def test_a_hang_that_is_ended_tells_the_scripts(reasons: list[str]) -> None:
    """Those that are not killed at once: the suspect is."""
    options = ("--nproc-per-node=2", "--hang-timeout=2", "--hang-action=restart")
    with job_at(free_endpoint(), "1", [*reasons, "hangs"], "--max-restarts=1", *options) as nodes:
        nodes.start()
        (done,) = nodes.finish_with(0)
    lines = done.stdout.splitlines()
    assert sorted(lines) == ["again: hang"] * 2 + ["runs"] * 2 + ["stopped: hang"]


def test_a_node_that_joins_is_a_reason(reasons: list[str]) -> None:
    options = ("--rdzv-conf=last_call_timeout=0,settle=0",)
    with job_at(free_endpoint(), "1:2", reasons, *options) as nodes:
        first = nodes.start()
        assert first.stdout.readline() == "runs\n"
        second = nodes.start()
        assert printed(first) == ["stopped: members-changed", "again: members-changed"]
        assert second.stdout.readline() == "again: members-changed\n"
        nodes.finish_with(0, 0)


def test_a_node_that_is_lost_is_a_reason(reasons: list[str]) -> None:
    options = ("--max-restarts=1", "--restart-backoff=0", "--rdzv-conf=settle=0")
    with job_at(free_endpoint(), "1:2", reasons, *options) as nodes:
        first = nodes.start()
        await_line(first, "as host")
        second = nodes.start()
        for node in (first, second):
            assert node.stdout.readline() == "runs\n"
        second.kill()
        assert printed(first) == ["stopped: node-lost", "again: node-lost"]
        nodes.finish_with(0, -signal.SIGKILL)


def test_a_process_without_a_launcher_has_no_reason() -> None:
    text = alone(
        "from elastic import worker\n"
        "print(worker.stop_reason(), worker.restart(), bool(worker.restart()))"
    )
    assert text == "None Restart(cause=None, same_failures=0) False\n"


def test_a_process_in_several_rounds_learns_the_same(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
from elastic import worker

job = worker.membership()
print(worker.restart().cause, flush=True)
while not job.wait_until_over(1):
    pass
print(worker.stop_reason().kind, worker.stop_reason().node, flush=True)
job.next_round()
print(worker.restart().cause.kind, worker.restart().same_failures)
""")
    with MemberWorker(script) as process:
        process.wait_for(b"m")
        assert process.next_line() == "None"
        process.set_stop_reason("node-lost; node=n1_7_0; reason=n1_7_0 was lost")
        process.cut(0)
        assert process.next_line() == "node-lost n1_7_0"
        process.give(1, ELASTIC_RESTART_CAUSE="node-lost; node=n1_7_0", ELASTIC_SAME_FAILURES=0)
        assert process.output() == "node-lost 0\n"


def test_the_first_round_has_no_cause(tmp_path: Path) -> None:
    assert run_script(tmp_path, "print(worker.restart(), worker.stop_reason())") == (
        "Restart(cause=None, same_failures=0) None\n"
    )


@pytest.mark.parametrize(
    ("text", "repeats", "expected"),
    [
        (
            "worker-failed; rank=3; node=n_7_0; exit_code=9; class=platform; reason=a; rank=4",
            "2",
            "('worker-failed', 3, 'n_7_0', 9, 'platform', 'a; rank=4') 2",
        ),
        ("node-lost; node=n; future=1", "0", "('node-lost', None, 'n', None, '', '') 0"),
        ("members-changed", "x", "('members-changed', None, '', None, '', '') 0"),
        ("hang; rank=x; =; ;", "", "('hang', None, '', None, '', '') 0"),
    ],
)
def test_variables_of_any_version_are_read(text: str, repeats: str, expected: str) -> None:
    script = (
        "import dataclasses\nfrom elastic import worker\nmade = worker.restart()\n"
        "print(dataclasses.astuple(made.cause), made.same_failures)"
    )
    found = alone(script, ELASTIC_RESTART_CAUSE=text, ELASTIC_SAME_FAILURES=repeats)
    assert found == expected + "\n"


def test_a_signal_during_the_first_call_finds_what_its_handler_calls() -> None:
    script = """
        import signal, sys
        from elastic import worker

        def on_sigterm(*_):
            print(worker.stop_reason())

        def interrupt(event, args):
            if event == "exec" and "worker/_" in args[0].co_filename:
                signal.raise_signal(signal.SIGTERM)

        signal.signal(signal.SIGTERM, on_sigterm)
        sys.addaudithook(interrupt)
        print(bool(worker.restart()), worker.stop_reason())
    """
    assert alone(textwrap.dedent(script)).splitlines()[-1] == "False None"
