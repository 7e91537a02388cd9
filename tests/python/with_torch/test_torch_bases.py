"""Exceptions in a program that has loaded torch elastic as well."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic import rendezvous
from elastic.launcher import LaunchConfig, elastic_launch
from elastic.multiprocessing import ChildFailedError, ProcessFailure, SignalException

from support.launching import clean_environment, run_program
from support.paths import ROOT
from support.plug_ins import install

ERRORS = [name for name in rendezvous.__all__ if name.endswith("Error")]


def torchs(module: str) -> Any:
    import importlib

    return importlib.import_module(f"torch.distributed.elastic.{module}")


def test_except_clauses_with_torchs_classes_match() -> None:
    api, processes = torchs("rendezvous.api"), torchs("multiprocessing.api")
    failed = torchs("multiprocessing.errors").ChildFailedError
    config = LaunchConfig(1, 1, 1, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
    with pytest.raises(failed) as caught:
        elastic_launch(config, "/bin/false")()
    assert isinstance(caught.value, ChildFailedError)
    for name in ERRORS:
        assert issubclass(getattr(rendezvous, name), getattr(api, name)), name
    assert issubclass(rendezvous.RendezvousTimeoutError, TimeoutError)
    assert issubclass(SignalException, processes.SignalException)
    signalled = SignalException("received SIGTERM", 15)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(signalled)).sigval == 15
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_torchs_record_finds_the_root_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, child = tmp_path / "own.json", tmp_path / "child.json"
    child.write_text(json.dumps({"message": {"message": "ValueError: bad", "extraInfo": {}}}))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))

    def main() -> None:
        raise ChildFailedError("job", {0: ProcessFailure(0, 1, 1, str(child))})

    with pytest.raises(ChildFailedError):
        torchs("multiprocessing.errors").record(main)()
    assert json.loads(own.read_text())["message"]["message"] == "ValueError: bad"


def test_torch_starts_without_a_traceback_if_the_extension_cannot_be_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['elastic._C'] = None\n"
        "from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as known\n"
        "assert 'elastic' in known._registry"
    )
    group = "torchrun.handlers"
    lines = (ROOT / "pyproject.toml").read_text().partition(f'entry-points."{group}"]\n')[2]
    where = lines.splitlines()[0].removeprefix('elastic = "').removesuffix('"')
    path = install(tmp_path, group, elastic=where)
    done = run_program([sys.executable, "-c", program], environ=clean_environment(PYTHONPATH=path))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_torchs_handler_raises_torchs_errors() -> None:
    api = torchs("rendezvous.api")
    from elastic.torch_compat.torchrun_handler import _as_torch

    for name in ERRORS:

        def fail(name: str = name) -> None:
            raise getattr(rendezvous, name)("why")

        with pytest.raises(getattr(api, name), match="why"):
            _as_torch(fail)
