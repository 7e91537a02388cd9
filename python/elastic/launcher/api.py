"""Runs a function or a program on this node of a job, and returns the values by global rank.

::

    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4, rdzv_backend="c10d",
                          rdzv_endpoint="localhost:0")
    values = elastic_launch(config, train)("resnet", 0.1)  # {0: …, 1: …, 2: …, 3: …}

The function is called in a new interpreter, which the guardian starts and supervises like any
worker. The module of the function is imported there. With ``warm`` the workers are forked from a
process that has imported torch (docs/warm-workers.md). With ``start_method="fork"`` and without
``warm`` they are forked copies of this process, which have its objects as they are.
"""

from __future__ import annotations

import logging
import signal
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from elastic import _environment, _torch_bases
from elastic._data import changed
from elastic._plug_in import health_check
from elastic.agent.server.api import WorkerSpec
from elastic.constants import DEFAULT_SIGNALS, NO_RUN_ID, SIGNALS_VARIABLE
from elastic.errors import ConfigError, ElasticError
from elastic.multiprocessing import signals
from elastic.multiprocessing.errors import ChildFailedError
from elastic.multiprocessing.logs import log_options
from elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsSpecs, is_default, of_options
from elastic.multiprocessing.signals import SignalException
from elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
from elastic.text import is_only_node, own_address, shutdown_timeout, split_endpoint
from elastic.torch_compat.agents.handler_elastic_agent import HandlerElasticAgent
from elastic.torch_compat.agents.local_elastic_agent import LocalElasticAgent
from elastic.torch_compat.rendezvous.api import shut_down
from elastic.torch_compat.rendezvous.handlers import DynamicRendezvousHandler, check_settings

if TYPE_CHECKING:
    from elastic.agent.server.api import RunResult
    from elastic.agent.server.native_elastic_agent import NativeElasticAgent
    from elastic.multiprocessing.logs import LogOptions

    CommandAgent = NativeElasticAgent | HandlerElasticAgent  # of elastic-launch

logger = logging.getLogger(__name__)

# The keyword arguments of LaunchConfig.native that also agents with hooks have.
_OF_ALL_AGENTS = ("worker_cpus", "event_log", "metrics_port")


class LaunchError(ElasticError):
    """The job failed, and no worker of this node caused it. ``exit_code`` is the job's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.exit_code)


@dataclass
class LaunchConfig:
    """torch's fields in torch's order, then elastic's own.

    ``run_id``: "", with other nodes, is a random one, as in torch: give all nodes the same one.
    ``warm``, ``preload``: as ``--warm`` and ``--preload`` (docs/warm-workers.md).
    ``native``: further keyword arguments of ``NativeElasticAgent``, such as ``failure_grace``, and
    fields of ``LogOptions``, such as ``max_bytes``.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = DEFAULT_SIGNALS
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    warm: bool = False
    preload: Sequence[str] = ()
    native: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        elif not {"timeout", "join_timeout"} & self.rdzv_configs.keys():
            self.rdzv_configs["timeout"] = 900
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = shutdown_timeout(_environment.inherited())


class elastic_launch:
    """Launches an entry point on this node: ``elastic_launch(config, entrypoint)(*args)``.

    The result has this node's global ranks; a program's value is None. Raises ChildFailedError if
    a worker of this node failed, LaunchError if the job failed for another reason.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: Any = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: Any = None,
) -> dict[int, Any]:
    """Runs one agent, from the rendezvous to the result."""
    with health_check(health_check_server):
        return _launch(config, entrypoint, args)


def _launch(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str | None, args: list[Any]
) -> dict[int, Any]:
    config = _with_run_id(_own(config))
    if config.metrics_cfg:  # accepted, so that programs written for torch run unchanged
        warnings.warn("LaunchConfig.metrics_cfg is ignored: elastic does not have it", stacklevel=4)
    handler = None
    has_plug_in = not is_default(config.logs_specs)
    if not _is_single(config) or has_plug_in:
        handler = get_rendezvous_handler(_parameters(config))
    else:
        check_settings(_parameters(config))
    is_native = handler is None or isinstance(handler, DynamicRendezvousHandler)
    master_addr, master_port = _static_master(config) if handler is None else (None, None)
    spec = WorkerSpec(
        role=config.role,
        event_log_handler=config.event_log_handler,
        local_world_size=config.nproc_per_node,
        rdzv_handler=handler,
        entrypoint=entrypoint,
        args=tuple(args),
        max_restarts=config.max_restarts,
        master_addr=master_addr,
        master_port=master_port,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
        numa_options=config.numa_options,
        run_id=config.run_id,
    )
    agent = _agent(config, spec, is_native and not has_plug_in)
    received: Sequence[int] = ()
    names, stop = config.signals_to_handle, agent.request_stop
    try:
        with signals.stopping(names, "signals_to_handle", stop) as received:
            result = agent.run(config.role)
    finally:  # after an error, too: no other node waits for this one
        handler = agent.get_worker_group().spec.rdzv_handler
        if handler is not None and not received:
            shut_down(handler)
    check_result(_get_entrypoint_name(entrypoint, args), result, received)
    return dict(result.return_values)


def _own(config: Any) -> LaunchConfig:
    """A LaunchConfig of torch, of any version, as one of elastic's."""
    if isinstance(config, LaunchConfig):
        return config
    given = [one.name for one in fields(LaunchConfig) if hasattr(config, one.name)]
    return LaunchConfig(**{name: getattr(config, name) for name in given})


def _with_run_id(config: LaunchConfig) -> LaunchConfig:
    """Programs that give no run id must not become one job at the endpoint that they share.

    With static the endpoint is this job's own.
    """
    if config.run_id:
        return config
    if config.rdzv_backend == "static":
        return replace(config, run_id=NO_RUN_ID)
    run_id = str(uuid.uuid4())
    if not _is_single(config):
        logger.warning(
            "LaunchConfig has no run_id, so this node has the random one %s: give all nodes of the "
            "job the same run_id, or they cannot join each other",
            run_id,
        )
    return replace(config, run_id=run_id)


def _agent(config: LaunchConfig, spec: WorkerSpec, is_native: bool) -> HandlerElasticAgent:
    """``is_native``: the rendezvous and the log files are elastic's own."""
    environment = _environment.of_ranks()
    environment.setdefault(SIGNALS_VARIABLE, config.signals_to_handle)
    common: dict[str, Any] = {
        "start_method": config.start_method,
        "log_line_prefix_template": config.log_line_prefix_template,
        "shutdown_timeout": float(config.shutdown_timeout or 0),
        "environment": environment,
    }
    is_warm = bool(config.warm or config.preload)
    if not is_native:
        _check_native(config, common, "a third-party rendezvous handler or logs")
        if is_warm:
            _warn_no_effect("with a third-party rendezvous handler or logs")
        return HandlerElasticAgent(spec, config.logs_specs, **common)
    if config.start_method == "fork" and callable(spec.entrypoint) and not is_warm:
        from elastic.torch_compat.agents.forking_agent import ForkingElasticAgent

        _check_native(config, common, 'start_method="fork"')
        if spec.rdzv_handler is None:
            spec = changed(spec, rdzv_handler=get_rendezvous_handler(_parameters(config)))
        return ForkingElasticAgent(spec, config.logs_specs, **common)
    warm_template = _warm_template(config, spec) if is_warm else ()
    if is_warm and not warm_template:
        _warn_no_effect("the command of the workers is not PYTHON [-u] SCRIPT")
    native = {"share_store": _environment.shares_store(environment), **config.native}
    logs = log_options(config.logs_specs)  # type: ignore[arg-type]
    for name in logs._fields & native.keys():
        logs = logs._replace(**{name: native.pop(name)})
    return LocalElasticAgent(spec, logs, warm_template=warm_template, **common, **native)


def _check_native(config: LaunchConfig, common: dict[str, Any], what: str) -> None:
    """Adds the settings that every agent has to ``common``, and names the others."""
    known = {name: value for name, value in config.native.items() if name in _OF_ALL_AGENTS}
    common.update(known)
    if unused := sorted(config.native.keys() - known):
        names = ", ".join(unused)
        warnings.warn(f"LaunchConfig.native: {names} have no effect with {what}", stacklevel=6)


def handler_agent(spec: WorkerSpec, logs: LogOptions, **options: Any) -> HandlerElasticAgent:
    """For a job with a third-party rendezvous handler, or third-party log files."""
    return HandlerElasticAgent(spec, of_options(logs), **options)


def _warm_template(config: LaunchConfig, spec: WorkerSpec) -> tuple[str, ...]:
    from elastic.multiprocessing import warm

    modules = ",".join(config.preload)
    warm.check_modules(modules, "LaunchConfig.preload")
    return warm.of_entrypoint(spec.entrypoint, spec.args, modules)


def _warn_no_effect(why: str) -> None:
    warnings.warn(f"LaunchConfig.warm and preload have no effect: {why}", stacklevel=6)


def check_result(name: str, result: RunResult, received: Sequence[int]) -> None:
    """Raises the exception for a failed launch; ``received``: the signals."""
    _torch_bases.update()
    if received:
        first = signal.Signals(received[0])
        raise SignalException(f"the launcher received {first.name} and stopped its workers", first)
    if result.exit_code == 0 and not result.is_failed():
        return
    if result.failures:
        raise ChildFailedError(name, result.failures)
    raise LaunchError(result.message or "the job failed", result.exit_code or 1)


def _is_single(config: LaunchConfig) -> bool:
    """Whether no other node can join: then there is no rendezvous, and no port is opened."""
    if config.max_nodes != 1 or config.min_nodes != 1:
        return False
    if config.rdzv_backend == "etcd" and not config.rdzv_endpoint:
        return True  # the default of the field, without a server
    store_type = str(config.rdzv_configs.get("store_type", "")).lower()
    return is_only_node(config.rdzv_backend, config.rdzv_endpoint, store_type, "rdzv_endpoint")


def _static_master(config: LaunchConfig) -> tuple[str | None, int | None]:
    """The address of the workers' store for a job of one node, if it has a static endpoint."""
    if config.rdzv_backend != "static" or not config.rdzv_endpoint:
        return None, None
    host, port = split_endpoint(config.rdzv_endpoint, "rdzv_endpoint")
    if config.local_addr and config.local_addr != host:
        return None, int(port or 0)
    return own_address(host, "rdzv_endpoint"), int(port or 0)


def _get_entrypoint_name(entrypoint: Callable[..., Any] | str | None, args: Sequence[Any]) -> str:
    """The name of a function or a program, or of the script if the program is this interpreter.

    Programs for torch import it.
    """
    if callable(entrypoint):
        return str(getattr(entrypoint, "__name__", entrypoint))
    if entrypoint != sys.executable:
        return entrypoint or ""
    return next((str(word) for word in args if not str(word).startswith("-")), "")


def _get_addr_and_port(rdzv_parameters: RendezvousParameters) -> tuple[str | None, int | None]:
    """Host and port of a static endpoint, (None, None) with another backend; for torch's users."""
    if rdzv_parameters.backend != "static":
        return None, None
    host, port = split_endpoint(rdzv_parameters.endpoint.strip(), "the rendezvous endpoint")
    if not port:
        raise ConfigError(
            f"the rendezvous endpoint is {rdzv_parameters.endpoint!r}: it has no port. "
            "Specify --master-port"
        )
    return host, int(port)


def _parameters(config: LaunchConfig) -> RendezvousParameters:
    return RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
