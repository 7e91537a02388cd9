"""Handlers for events, by the name of the destination."""

from __future__ import annotations

import logging

from elastic.errors import ConfigError

_log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    handler = _log_handlers.get(destination)
    if handler is None:
        raise ConfigError(
            f"there is no event handler {destination!r}: expected one of {', '.join(_log_handlers)}"
        )
    return handler
