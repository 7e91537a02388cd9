"""Start distributed PyTorch jobs and keep them alive.

Names are loaded when they are first used, so that ``import elastic`` itself costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic._C import StoreClient, StoreServer, StoreServerStats, __version__
    from elastic.agent import LocalElasticAgent
    from elastic.errors import (
        ConfigError,
        ElasticError,
        QueueEmpty,
        RendezvousClosed,
        RendezvousError,
        RendezvousTimeout,
        RendezvousUnavailable,
        StoreError,
        StoreProtocolError,
        StoreTimeout,
        StoreUnavailable,
        WorkerFailed,
    )
    from elastic.logs import LogsSpecs, Std
    from elastic.report import ProcessFailure
    from elastic.workers import RunResult, WorkerSpec, WorkerState

# Each public name and the module that has it.
_HOMES = {
    "StoreClient": "elastic._C",
    "StoreServer": "elastic._C",
    "StoreServerStats": "elastic._C",
    "__version__": "elastic._C",
    "LocalElasticAgent": "elastic.agent",
    "RunResult": "elastic.workers",
    "WorkerSpec": "elastic.workers",
    "WorkerState": "elastic.workers",
    "ConfigError": "elastic.errors",
    "ElasticError": "elastic.errors",
    "QueueEmpty": "elastic.errors",
    "RendezvousClosed": "elastic.errors",
    "RendezvousError": "elastic.errors",
    "RendezvousTimeout": "elastic.errors",
    "RendezvousUnavailable": "elastic.errors",
    "StoreError": "elastic.errors",
    "StoreProtocolError": "elastic.errors",
    "StoreTimeout": "elastic.errors",
    "StoreUnavailable": "elastic.errors",
    "WorkerFailed": "elastic.errors",
    "LogsSpecs": "elastic.logs",
    "Std": "elastic.logs",
    "ProcessFailure": "elastic.report",
}

__all__ = [
    "ConfigError",
    "ElasticError",
    "LocalElasticAgent",
    "LogsSpecs",
    "ProcessFailure",
    "QueueEmpty",
    "RendezvousClosed",
    "RendezvousError",
    "RendezvousTimeout",
    "RendezvousUnavailable",
    "RunResult",
    "Std",
    "StoreClient",
    "StoreError",
    "StoreProtocolError",
    "StoreServer",
    "StoreServerStats",
    "StoreTimeout",
    "StoreUnavailable",
    "WorkerFailed",
    "WorkerSpec",
    "WorkerState",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'elastic' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
