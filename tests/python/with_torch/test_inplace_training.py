"""Training that keeps its processes when members change; the tests act as the launcher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from elastic import StoreServer

from support.channels import MemberWorker
from support.paths import STUBS

torch = pytest.importorskip("torch")

SCRIPT = STUBS / "stub_inplace_training.py"


class Launcher:
    """Starts workers of a round, ends rounds, and begins new ones."""

    def __init__(
        self, stack: ExitStack, backend: str, steps: int, notice_timeout: float = 3600
    ) -> None:
        self._stack = stack
        self._settings = {
            "BACKEND": backend,
            "STEPS": str(steps),
            "NOTICE_TIMEOUT": str(notice_timeout),
        }
        self._server = stack.enter_context(StoreServer("127.0.0.1", 0))
        self.round = 0
        self._started = 0

    def _variables(self, rank: int, world_size: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._server.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, rank: int, world_size: int, seed: int = 0, **settings: str) -> MemberWorker:
        variables = self._variables(rank, world_size) | self._settings | settings
        variables["SEED"] = str(seed)
        # NCCL refuses two ranks of one host on one device, and tells hosts apart by this.
        self._started += 1
        variables["NCCL_HOSTID"] = f"host{self._started}"
        return self._stack.enter_context(MemberWorker(SCRIPT, self.round, **variables))

    def cut(self, *workers: MemberWorker) -> None:
        for worker in workers:
            worker.cut(self.round)

    def begin(self, *workers: MemberWorker | None) -> None:
        """The next round, with these workers by rank; None: a worker that is not kept."""
        for worker in workers:
            if worker is not None:
                worker.wait_for(b"x")
        self.round += 1
        for rank, worker in enumerate(workers):
            if worker is not None:
                reason = {"ELASTIC_MEMBERSHIP_CHANGE": "node lost"}
                worker.give(self.round, **self._variables(rank, len(workers)), **reason)


def order(word: str, *workers: MemberWorker) -> None:
    for worker in workers:
        assert worker.process.stdin is not None
        worker.process.stdin.write(word + "\n")
        worker.process.stdin.flush()


def at(*workers: MemberWorker) -> int:
    """The step at which all these workers are, by rank, with the same state."""
    lines = [worker.next_line().split() for worker in workers]
    step, digest = lines[0][1], lines[0][-1]
    expected = [["at", step, str(i), str(len(lines)), digest] for i in range(len(lines))]
    assert lines == expected
    return int(step)


def go(step: int, *workers: MemberWorker) -> None:
    """All workers, by rank, are at this step, and make it."""
    assert at(*workers) == step
    order("go", *workers)


def interrupt(launcher: Launcher, *where: tuple[MemberWorker, str]) -> None:
    """Ends the round; a collective of each worker fails at its place."""
    for worker, word in where:
        order(word, worker)
    for worker, _ in where:
        assert worker.next_line() == "failed"
    launcher.cut(*(worker for worker, _ in where))


def changes(*workers: MemberWorker) -> list[str]:
    return [worker.next_line() for worker in workers]


def finish(*workers: MemberWorker) -> list[str]:
    """All workers have ended with the state of an undisturbed training."""
    ends = [worker.output().splitlines() for worker in workers]
    assert all(end[1] == "same" for end in ends), ends
    assert len({end[0] for end in ends}) == 1, ends
    return ends[0]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["gloo", "nccl", "cpu:gloo,cuda:nccl"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param != "gloo" and not torch.cuda.is_available():
        pytest.skip("NCCL needs a GPU, and torch sees none here")
    return str(request.param)


def test_rank_0_is_lost_and_a_new_process_takes_its_rank(stack: ExitStack, backend: str) -> None:
    launcher = Launcher(stack, backend, 4)
    first, second, third = (launcher.start(rank, 3) for rank in range(3))
    go(0, first, second, third)
    assert at(first, second, third) == 1
    order("die", first)
    order("go", second, third)
    launcher.cut(second, third)
    launcher.begin(second, third)
    assert changes(second, third) == ["change 1 None 1 0"] * 2
    go(1, second, third)
    assert at(second, third) == 2
    launcher.cut(second, third)
    order("go", second, third)
    launcher.begin(None, second, third)
    new = launcher.start(0, 3, seed=5)
    assert changes(second, third) == ["change 2 1 2 1"] * 2
    for step in (2, 3):
        go(step, new, second, third)
    assert finish(new, second, third)[0].split()[1] == "4"


def test_another_member_is_lost_while_the_group_is_formed(stack: ExitStack, backend: str) -> None:
    launcher = Launcher(stack, backend, 2)
    first, second, third = (launcher.start(rank, 3) for rank in range(3))
    assert at(first, second, third) == 0
    order("die", third)
    order("go", first, second)
    launcher.cut(first, second)
    launcher.begin(first, second, None)  # the third process never comes
    launcher.cut(first, second)
    launcher.begin(second, first)
    assert changes(first, second) == ["change 2 None 0 0"] * 2
    for step in (0, 1):
        go(step, second, first)
    finish(first, second)


def test_the_member_that_is_furthest_sends_its_state(stack: ExitStack, backend: str) -> None:
    launcher = Launcher(stack, backend, 3)
    first, second = launcher.start(0, 2), launcher.start(1, 2)
    assert at(first, second) == 0
    order("before", first)
    order("go", second)
    assert second.next_line().startswith("at 1 1 2 ")
    assert first.next_line() == "failed"
    launcher.cut(first, second)
    order("go", second)
    launcher.begin(first, second)
    assert changes(first, second) == ["change 1 1 1 0"] * 2
    assert at(first, second) == 1
    # An update that was made is not repeated.
    interrupt(launcher, (first, "before"), (second, "after"))
    launcher.begin(first, second)
    assert changes(first, second) == ["change 2 1 2 0"] * 2
    go(2, first, second)
    finish(first, second)


def test_ranks_that_a_change_interrupts_at_different_lines_have_one_schedule(
    stack: ExitStack, backend: str
) -> None:
    launcher = Launcher(stack, backend, 3)
    first, second = launcher.start(0, 2), launcher.start(1, 2)
    for step, others in enumerate((0, 1)):
        assert at(first, second) == step
        interrupt(launcher, (first, "after"), (second, "between"))
        launcher.begin(first, second, *[None] * others)
        new = [launcher.start(2, 3, seed=5) for _ in range(others)]
        assert changes(first, second) == [f"change {step + 1} 0 {step + 1} {others}"] * 2
    go(2, first, second, *new)
    finish(first, second, *new)


def test_a_rank_whose_update_is_interrupted_receives_the_state_of_another(
    stack: ExitStack, backend: str
) -> None:
    launcher = Launcher(stack, backend, 2)
    first, second = launcher.start(0, 2), launcher.start(1, 2)
    for number, (word, step) in enumerate([("before", 0), ("after", 1)], 1):
        assert at(first, second) == 0
        interrupt(launcher, (first, "within"), (second, word))
        launcher.begin(first, second)
        assert changes(first, second) == [f"change {number} 1 {step} 0"] * 2
    go(1, first, second)
    finish(first, second)


def test_a_new_member_keeps_what_it_has_received_if_a_change_interrupts_its_callback(
    stack: ExitStack,
) -> None:
    launcher = Launcher(stack, "gloo", 2)  # NCCL may connect the ranks in the callback
    first = launcher.start(0, 1)
    go(0, first)
    assert at(first) == 1
    interrupt(launcher, (first, "before"))
    launcher.begin(first, None)
    second = launcher.start(1, 2, seed=5, CALLBACK_FAILS="1")
    assert second.next_line() == "failed"
    launcher.cut(first, second)
    launcher.begin(first, second)
    assert changes(first, second) == ["change 2 None 1 0"] * 2
    go(1, first, second)
    finish(first, second)


def test_a_planned_change_skips_no_step_whose_update_follows_the_body(stack: ExitStack) -> None:
    launcher = Launcher(stack, "gloo", 4)
    worker = launcher.start(0, 1, UPDATES_LATE="1")
    go(0, worker)
    go(1, worker)
    assert at(worker) == 2
    launcher.cut(worker)
    order("go", worker)
    launcher.begin(worker)
    assert changes(worker) == ["change 1 None 3 0"]
    go(3, worker)
    finish(worker)


def test_a_new_member_passes_the_epochs_that_have_ended(stack: ExitStack, backend: str) -> None:
    launcher = Launcher(stack, backend, 6)
    members = [launcher.start(0, 1, EPOCH="2")]
    go(0, *members)
    go(1, *members)
    for number, step in enumerate((2, 3), 1):  # the first step of an epoch, and a later one
        assert at(*members) == step
        interrupt(launcher, *((one, "before") for one in members))
        launcher.begin(*members, None)
        new = launcher.start(number, number + 1, seed=5, EPOCH="2")
        assert changes(*members) == [f"change {number} 0 {step} 1"] * number
        members.append(new)
        go(step, *members)
    go(4, *members)
    go(5, *members)
    finish(*members)


def test_trainings_of_one_round_follow_each_other(stack: ExitStack, backend: str) -> None:
    launcher = Launcher(stack, backend, 1)
    workers = [launcher.start(rank, 2, TRAININGS="3") for rank in range(2)]
    for number in range(3):
        go(0, *workers)
        if number < 2:
            assert [one.next_line().split()[0] for one in workers] == ["end", "end"]
    finish(*workers)


def test_a_new_member_does_not_take_the_state_of_another_training(
    stack: ExitStack, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher(stack, backend, 1)
    first = launcher.start(0, 1, TRAININGS="2")
    go(0, first)
    assert first.next_line().startswith("end 1 ")
    assert at(first) == 0
    interrupt(launcher, (first, "before"))
    launcher.begin(first, None)
    new = launcher.start(1, 2, seed=5, TRAININGS="2")
    assert [first.process.wait(), new.process.wait()] == [1, 1]
    message = "ranks were in different trainings of the script (by rank: 2, 1)"
    assert capfd.readouterr().err.count(message) == 2


def test_nothing_of_earlier_rounds_is_left(stack: ExitStack, backend: str) -> None:
    launcher = Launcher(stack, backend, 25)
    worker = launcher.start(0, 1)
    for step in range(25):
        assert at(worker) == step
        interrupt(launcher, (worker, "before"))
        launcher.begin(worker)
        assert changes(worker) == [f"change {step + 1} None {step} 0"]
        go(step, worker)
    end = finish(worker)
    assert end[0].split()[-1] == "1"  # reducer
    _, threads, _, sockets = end[2].split()
    # The thread for NCCL may be ending; NCCL keeps some sockets of its own.
    limits = (1, 8) if backend == "gloo" else (2, 40)
    assert int(threads) <= limits[0] and int(sockets) < limits[1]


@pytest.mark.parametrize(
    ("word", "message"),
    [("raise", "RuntimeError: a bad batch"), ("before", "[gloo] Connection closed by peer")],
)
def test_an_error_that_is_no_change_is_raised(
    stack: ExitStack, backend: str, word: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher(stack, backend, 2, notice_timeout=0.01 if word == "before" else 3600)
    worker = launcher.start(0, 1)
    assert at(worker) == 0
    order(word, worker)
    assert worker.process.wait() == 1
    assert message in capfd.readouterr().err
