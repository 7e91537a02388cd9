"""Start distributed PyTorch jobs and keep them alive.

Names are loaded on first use, so that ``import elastic`` itself is cheap.
"""

from elastic import _lazy

TYPE_CHECKING = False  # type checkers know the name; typing costs more than the rest of the import
if TYPE_CHECKING:
    from elastic._C import StoreClient, StoreServer, StoreServerStats, __version__
    from elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
    from elastic.agent.server.local_elastic_agent import LocalElasticAgent
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
    )
    from elastic.multiprocessing.errors.evidence import ProcessFailure
    from elastic.multiprocessing.logs import LogOptions, Std
    from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsSpecs

# Each public name and the module that defines it.
_HOMES = {
    "StoreClient": "elastic._C",
    "StoreServer": "elastic._C",
    "StoreServerStats": "elastic._C",
    "__version__": "elastic._C",
    "LocalElasticAgent": "elastic.agent.server.local_elastic_agent",
    "RunResult": "elastic.agent.server.api",
    "WorkerSpec": "elastic.agent.server.api",
    "WorkerState": "elastic.agent.server.api",
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
    "DefaultLogsSpecs": "elastic.multiprocessing.logs_specs",
    "LogOptions": "elastic.multiprocessing.logs",
    "LogsSpecs": "elastic.multiprocessing.logs_specs",
    "Std": "elastic.multiprocessing.logs",
    "ProcessFailure": "elastic.multiprocessing.errors.evidence",
}

__all__ = [
    "ConfigError",
    "DefaultLogsSpecs",
    "ElasticError",
    "LocalElasticAgent",
    "LogOptions",
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
    "WorkerSpec",
    "WorkerState",
    "__version__",
]

__getattr__, __dir__ = _lazy.attach(__name__, _HOMES, modules=("rendezvous", "torch"))
