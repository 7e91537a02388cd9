"""One node's agent, with the names of ``torch.distributed.elastic.agent.server``."""

from typing import TYPE_CHECKING

from elastic import _lazy

if TYPE_CHECKING:
    from elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
    from elastic.agent.server.native_elastic_agent import NativeElasticAgent
    from elastic.constants import TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_TIMER_FILE
    from elastic.torch_compat.agents.handler_elastic_agent import HandlerElasticAgent
    from elastic.torch_compat.agents.health_check_server import (
        HealthCheckServer,
        create_healthcheck_server,
    )
    from elastic.torch_compat.agents.local_elastic_agent import LocalElasticAgent
    from elastic.torch_compat.agents.simple_elastic_agent import ElasticAgent, SimpleElasticAgent

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_TIMER_FILE",
    "ElasticAgent",
    "HandlerElasticAgent",
    "HealthCheckServer",
    "LocalElasticAgent",
    "NativeElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "create_healthcheck_server",
]

_HOMES = {
    "elastic.constants": "TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE",
    "elastic.torch_compat.agents.simple_elastic_agent": "ElasticAgent SimpleElasticAgent",
    "elastic.torch_compat.agents.handler_elastic_agent": "HandlerElasticAgent",
    "elastic.torch_compat.agents.health_check_server": (
        "HealthCheckServer create_healthcheck_server"
    ),
    "elastic.torch_compat.agents.local_elastic_agent": "LocalElasticAgent",
    "elastic.agent.server.native_elastic_agent": "NativeElasticAgent",
    "elastic.agent.server.api": "RunResult Worker WorkerGroup WorkerSpec WorkerState",
}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
