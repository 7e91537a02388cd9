"""The state of ranks in memory that outlives their processes, without torch."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from support.channels import alone
from support.launching import free_endpoint, job_at, launch, launched
from support.waiting import DEADLINE_S, eventually

# Each step depends on the one before, so that a mixed or torn state shows in every later one.
TRAINING = """
import array, os, random, signal, sys, time
from elastic import worker
from elastic.worker import snapshot

rank, world, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), worker.round()
NUMBERS = 3000

def next_state(state, step):
    return array.array("d", [one * 0.5 + step + rank for one in state])

def expected(step):
    state = array.array("d", [0.0] * 4)
    for i in range(step):
        state = next_state(state, i)
    return array.array("d", state.tolist()[:1] * NUMBERS)

def say(text):
    os.write(1, f"{count} {rank} {text}\\n".encode())

saved = snapshot.restore()
step, state = 0, array.array("d", [0.0] * NUMBERS)
if saved:
    step, state = saved.step, array.array("d", bytes(saved.buffers[0]))
    assert state == expected(step) and saved.blob == b"blob%d" % step, (step, state[:3], saved.blob)
say(f"from {step if saved else None}")

def train(last):
    global step, state
    while step < last:
        state = next_state(state, step)
        step += 1
        worker.progress(step)
        assert snapshot.save(step, [state], b"blob%d" % step)

def await_ranks():
    prefix = f"{os.path.dirname(__file__)}/there{count}."
    open(prefix + str(rank), "w").close()
    while not all(os.path.exists(prefix + str(one)) for one in range(world)):
        time.sleep(0.005)
"""


def script(tmp_path: Path, rest: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAINING + rest)
    return str(path)


def starts(stdout: str) -> list[tuple[int, int, str]]:
    found = re.findall(r"^(\d+) (\d+) from (\S+)$", stdout, re.MULTILINE)
    return sorted((int(number), int(rank), step) for number, rank, step in found)


def test_all_ranks_continue_from_the_last_step_of_a_killed_worker(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
train(10 if count == 0 else 12)
await_ranks()
if count == 0:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
say(f"end {state == expected(12)}")
""",
    )
    done = launch("--nproc-per-node=2", "--max-restarts=1", program)
    assert done.returncode == 0, done.stderr
    assert starts(done.stdout) == [(0, 0, "None"), (0, 1, "None"), (1, 0, "10"), (1, 1, "10")]
    assert done.stdout.count("end True") == 2
    assert "round 1: continued at step 10 from memory" in done.stderr


def test_ranks_that_hang_continue_from_the_last_step(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
train(5 if count == 0 else 8)
if count == 0:
    time.sleep(1000)
""",
    )
    options = ("--hang-timeout=2", "--hang-action=restart", "--shutdown-timeout=1")
    done = launch("--nproc-per-node=2", "--max-restarts=1", *options, program)
    assert done.returncode == 0, done.stderr
    assert starts(done.stdout)[2:] == [(1, 0, "5"), (1, 1, "5")]


# Rank 0 has saved a step 6 that no other rank continues from. It is not a step 6 of the next round.
def test_a_rank_that_is_behind_decides_and_the_steps_lost_are_named(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
if count == 1:
    if rank == 1:
        train(6)
    await_ranks()
    if rank == 0:
        sys.exit(1)
    time.sleep(1000)
train((6 if rank == 0 else 5) if count == 0 else 8)
if count == 0:
    worker.progress(7)
    await_ranks()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
""",
    )
    options = ("--nproc-per-node=2", "--max-restarts=2", "--restart-backoff=0")
    result, log = tmp_path / "result.json", tmp_path / "events"
    done = launch(*options, f"--result-json={result}", f"--event-log={log}", program)
    assert done.returncode == 0, done.stderr
    assert starts(done.stdout)[2:] == [(1, 0, "5"), (1, 1, "5"), (2, 0, "5"), (2, 1, "5")]
    assert "round 1: continued at step 5 from memory: 2 steps lost" in done.stderr
    for incidents in (
        json.loads(result.read_text())["incidents"],
        [line for line in map(json.loads, log.read_text().splitlines()) if "next_round" in line],
    ):
        assert [one["resumed_step"] for one in incidents] == [5, 5]


def test_the_report_has_the_step_from_which_each_round_continued(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
if count == 0:
    sys.exit(5)
train(step + 4)
sys.exit(7)
""",
    )
    result = tmp_path / "result.json"
    options = ("--nproc-per-node=1", "--max-restarts=2", "--restart-backoff=0")
    done = launch(*options, f"--result-json={result}", program)
    assert done.returncode == 7, done.stderr
    incidents = json.loads(result.read_text())["incidents"]
    assert [one["resumed_step"] for one in incidents] == [None, 4]
    report = done.stderr.split("restarts used")[1]
    assert re.search(r"round 1 .*\n    round 2 .*, continued at step 4 from memory\n", report)
    assert report.count("continued at step") == 1


# A timer of the kernel ends the process anywhere, the copy, the header and the message included.
def test_kills_at_random_moments_leave_whole_snapshots_of_one_step(tmp_path: Path) -> None:
    rounds = 12
    program = script(
        tmp_path,
        f"""
import mmap

if saved:
    assert saved.buffers[1] == bytes([step % 251]) * (4 << 20)
with open(f"{tmp_path}/steps{{count}}", "a+b") as file:
    os.ftruncate(file.fileno(), 16)
    steps = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")

def train(last):  # both ranks complete a step before the next one
    global step, state
    while step < last:
        state = next_state(state, step)
        step += 1
        steps[rank] = step
        while steps[1 - rank] < step:
            time.sleep(0)
        assert snapshot.save(step, [state, bytes([step % 251]) * (4 << 20)], b"blob%d" % step)

train(step + 3)
if count < {rounds}:
    if rank == count % 2:
        signal.setitimer(signal.ITIMER_REAL, random.Random(count).uniform(0.0005, 0.05))
    train(1 << 40)
train(step + 3)
""",
    )
    done = launch("--nproc-per-node=2", f"--max-restarts={rounds}", "--restart-backoff=0", program)
    assert done.returncode == 0, done.stderr
    found = starts(done.stdout)
    assert len(found) == 2 * (rounds + 1)
    for number in range(1, rounds + 1):
        steps = {step for one, _, step in found if one == number}
        assert len(steps) == 1 and "None" not in steps, found


def test_a_state_with_nan_is_not_used(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
train(3)
if count == 0:
    state[7] = float("nan")
    assert snapshot.save(4, [state], b"blob4")
    sys.exit(1)
""",
    )
    done = launch("--nproc-per-node=1", "--max-restarts=1", program)
    assert done.returncode == 0, done.stderr
    assert starts(done.stdout) == [(0, 0, "None"), (1, 0, "3")]
    assert "the snapshot of rank 0 after step 4 contains NaN" in done.stderr


def test_a_snapshot_that_was_changed_in_memory_gives_way_to_the_older_one(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
if count == 0:
    train(5)
    sys.exit(1)
if count == 1:  # the guardian has verified both by now
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if "elastic-snapshot" not in os.readlink(path):
            continue
        header = os.pread(int(name), 64, 0)
        if int.from_bytes(header[24:32], sys.byteorder) == 5:
            os.pwrite(int(name), b"!", 8200)
    sys.exit(1)
""",
    )
    done = launch("--nproc-per-node=1", "--max-restarts=3", "--restart-backoff=0", program)
    assert done.returncode == 0, done.stderr
    assert starts(done.stdout) == [(0, 0, "None"), (1, 0, "5"), (3, 0, "4")]
    assert "SnapshotDamaged" in done.stderr
    assert "after step 5 was changed in memory, and is not used again" in done.stderr


def test_without_a_save_nothing_is_held(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(
        """
import os, sys
from elastic import worker
assert "elastic.worker.snapshot" not in sys.modules
folder = f"/proc/{os.getppid()}/fd"  # of the guardian
files = [os.readlink(f"{folder}/{one}") for one in os.listdir(folder)]
assert not [one for one in files if "snapshot" in one], files
assert len(os.listdir("/proc/self/task")) == 1
"""
    )
    assert launch("--nproc-per-node=1", str(path)).returncode == 0


def test_under_another_launcher_nothing_is_saved_and_that_is_logged_once() -> None:
    assert (
        alone(
            """
import io, logging
out = io.StringIO()
logging.basicConfig(stream=out)
from elastic.worker import snapshot
print(snapshot.restore(), snapshot.save(1, [b"x"]), snapshot.save(2, [b"x"]))
print(out.getvalue().count("no launcher that keeps snapshots"))
"""
        )
        == "None False False\n1\n"
    )


def test_the_memory_is_released_when_the_agent_is_killed(tmp_path: Path) -> None:
    program = script(tmp_path, 'train(2)\nsay("saved")\ntime.sleep(1000)\n')
    with launched("--nproc-per-node=1", program) as agent:
        for line in agent.stdout:
            if line.endswith("saved\n"):
                break
        holders = {pid for pid in _holders() if agent.pid in _ancestors(pid)}
        assert len(holders) >= 2  # the worker and the guardian
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait(DEADLINE_S)
    eventually(lambda: not holders & _holders())


def _ancestors(pid: int) -> list[int]:
    """Incomplete if one of them ends meanwhile: it is of another test."""
    found = []
    with suppress(OSError):
        while pid > 1:
            stat = Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat.rpartition(")")[2].split()[1])
            found.append(pid)
    return found


def _holders() -> set[int]:
    """The processes that hold a file of a snapshot."""
    found = set()
    for entry in os.listdir("/proc"):
        try:
            folder = f"/proc/{int(entry)}/fd"
            if any(
                "elastic-snapshot" in os.readlink(f"{folder}/{one}") for one in os.listdir(folder)
            ):
                found.add(int(entry))
        except (OSError, ValueError):
            continue
    return found


def test_without_copies_a_worker_of_any_node_may_be_killed_and_a_lost_node_ends_it(
    tmp_path: Path,
) -> None:
    program = script(
        tmp_path,
        """
train([5, 8, 9][count])
await_ranks()
say(f"saved {step}")
if count < 2:
    if count == 0 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
""",
    )
    options = ("--nproc-per-node=1", "--max-restarts=2", "--shutdown-timeout=5")
    options += ("--snapshot-buddy=off",)
    with job_at(free_endpoint(), "2", [program], *options) as nodes:
        first = nodes.start("--rdzv-conf=is_host=true")
        second = nodes.start("--rdzv-conf=is_host=false")
        assert first.stdout is not None and second.stdout is not None
        for node in (first, second):
            while "saved 8" not in (line := node.stdout.readline()):
                assert line, node.stderr.read()
        second.kill()
        nodes.start("--rdzv-conf=is_host=false")
        done = nodes.finish_with(0, -signal.SIGKILL, 0)
    assert "continued at step 5 from memory" in done[0].stderr
    assert "the snapshots in memory are not used" in done[0].stderr
    assert "2 0 from None" in done[0].stdout and "2 1 from None" in done[2].stdout


def test_a_state_that_does_not_fit_is_refused_with_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    path.write_text(
        """
import mmap, os
from elastic.worker import snapshot
with open("/proc/meminfo") as file:
    free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
state = mmap.mmap(-1, free // 2 + (1 << 20))  # not touched
assert not snapshot.save(1, [state])
assert not snapshot.save(2, [state])
assert snapshot.save(3, [b"small"])
"""
    )
    done = launch("--nproc-per-node=1", str(path))
    assert done.returncode == 0, done.stderr
    pattern = r"no snapshot was saved: two snapshots of \S+ \wiB need more memory than the \S+ \wiB"
    assert len(re.findall(pattern, done.stderr)) == 1, done.stderr
