"""Owns finding a function by its name: MODULE:FUNCTION, or FILE.py:FUNCTION.

A class is called without arguments; an object with a method `process` is a function by it, as in
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

    path:   directories that come first on sys.path, for its module and what that imports
    raises: InvalidArgument (no such module or name), NotFound (no such file),
            CommandFailed (the module could not be imported)

    >>> from txlog import functions
    >>> functions.load("textwrap:dedent").__name__
    'dedent'
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise InvalidArgument(
            f"{name!r} names no function", hint="MODULE:FUNCTION, or FILE.py:FUNCTION"
        )
    sys.path[:0] = [str(Path(directory).absolute()) for directory in path]
    module = _file(place) if place.endswith(".py") else _module(place)
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise InvalidArgument(f"{place} has no {attribute}") from error
    return as_function(found, name)


def as_function(found: object, name: str) -> UserFunction:
    """Return what a name means as a function: an instance of a class, the method `process`."""
    if isinstance(found, type):
        try:
            found = found()
        except _FAILURES as error:
            raise as_ours(name, error) from error
    process: object = getattr(found, "process", None)
    if callable(process):
        return process
    if not callable(found):
        raise InvalidArgument(f"{name} is a {type(found).__name__}, not a function")
    return found


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
    own_name = f"file:{path}"  # so that it hides no module of the same stem
    spec = importlib.util.spec_from_file_location(own_name, path)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None, "a name that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module  # dataclasses and the like look for their module there
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
