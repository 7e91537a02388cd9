"""Metrics have a group and a name; each group has a handler, or the default one."""

from __future__ import annotations

import functools
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

from elastic._plug_in import plug_in

_P = ParamSpec("_P")
_T = TypeVar("_T")

DEFAULT_GROUP = "torchelastic"


class MetricData(NamedTuple):
    timestamp: float
    group_name: str
    name: str
    value: int


class MetricsConfig:
    __slots__ = ("params",)

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = params or {}


class MetricHandler(ABC):
    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Handles one value. Must not block."""


class ConsoleMetricHandler(MetricHandler):
    def emit(self, metric_data: MetricData) -> None:
        when, group, name, value = metric_data
        print(f"[{when}][{group}]: {name}={value}")


class NullMetricHandler(MetricHandler):
    def emit(self, metric_data: MetricData) -> None:
        """Drops the value."""


class MetricStream:
    """A group with its handler."""

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: int) -> None:
        self.handler.emit(MetricData(time.time(), self.group_name, metric_name, metric_value))


_by_group: dict[str, MetricHandler] = {}
_default: list[MetricHandler] = [NullMetricHandler()]


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Sets the handler of a group; without a group, the default handler."""
    if group is None:
        _default[0] = handler
    else:
        _by_group[group] = handler


def getStream(group: str) -> MetricStream:
    return MetricStream(group, _by_group.get(group, _default[0]))


def put_metric(metric_name: str, metric_value: int, metric_group: str = DEFAULT_GROUP) -> None:
    getStream(metric_group).add_value(metric_name, metric_value)


def publish_metric(metric_group: str, metric_name: str, metric_value: int) -> None:
    """The older name of ``put_metric``, with the arguments in another order."""
    warnings.warn("use put_metric instead of publish_metric", FutureWarning, stacklevel=2)
    getStream(metric_group).add_value(metric_name, metric_value)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Milliseconds since a ``time.time()``."""
    return int((time.time() - start_time_in_seconds) * 1000)


def _get_metric_name(function: Callable[..., Any]) -> str:
    name = function.__qualname__
    return name if "." in name else f"{function.__module__.rpartition('.')[2]}.{name}"


@overload
def prof(fn: Callable[_P, _T], group: str = ...) -> Callable[_P, _T]: ...
@overload
def prof(fn: None = None, group: str = ...) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
def prof(fn: Callable[..., Any] | None = None, group: str = DEFAULT_GROUP) -> Any:
    """Decorates a function: its name with ``.success`` or ``.failure``, and ``.duration.ms``."""

    def wrap(function: Callable[_P, _T]) -> Callable[_P, _T]:
        key = _get_metric_name(function)

        @functools.wraps(function)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            begun = time.monotonic()
            outcome = "failure"
            try:
                result = function(*args, **kwargs)
                outcome = "success"
                return result
            finally:
                elapsed = int((time.monotonic() - begun) * 1000)
                with plug_in("metric handler"):
                    put_metric(f"{key}.{outcome}", 1, group)
                    put_metric(f"{key}.duration.ms", elapsed, group)

        return wrapper

    return wrap(fn) if fn is not None else wrap


def profile(group: str | None = None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """The older name of ``prof``."""

    def wrap(function: Callable[_P, _T]) -> Callable[_P, _T]:
        decorated: Callable[_P, _T] = prof(function, group=group or DEFAULT_GROUP)
        return decorated

    return wrap
