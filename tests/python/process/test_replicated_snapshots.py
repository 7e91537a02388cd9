"""States that are the same on every rank: rounds of any size continue from that of any rank."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from process.test_snapshot_copies import GUEST, HOST, lose, snapshot_files
from process.test_snapshots import starts
from support.coordinators import needs_openssl
from support.launching import Process, free_endpoint, job_at, launch
from support.waiting import eventually

ALONE = f"{HOST},last_call_timeout=1"  # does not wait for another node
OPTIONS = ("--max-restarts=3", "--shutdown-timeout=5", "--restart-backoff=0")

# As test_snapshots.TRAINING, but no state depends on its rank.
TRAINING = """
import array, os, signal, sys, time
from elastic import worker
from elastic.worker import snapshot

rank, world, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), worker.round()
NUMBERS = 30_000
replicated = True

def next_state(state, step):
    return array.array("d", [one * 0.5 + step for one in state])

def expected(step):
    state = array.array("d", [0.0])
    for i in range(step):
        state = next_state(state, i)
    return array.array("d", state.tolist() * NUMBERS)

def say(text):
    os.write(1, f"{count} {rank} {text}\\n".encode())

saved = snapshot.restore()
step, state = 0, array.array("d", [0.0] * NUMBERS)
if saved:
    step, state = saved.step, array.array("d", bytes(saved.buffers[0]))
    assert state == expected(step) and saved.blob == b"blob%d" % step, (step, state[:3], saved.blob)
say(f"from {step if saved else None}")
if saved:
    say(f"own {saved.is_own} of {world}")

def train(last):
    global step, state
    while step < last:
        state = next_state(state, step)
        step += 1
        worker.progress(step)
        assert snapshot.save(step, [state], b"blob%d" % step, replicated=replicated)

def await_ranks():
    prefix = f"{os.path.dirname(__file__)}/there{count}."
    open(prefix + str(rank), "w").close()
    while not all(os.path.exists(prefix + str(one)) for one in range(world)):
        time.sleep(0.005)

def pause():
    say("waits")
    time.sleep(1000)
"""


def script(tmp_path: Path, rest: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAINING + rest)
    return str(path)


def await_pauses(node: Process, ranks: int = 1) -> str:
    """Until so many ranks of the node wait, and have saved; returns what they have written."""
    text = ""
    for _ in range(ranks):
        line = ""
        while not line.endswith(" waits\n"):
            line = node.stdout.readline()
            assert line, node.stderr.read()
            text += line
    return text


@pytest.fixture(params=["plain", "token"])
def options(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...]:
    if request.param == "plain":
        return OPTIONS
    needs_openssl()
    token = tmp_path / "token"
    token.write_text("a" * 40)
    token.chmod(0o600)
    monkeypatch.setenv("ELASTIC_TOKEN_FILE", str(token))
    return (*OPTIONS, f"--token-file={token}")


# 2 x 2 -> 1 x 2, without copies. A worker that is killed before the next save changes nothing.
def test_the_nodes_that_are_left_continue(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
train(8 if count < 2 else 12)
if count == 0:
    pause()
if count == 1:
    await_ranks()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
say(f"end {world} {state == expected(12)}")
""",
    )
    more = ("--nproc-per-node=2", "--snapshot-buddy=off", *OPTIONS)
    with job_at(free_endpoint(), "1:2", [program], *more) as nodes:
        first, second = nodes.start(HOST), nodes.start(GUEST)
        for node in (first, second):
            await_pauses(node, 2)
        lose(second)
        done = nodes.finish_with(0, -signal.SIGKILL)[0]
    assert starts(done.stdout)[-4:] == [(1, 0, "8"), (1, 1, "8"), (2, 0, "8"), (2, 1, "8")]
    assert done.stdout.count("own False of 2") == 4
    assert done.stdout.count("end 2 True") == 2
    assert "continued at step 8 from memory" in done.stderr


# 1 -> 2 -> 1: the node that joins gets it from the one that has it.
def test_a_node_that_joins_gets_the_state(tmp_path: Path, options: tuple[str, ...]) -> None:
    program = script(
        tmp_path,
        """
train({0: 8, 1: 10}.get(count, 12))
if count < 2:
    pause()
say(f"end {world} {state == expected(12)}")
""",
    )
    with job_at(free_endpoint(), "1:2", [program], "--nproc-per-node=1", *options) as nodes:
        first = nodes.start(ALONE)
        await_pauses(first)
        second = nodes.start(GUEST)
        await_pauses(first)
        await_pauses(second)
        lose(second)
        done = nodes.finish_with(0, -signal.SIGKILL)
    assert "waiting for the state after step 8 of rank 0 from" in done[1].stderr
    assert "continued at step 8 from memory" in done[0].stderr
    assert "continued at step 10 from memory" in done[0].stderr
    assert "end 1 True" in done[0].stdout


def test_a_node_is_replaced_before_it_has_copies(tmp_path: Path, options: tuple[str, ...]) -> None:
    program = script(
        tmp_path,
        """
train(8 if count == 0 else 12)
if count == 0:
    pause()
say(f"end {world} {state == expected(12)}")
""",
    )
    slow = "--snapshot-rate=1"  # no copy arrives
    with job_at(free_endpoint(), "2", [program], "--nproc-per-node=2", slow, *options) as nodes:
        first, second = nodes.start(HOST), nodes.start(GUEST)
        for node in (first, second):
            await_pauses(node, 2)
        lose(second)
        nodes.start(GUEST)
        done = nodes.finish_with(0, -signal.SIGKILL, 0)
    found = [one for node in (done[0], done[2]) for one in starts(node.stdout) if one[0] == 1]
    assert sorted(found) == [(1, rank, "8") for rank in range(4)], done[2].stderr
    assert (done[0].stdout + done[2].stdout).count("end 4 True") == 4
    assert (done[0].stdout + done[2].stdout).count("own False of 4") == 4


def test_the_newest_step_of_any_rank_is_that_of_all(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
train({0: 6 if rank == 0 else 5, 1: 8}.get(count, 12))
await_ranks()
if count < 2:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
say(f"end {world} {state == expected(12)}")
""",
    )
    done = launch("--nproc-per-node=2", *OPTIONS, program)
    assert done.returncode == 0, done.stderr
    assert starts(done.stdout)[2:] == [(1, 0, "6"), (1, 1, "6"), (2, 0, "8"), (2, 1, "8")]
    assert done.stdout.count("own False of 2") == 2
    assert done.stdout.count("own True of 2") == 2, "each rank continues from its own again"
    assert done.stdout.count("end 2 True") == 2


@pytest.mark.parametrize("is_mixed", [True, False])
def test_ranks_that_differ_are_named_in_one_sentence(is_mixed: bool, tmp_path: Path) -> None:
    program = script(
        tmp_path,
        f"""
replicated = {is_mixed} and rank % 2 == 0
train(8 if count == 0 else 12)
if count == 0:
    pause()
say(f"end {{world}} {{state == expected(12)}}")
""",
    )
    with job_at(free_endpoint(), "1:2", [program], "--nproc-per-node=2", *OPTIONS) as nodes:
        first, second = nodes.start(HOST), nodes.start(GUEST)
        for node in (first, second):
            await_pauses(node, 2)
        lose(second)
        done = nodes.finish_with(0, -signal.SIGKILL)[0]
    assert starts(done.stdout)[-2:] == [(1, 0, "None"), (1, 1, "None")]
    why = (
        "ranks have saved with and without replicated=True, which all must pass or none"
        if is_mixed
        else "the world size has changed from 4 to 2"
    )
    assert f"the snapshots in memory are not used ({why})" in done.stderr


# What was shared is released when all ranks have a newer one.
def test_memory_is_that_of_the_snapshots_of_the_ranks_again(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
train(8 if count == 0 else 12)
pause()
""",
    )
    with job_at(free_endpoint(), "1:2", [program], "--nproc-per-node=1", *OPTIONS) as nodes:
        first, second = nodes.start(HOST), nodes.start(GUEST)
        await_pauses(first)
        await_pauses(second)
        lose(second)
        await_pauses(first)
        eventually(lambda: sum(snapshot_files([first])) <= 2.2 * 8 * 30_000)
