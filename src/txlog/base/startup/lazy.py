"""Owns when our own modules run: one that is imported as a module runs when it is first used.

    from txlog.engine.upkeep.checkpoint import seal          seal.py is found, and runs when used
    from txlog.engine.upkeep.checkpoint.seal import NAME     seal.py runs here

So a command pays for what it does and not for all that the client can do: `produce` of one message
used 70 of 225 modules. Only modules of txlog are treated so, never a package, and no other
library's. Code that needs a module loaded before a point of no return imports a name from it.

The modules of `txlog.engine.door` consist of imports alone, and go one step further: each name of a
door is imported when a caller first uses that name. A door of 40 names then costs its caller only
the modules behind the names that it takes, as if there were no door.

1. A module runs once, in the thread that comes first; others wait for it as for any import.
2. A run that raises leaves the module as it was found, and the next use runs it again.
3. Threads cannot wait for each other in a circle: modules import each other in none.
4. Code that enters while its thread runs it, from `__del__` or a signal handler, finds what is
   there by then, as the module's own top level does; what is not there yet is refused by name.
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
# What the import system asks of a module that is there.
_PLAIN = frozenset(("__spec__", "__name__", "__loader__", "__file__", "__class__", "__package__"))


class NotThereYet(AttributeError):
    """A name of a module whose top level has not come to it."""


class LazyModule(ModuleType):
    """A module that was found and has not run; any use of a name in it runs it."""

    def __getattribute__(self, name: str) -> Any:
        if name in _PLAIN or _run(self):
            return ModuleType.__getattribute__(self, name)
        try:
            return ModuleType.__getattribute__(self, name)
        except AttributeError:
            raise NotThereYet(
                f"{self.__name__} is still being loaded, and {name} is not there: called from "
                "within that, from __del__ or a signal handler; call it when that has ended"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _PLAIN:
            _run(self)
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _run(self)
        ModuleType.__delattr__(self, name)


class _Loader:
    """Stands before the loader of a module until the module runs."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.lock: Any = RLock()  # its owner runs the module

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module will do."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the run off until the module is used."""
        module.__class__ = LazyModule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _Name:
    """A name that a door has imported and nobody has used."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Names:
    """Stands for the module in `from module import name` of a door."""

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
        behind = {key: name for key, name in names.items() if isinstance(name, _Name)}
        for key in behind:
            del names[key]

        def _load(key: str) -> Any:
            name = behind.get(key)
            if name is None:
                raise AttributeError(f"module {module.__name__} has no attribute {key!r}")
            names[key] = getattr(import_module(name.module), name.name)
            return names[key]

        names["__getattr__"] = _load
        names["__all__"] = sorted(behind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder:
    """Finds the modules of this package as the path finder does, and puts off their run."""

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
    """Put the finder before the others; done once, by the package itself."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _run(module: LazyModule) -> bool:
    """Let the module run, if nobody has; False while this thread is in its run."""
    plain = ModuleType.__getattribute__
    spec = plain(module, "__spec__")
    waiting = spec.loader
    if not isinstance(waiting, _Loader):
        return True  # another thread has run it since the caller looked
    if waiting.lock._is_owned():  # asked of the lock: an interrupt may end any note of ours
        return False
    with waiting.lock:
        if spec.loader is not waiting:
            return True  # it has run while this thread waited
        module.__loader__ = waiting.loader
        waiting.loader.exec_module(module)
        spec.loader = waiting.loader
        module.__class__ = ModuleType  # type: ignore[assignment]
    return True
