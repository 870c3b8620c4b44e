"""Owns the calls of a function: a message at a time, or once per batch with an Arrow table.

A handler takes rows. It returns the rows it has finished, the rows it holds back for the next
batch, and the rows it did not reach. If a call with one message fails, the handler retries it or
gives it up at once. If a call with a batch fails, the run splits the batch to find the bad input.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.door.reading import Decoder, Message, messages
from txlog.errors import CommandFailed, InvalidArgument, InvalidMessage, NotFound
from txlog.functions.attempt import FAILURES, Attempt, Unsettled, as_ours

# (message or table, context) or (message or table) -> outputs
UserFunction: TypeAlias = Callable[..., object]


class Handled(NamedTuple):
    """The rows of a batch by result; None: no rows.

    done: to be acknowledged; kept: rows of `done` that move to the state of windows
    held: they come first in the next batch; left: the handler did not reach them
    """

    done: pa.Table
    held: pa.Table | None = None
    left: pa.Table | None = None
    kept: pa.Table | None = None


class Handler(Protocol):
    """Calls a function for rows."""

    @property
    def wants_quiet(self) -> bool:
        """Whether to call it once more, without rows, when the input is drained."""

    @property
    def may_overlap(self) -> bool:
        """Whether it may get rows while the rows before them may still come again."""

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """Split rows that failed together for a retry; one part: do not split."""

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Call the function. Raises GivenUp, Unsettled."""


class MessageHandler:
    """Calls a function once per message."""

    __slots__ = ("_call", "_stop", "_txn_time_ms")
    wants_quiet = False
    may_overlap = True

    def __init__(self, function: UserFunction, txn_time_ms: int, stop: Callable[[], bool]) -> None:
        self._call = with_context(function)
        self._txn_time_ms = txn_time_ms
        self._stop = stop

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """The two halves of the rows."""
        return halves(rows)

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Call it for each message, until the transaction has taken long enough."""
        context, outbox, call = attempt.context, attempt.outbox, self._call
        until = time.monotonic() + self._txn_time_ms / 1000
        done = 0
        for message in messages(rows, attempt.decoder):
            mark = outbox.mark()
            context.message, context.attempt = message, 1
            try:
                outbox.add(call(message, context), message)
            except FAILURES as error:
                attempt.repeat(
                    rows.slice(done, 1), partial(self._once, message, attempt), mark, error
                )
            done += 1
            if time.monotonic() >= until or self._stop():
                break
        context.message = None
        unreached = rows.slice(done) if done < rows.num_rows else None
        return Handled(rows.slice(0, done), left=unreached)

    def _once(self, message: Message, attempt: Attempt) -> None:
        attempt.outbox.add(self._call(message, attempt.context), message)


class BatchHandler:
    """Calls a function once per batch, without an object per message."""

    __slots__ = ("_call",)
    wants_quiet = False
    may_overlap = True

    def __init__(self, function: UserFunction) -> None:
        self._call = with_context(function)

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """The two halves of the rows."""
        return halves(rows)

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Call it once with all rows."""
        try:
            attempt.outbox.add(self._call(rows, attempt.context))
            mask = _checked(attempt.context.held, rows.num_rows)
        except FAILURES as error:
            raise Unsettled(error) from error
        if mask is None:
            return Handled(rows)
        return Handled(rows.filter(pc.invert(mask)), held=rows.filter(mask))


def with_context(function: UserFunction) -> Callable[[Any, Any], object]:
    """Return the function with the signature (input, context), even if it takes no context.

    raises: InvalidArgument if it takes neither one nor two arguments
    """
    if not callable(function):
        raise InvalidArgument(f"{type(function).__name__} is not a function")
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument(
            f"{name_of(function)} is asynchronous: a function returns its outputs"
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return lambda item, context: function(item)
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in places]
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    keyword_only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    takes_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    needs_more = len(required) > 2 or any(
        p.default is inspect.Parameter.empty for p in keyword_only
    )
    if needs_more or not (positional or takes_any):
        raise InvalidArgument(
            f"{name_of(function)} takes {len(required)} arguments",
            hint="a function takes its input, and optionally a context",
        )
    if len(required) == 2 or (len(positional) > 1 and positional[1].name == "context"):
        return function
    return lambda item, context: function(item)


def name_of(function: object) -> str:
    """The name of a function, or of a callable's class."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _checked(mask: object, rows: int) -> pa.Array | None:
    """A mask of hold_back as booleans for all rows; None: no row is held back."""
    if mask is None:
        return None
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    if not isinstance(mask, pa.Array) or mask.type != pa.bool_() or len(mask) != rows:
        raise InvalidMessage(f"hold_back takes {rows} booleans, one a row of the batch")
    mask = pc.fill_null(mask, False)
    return mask if pc.any(mask).as_py() else None


def halves(rows: pa.Table) -> list[pa.Table]:
    """Rows in two parts; one row is one part."""
    half = rows.num_rows // 2
    return [rows.slice(0, half), rows.slice(half)] if half else [rows]


def message_list(rows: pa.Table, decoder: Decoder) -> list[Message]:
    """Rows as messages."""
    return list(messages(rows, decoder))


# --- loading a function by its name ---------------------------------------------------------------


def load(name: str, path: Sequence[str] = ()) -> UserFunction:
    """Return a function by its name.

    path:   directories to put first on sys.path, for its module and the imports of that
    raises: InvalidArgument (no such module or name), NotFound (no such file),
            CommandFailed (the module could not be imported)

    >>> from txlog import functions
    >>> functions.load("textwrap:dedent").__name__
    'dedent'
    """
    module_name, colon, attribute = name.rpartition(":")
    if not colon or not module_name or not attribute:
        raise InvalidArgument(
            f"{name!r} names no function", hint="MODULE:FUNCTION, or FILE.py:FUNCTION"
        )
    if not module_name.endswith(".py") and ("/" in module_name or module_name.startswith(".")):
        raise InvalidArgument(
            f"{module_name} is a path, and no Python file",
            hint=f"FILE.py:FUNCTION names a file: {module_name}.py:{attribute}",
        )
    sys.path[:0] = [str(Path(directory).absolute()) for directory in path]
    module = _file(module_name) if module_name.endswith(".py") else _module(module_name)
    value: object = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise InvalidArgument(f"{module_name} has no {attribute}") from error
    return as_function(value, name)


def as_function(value: object, name: str) -> UserFunction:
    """Convert a loaded object to a function: instantiate a class, use a method `process`."""
    if isinstance(value, type):
        try:
            value = value()
        except FAILURES as error:
            raise as_ours(name, error) from error
    process: object = getattr(value, "process", None)
    if callable(process):
        return process
    if not callable(value):
        raise InvalidArgument(f"{name} is a {type(value).__name__}, not a function")
    return value


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "--path DIR says where; FILE.py:FUNCTION names a file"
            if Path(f"{name}.py").is_file():  # the working directory is not on sys.path
                hint = f"{name}.py:FUNCTION names the file here; --path . would find the module"
            raise InvalidArgument(f"no module {name}", hint=hint) from error
        raise _import_failed(name, error) from error
    except FAILURES as error:
        raise _import_failed(name, error) from error


def _file(name: str) -> ModuleType:
    path = Path(name).absolute()
    if not path.is_file():
        raise NotFound(f"no file {name}", path=str(path))
    own_name = f"file:{path}"  # so that it hides no module with the stem of the file
    spec = importlib.util.spec_from_file_location(own_name, path)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None, "a name that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module  # dataclasses and others look their module up there
    try:
        spec.loader.exec_module(module)
    except FAILURES as error:
        del sys.modules[own_name]
        raise _import_failed(name, error) from error
    return module


def _import_failed(name: str, error: BaseException) -> CommandFailed:
    failed = as_ours(f"the import of {name}", error)
    assert isinstance(failed, CommandFailed), "only our own failures stay as they are"
    return failed
