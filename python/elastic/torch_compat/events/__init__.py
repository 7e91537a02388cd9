"""Events of agents and rendezvous as JSON lines of a logger, with torch's names.

``record(event, "console")`` writes to stderr, ``"null"`` nowhere. A program may add handlers to the
logger ``torchelastic-events-DESTINATION``.
"""

from __future__ import annotations

import logging
import os
import traceback

from elastic.torch_compat.events.api import (
    Event,
    EventMetadataValue,
    EventSource,
    NodeState,
    RdzvEvent,
)
from elastic.torch_compat.events.handlers import get_logging_handler

__all__ = [
    "Event",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
]

_loggers: dict[str, logging.Logger] = {}


def _get_or_create_logger(destination: str) -> logging.Logger:
    logger = _loggers.get(destination)
    if logger is None:
        logger = logging.getLogger(f"torchelastic-events-{destination}")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(get_logging_handler(destination))
        _loggers[destination] = logger
    return logger


def record(event: Event, destination: str = "null") -> None:
    _get_or_create_logger(destination).info(event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    _get_or_create_logger("dynamic_rendezvous").info(event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Records an event of a rendezvous, if the logger has a handler that writes.

    Its name is the file of the caller, a colon, and ``name`` or the calling function.
    """
    handlers = _get_or_create_logger("dynamic_rendezvous").handlers
    if all(isinstance(handler, logging.NullHandler) for handler in handlers):
        return
    caller = traceback.extract_stack(limit=2)[0]
    name = f"{os.path.basename(caller.filename)}:{name or caller.name}"
    error_trace = traceback.format_exc() if node_state is NodeState.FAILED else ""
    record_rdzv_event(
        RdzvEvent(
            name=name,
            run_id=run_id,
            message=message,
            hostname=hostname or os.uname().nodename,
            pid=os.getpid() if pid is None else pid,
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=error_trace,
        )
    )
