"""Several launchers form one job whose record a store keeps: a file, a TCPStore, etcd, or a
third-party class. Each of them can do what a job with an endpoint can.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from elastic import StoreServer, observe

from support.launching import Job, await_line, launch
from support.paths import STUBS
from support.plug_ins import install
from support.stopping import EXIT_STOPPED, MANY, STUB, stops
from support.waiting import eventually

RANKS = "echo rank $RANK of $WORLD_SIZE, store $MASTER_PORT"
EXIT_BAD_HOST = 79
# No node lacks a CPU for so long, and no node waits for one that is to join.
CONF = "--rdzv-conf=node_timeout=6,last_call_timeout=100"
STEPS = """
import threading
from elastic import worker
for step in range(1, 4):
    worker.progress(step)
print("three steps", flush=True)
threading.Event().wait()
"""


class Place:
    """A store for one job."""

    def __init__(self, backend: str, endpoint: str, keys: str = "") -> None:
        self.conf = CONF + keys
        self.keys = keys
        self.run_id = str(uuid.uuid4())
        self.url = f"{backend}://{endpoint}"
        self.options = [
            f"--rdzv-backend={backend}",
            f"--rdzv-endpoint={endpoint}",
            f"--rdzv-id={self.run_id}",
        ]


@pytest.fixture(params=["file", "tcpstore", "etcd", "numbered"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    kind: str = request.param
    if kind == "file":
        yield Place(kind, str(tmp_path / "state"))
    elif kind == "tcpstore":
        with StoreServer() as server:  # test_rendezvous_handlers.py has torch's server, too
            yield Place(kind, f"127.0.0.1:{server.port}")
    elif kind == "etcd":
        yield Place(kind, request.getfixturevalue("etcd"))
    else:
        plugged = tmp_path / "plugged"
        plugged.mkdir()
        shutil.copy(STUBS / "stub_store_plug_in.py", plugged)
        path = install(plugged, "elastic.backends", numbered="stub_store_plug_in:make")
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.syspath_prepend(str(plugged))
        yield Place(kind, str(tmp_path / "numbered"), ",colour=blue")


def job(place: Place, nnodes: str, *words: str, script: str = RANKS) -> Job:
    options = ["--nnodes", nnodes, "--no-python", place.conf, *place.options, *words]
    return Job(options, ["sh", "-c", script])


@pytest.mark.smoke
def test_two_agents_form_a_job_that_restarts_and_another_one_of_its_id(place: Place) -> None:
    fails_once = f'{RANKS}; test "$TORCHELASTIC_RESTART_COUNT$RANK" != 03 || exit 9'
    with job(place, "2", "--nproc-per-node=2", "--max-restarts=1", script=fails_once) as nodes:
        nodes.start()
        nodes.start()
        done = nodes.succeed()
    lines = [line for node in done for line in node.stdout.splitlines()]
    assert {line.split(",")[0] for line in lines} == {f"rank {rank} of 4" for rank in range(4)}
    assert len({line.split(",")[1] for line in lines}) == 2, "a store for each round"
    # The second job of this name is another generation. Its failure ends all agents.
    with job(place, "2", script="test $RANK = 0 && sleep 1000; exit 9") as nodes:
        nodes.start()
        nodes.start()
        done = nodes.finish_with(9, 9)
    assert all(re.search(r"rank 1 .*exited with code 9", node.stderr) for node in done)


def coordinator_of(place: Place) -> str:
    try:
        return observe.find(place.url, place.run_id)
    except observe.RendezvousError:
        return ""


@contextmanager
def job_of_two(place: Place, alone: str = ":") -> Iterator[Job]:
    """A job whose first node coordinates it, and whose workers end when they are alone.

    ``alone``: what a worker that is alone does before that.
    """
    work = f'if test "$WORLD_SIZE" = 1; then {alone}; else sleep 1000; fi'
    script = f"echo at work in a world of $WORLD_SIZE; {work}"
    with job(place, "1:2", script=script) as nodes:
        nodes.start()
        eventually(lambda: coordinator_of(place) != "")
        nodes.start()
        for node in nodes.nodes:
            assert node.stdout.readline() == "at work in a world of 2\n"
        yield nodes


def test_the_job_survives_the_loss_of_either_of_two_nodes(place: Place) -> None:
    for victim in range(2):  # the first one runs the coordinator; each job has its own
        with job_of_two(place) as nodes:
            nodes.nodes[victim].kill()
            survivor = nodes.nodes[1 - victim]
            stdout, stderr = survivor.end(0)
            assert stdout == "at work in a world of 1\n"
            assert ("the coordinator of the job is at" in stderr) == (victim == 0), stderr


def test_the_job_is_handed_over_when_its_first_agent_ends(place: Place, tmp_path: Path) -> None:
    # A job that has ended by then has nothing to hand over.
    taken_over = tmp_path / "taken-over"
    with job_of_two(place, f"until test -e {taken_over}; do sleep 0.02; done") as nodes:
        nodes.nodes[0].terminate()
        await_line(nodes.nodes[1], "handed it over")
        taken_over.touch()
        done = nodes.finish()
    assert done[1].returncode == 0, done[1].stderr


def test_a_spare_takes_the_place_of_the_node_that_coordinated(place: Place, tmp_path: Path) -> None:
    is_over = tmp_path / "over"
    script = f"echo at work in a world of $WORLD_SIZE; until test -e {is_over}; do sleep 0.02; done"
    with job(place, "2", "--max-restarts=1", script=script) as nodes:
        nodes.start()
        eventually(lambda: coordinator_of(place) != "")
        nodes.start()
        for node in nodes.nodes:
            assert node.stdout.readline() == "at work in a world of 2\n"
        nodes.start(LOGLEVEL="INFO")
        await_line(nodes.nodes[2], "spare")
        nodes.nodes[0].kill()
        assert nodes.nodes[2].stdout.readline() == "at work in a world of 2\n"
        is_over.touch()
        done = nodes.finish()
    assert [node.returncode for node in done[1:]] == [0, 0], [node.stderr for node in done]


def test_a_job_is_found_in_its_store_and_its_ranks_stop_at_one_step(
    place: Place, tmp_path: Path
) -> None:
    options = ["--nnodes=2", "--nproc-per-node=2", "--drain=100", place.conf, *place.options]
    with Job(options, [STUB, str(tmp_path), MANY, "1"]) as nodes:
        nodes.start_nodes(2, 2)
        where = (place.url, f"--rdzv-id={place.run_id}")
        with observe.connect(place.url, place.run_id) as seen:
            eventually(lambda: ((seen.next() or {})["progress"] or {}).get("step", 0) >= 3)
        shown = json.loads(launch("status", *where, "--json", check=True).stdout)
        assert (shown["job"], shown["world_size"]) == (place.run_id, 4)
        assert shown["coordinator"]["address"] == observe.find(place.url, place.run_id)
        assert shown["progress"]["step"] >= 3
        stacks = launch("stacks", *where, check=True).stdout
        assert "stub_stopping_rank.py" in stacks
        unknown = launch("status", place.url, "--rdzv-id=unknown")
        assert unknown.returncode == 1
        assert re.search(r"status: .* has no record of a job unknown", unknown.stderr)
        assert "give the run id (--rdzv-id)" in launch("status", place.url).stderr
        # On this host the job is found by its id.
        assert json.loads(launch("status", place.run_id, "--json", check=True).stdout)["round"] == 0
        nodes.nodes[1].send_signal(signal.SIGTERM)
        done = nodes.finish()
    assert {node.returncode for node in done} == {EXIT_STOPPED}, [node.stderr for node in done]
    assert len(set(stops(tmp_path).values())) == 1


def test_a_hang_is_reported(place: Place, tmp_path: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    options = ["--nnodes=2", "--hang-timeout=2", "--hang-action=fail", place.conf, *place.options]
    with Job(options, [str(script)]) as nodes:
        nodes.start_nodes(2, 1)
        done = nodes.finish()
    assert all(node.returncode for node in done)
    assert any("the job hangs" in node.stderr for node in done), [node.stderr for node in done]


def test_a_token_keeps_others_out(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.touch(mode=0o600)
    secret.write_text("correct-horse-battery-staple-0123")
    with job(place, "1:2", f"--token-file={secret}", script="echo runs; cat") as nodes:
        first = nodes.start()
        eventually(lambda: coordinator_of(place) != "")
        refused = launch("status", place.url, f"--rdzv-id={place.run_id}")
        assert refused.returncode != 0
        seen = launch(
            "status", place.url, f"--rdzv-id={place.run_id}", f"--token-file={secret}", "--json"
        )
        assert seen.returncode == 0, seen.stderr
        first.terminate()
        nodes.finish()


def test_a_start_that_failed_does_not_bind_its_id(place: Place) -> None:
    alone = launch(
        *("--nnodes=2", f"--rdzv-conf=join_timeout=1{place.keys}", *place.options),
        *("--no-python", "true"),
    )
    assert alone.returncode == 75, alone.stderr
    assert "1 of 2 nodes joined (" in alone.stderr
    with job(place, "1", "--max-restarts=3") as nodes:
        nodes.start()
        nodes.succeed()


def test_a_job_that_was_killed_does_not_bind_its_id(tmp_path: Path) -> None:
    place = Place("file", str(tmp_path / "record"))
    # Long enough that the next node joins before the former ones are taken for lost.
    conf = "--rdzv-conf=node_timeout=4,last_call_timeout=100"
    with job(place, "2", conf, script="echo runs; cat") as nodes:
        nodes.start_nodes(2, 1)
        for node in nodes.nodes:  # so that neither learns of the other one's end
            node.send_signal(signal.SIGSTOP)
        for node in nodes.nodes:
            node.kill()
    with job(place, "1", conf, "--max-restarts=3") as nodes:
        nodes.start()
        (done,) = nodes.succeed()
    assert "the nodes of the former job of this id have" in done.stderr
    assert "rank 0 of 1" in done.stdout


def test_a_host_that_was_excluded_stays_so_in_the_record(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot give a process a host name of its own")

    def host(name: str) -> Callable[..., list[str]]:
        return lambda *command: ["unshare", "--uts", "sh", "-c", set_name, name, *command]

    set_name = 'hostname "$0"; exec "$@"'
    place = Place("file", str(tmp_path / "record"))
    where = (place.url, f"--rdzv-id={place.run_id}")
    conf = "--rdzv-conf=node_timeout=2,last_call_timeout=0"
    script = "echo runs >&2; exec sleep 1000"
    with job(place, "1:2", conf, "--max-restarts=3", script=script) as nodes:
        first = nodes.start(on=host("first"))
        await_line(first, "runs")
        bad = nodes.start(on=host("bad"))
        await_line(bad, "runs")
        excluded = launch("exclude", *where, "bad", "--reason=fan 3")
        assert excluded.stdout.startswith("host bad is excluded for 1 h"), excluded.stderr
        assert bad.wait(60.0) == EXIT_BAD_HOST
        second = nodes.start(on=host("second"))
        await_line(second, "runs")
        first.kill()  # it had the coordinator
        await_line(second, "runs")
        again = nodes.start(on=host("bad"))
        assert again.wait(60.0) == EXIT_BAD_HOST
        shown = launch("status", *where)
        second.terminate()
        nodes.finish()
    assert "  excluded     bad until " in shown.stdout, shown.stderr
    assert "fan 3" in shown.stdout
