"""How ``elastic-launch status`` finds the jobs of this host."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic import _local_jobs, observe
from elastic.cli import drain, local_jobs, stacks, status
from elastic.errors import ConfigError, RendezvousClosed, RendezvousUnavailable
from elastic.observe import LocalJob

DEAD_PID = 2**22 + 1  # above the largest pid_max


@pytest.fixture
def folder() -> Iterator[str]:
    """A short path: the path of a socket is limited."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield f"{made}/jobs"


def listen(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    return listening


def test_the_directory_is_private_and_the_name_is_that_of_the_job(folder: str) -> None:
    path = _local_jobs.new_path("köln/7 " + "x" * 200, _local_jobs.SOCKET, [folder])
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert path.startswith(f"{folder}/k_ln_7_xxx") and f"-{os.getpid()}" in path
    assert len(path.encode()) <= 107
    assert path != _local_jobs.new_path("köln/7", _local_jobs.SOCKET, [folder])


def test_a_directory_that_others_can_use_is_not_used(folder: str, tmp_path: Path) -> None:
    os.mkdir(folder, 0o700)
    os.chmod(folder, 0o770)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    unusable = [folder, str(link), "/proc/no-such-directory"]
    assert _local_jobs.new_path("job", _local_jobs.SOCKET, unusable) == ""
    assert _local_jobs.find(unusable) == []
    other = str(tmp_path / "other")
    assert _local_jobs.new_path("job", ".sock", [*unusable, other]).startswith(other)


def test_a_socket_is_found_while_a_process_listens(folder: str) -> None:
    path = _local_jobs.new_path("job", _local_jobs.SOCKET, [folder])
    with listen(path):
        found = [_local_jobs.LocalJob(f"unix:{path}", os.getpid(), "")]
        assert _local_jobs.find([folder]) == found
    assert _local_jobs.find([folder]) == []
    # Its agent has not listened yet: the process runs.
    assert os.listdir(folder) == [os.path.basename(path)]
    os.rename(path, f"{folder}/job-{DEAD_PID}.sock")
    assert _local_jobs.find([folder]) == []
    assert os.listdir(folder) == []


def test_a_record_is_found_while_its_agent_holds_it(folder: str) -> None:
    record = _local_jobs.Record("job", "node0:29400", [folder])
    # The last one: the coordinator has moved.
    for moved_to in ("", "node1:5"):
        record.write("node0:29400", moved_to)
        expected = [_local_jobs.LocalJob("node0:29400", os.getpid(), "job", moved_to)]
        assert _local_jobs.find([folder]) == expected
    record.close()
    assert os.listdir(folder) == []
    Path(folder, "job-1.json").write_text('{"job": "job", "endpoint": "a:1"}')
    assert _local_jobs.find([folder]) == []
    assert os.listdir(folder) == []


def test_a_new_agent_removes_what_killed_ones_have_left(folder: str) -> None:
    os.mkdir(folder, 0o700)
    listen(f"{folder}/a-{DEAD_PID}.sock").close()
    Path(folder, f"b-{DEAD_PID}.json").write_text("{}")
    no_socket, no_number = f"x-{DEAD_PID}.sock", "x-².sock"
    for name in (no_socket, no_number):
        Path(folder, name).touch()
    elsewhere = f"{folder}/c-{DEAD_PID}.sock"  # in another pid namespace
    with listen(elsewhere):
        assert _local_jobs.new_path("job", _local_jobs.SOCKET, [folder])
        left = {os.path.basename(elsewhere), no_socket, no_number}
        assert set(os.listdir(folder)) == left


JOBS = [
    LocalJob("a", "unix:/a", (7,), None),
    LocalJob("b", "node0:29400", (8, 9), None),
    LocalJob("b", "unix:/b", (10,), None),
]


@pytest.mark.parametrize(
    ("words", "jobs", "found"),
    [
        ({}, JOBS[:1], ("unix:/a", "a")),
        ({"endpoint": "a"}, JOBS, ("unix:/a", "a")),
        ({"rdzv_id": "a"}, JOBS, ("unix:/a", "a")),
        ({"endpoint": "9"}, JOBS, ("node0:29400", "b")),
        ({"endpoint": "a:29400"}, JOBS, ("a:29400", "")),
        ({"endpoint": "a", "rdzv_id": "b"}, JOBS, ("a", "b")),
        ({"endpoint": "unix:/c"}, JOBS, ("unix:/c", "")),
        ({"endpoint": "localhost"}, JOBS, ("localhost", "")),
    ],
)
def test_a_job_of_this_host_is_named_by_its_id_or_pid(
    words: dict[str, str],
    jobs: list[LocalJob],
    found: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observe, "local_jobs", lambda: jobs)
    options = argparse.Namespace(**{"endpoint": "", "rdzv_id": "", **words})
    hint = local_jobs.locate(options)
    assert (options.endpoint, options.rdzv_id) == found
    assert ("a (pid 7), b (pid 8 9), b (pid 10)" in hint) == (words == {"endpoint": "localhost"})
    both = {"endpoint": "a", "rdzv_id": "b"}
    assert (hint == "; a is a job of this host: leave out --rdzv-id") == (words == both)


@pytest.mark.parametrize(
    ("words", "jobs", "problem"),
    [
        ({}, [], "no job of this user runs on this host"),
        ({}, JOBS, r"choose one by name or pid; its jobs are a \(pid 7\), b"),
        ({"endpoint": "b"}, JOBS, r"by name or pid; its jobs are b \(pid 8 9\), b \(pid 10\)"),
        ({"rdzv_id": "c"}, [], "no job c of this user runs on this host; it has no jobs"),
        ({"endpoint": "77"}, JOBS, "no job 77 of this user runs on this host; its jobs are a"),
        ({"endpoint": "no_host"}, [], "no job no_host of .* host, and no_host is not a host name"),
    ],
)
def test_a_job_that_is_not_named_clearly_is_an_error(
    words: dict[str, str], jobs: list[LocalJob], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "local_jobs", lambda: jobs)
    options = argparse.Namespace(**{"endpoint": "", "rdzv_id": "", **words})
    with pytest.raises(RendezvousClosed, match=problem):
        local_jobs.locate(options)


@pytest.mark.parametrize(("job", "found"), [("7", "node1:29407"), ("9", ""), ("", "")])
def test_the_job_of_a_slurm_allocation_is_the_one_inside_it(
    job: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [LocalJob("7.0", "node1:29407", (1,), None), LocalJob("8.0", "node1:29408", (2,), None)]
    monkeypatch.setattr(observe, "local_jobs", lambda: jobs)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    options = argparse.Namespace(endpoint="", rdzv_id="")
    if found:
        assert local_jobs.locate(options) == ""
        assert (options.endpoint, options.rdzv_id) == (found, "7.0")
        return
    with pytest.raises(RendezvousClosed, match="several jobs"):
        local_jobs.locate(options)


def test_a_command_that_changes_a_job_needs_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observe, "local_jobs", lambda: JOBS[:1])
    with pytest.raises(ConfigError, match=r"give JOB; on this host its jobs are a \(pid 7\)"):
        drain.run([])


def test_a_lost_coordinator_is_looked_for_at_the_jobs_voters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observe, "agents_endpoints", lambda *_: ["b:7", "a:29400"])
    last = {"job": "j", "coordinator": {"address": "a:29400", "voters": ["b:7", "[fd00::1]:8"]}}
    options = argparse.Namespace(endpoint="a,d:5", rdzv_id="")
    for _ in range(2):
        local_jobs.locate_again(options, last)
        assert options.endpoint == "b:7,a:29400,[fd00::1]:8,d:5"
        assert options.rdzv_id == "j"
    for kept in ("etcd://a:2379", "unix:/tmp/x"):
        options = argparse.Namespace(endpoint=kept, rdzv_id="j")
        local_jobs.locate_again(options, last)
        assert options.endpoint == kept


def test_an_agent_of_another_job_of_the_id_is_not_asked(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of one id may run on a host, at endpoints with different ports."""
    monkeypatch.setattr(_local_jobs, "directories", lambda _: [folder])
    records = [
        _local_jobs.Record(run_id, endpoint, [folder])
        for run_id, endpoint in (
            ("job", "node0:29400,node1:29400"), ("job", "node0:29401"), ("other", "node0:29400"),
            ("job", "file:///shared/record"),
        )
    ]  # fmt: skip
    records[0].write("node0:29400,node1:29400", "node1:5")
    own = ["node1:5", "node0:29400,node1:29400"]
    assert observe.agents_endpoints("job", {29400}) == own
    assert observe.agents_endpoints("job", {5}) == own
    assert observe.agents_endpoints("job", {29401}) == ["node0:29401"]
    assert observe.agents_endpoints("job", {29402}) == []
    for record in records:
        record.close()


def test_a_record_that_is_replaced_while_it_is_read_stays(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has opened the file that the agent closes a moment later."""
    record = _local_jobs.Record("job", "node0:29400", [folder])
    flock = fcntl.flock

    def replace(file: object, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        record.write("node0:29400", "node1:5")
        flock(file, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", replace)
    assert _local_jobs.find([folder]) == []
    (found,) = _local_jobs.find([folder])
    assert found.moved_to == "node1:5"
    record.close()


def test_the_endpoint_to_which_a_coordinator_has_moved_is_listed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = _local_jobs.LocalJob("n1:5,n2:5,n3", 7, "job", "n3:29400")
    monkeypatch.setattr(observe, "agents", lambda: [agent])
    asked = []

    def connect(endpoint: str, *_: object, **__: object) -> None:
        asked.append(endpoint)
        raise RendezvousUnavailable("it does not answer")

    monkeypatch.setattr(observe, "connect", connect)
    (found,) = observe.local_jobs()
    assert found.endpoint == "n3:29400,n1:5,n2:5"
    assert asked == [found.endpoint]


def test_an_unknown_job_is_no_failure_to_connect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(observe, "local_jobs", list)
    for run in (status.run, drain.run, stacks.run):
        assert run(["no_host"]) == 1
    assert capsys.readouterr().err.count("and no_host is not a host name") == 3


def test_a_long_error_is_below_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "cannot connect to node0:29400: " + "Connection refused " * 9
    jobs = [
        LocalJob("a", "node0:29400", (7,), None, error),
        LocalJob("b", "", (8,), None, "no round has begun yet"),
    ]
    monkeypatch.setattr(observe, "local_jobs", lambda: jobs)
    assert status.run([]) == 0
    header, first, second, below = capsys.readouterr().out.splitlines()
    assert "unreachable" in first and "no round has begun yet" in second
    assert max(map(len, (header, first, second))) <= 80
    assert below == f"a (pid 7): {error}"


def test_a_job_that_does_not_answer_is_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = LocalJob("", "unix:/a", (7, 8), None, "it does not answer")
    known = LocalJob("b", "node0:29400", (9,), {"schema": 1, "job": "b"})
    monkeypatch.setattr(observe, "local_jobs", lambda: [silent, known])
    assert status.run(["--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    where = {"endpoint": "unix:/a", "pids": [7, 8]}
    assert first == {"schema": 1, "job": None, "error": "it does not answer", **where}
    assert second == {"schema": 1, "job": "b", "endpoint": "node0:29400", "pids": [9]}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"endpoint": "node0:29400"}, ("node1:5,node0:29400", "a")),
        ({"endpoint": "node0:29400", "rdzv_id": "a"}, ("node1:5,node0:29400", "a")),
        ({"endpoint": "node9:1,node0:29400"}, ("node1:5,node9:1,node0:29400", "a")),
        ({"endpoint": "node0:29400", "rdzv_id": "b"}, ("node0:29400", "b")),
        ({"endpoint": "node0:29401"}, ("node0:29401", "")),
        ({"endpoint": "node2:29400"}, ("node2:29400", "")),
        ({"endpoint": "unix:/c"}, ("unix:/c", "")),
        ({"endpoint": "etcd://node0:29400", "rdzv_id": "a"}, ("etcd://node0:29400", "a")),
    ],
)
def test_a_coordinator_that_has_moved_is_asked_where_its_agents_see_it(
    words: dict[str, str], found: tuple[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_local_jobs, "directories", lambda _: [folder])
    records = [
        _local_jobs.Record(run_id, endpoint, [folder])
        for run_id, endpoint in (("a", "node0:29400"), ("c", "node2:29400"), ("d", "node2:29400"))
    ]
    for record, endpoint in zip(records, ("node0", "node2", "node2"), strict=True):
        record.write(f"{endpoint}:29400", "node1:5")
    options = argparse.Namespace(**{"endpoint": "", "rdzv_id": "", **words})
    hint = local_jobs.locate(options)
    for record in records:
        record.close()
    assert (options.endpoint, options.rdzv_id) == found
    is_found = "node1:5" in options.endpoint or "/" in options.endpoint
    assert hint == ("" if is_found else local_jobs.MOVED)
