"""Every exception of the package passes from one process to another."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil

import elastic
import pytest
from elastic.errors import NodeFault
from elastic.launcher.api import LaunchError
from elastic.multiprocessing.signals import SignalException

_MORE = {
    LaunchError: ("job lost", 77),
    NodeFault: (71, "no descriptor left"),
    SignalException: ("stopped", 15),
}


def _exceptions() -> list[type[BaseException]]:
    found: set[type[BaseException]] = set()
    for module in pkgutil.walk_packages(elastic.__path__, "elastic."):
        if module.name.endswith(("__main__", "template", "console_main")):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except Exception:  # of an optional library
            continue
        for _, one in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(one, BaseException) and one.__module__.startswith("elastic"):
                found.add(one)
    return sorted(found, key=lambda one: (one.__module__, one.__qualname__))


@pytest.mark.parametrize("kind", _exceptions(), ids=lambda one: one.__name__)
def test_exception_can_be_copied_and_sent(kind: type[BaseException]) -> None:
    try:
        error = kind(*_MORE.get(kind, ("what happened",)))
    except Exception:
        pytest.skip("has arguments of its own; its module's tests cover it")
    for copied in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(copied) is kind
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)
