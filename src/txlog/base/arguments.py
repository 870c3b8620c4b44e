"""Owns the error for an argument of a library call whose type is not what its signature says.

    @checked
    class Producer: ...          producer.send("text")  ->  InvalidArgument: value is str, it must
                                                             be bytes | None

Arguments are not checked before a call, so a correct call pays nothing: they are compared with the
signature only when the call has raised something that is not an error of ours. If none of them is
to blame, the exception has another cause (a bug, or a user's function), and is passed on as it is.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from txlog.errors import InvalidArgument, TxlogError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
CO_GENERATOR = 0x20  # of a code object, as in inspect
_INT64 = range(-(1 << 63), 1 << 63)


def checked(cls: type[T]) -> type[T]:
    """Make the public methods of a class say which argument is wrong; raises InvalidArgument."""
    for name, item in list(vars(cls).items()):
        if not name.startswith("_") and isinstance(item, FunctionType):
            setattr(cls, name, explained(item))
    return cls


def explained(function: F) -> F:
    """The same for one function."""

    if function.__code__.co_flags & CO_GENERATOR:

        @functools.wraps(function)
        def _steps(*args: Any, **kwargs: Any) -> Any:
            try:
                return (yield from function(*args, **kwargs))
            except (TxlogError, OSError):
                raise
            except Exception as error:  # a wrong argument may raise anything
                found = blamed(function, args, kwargs)
                if found is None:
                    raise
                raise found from error

        return cast(F, _steps)

    @functools.wraps(function)
    def _call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TxlogError, OSError):  # OSError: from a signal handler, never from an argument
            raise
        except Exception as error:  # a wrong argument may raise anything
            found = blamed(function, args, kwargs)
            if found is None:
                raise
            raise found from error

    return cast(F, _call)


def blamed(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> InvalidArgument | None:
    """The error for the first argument that does not match the signature; None: all match."""
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
        for one in values:
            if name in hints and not fits(one, hints[name]):
                return _error(name, one, str(signature.parameters[name].annotation))
    return None


def _error(name: str, value: object, wanted: str) -> InvalidArgument:
    hint = None
    if isinstance(value, str) and "bytes" in wanted:
        hint = "encode it: text.encode()"
    elif isinstance(value, str) and not _is_text(value):
        return InvalidArgument(f"{name} cannot be written as UTF-8")
    elif isinstance(value, int) and value not in _INT64:
        return InvalidArgument(f"{name} does not fit into 64 bits", code=203)
    return InvalidArgument(f"{name} is {type(value).__name__}, it must be {wanted}", hint=hint)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of parameters by name; types that cannot be resolved are left out."""
    found: dict[str, Any] = {}
    for name, text in function.__annotations__.items():
        alone = FunctionType(_nothing.__code__, function.__globals__)
        alone.__annotations__ = {name: text}
        with suppress(NameError, TypeError, KeyError, OSError, ImportError):
            found.update(get_type_hints(alone, localns=_Names(function)))
    return found


def _nothing() -> None:
    """A function to carry an annotation."""


class _Names(dict[str, Any]):
    """The names of a function's annotations, including those imported only for a type checker.

    If two modules use one name for different types, the source decides.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._globals = function.__globals__

    def __missing__(self, name: str) -> Any:
        if name in self._globals or hasattr(builtins, name):
            return self._globals.get(name, getattr(builtins, name, None))
        inspect: ModuleType = importlib.import_module("inspect")
        ast: ModuleType = importlib.import_module("ast")
        source = inspect.getsource(sys.modules[self._globals["__name__"]])
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return getattr(importlib.import_module(node.module), alias.name)
        raise KeyError(name)


def fits(value: object, wanted: object) -> bool:
    """True when a value has a type, as far as that can be seen without consuming it."""
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in get_args(wanted))
    if origin is Literal:
        return value in get_args(wanted)
    if wanted is Any:
        return True
    if wanted is None or wanted is NoneType:
        return value is None
    if wanted is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool) and value in _INT64
    if wanted is str:
        return isinstance(value, str) and _is_text(value)
    kind = origin or wanted
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind):
        return False
    if isinstance(value, str | bytes) and origin is not None:
        return False  # a text is a sequence, but is not meant as one
    if isinstance(value, Mapping) and not issubclass(kind, Mapping):
        return origin is None  # nor the names of a mapping
    return _items_fit(value, get_args(wanted))


def _items_fit(value: object, kinds: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping) and len(kinds) == 2:
        return all(fits(k, kinds[0]) and fits(v, kinds[1]) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset) and kinds:
        if isinstance(value, tuple) and kinds[-1] is not Ellipsis and len(kinds) == len(value):
            return all(fits(one, kind) for one, kind in zip(value, kinds, strict=True))
        return all(fits(one, kinds[0]) for one in value)
    return True


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
