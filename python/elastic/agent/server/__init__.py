"""One node's agent, with the names of ``torch.distributed.elastic.agent.server``."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
    from elastic.agent.server.local_elastic_agent import LocalElasticAgent

__all__ = [
    "LocalElasticAgent",
    "RunResult",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]

_HOMES = {
    "LocalElasticAgent": "elastic.agent.server.local_elastic_agent",
    "RunResult": "elastic.agent.server.api",
    "Worker": "elastic.agent.server.api",
    "WorkerGroup": "elastic.agent.server.api",
    "WorkerSpec": "elastic.agent.server.api",
    "WorkerState": "elastic.agent.server.api",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
