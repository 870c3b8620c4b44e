"""Loads a function by its name: MODULE:FUNCTION, or FILE.py:FUNCTION.

A class is called without arguments; an object with a method `process` counts as a function, as in
Pulsar Functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from txlog.errors import CommandFailed, InvalidArgument, NotFound
from txlog.functions.attempt import as_ours
from txlog.functions.handlers import UserFunction

_FAILURES = (Exception, SystemExit)


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
        except _FAILURES as error:
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
            raise InvalidArgument(
                f"no module {name}", hint="--path DIR says where; FILE.py:FUNCTION names a file"
            ) from error
        raise _import_failed(name, error) from error
    except _FAILURES as error:
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
    except _FAILURES as error:
        del sys.modules[own_name]
        raise _import_failed(name, error) from error
    return module


def _import_failed(name: str, error: BaseException) -> CommandFailed:
    failed = as_ours(f"the import of {name}", error)
    assert isinstance(failed, CommandFailed), "only our own failures stay as they are"
    return failed
