"""Owns when our own modules run: one that is imported as a module runs at its first use.

So a command pays only for its own work: `produce` of one message used 70 of 225 modules. This
applies to modules of txlog only, not to packages or other libraries. Code that needs a module
loaded before a point of no return imports a name from it.

1. A module runs once, in the first thread that uses it; others wait for it as for any import.
2. A run that raises leaves the module unchanged, and the next use runs it again.
3. Threads cannot wait for each other in a circle, because modules do not import each other in one.
4. Code that re-enters while its own thread runs the module, from `__del__` or a signal handler, can
   use the names defined so far, like the module's own top level; other names raise an error.
"""

from __future__ import annotations

import sys
from _thread import RLock
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

TYPE_CHECKING = False  # as in txlog itself
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PREFIX = "txlog."
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
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
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
    if waiting.lock._is_owned():  # the lock knows; an interrupt could leave a flag of ours wrong
        return False
    with waiting.lock:
        if spec.loader is not waiting:
            return True  # another thread ran it while this thread waited
        module.__loader__ = waiting.loader
        waiting.loader.exec_module(module)
        spec.loader = waiting.loader
        module.__class__ = ModuleType  # type: ignore[assignment]
    return True
