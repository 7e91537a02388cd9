"""The check that asks NVIDIA's health check daemon: a server with its service, on a real socket."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from elastic.agent.server import node_checks
from elastic.checks import nvhcd

from support.launching import launch

grpc = pytest.importorskip("grpc", reason="the package grpcio is not installed")
pytest.importorskip("google.protobuf", reason="the package protobuf is not installed")


@contextmanager
def daemon(socket: Path, **reply: Any) -> Iterator[list[list[str]]]:
    """Replies so to each request; yields the arguments of the requests."""
    request, response = nvhcd.messages()
    seen: list[list[str]] = []

    def run(asked: Any, _: Any) -> Any:
        seen.append(list(asked.args))
        return response(**reply)

    handler = grpc.unary_unary_rpc_method_handler(
        run,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )
    _, service, method = nvhcd.METHOD.split("/")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield seen
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("reply", "code", "verdict", "reason"),
    [
        ({"success": True, "output": '{"fail_count": 0}'}, 0, "good", "the daemon found no fault"),
        (
            {"success": True, "output": '{"fail_count": 2, "failed_checks": ["ecc", "ib"]}'},
            1,
            "bad",
            "2 checks failed: ecc, ib",
        ),
        ({"success": True, "output": '{"fail_count": 1}'}, 1, "bad", "1 check failed"),
        ({"success": False, "error": "GPU 3\nis lost"}, 1, "bad", "GPU 3 is lost"),
        ({"success": False, "exit_code": 5}, 1, "bad", "the check ended with code 5"),
        ({"success": True, "output": "[]"}, 3, "unknown", "the daemon's output has no fail_count"),
        ({"success": True, "output": "x"}, 3, "unknown", "the daemon's output has no fail_count"),
        ({"success": True}, 3, "unknown", "the daemon's output has no fail_count"),
    ],
)
def test_what_a_reply_means(
    reply: dict[str, Any],
    code: int,
    verdict: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with daemon(tmp_path / "s", **reply) as seen:
        assert nvhcd.main([f"unix://{tmp_path / 's'}"]) == code
    assert seen == [["--no-slurm"]]
    assert json.loads(capsys.readouterr().out) == {
        "check": "nvhcd",
        "verdict": verdict,
        "reason": reason,
    }


def test_a_daemon_that_is_not_there_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_CHECK_TIMEOUT", "2")
    assert nvhcd.main([f"unix://{tmp_path / 'none'}"]) == nvhcd.EXIT_UNKNOWN
    assert "UNAVAILABLE" in json.loads(capsys.readouterr().out)["reason"]
    assert nvhcd.main([]) == nvhcd.EXIT_UNKNOWN


@pytest.mark.parametrize("fault", ["timeout", "channel"])
def test_a_check_that_fails_is_unknown(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "timeout":
        monkeypatch.setenv("ELASTIC_CHECK_TIMEOUT", "soon")
    else:
        monkeypatch.delattr(grpc, "insecure_channel")
    assert nvhcd.main(["unix:///no/such/socket"]) == nvhcd.EXIT_UNKNOWN
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "unknown"
    assert found["reason"].startswith("the check failed: ")


def test_a_daemon_that_never_answers_is_unknown_at_the_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_CHECK_TIMEOUT", "2")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()  # the kernel accepts
        assert nvhcd.main([f"unix://{tmp_path / 's'}"]) == nvhcd.EXIT_UNKNOWN
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"


def test_the_option_takes_a_socket(tmp_path: Path) -> None:
    address = f"unix://{tmp_path / 's'}"
    (check,) = node_checks.settings_of([f"{address} --quick"])["node_checks"]
    module = [sys.executable, "-m", "elastic.checks.nvhcd"]
    assert check == (f"{address} --quick", [*module, address, "--quick"])


@pytest.mark.parametrize(("failed", "code"), [(0, 0), (1, 79)])
def test_a_node_joins_if_the_daemon_finds_nothing(failed: int, code: int, tmp_path: Path) -> None:
    output = json.dumps({"fail_count": failed, "failed_checks": ["ecc"] * failed})
    with daemon(tmp_path / "s", success=True, output=output) as seen:
        check = f"--node-check=unix://{tmp_path / 's'} --quick"
        done = launch("--standalone", check, "--no-python", "true")
    assert done.returncode == code, done.stderr
    assert seen == [["--quick"]]
    if failed:
        assert "1 check failed: ecc; this node does not join" in done.stderr
