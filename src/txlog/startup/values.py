"""Owns @value and @record: dataclasses that cost a tenth of one to define.

A dataclass writes eight functions as text and compiles them, and its module brings inspect with it:
the twenty that `produce` meets took a tenth of its time. Here what compares, hashes and prints is
shared, over the names of the slots; only `__init__` is compiled, when the first object is made.

1. They behave as dataclass(slots=True), a value as frozen=True too: the same `__init__`, equality
   within the class, `repr`, `__match_args__`, pickling; a value has a hash, and with order=True an
   order. `dataclasses.fields`, `replace` and `asdict` take them.
2. Fields are the annotations of the class itself; no `field()`, no `__post_init__`, no inheritance,
   no default that can change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def value(cls: type[T], /) -> type[T]: ...
@overload
def value(*, order: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True)
def value(
    cls: type[T] | None = None, /, *, order: bool = False, kw_only: bool = False
) -> type[T] | Callable[[type[T]], type[T]]:
    """As dataclass(frozen=True, slots=True)."""

    def make(plain: type[T]) -> type[T]:
        made: type[T] = _made(plain, frozen=True, order=order, kw_only=kw_only)
        return made

    return make if cls is None else make(cls)


@dataclass_transform()
def record(cls: type[T], /) -> type[T]:
    """As dataclass(slots=True): it may change, and has no hash."""
    made: type[T] = _made(cls, frozen=False)
    return made


def names_of(cls: type[object]) -> tuple[str, ...]:
    """The names of the fields, in order."""
    names: tuple[str, ...] = cls.__dict__["__slots__"]
    return names


def as_dict(item: object) -> dict[str, Any]:
    """The fields of a value by name; what they hold stays as it is."""
    return {name: getattr(item, name) for name in names_of(type(item))}


def changed(item: T, **changes: object) -> T:
    """A copy with other values in some fields."""
    return type(item)(**{**as_dict(item), **changes})


def _made(cls: Any, *, frozen: bool, order: bool = False, kw_only: bool = False) -> Any:
    names = tuple(cls.__annotations__)
    given = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    body = {
        name: item
        for name, item in cls.__dict__.items()
        if name not in given and name not in ("__dict__", "__weakref__")
    }
    body.update(
        __slots__=names,
        __qualname__=cls.__qualname__,
        __match_args__=() if kw_only else names,
        __init__=_first_init(names, given, kw_only),
        __dataclass_fields__=_Fields(),
        _values_given=given,
        _values_rules=(frozen, order, kw_only),
    )
    body.setdefault("__repr__", _repr)
    if frozen:
        body.update(__setattr__=_frozen_set, __delattr__=_frozen_del)
        body.update(__getstate__=_getstate, __setstate__=_setstate)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    _compare(made, names, frozen=frozen, order=order)
    return made


def _first_init(names: tuple[str, ...], given: dict[str, Any], kw_only: bool) -> Any:
    """An __init__ that puts the compiled one in its place and calls it."""

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        cls = type(self)
        setters = {f"_set_{name}": getattr(cls, name).__set__ for name in names}
        lines = []
        head = ["self", "*"] if kw_only and names else ["self"]
        for name in names:
            head.append(f"{name}=_given_{name}" if name in given else name)
            lines.append(f"    _set_{name}(self, {name})\n")
        text = f"def __init__({', '.join(head)}):\n{''.join(lines) or '    pass'}"
        found = {**setters, **{f"_given_{name}": item for name, item in given.items()}}
        exec(text, found)  # noqa: S102
        made = found["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        type.__setattr__(cls, "__init__", made)
        made(self, *args, **named)

    return __init__


def _compare(cls: Any, names: tuple[str, ...], *, frozen: bool, order: bool) -> None:
    key: Callable[[Any], Any] = attrgetter(*names) if names else lambda item: ()

    def __eq__(self: Any, other: object) -> Any:
        return key(self) == key(other) if other.__class__ is cls else NotImplemented

    def __lt__(self: Any, other: object) -> Any:
        return key(self) < key(other) if other.__class__ is cls else NotImplemented

    def __le__(self: Any, other: object) -> Any:
        return key(self) <= key(other) if other.__class__ is cls else NotImplemented

    def __gt__(self: Any, other: object) -> Any:
        return key(self) > key(other) if other.__class__ is cls else NotImplemented

    def __ge__(self: Any, other: object) -> Any:
        return key(self) >= key(other) if other.__class__ is cls else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(key(self))

    cls.__eq__ = __eq__
    cls.__hash__ = __hash__ if frozen else None
    if order:
        cls.__lt__, cls.__le__, cls.__gt__, cls.__ge__ = __lt__, __le__, __gt__, __ge__


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__qualname__}({shown})"


def _frozen_set(self: Any, name: str, item: object) -> None:
    raise _frozen_error(f"cannot assign to field {name!r}")


def _frozen_del(self: Any, name: str) -> None:
    raise _frozen_error(f"cannot delete field {name!r}")


def _frozen_error(text: str) -> Exception:
    error: Exception = importlib.import_module("dataclasses").FrozenInstanceError(text)
    return error


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__slots__]


def _setstate(self: Any, state: list[Any]) -> None:
    for name, item in zip(self.__slots__, state, strict=True):
        getattr(type(self), name).__set__(self, item)


class _Fields:
    """What `dataclasses` asks a class for, made when it asks: the fields of a true twin."""

    def __get__(self, instance: object, cls: type[Any]) -> dict[str, Any]:
        dataclasses = importlib.import_module("dataclasses")
        frozen, order, kw_only = cls._values_rules
        kinds = cls.__annotations__
        given = cls._values_given
        twin = dataclasses.dataclass(frozen=frozen, order=order, kw_only=kw_only)(
            type(
                cls.__name__, (), {"__annotations__": kinds, "__module__": cls.__module__, **given}
            )
        )
        found: dict[str, Any] = twin.__dataclass_fields__
        type.__setattr__(cls, "__dataclass_fields__", found)
        return found
