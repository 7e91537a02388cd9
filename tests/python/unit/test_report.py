"""The failure report: the worker that failed first, and its output."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from elastic import _C
from elastic.agent.server import RunResult, WorkerState
from elastic.cli import report
from elastic.multiprocessing.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    evidence,
    record,
)

NOW = time.monotonic()


def failure(rank: int, *, ago: float = 1.0, code: int = 1, signum: int = 0, **more: Any) -> Any:
    """A failure as the native agent reports it, whose worker ended `ago` seconds before NOW."""
    how = f"killed by signal {signum}" if signum else f"exited with code {code}"
    exited = SimpleNamespace(
        at=NOW - ago,
        code=0 if signum else code,
        signal=signum,
        stage=more.pop("stage", ""),
        shell_code=128 + signum if signum else code,
        stopped_by_us=False,
        describe=lambda: how,
    )
    paths = {"error_file": "", "stdout_path": "", "stderr_path": "", "stderr_tail": ""}
    known = {
        "failed_at": exited.at,
        "exit_code": exited.shell_code,
        "message": how,
        "evidence": SimpleNamespace(
            error="", hint="", failure_class="user worker", cause="exit code"
        ),
    }
    fields = paths | known | more
    return SimpleNamespace(local_rank=rank, rank=rank, pid=1000 + rank, exit=exited, **fields)


def examine(*failures: Any) -> list[ProcessFailure]:
    return list(evidence.examine(failures, keeps_logs=True).values())


def text_of(failures: list[ProcessFailure], **more: Any) -> str:
    fields: dict[str, Any] = {
        "state": WorkerState.FAILED,
        "return_values": {},
        "failures": {found.rank: found for found in failures},
        "exit_code": failures[0].shell_code if failures else 1,
        "message": "the sentence",
        "run_id": "job",
        "restart_count": 0,
        "max_restarts": 0,
        "stopped": (),
    } | more
    return report.format_report("train.py", RunResult(**fields))


def error_file(path: Path, text: str = "ValueError: bad", timestamp: float | None = None) -> str:
    stamp = str(int(time.time() if timestamp is None else timestamp))
    extra = {"py_callstack": "Traceback\n  line\nValueError: bad\n", "timestamp": stamp}
    path.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))
    return str(path)


def test_ranks_that_had_exited_with_0_before_are_named() -> None:
    found = examine(failure(0, ago=1.0))
    [line] = text_of(
        found, succeeded={1: found[0].time - 0.012, 2: found[0].time + 1}
    ).splitlines()[-1:]
    assert line == "exited with code 0 0.012 s earlier: rank 1"
    earlier = {1: found[0].time - 1, 2: found[0].time - 2}
    assert text_of(found, succeeded=earlier).endswith("\nexited with code 0 earlier: ranks 1, 2")


def test_the_earliest_exit_is_the_cause() -> None:
    found = examine(failure(1, ago=2.0), failure(0, ago=1.0))
    assert [one.rank for one in found] == [1, 0]
    assert found[1].time - found[0].time == pytest.approx(1.0)


def test_an_error_that_was_reported_earlier_than_the_first_exit_is_the_cause() -> None:
    late = failure(0, ago=1.0, failed_at=NOW - 3.0)
    before = time.time() - time.monotonic()
    found = examine(late, failure(1, ago=2.0))
    after = time.time() - time.monotonic()
    assert [one.rank for one in found] == [0, 1]
    # Two clocks are read one after the other.
    assert before - 0.5 <= found[0].time - (NOW - 3.0) <= after + 0.5


def test_the_reason_that_gave_the_exit_code_comes_first() -> None:
    reason = "the coordinator at node0:29400 was not reached for 1 min"
    text = text_of(examine(failure(0)), exit_code=77, message=reason)
    first, *rest = text.splitlines()
    assert first == f"train.py failed: {reason}"
    assert any(line.startswith("also failed here: rank 0") for line in rest)


def test_a_worker_that_could_not_start_explains_the_others() -> None:
    found = examine(failure(0, ago=2.0), failure(1, ago=1.0, stage="exec"))
    assert [one.rank for one in found] == [1, 0]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"message": {"mess', b"\xff\xfe\x00", b"[]", b"null", b'"text"', b"[" * 100_000],
)
def test_an_error_file_that_does_not_parse_is_left_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content)
    [found] = examine(failure(0, error_file=str(path)))
    assert (found.error_file, found.error(), found.traceback) == ("<N/A>", "", "")
    assert "rank 0" in text_of([found])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"message": "plain", "timestamp": 12}, "plain"),
        ({"message": "plain", "timestamp": "soon"}, "plain"),
        ({"message": {"message": "m", "extraInfo": None}}, "m"),
        ({"message": {}}, ""),
        ({}, ""),
        ({"message": None}, "None"),
    ],
)
def test_odd_error_files_are_read_as_far_as_they_go(
    tmp_path: Path, content: object, message: str
) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(content))
    [found] = examine(failure(0, error_file=str(path)))
    assert (found.error(), found.message) == (message, message or "exited with code 1")


def test_a_failure_without_an_error_file_says_once_how_it_ended() -> None:
    found = examine(failure(0, signum=9), failure(1, ago=0.5))
    assert [one.message for one in found] == ["killed by signal 9", "exited with code 1"]
    block = str(ChildFailedError("train.py", {0: found[0]}))
    assert "  traceback :\n    killed by signal 9\n" in block
    text = text_of(found)
    assert text.count("killed by signal 9") == text.count("exited with code 1") == 1


def test_report_details_the_first_failure_and_lists_the_others(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_text("".join(f"line {number}\n" for number in range(80)))
    written = error_file(tmp_path / "error.json")
    found = examine(
        failure(1, ago=2.0, stderr_path=str(stderr), error_file=written), failure(2, ago=1.0)
    )
    text = text_of(found, restart_count=1, max_restarts=3, stopped=(0, 3))
    assert (
        text.splitlines()[0]
        == "train.py failed: rank 1 (local rank 1, pid 1001) exited with code 1"
    )
    assert "error   ValueError: bad" in text
    assert f"logs    {tmp_path}" in text
    assert "job, 1 of 3 restarts used" in text
    assert "| line 79" in text and "| line 30" in text and "| line 29\n" not in text
    assert "rank 2 (local rank 2, pid 1002) exited with code 1" in text
    assert "stopped by the launcher, not failed: ranks 0, 3" in text
    assert "Traceback" not in text  # it is in the stderr that is shown


def test_without_a_file_of_stderr_the_recorded_traceback_is_shown(tmp_path: Path) -> None:
    text = text_of(examine(failure(0, error_file=error_file(tmp_path / "error.json"))))
    assert "      | Traceback" in text


def test_an_error_handler_learns_the_function_and_its_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handler(ErrorHandler):
        seen: ClassVar[list[str]] = []

        def initialize(self) -> None:
            self.seen.append(str(self._fn_name))

        def record_success(self) -> None:
            self.seen.append("succeeded")

        def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
            return f"{message}: page fault on GPU 3"

    assert record(len, Handler())("ab") == 2
    assert Handler.seen == ["len", "succeeded"]
    name = "elastic.multiprocessing.errors.child_failed_error.get_error_handler"
    monkeypatch.setattr(name, Handler)
    killed = ChildFailedError("train.py", {0: ProcessFailure(0, 4711, -11)})
    assert "Signal 11 (SIGSEGV) received by PID 4711: page fault on GPU 3" in str(killed)
    ended = ChildFailedError("train.py", {0: ProcessFailure(0, 4711, 1)})
    assert "page fault" not in str(ended)


def test_only_the_end_of_a_huge_stderr_is_read(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_bytes(b"\xff" * 10_000_000 + b"\nlast\n")
    [found] = examine(failure(0, stderr_path=str(stderr)))
    assert found.stderr_tail[-1] == "last"
    assert sum(map(len, found.stderr_tail)) <= evidence.TAIL_BYTES_MAX


def test_class_cause_and_hint_of_the_agent_are_reported() -> None:
    known = SimpleNamespace(
        error="", hint="killed for lack of memory", failure_class="platform", cause="out of memory"
    )
    [found] = examine(failure(0, signum=9, evidence=known))
    assert (found.exitcode, found.signal_name()) == (-9, "SIGKILL")
    text = text_of([found])
    assert "    class   platform (out of memory)\n" in text
    assert "    hint    killed for lack of memory" in text


def test_a_worker_that_was_stopped_after_its_error_has_the_code_of_the_error() -> None:
    one = failure(0, signum=15, message="raised KeyError: 1, and was stopped", exit_code=1)
    one.exit.stopped_by_us = True
    [found] = examine(one)
    assert (found.exitcode, found.shell_code) == (1, 1)
    assert "failed: rank 0 (local rank 0, pid 1000) raised KeyError: 1, and was stopped" in text_of(
        [found]
    )


def test_failure_without_a_failed_worker_is_its_message() -> None:
    assert text_of([]) == "the sentence"


@pytest.mark.parametrize("recorded", [True, False])
def test_the_first_failure_is_passed_on_to_the_parent(tmp_path: Path, recorded: bool) -> None:
    path = error_file(tmp_path / "error.json") if recorded else ""
    [found] = examine(failure(0, code=3, error_file=path))
    evidence.pass_on(found, str(tmp_path / "parent.json"))
    message = json.loads((tmp_path / "parent.json").read_text())["message"]
    assert message["errorCode"] == 3
    assert message["message"] == (
        "ValueError: bad" if recorded else "rank 0 (local rank 0, pid 1000) exited with code 3"
    )
    assert int(message["extraInfo"]["timestamp"]) > 0
    assert list(tmp_path.glob("parent.json.*")) == []


def job(node: str, rank: int, message: str, *lost: str, evidence: Any = None) -> Any:
    """A job's result as the native agent reports it."""
    fields = {"node": node, "rank": rank, "message": message, "lost": list(lost)}
    return SimpleNamespace(**fields, finished=[], evidence=evidence)


ELSEWHERE = job("host2_7_0", 5, "rank 5 on host2_7_0 exited with code 3")


def test_failure_on_another_node_is_reported_with_its_message() -> None:
    text = text_of([], job=ELSEWHERE, message=ELSEWHERE.message, stopped=(0, 1), max_restarts=2)
    assert text.splitlines() == [
        "train.py failed: rank 5 on host2_7_0 exited with code 3",
        "    node    host2_7_0",
        "    run     job, 0 of 2 restarts used",
        "stopped by the launcher, not failed: ranks 0, 1",
    ]


def test_a_failure_on_another_node_is_reported_with_its_last_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    evidence = SimpleNamespace(
        host="gpu7",
        time=86400.25,
        output="Traceback\n\nKeyError: 1",
        failure_class="user worker",
        cause="exception",
        error="KeyError: 1",
        hint="",
    )
    result = job("host2_7_0", 5, "rank 5 on host2_7_0 exited with code 3", evidence=evidence)
    text = text_of([], job=result, message=result.message)
    monkeypatch.undo()
    time.tzset()
    assert text.splitlines() == [
        "train.py failed: rank 5 on host2_7_0 exited with code 3",
        "    time    1970-01-02 01:00:00.250 CET",
        "    host    gpu7",
        "    node    host2_7_0",
        "    run     job, no restarts allowed",
        "    class   user worker (exception)",
        "    error   KeyError: 1",
        "    last lines of its stderr:",
        "      | Traceback",
        "      | ",
        "      | KeyError: 1",
    ]


def test_a_job_that_a_drain_stopped_has_not_failed() -> None:
    result = job("", -1, "stopped without an agreed step (x): too slow")
    result.cause = _C.JobCause.REQUESTED
    assert text_of([], job=result, message=result.message, exit_code=143).splitlines() == [
        f"train.py: {result.message}",
        "    run     job",
    ]
    at_step = text_of([], job=result, message="stopped at step 3", exit_code=80, max_restarts=2)
    assert at_step.splitlines() == [
        "train.py: stopped at step 3",
        "    run     job, 0 of 2 restarts used",
    ]


def test_a_lost_coordinator_has_a_hint() -> None:
    text = text_of([], message="no contact to node0:29400 for 1 min", exit_code=77)
    assert text.startswith("no contact to node0:29400 for 1 min; the launcher that served it has")


def test_captured_lines_are_shown_where_no_file_has_them() -> None:
    text = text_of(examine(failure(0, stderr_tail="first\nlast")))
    assert text.endswith("    last lines of its stderr:\n      | first\n      | last")


def test_lines_that_are_on_the_console_just_above_are_not_repeated() -> None:
    found = examine(failure(0, stderr_tail="first\nlast"))
    result = RunResult(WorkerState.FAILED, {}, {0: found[0]}, exit_code=1)
    assert "last" in report.format_report("train.py", result)
    assert "last" not in report.format_report("train.py", result, is_output_shown=True)


def test_restarts_are_facts_with_units() -> None:
    incident = {"next_round": 3, "seconds": 1.41, "phases": {"stop": 0.0125, "first_step": 1.2}}
    result = RunResult(WorkerState.FAILED, {}, {0: examine(failure(0))[0]}, exit_code=1)
    resumed = incident | {"resumed_step": 0, "lost_steps": 2}
    result.incidents = (resumed, incident | {"lost_steps": 1}, incident)
    assert report.format_report("train.py", result).splitlines()[-3:] == [
        "    round 3 reached its first step 1.41 s after the failure (stop 12.5 ms, first step "
        "1.2 s), continued at step 0 from memory, 2 steps repeated",
        "    round 3 reached its first step 1.41 s after the failure (stop 12.5 ms, first step "
        "1.2 s), 1 step repeated",
        "    round 3 was running 1.41 s after the failure (stop 12.5 ms, first step 1.2 s)",
    ]


def test_a_change_in_place_is_no_restart() -> None:
    phases = {"detect": None, "stop": 0.004, "rendezvous": 0.0008, "start": 0.0}
    incident = {"next_round": 2, "seconds": 0.014, "phases": phases, "in_place": True}
    result = RunResult(WorkerState.FAILED, {}, {0: examine(failure(0))[0]}, exit_code=1)
    result.incidents = (incident,)
    assert report.format_report("train.py", result).splitlines()[-1] == (
        "    round 2 training again 14 ms after the change (left the old round in 4 ms, new round "
        "in 0.8 ms)"
    )


def test_a_check_that_did_not_pass_is_named() -> None:
    checks = [
        {"host": "n1", "check": "gpu", "verdict": "unknown", "reason": "no driver"},
        {"host": "n1", "check": "disk", "verdict": "good", "reason": ""},
    ]
    text = text_of(examine(failure(0)), node_checks=checks)
    assert "\ncheck gpu of this host: unknown: no driver" in text
    assert "disk" not in text


def test_an_unfit_host_is_bad_by_a_check_or_excluded_by_the_job() -> None:
    found = {"host": "n1", "check": "gpu", "reason": "ECC"}
    result = RunResult(WorkerState.FAILED, {}, {}, exit_code=79, message="fan 3", is_unfit=True)
    assert result.bad_host is None
    assert result.excluded_host == {"host": os.uname().nodename, "reason": "fan 3"}
    result.node_checks = (found | {"verdict": "bad"},)
    assert (result.bad_host, result.excluded_host) == (found, None)
    result.is_unfit = False  # 79 is the exit code of a worker
    assert (result.bad_host, result.excluded_host) == (None, None)


def test_later_local_failures_are_listed_separately() -> None:
    text = text_of(examine(failure(1, code=4)), job=ELSEWHERE, message=ELSEWHERE.message)
    assert text.startswith("train.py failed: rank 5 on host2_7_0 exited with code 3\n")
    assert "also failed here: rank 1 (local rank 1, pid 1001) exited with code 4" in text


def test_a_local_failure_that_was_the_first_of_all_nodes_has_its_evidence() -> None:
    result = job("host1_6_0", 0, "rank 0 on host1_6_0 exited with code 1", "host3_8_0")
    found = examine(failure(1, ago=3.0, code=4), failure(0, ago=1.0))
    text = text_of(found, job=result)
    assert text.startswith("train.py failed: rank 0 (local rank 0, pid 1000) exited with code 1\n")
    assert "    node    host1_6_0\n" in text
    assert "also failed, 2.0" in text
    assert "s earlier: rank 1 (local rank 1, pid 1001) exited with code 4" in text
    assert "lost: host3_8_0" in text


def test_nodes_whose_ranks_had_exited_with_0_are_named_on_every_node() -> None:
    result = job("host1_6_0", 0, "rank 0 on host1_6_0 exited with code 1")
    result.finished = ["host2_7_0", "host3_8_0"]
    line = "exited with code 0: all ranks of host2_7_0, host3_8_0"
    assert text_of(examine(failure(0)), job=result).splitlines()[-1] == line
    assert line in text_of([], job=result, message=result.message).splitlines()


def test_an_earlier_failure_here_is_not_the_cause_because_of_its_rank() -> None:
    found = examine(failure(5, code=4))
    text = text_of(found, job=ELSEWHERE, message=ELSEWHERE.message, is_cause=False)
    assert text.startswith("train.py failed: rank 5 on host2_7_0 exited with code 3\n")
    assert "also failed here: rank 5 (local rank 5, pid 1005) exited with code 4" in text


def test_a_lost_node_is_a_cause_without_a_rank() -> None:
    result = job("host3_8_0", -1, "node host3_8_0 was lost", "host3_8_0")
    text = text_of([], job=result, message="node host3_8_0 was lost, and 2 nodes are too few")
    assert (
        text.splitlines()[0] == "train.py failed: node host3_8_0 was lost, and 2 nodes are too few"
    )


def test_a_consequence_that_is_known_earlier_is_not_the_root_cause() -> None:
    """The agent sorts them: a peer that was killed may end after a rank that has lost it."""
    killed, lost_peer = failure(0, ago=1.0, signum=9), failure(1, ago=3.0)
    found = examine(killed, lost_peer)
    assert [one.rank for one in found] == [0, 1]
    error = ChildFailedError("train.py", {one.rank: one for one in reversed(found)})
    assert error.get_first_failure()[0] == 0
