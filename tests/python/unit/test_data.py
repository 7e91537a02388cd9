"""torch's data classes are data classes here, too, and each object has its own values."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field

import pytest
from elastic.agent.server import RunResult, WorkerSpec, WorkerState
from elastic.multiprocessing import LogsDest, ProcessFailure, RunProcsResult


def test_defaults_are_not_shared() -> None:
    failure = ProcessFailure(0, 1, 2)
    RunResult(WorkerState.FAILED).failures[0] = failure
    RunProcsResult().failures[0] = failure
    LogsDest().stdouts[0] = "path"
    assert RunResult(WorkerState.FAILED).failures == {}
    assert RunProcsResult() == RunProcsResult({}, {}, {}, {})
    assert LogsDest().stdouts == {}


def test_programs_use_them_as_data_classes() -> None:
    spec = WorkerSpec("r", 2, entrypoint="/bin/true")
    assert dataclasses.is_dataclass(spec)
    assert dataclasses.replace(spec, local_world_size=3) == WorkerSpec(
        "r", 3, None, None, "/bin/true"
    )
    spec.max_restarts = 7
    assert dataclasses.asdict(spec)["max_restarts"] == 7
    assert [one.name for one in dataclasses.fields(RunResult)][:3] == [
        "state", "return_values", "failures"
    ]  # fmt: skip
    assert WorkerSpec("r", 1, fn=print).entrypoint is print
    result = RunResult(WorkerState.SUCCEEDED, {0: 5})
    assert pickle.loads(pickle.dumps(result)) == result == copy.deepcopy(result)
    assert repr(result).startswith("RunResult(state=<WorkerState.SUCCEEDED")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        RunResult()  # type: ignore[call-arg]


@dataclass
class Extended(RunResult):
    reason: str = ""
    seen: list[int] = field(default_factory=list)


def test_a_data_class_may_extend_them() -> None:
    extended = Extended(WorkerState.FAILED, reason="why")
    extended.failures[0] = ProcessFailure(0, 1, -9)
    assert extended.is_failed()
    assert Extended(WorkerState.FAILED).failures == {}
    assert dataclasses.replace(extended, seen=[1]).reason == "why"


def test_a_failure_has_torchs_values() -> None:
    failure = ProcessFailure(0, 1, -9)
    assert (failure.error_file, type(failure.timestamp)) == ("<N/A>", int)
    assert pickle.loads(pickle.dumps(failure)) == failure
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    from elastic import _torch_bases

    _torch_bases.update()
    assert isinstance(failure, errors.ProcessFailure)
    theirs = [one.name for one in dataclasses.fields(errors.ProcessFailure)]
    assert [one.name for one in dataclasses.fields(failure)][: len(theirs)] == theirs
