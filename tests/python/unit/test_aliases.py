"""torch's module names that have no file."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elastic._aliases import ALIASES

from support.paths import ROOT

TORCHS_OWN = ("debug_info_logging", "elastic_distributed_sampler")


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_the_module_itself_or_has_its_names(name: str) -> None:
    home = ALIASES[name]
    module = importlib.import_module(name)
    if isinstance(home, str):
        assert module is importlib.import_module(home)
        assert module.__spec__ is not None and module.__spec__.name == home
    elif not name.endswith(TORCHS_OWN):
        assert all(getattr(module, public) is not None for public in module.__all__)


def test_modules_below_an_alias_exist_once() -> None:
    api = importlib.import_module("elastic.events.api")
    assert api is importlib.import_module("elastic.torch_compat.events.api")
    event = api.Event("name", api.EventSource.WORKER)
    assert pickle.loads(pickle.dumps(event)) == event


def test_a_package_has_the_modules_below_its_name() -> None:
    from elastic.multiprocessing.subprocess_handler import handlers
    from elastic.timer import debug_info_logging
    from elastic.utils.data import elastic_distributed_sampler

    assert handlers.get_subprocess_handler is handlers.SubprocessHandler
    assert debug_info_logging.__all__ == ["log_debug_info_for_expired_timers"]
    assert elastic_distributed_sampler.__all__ == ["ElasticDistributedSampler"]


def test_a_module_that_does_not_exist_is_not_found() -> None:
    assert importlib.util.find_spec("elastic.events.nothing") is None
    with pytest.raises(ModuleNotFoundError, match=r"elastic\.events\.nothing"):
        importlib.import_module("elastic.events.nothing")


USES = """
from elastic import timer
from elastic.events.api import Event
from elastic.multiprocessing.subprocess_handler.handlers import get_subprocess_handler
from elastic.rendezvous.c10d_rendezvous_backend import create_backend
import elastic.utils.data

reveal_type(Event("name", 1).timestamp)
reveal_type(create_backend)
reveal_type(get_subprocess_handler)
reveal_type(timer.FileTimerRequest)
"""


def test_type_checkers_find_the_names_in_stubs(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    package = tmp_path / "elastic"
    sources = ROOT / "python" / "elastic"
    shutil.copytree(sources, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    program = [sys.executable, ROOT / "tools" / "write_alias_stubs.py", package]
    subprocess.run(program, check=True)
    (tmp_path / "uses.py").write_text(USES)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", tmp_path, "uses.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if re.match(r"uses.py.*error:", line)]
    assert len(errors) == 1 and "incompatible type" in errors[0], done.stdout + done.stderr
    revealed = re.findall(r'Revealed type is "(\w+)', done.stdout)
    assert revealed == ["int", "def", "def", "def"]  # and not Any
