"""A debugger in the launcher follows the workers."""

from __future__ import annotations

import logging
import os
import sys
import types
from pathlib import Path

import pytest
from elastic.launcher import elastic_launch

from support import launch_functions
from support.function_jobs import config
from support.launching import run_program


def use(monkeypatch: pytest.MonkeyPatch, patch_args: object) -> list[str]:
    """Loads what looks like pydevd after it has replaced Python's functions."""
    import _posixsubprocess

    sent: list[str] = []
    monkey = types.ModuleType("_pydev_bundle.pydev_monkey")
    vars(monkey).update(patch_args=patch_args, send_process_created_message=lambda: sent.append(""))
    monkeypatch.setitem(sys.modules, "pydevd", types.ModuleType("pydevd"))
    monkeypatch.setitem(sys.modules, monkey.__name__, monkey)
    original = _posixsubprocess.fork_exec
    monkeypatch.setattr(_posixsubprocess, "original_fork_exec", original, raising=False)
    return sent


def add_mark(words: list[str]) -> list[str]:
    return [words[0], "-X", "followed", *words[1:]]


def mark() -> bool:
    return sys._xoptions.get("followed") is True


def test_the_workers_commands_are_those_of_the_debugger(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert elastic_launch(config(1), mark)() == {0: False}
    sent = use(monkeypatch, add_mark)
    assert elastic_launch(config(2), mark)() == {0: True, 1: True}
    assert len(sent) == 2 and "the debugger of this process follows the workers" in caplog.text
    assert elastic_launch(config(1, warm=True), mark)() == {0: True}
    assert "--warm is off: the debugger" in caplog.text


def test_a_debugger_of_another_version_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: list[str]) -> list[str]:
        raise AttributeError("setup")

    use(monkeypatch, refuse)
    assert elastic_launch(config(1), launch_functions.rank_and)() == {0: (0,)}
    assert "cannot follow the workers (AttributeError: setup)" in caplog.text


def test_debugpy_follows_the_workers(tmp_path: Path) -> None:
    pytest.importorskip("debugpy")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nopen(os.environ['RANK'], 'w').write(str('pydevd' in sys.modules))\n"
    )
    words = ["-m", "debugpy", "--listen", "127.0.0.1:0", "-m", "elastic", "--nproc-per-node=2"]
    environ = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    done = run_program([sys.executable, *words, "train.py"], cwd=tmp_path, environ=environ)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["True", "True"]
