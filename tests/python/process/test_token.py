"""Jobs with a token: encrypted sessions, and each way in which the sides do not fit."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic import _C

from support.coordinators import needs_openssl, program, running_coordinator
from support.dashboards import events, served
from support.launching import Job, free_endpoint, launch, run_program, shell_job


@pytest.fixture(autouse=True)
def only_with_openssl() -> None:
    needs_openssl()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return written(tmp_path / "token", secrets.token_hex(32))


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    """A new file with this content takes the name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text + "\n")
    fresh.chmod(mode)
    fresh.rename(path)
    return path


def job(endpoint: str, *words: str, script: str = "true", nnodes: str = "2") -> Job:
    return shell_job(endpoint, nnodes, script, "--shutdown-timeout=5", *words)


@pytest.fixture
def coordinator(token_file: Path) -> Iterator[str]:
    """The endpoint of a coordinator that needs the token."""
    with running_coordinator("--token-file", str(token_file)) as endpoint:
        yield endpoint


@pytest.mark.smoke
def test_job_of_two_nodes_restarts_after_a_killed_worker(token_file: Path) -> None:
    script = (
        "echo rank $RANK of $WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT;"
        ' test "$TORCHELASTIC_RESTART_COUNT$RANK" = 03 && kill -9 $$;'
        ' test "$TORCHELASTIC_RESTART_COUNT" = 1 || sleep 1000'
    )
    words = (f"--token-file={token_file}", "--nproc-per-node=2", "--max-restarts=1")
    with job(free_endpoint(), *words, script=script) as nodes:
        nodes.start()
        nodes.start()
        done = nodes.succeed()
    lines = [line for node in done for line in node.stdout.splitlines()]
    assert sorted(line for line in lines if "restart 1" in line) == [
        f"rank {rank} of 4 restart 1" for rank in range(4)
    ]


def test_the_variable_holds_the_token_and_workers_do_not_get_it() -> None:
    token = secrets.token_hex(32)
    with (
        running_coordinator(ELASTIC_TOKEN=token) as endpoint,
        job(endpoint, script="echo token=${ELASTIC_TOKEN-}.") as nodes,
    ):
        nodes.start(ELASTIC_TOKEN=token)
        nodes.start(ELASTIC_TOKEN=token)
        done = nodes.succeed()
    assert [node.stdout for node in done] == ["token=.\n", "token=.\n"]


def test_a_node_and_a_coordinator_whose_tokens_do_not_fit_reject_each_other(
    coordinator: str, token_file: Path, tmp_path: Path
) -> None:
    other = written(tmp_path / "other", secrets.token_hex(32))
    with running_coordinator() as without:
        for endpoint, words, sentence in (
            (coordinator, [], "needs a token, and this node has none: set --token-file"),
            (coordinator, [f"--token-file={other}"],
             f"does not accept the token file {other} for job job ("),
            (without, [f"--token-file={token_file}"],
             "has no token, and this node has one (the token file"),
        ):  # fmt: skip
            with job(endpoint, *words) as nodes:
                nodes.start()
                (done,) = nodes.finish_with(_C.EXIT_REJECTED)
            assert sentence in done.stderr
    observer = launch("status", coordinator, f"--token-file={other}")
    assert f"does not accept the token file {other} (" in observer.stderr


def faults(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    yield tmp_path / "missing", "cannot be read: No such file or directory"
    yield written(tmp_path / "empty", ""), "has no token"
    yield written(tmp_path / "short", "secret"), "line 1 has 6 characters, fewer than 16"
    yield written(tmp_path / "open", "x" * 32, 0o644), "is accessible by other users (mode 0644)"
    yield tmp_path, "is not a regular file"
    yield written(tmp_path / "others", f"a {'x' * 32}"), "has no line for job job"


def test_faulty_files_end_with_a_sentence(tmp_path: Path) -> None:
    for path, sentence in faults(tmp_path):
        done = launch(
            "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={free_endpoint()}",
            "--rdzv-id=job", f"--token-file={path}", "--no-python", "true",
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (_C.EXIT_USAGE, 1), done.stderr
        assert f"the token file {path} {sentence}" in done.stderr
        if sentence.startswith("has no line"):
            continue
        done = run_program([program(), "--bind", "127.0.0.1:0", "--token-file", str(path)])
        assert done.returncode == 2
        assert f"the token file {path} {sentence}" in done.stderr


def test_token_is_replaced_while_a_job_runs(token_file: Path, tmp_path: Path) -> None:
    old, new = token_file.read_text().strip(), secrets.token_hex(32)
    own = written(tmp_path / "own", new)
    marker = tmp_path / "go"
    script = f"echo $WORLD_SIZE; while [ ! -e {marker} ]; do sleep 0.05; done"
    words = ("--nnodes=1:2", "--max-restarts=1", "--rdzv-conf=settle=0,last_call_timeout=0")
    with (
        running_coordinator("--token-file", str(token_file)) as endpoint,
        job(endpoint, *words, script=script) as nodes,
    ):
        first = nodes.start(f"--token-file={token_file}")
        assert first.stdout.readline() == "1\n"
        written(token_file, f"{new}\n{old}")
        second = nodes.start(f"--token-file={own}")
        assert second.stdout.readline() == "2\n", "a node with the new token joins"
        marker.touch()
        nodes.succeed()


def test_rendezvous_handlers_use_the_token(coordinator: str, token_file: Path) -> None:
    code = f"""
from elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
handler = get_rendezvous_handler(RendezvousParameters(
    "c10d", {coordinator!r}, "job", 1, 1, token_file={str(token_file)!r}))
print(handler.next_rendezvous().world_size)
"""
    done = run_program([sys.executable, "-c", code])
    assert done.stdout == "1\n", done.stderr


def test_observer_token_is_printed(token_file: Path) -> None:
    printed = run_program(
        [program(), "--print-observer-token", "--token-file", str(token_file)], check=True
    ).stdout
    assert printed.strip() == _C.observer_token("job", token_file=str(token_file))
    assert re.fullmatch(r"observer-[0-9a-f]{64}\n", printed)


def test_the_dashboard_reads_with_a_token(coordinator: str, token_file: Path) -> None:
    pytest.importorskip("aiohttp")
    with job(coordinator, f"--token-file={token_file}", script="echo; sleep 1000") as nodes:
        nodes.start_nodes(2, lines=1)
        with served(coordinator, f"--token-file={token_file}") as url:
            shown = next(data for kind, data in events(url) if kind == "job")
    assert shown["job"] == "job"


def test_a_pipe_is_read_once(token_file: Path) -> None:
    script = (
        f"exec {sys.executable} -m elastic --nnodes=1:2 --rdzv-backend=c10d --rdzv-id=job "
        f"--rdzv-endpoint={free_endpoint()} --rdzv-conf=last_call_timeout=0 "
        f"--token-file <(cat {token_file}) --no-python true"
    )
    run_program(["bash", "-c", script], check=True)
    assert os.environ.get("ELASTIC_TOKEN") is None


def test_libssl_of_the_interpreter_is_loaded_before_that_of_the_system() -> None:
    code = (
        "import sys; from elastic.rendezvous import token; assert '_ssl' not in sys.modules;"
        " token.check({'token': 64 * 'x'}, 'job', {}); assert '_ssl' in sys.modules"
    )
    assert run_program([sys.executable, "-c", code]).returncode == 0
