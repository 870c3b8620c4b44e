"""Owns the error for a call whose argument has another type than its signature declares.

    @checked
    class Producer: ...          producer.send("text")  ->  InvalidArgument: value is str, it must
                                                             be bytes | None

Arguments are not checked before a call, so a correct call costs nothing. Only when a call raises an
exception from outside txlog, `explained` compares the arguments with the signature. If all match,
the exception has another cause (a bug, or a user's function) and passes unchanged.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from txlog.errors import InvalidArgument, TxlogError

T = TypeVar("T")
StrPath: TypeAlias = str | os.PathLike[str]  # what calls take for a path
F = TypeVar("F", bound=Callable[..., Any])
# The names of types in a signature, in the words of Python.
_ALIASES = {
    "InstantLike": "int | datetime | date | str",
    "DurationLike": "int | timedelta | str",
    "StrPath": "str | os.PathLike[str]",
    **dict.fromkeys(("SubscriptionType", "Isolation", "Durability", "AccessMode"), "str"),
    **dict.fromkeys(("RoutingMode", "SchemaType", "TtlFrom", "Compatibility"), "str"),
    **dict.fromkeys(("Validation", "OpenTransactionCheck", "OnError"), "str"),
}
CO_GENERATOR = 0x20  # flag of a code object, as in inspect
_INT64 = range(-(1 << 63), 1 << 63)


def path_text(path: StrPath) -> str:
    """The text of a path in a public call."""
    return os.fspath(path)


def checked(cls: type[T]) -> type[T]:
    """Make the public methods of a class raise InvalidArgument for arguments of wrong types."""
    for name, item in list(vars(cls).items()):
        if not name.startswith("_") and isinstance(item, FunctionType):
            setattr(cls, name, explained(item))
    return cls


def explained(function: F) -> F:
    """Make a function or generator function raise InvalidArgument for arguments of wrong types."""

    if function.__code__.co_flags & CO_GENERATOR:

        @functools.wraps(function)
        def _steps(*args: Any, **kwargs: Any) -> Any:
            try:
                return (yield from function(*args, **kwargs))
            except (TxlogError, OSError):
                raise
            except Exception as error:  # a wrong argument may raise anything
                error_found = blamed(function, args, kwargs)
                if error_found is None:
                    raise
                raise error_found from error

        return cast(F, _steps)

    @functools.wraps(function)
    def _call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TxlogError, OSError):  # OSError: from a signal handler, never from an argument
            raise
        except Exception as error:  # a wrong argument may raise anything
            error_found = blamed(function, args, kwargs)
            if error_found is None:
                raise
            raise error_found from error

    return cast(F, _call)


def blamed(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> InvalidArgument | None:
    """The error for the first argument of a wrong type; None: no type is wrong."""
    inspect: ModuleType = importlib.import_module("inspect")
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None  # too few or too many: Python has reported it
    hints = _hints(function)
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        values = [value]
        if kind is inspect.Parameter.VAR_POSITIONAL:
            values = list(value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            values = list(value.values())
        for item in values:
            if name in hints and not fits(item, hints[name]):
                return _error(name, item, str(signature.parameters[name].annotation))
    return None


def _error(name: str, value: object, annotation: str) -> InvalidArgument:
    hint = None
    annotation = re.sub(r"\b[A-Z]\w+", lambda word: _ALIASES.get(word[0], word[0]), annotation)
    if isinstance(value, str) and "bytes" in annotation:
        hint = "encode it: text.encode()"
    elif isinstance(value, str) and not _is_text(value):
        return InvalidArgument(f"{name} cannot be written as UTF-8")
    elif isinstance(value, int) and value not in _INT64:
        return InvalidArgument(f"{name} does not fit into 64 bits", code=203)
    return InvalidArgument(f"{name} is {type(value).__name__}, it must be {annotation}", hint=hint)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of parameters by name, without types that cannot be resolved."""
    hints: dict[str, Any] = {}
    for name, text in function.__annotations__.items():
        alone = FunctionType(_nothing.__code__, function.__globals__)
        alone.__annotations__ = {name: text}
        with suppress(NameError, TypeError, KeyError, OSError, ImportError):
            hints.update(get_type_hints(alone, localns=_Names(function)))
    return hints


def _nothing() -> None:
    """A function that carries an annotation."""


class _Names(dict[str, Any]):
    """The names in a function's annotations, including those imported only for type checkers.

    If two modules use one name for different types, the function's own module decides.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._globals = function.__globals__

    def __missing__(self, name: str) -> Any:
        if name in self._globals or hasattr(builtins, name):
            return self._globals.get(name, getattr(builtins, name, None))
        with _PARSING:
            module, imported = _imports(self._globals["__name__"])[name]
        return getattr(importlib.import_module(module), imported)


# Of threads that parse at the same time, Python 3.11 fails one with SystemError.
_PARSING: Final = threading.RLock()


@functools.cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Where the names that a module imports from others come from: (module, name)."""
    inspect: ModuleType = importlib.import_module("inspect")
    ast: ModuleType = importlib.import_module("ast")
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def fits(value: object, expected: object) -> bool:
    """Whether a value has a type, as far as a check is possible without consuming the value."""
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return any(fits(value, alternative) for alternative in get_args(expected))
    if origin is Literal:
        return value in get_args(expected)
    if expected is Any:
        return True
    if expected is None or expected is NoneType:
        return value is None
    if expected is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool) and value in _INT64
    if expected is str:
        return isinstance(value, str) and _is_text(value)
    kind = origin or expected
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind):
        return False
    if isinstance(value, str | bytes) and origin is not None:
        return False  # a str is a sequence, but callers do not mean it as one
    if isinstance(value, Mapping) and not issubclass(kind, Mapping):
        return origin is None  # nor do callers mean the names of a mapping
    return _items_fit(value, get_args(expected))


def _items_fit(value: object, kinds: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping) and len(kinds) == 2:
        return all(fits(k, kinds[0]) and fits(v, kinds[1]) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset) and kinds:
        if isinstance(value, tuple) and kinds[-1] is not Ellipsis and len(kinds) == len(value):
            return all(fits(item, kind) for item, kind in zip(value, kinds, strict=True))
        return all(fits(item, kinds[0]) for item in value)
    return True


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
