"""Owns the tests' view of the project's own code: its modules, their syntax trees and imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = "txlog"


@dataclass(frozen=True)
class Import:
    """One import: the dotted name, the line; deferred: it is inside a function."""

    target: str
    line: int
    deferred: bool


@dataclass(frozen=True)
class Module:
    """One module of the package; path is relative to the package: `engine/storage/disk/posix`."""

    file: Path
    name: str
    path: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.file.read_text(encoding="utf-8"), str(self.file))

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, those for type checking and inside functions included."""
        return list(_imports(self.tree, deferred=False))


@cache
def modules() -> list[Module]:
    """Return the modules below src/txlog, in the order of their paths; each is parsed once."""
    modules_found = []
    for file in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = list(file.relative_to(SOURCE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        modules_found.append(Module(file, ".".join(parts), "/".join(parts[1:])))
    return modules_found


def own_targets(module: Module, known: set[str]) -> Iterator[tuple[str, Import]]:
    """Yield (name, import) for each of our modules in `known` that a module imports."""
    for item in module.imports:
        name = item.target
        if name.split(".")[0] != PACKAGE:
            continue
        while name not in known and "." in name:
            name = name.rpartition(".")[0]  # the last part is a name in the module, not a module
        if name != module.name:
            yield name, item


def _imports(node: ast.AST, *, deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, deferred)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            for alias in child.names:
                yield Import(f"{child.module}.{alias.name}", child.lineno, deferred)
        elif isinstance(child, ast.Call) and child.args and isinstance(child.args[0], ast.Constant):
            name = child.args[0].value  # of import_module, or of a function that calls it
            if isinstance(name, str) and (_called(child) == "import_module" or _is_module(name)):
                yield Import(name, child.lineno, deferred)
        inside = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(child, deferred=inside)


@cache
def _is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")) if name.startswith(f"{PACKAGE}.") else None
    return path is not None and any(
        file.is_file() for file in (Path(f"{path}.py"), path / "__init__.py")
    )


def _called(call: ast.Call) -> str:
    """Return the last name of the called function: `sleep` for `time.sleep(1)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
