"""Delays the modules of txlog: `import module` runs the module only when it is first used.

So a command pays only for its own work: `produce` of one message used 70 of 225 modules. Packages
and other libraries are not delayed. Code that needs a module loaded before a point of no return
imports a name from it, which runs it at once.

The modules of `txlog.engine.door` consist of imports alone, and go one step further: each name of a
door is imported when a caller first uses that name. A door of 40 names then costs its caller only
the modules behind the names that it takes, as if there were no door.

1. A module runs once, in the first thread that uses it; others wait for it as for any import.
2. A run that raises leaves the module unchanged, and the next use runs it again.
3. Threads cannot wait for each other in a circle, because modules do not import each other in one.
4. Code that re-enters while its own thread runs the module, from `__del__` or a signal handler, can
   use the names defined so far, like the module's own top level; other names raise an error.
5. The exception of a signal handler leaves no lock of this module taken. It may leave the lock of
   Python's import system: importlib takes that an instruction before its `try`. Then only the
   interrupted thread can import, in any program; no code outside of importlib can prevent that.
"""

from __future__ import annotations

import builtins
import sys
from _thread import RLock
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

TYPE_CHECKING = False  # as in txlog itself
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PREFIX = "txlog."
DOORS = "txlog.engine.door."
# Attributes that the import system reads from a loaded module.
_PLAIN = frozenset(("__spec__", "__name__", "__loader__", "__file__", "__class__", "__package__"))


class NotThereYet(AttributeError):
    """A name that the module's top level has not defined yet."""


class LazyModule(ModuleType):
    """A module that was found but has not run; any use of a name in it runs it."""

    def __getattribute__(self, name: str) -> Any:
        if name in _PLAIN or _run(self):
            return ModuleType.__getattribute__(self, name)
        try:
            return ModuleType.__getattribute__(self, name)
        except AttributeError:
            raise NotThereYet(
                f"{self.__name__} is still being loaded and has no {name} yet: the caller runs in "
                "__del__ or a signal handler during the load; call it after the load"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _PLAIN:
            _run(self)
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _run(self)
        ModuleType.__delattr__(self, name)


class _Loader:
    """Replaces the loader of a module until the module runs."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.lock: Any = RLock()  # its owner runs the module

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: an ordinary module is fine."""

    def exec_module(self, module: ModuleType) -> None:
        """Delay the run until the module is used."""
        module.__class__ = LazyModule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _Name:
    """A name of a door that no caller has used yet."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Names:
    """Replaces the module in `from module import name` of a door."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> _Name:
        return _Name(self._module, name)


class _Door:
    """The loader of a door: it notes each import, and `__getattr__` of the module makes it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """Run the imports of a door without importing the modules that they name."""
        names = vars(module)
        plain = names.get("__builtins__")

        def _note(name: str, *rest: Any) -> Any:
            return _Names(name) if name.startswith(PREFIX) else builtins.__import__(name, *rest)

        names["__builtins__"] = {**vars(builtins), "__import__": _note}
        self._loader.exec_module(module)
        names["__builtins__"] = vars(builtins) if plain is None else plain
        lazy_names = {key: name for key, name in names.items() if isinstance(name, _Name)}
        for key in lazy_names:
            del names[key]

        def _load(key: str) -> Any:
            name = lazy_names.get(key)
            if name is None:
                raise AttributeError(f"module {module.__name__} has no attribute {key!r}")
            names[key] = getattr(import_module(name.module), name.name)
            return names[key]

        names["__getattr__"] = _load
        names["__all__"] = sorted(lazy_names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder:
    """Finds the modules of this package like the path finder, but delays their run."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(PREFIX):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is None:
            loader = _Door(spec.loader) if name.startswith(DOORS) else spec.loader
            spec.loader = _Loader(loader)  # type: ignore[assignment]
        return spec


def install() -> None:
    """Put the finder before the others; the package itself calls this once."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _run(module: LazyModule) -> bool:
    """Run the module if it has not run; return False while this thread is running it."""
    plain = ModuleType.__getattribute__
    spec = plain(module, "__spec__")
    waiting = spec.loader
    if not isinstance(waiting, _Loader):
        return True  # another thread has run it in the meantime
    if waiting.lock._is_owned():  # ask the lock: an interrupt could leave a flag of our own wrong
        return False
    with waiting.lock:
        if spec.loader is not waiting:
            return True  # another thread ran it while this thread waited
        module.__loader__ = waiting.loader
        waiting.loader.exec_module(module)
        spec.loader = waiting.loader
        module.__class__ = ModuleType  # type: ignore[assignment]
    return True
