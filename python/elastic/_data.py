"""Data classes that do not import ``dataclasses``, which would take a tenth of a launcher's start.

For a program they are data classes: ``dataclasses.replace``, ``asdict`` and ``fields`` work, and a
subclass may be decorated with ``dataclasses.dataclass``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda decorator: decorator


_T = TypeVar("_T")
_MISSING: Any = object()


class _Field:
    def __init__(self, default: Any, default_factory: Any, init: bool) -> None:
        self.default, self.default_factory, self.init = default, default_factory, init


def field(*, default: Any = _MISSING, default_factory: Any = _MISSING, init: bool = True) -> Any:
    """As in ``dataclasses``; a factory makes a new value for each object."""
    return _Field(default, default_factory, init)


class _Fresh:
    def __repr__(self) -> str:
        return "<a new object>"


_FRESH = _Fresh()


class _OnDemand:
    """An attribute of the same class made by ``dataclasses``."""

    def __init__(self, name: str, made: Callable[[], Any]) -> None:
        self._name, self._made = name, made

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(self._made(), self._name)


@dataclass_transform(field_specifiers=(field,))
def data(cls: type[_T]) -> type[_T]:
    """Adds a constructor, unless the class has one, an equality and a representation."""
    fields: dict[str, _Field] = {}
    for name in cls.__annotations__:
        given = vars(cls).get(name, _MISSING)
        fields[name] = given if isinstance(given, _Field) else _Field(given, _MISSING, True)
        if fields[name].default is not _MISSING:
            setattr(cls, name, fields[name].default)
        elif given is not _MISSING:
            delattr(cls, name)
    names = tuple(fields)

    def values(self: Any) -> dict[str, Any]:
        return {name: getattr(self, name, None) for name in names}

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if type(self) is type(other) else NotImplemented

    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in values(self).items())
        return f"{type(self).__qualname__}({shown})"

    made: list[type] = []

    def twin() -> type:
        if not made:
            made.append(_twin(cls, fields))
        return made[0]

    members: dict[str, Any] = {
        "__eq__": __eq__,
        "__repr__": __repr__,
        "__hash__": None,
        "__match_args__": tuple(name for name in names if fields[name].init),
    }
    if "__init__" not in vars(cls):
        members["__init__"] = _constructor(cls, fields)
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        members[name] = _OnDemand(name, twin)
    for name, member in members.items():
        setattr(cls, name, member)
    return cls


def _constructor(cls: type, fields: dict[str, _Field]) -> Any:
    known: dict[str, Any] = {"_FRESH": _FRESH}
    arguments, lines = ["self"], []
    for name, one in fields.items():
        value = name
        if one.default_factory is not _MISSING:
            known[f"_make_{name}"] = one.default_factory
            value = f"_make_{name}() if {name} is _FRESH else {name}"
            arguments.append(f"{name}=_FRESH")
        elif one.default is not _MISSING:
            known[f"_default_{name}"] = one.default
            arguments.append(f"{name}=_default_{name}")
        else:
            arguments.append(name)
        lines.append(f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec("\n".join([f"def __init__({', '.join(arguments)}):", *lines]), known)
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {**cls.__annotations__, "return": "None"}
    return made


def _twin(cls: type, fields: dict[str, _Field]) -> type:
    import dataclasses

    listed = []
    for name, one in fields.items():
        options: dict[str, Any] = {"init": one.init}
        if one.default_factory is not _MISSING:
            options["default_factory"] = one.default_factory
        elif one.default is not _MISSING:
            options["default"] = one.default
        listed.append((name, cls.__annotations__[name], dataclasses.field(**options)))
    return dataclasses.make_dataclass(cls.__name__, listed)


def changed(value: _T, **changes: Any) -> _T:
    """A copy with other values; unlike ``dataclasses.replace`` of fields without argument, too."""
    copy = object.__new__(type(value))
    copy.__dict__.update(vars(value), **changes)
    return copy
