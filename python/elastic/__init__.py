"""Start distributed PyTorch jobs and keep them alive.

Names are loaded on first use, so that ``import elastic`` itself is cheap.
"""

from elastic import _aliases, _lazy

TYPE_CHECKING = False  # type checkers know the name; typing costs more than the rest of the import
if TYPE_CHECKING:
    from elastic._C import StoreClient, StoreServer, StoreServerStats, __version__
    from elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
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
    from elastic.torch_compat.agents.local_elastic_agent import LocalElasticAgent

# The modules, and the public names that each defines.
_HOMES = {
    "elastic._C": "StoreClient StoreServer StoreServerStats __version__",
    "elastic.torch_compat.agents.local_elastic_agent": "LocalElasticAgent",
    "elastic.agent.server.api": "RunResult WorkerSpec WorkerState",
    "elastic.errors": (
        "ConfigError ElasticError QueueEmpty RendezvousClosed RendezvousError RendezvousTimeout "
        "RendezvousUnavailable StoreError StoreProtocolError StoreTimeout StoreUnavailable"
    ),
    "elastic.multiprocessing.logs_specs": "DefaultLogsSpecs LogsSpecs",
    "elastic.multiprocessing.logs": "LogOptions Std",
    "elastic.multiprocessing.errors.evidence": "ProcessFailure",
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

_aliases.install()
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES, modules=("rendezvous", "torch"))
