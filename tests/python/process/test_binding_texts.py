"""Text between Python and the native module: any bytes, and no value in a message."""

from __future__ import annotations

import os

import pytest
from elastic import _C, ConfigError, LocalElasticAgent, WorkerSpec, observe
from elastic.agent.server.native_elastic_agent import NativeElasticAgent

from support.launching import clean_environment, launch

BYTES = os.fsdecode(b"a\xffb")
SHOWN = "a\\xffb"


class Secret:
    def __repr__(self) -> str:
        return "a secret value"


CALLABLES = [
    (name, value)
    for name, value in vars(_C).items()
    if callable(value) and not (isinstance(value, type) and issubclass(value, Exception))
]


@pytest.mark.parametrize(("name", "value"), CALLABLES, ids=[name for name, _ in CALLABLES])
def test_a_call_with_wrong_arguments_shows_no_value(name: str, value: type) -> None:
    members = getattr(value, "__dict__", {}).items()
    methods = [one for attribute, one in members if callable(one) and attribute[0] != "_"]
    for call in [value, *methods]:
        for arguments, keywords in (((Secret(),) * 9, {}), ((), {"token": Secret()})):
            try:
                call(*arguments, **keywords)
            except TypeError as error:
                assert "secret" not in str(error)


def test_bytes_of_other_hosts_become_text() -> None:
    result = _C.JobResult.__new__(_C.JobResult)
    outcome, cause = _C.JobOutcome.FAILED, _C.JobCause.WORKER
    evidence = (BYTES, 0, BYTES, 0, 0, BYTES, BYTES)
    details = _C.FailureEvidence.__new__(_C.FailureEvidence)
    details.__setstate__(evidence)
    result.__setstate__((outcome, cause, 1, 0, BYTES, 3, 4, BYTES, [BYTES], [BYTES], details))
    assert (result.node, result.message) == (SHOWN, SHOWN)
    assert result.lost == result.finished == [SHOWN]
    assert (details.host, details.output, details.error, details.hint) == (SHOWN,) * 4
    assert repr(result)


def test_a_result_has_the_exit_code_of_the_launchers() -> None:
    result = _C.JobResult.__new__(_C.JobResult)
    cause = _C.JobCause.NODE_LOST
    loss = ("n1", 0, 0, "n1 was lost", ["n1"], [], None)
    result.__setstate__((_C.JobOutcome.FAILED, cause, 0, -1, *loss))
    assert (result.exit_code, result.launcher_exit_code) == (0, _C.EXIT_NODE_LOST)
    shown = observe._result(result)
    assert shown is not None and shown["exit_code"] == _C.EXIT_NODE_LOST


def test_bytes_of_this_host_reach_the_job() -> None:
    done = launch(
        *("--standalone", "--tee=3", "--no-python"),
        *(f"--log-line-prefix-template={BYTES}:", f"--duplicate-stdout-filters={BYTES}"),
        *("/bin/sh", "-c", 'echo "$0 $ODD"', BYTES),
        errors="surrogateescape",
        environ=clean_environment(ODD=BYTES),
        check=True,
    )
    assert f"{BYTES}:{BYTES} {BYTES}\n" in done.stdout


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be NaN"):
        _C.WorkerGroup(start_timeout=float("nan"))


def test_an_event_that_cannot_be_reported_does_not_end_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr(NativeElasticAgent, "_observe", fail)
    spec = WorkerSpec("role", 1, entrypoint="/bin/true")
    assert LocalElasticAgent(spec).run().exit_code == 0
    assert "the report of an event failed, and the job continues" in caplog.text
