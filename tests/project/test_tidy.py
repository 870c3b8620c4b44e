"""The rules of style that a program can check in the text of the code."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from scripts import check
from tests.source_tree import ROOT, Module, modules
from txlog.cli.line import catalogue
from txlog.cli.line.command import Command

LINES_MAX = 1000
LINES_OF_STATE_MAX = 1500  # of the modules that hold state, which would be cut across an idea
WITH_STATE = {
    "src/txlog/engine/store/store.py", "src/txlog/engine/storage/journal.py",
    "src/txlog/engine/model/ops.py", "src/txlog/engine/storage/disk/posix.py",
    "src/txlog/engine/view.py", "src/txlog/client/client.py",
}  # fmt: skip
TEST_LINES_MAX = 800
FILE_BYTES_MAX = 1 << 20
FUNCTION_LINES_MAX, PARAMETERS_MAX, SLOTS_MAX = 60, 8, 14
LARGE: dict[str, set[str]] = {
    "lines": {
        "client/answers/metrics:delay_families",
        "client/consuming/open:open_consumer",
        "cli/commands/query:query",
        "cli/commands/report:report",
        "cli/commands/transfer:export",
        "cli/commands/transfer:import_",
        "cli/commands/views:views",
        "engine/decide/consuming/acknowledge:acknowledge",
        "engine/decide/sending/send:send_in_txn",
        "engine/storage/bucket:encode_bucket",
        "engine/upkeep/checkpoint/checkpoint:checkpoint",
        "engine/upkeep/repair/plan:_republish",
        "engine/upkeep/verify/files:check_state",
        "engine/upkeep/verify/folds:_check_ledger",
        "functions/windows:tumbling",
    },
    "parameters": {
        "client/admin:set_watermark_policies",
        "client/client:consumer",
        "client/client:read",
        "engine/session/consuming/consumer:__init__",
        "engine/session/sending/producer:send",
        "engine/session/sending/producer:send_async",
        "client/consuming/open:create_subscription",
        "client/sending/producer:send",
        "client/sending/producer:send_async",
        "cli/commands/views:_script",
        "cli/input/inputs:__init__",
        "cli/line/command:__init__",
        "engine/decide/consuming/acknowledge:acknowledge_in_txn",
        "engine/decide/consuming/lease:negative_acknowledge",
        "engine/decide/consuming/position:seek",
        "engine/decide/sending/large:_chunks",
        "engine/decide/topics/catalog:create_subscription",
        "engine/plan/consuming/choice:choose_keys",
        "engine/plan/delayed/due:__init__",
        "engine/plan/reading/uncommitted:preview",
        "engine/storage/frame:encode",
        "engine/upkeep/changes/log:publish",
        "lake/jobs/export_files:export_directory",
        "lake/jobs/import_files:import_files",
        "lake/jobs/replay:replay",
        "lake/spark/reading:read",
    },
    "slots": {
        "engine/session/consuming/ahead:Ahead",
        "client/consuming/in_memory:MemorySession",
        "engine/session/consuming/receive:Receiving",
        "client/reading/reader:Reader",
        "engine/plan/delayed/due:DueScan",
        "engine/storage/journal:Journal",
        "engine/store/store:Store",
        "engine/view:View",
    },
}
MODULES = modules()
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROGRAMS = [
    *(file for file in sorted((ROOT / "bench").rglob("*.py")) if ".work" not in file.parts),
    *sorted((ROOT / "examples").rglob("*.py")),
]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _id(item: Module | Path) -> str:
    file = item.file if isinstance(item, Module) else item
    return str(file.relative_to(ROOT))


def test_module_has_a_docstring_and_is_short() -> None:
    for module in MODULES:
        assert ast.get_docstring(module.tree), f"{module.file} has no docstring"
    for file in SCRIPTS:
        assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), f"{file} has none"
    for file in [m.file for m in MODULES] + SCRIPTS:
        text = file.read_text(encoding="utf-8")
        name = file.relative_to(ROOT).as_posix()
        most = LINES_OF_STATE_MAX if name in WITH_STATE else LINES_MAX
        assert text.count("\n") <= most, f"{file} has more than {most} lines"


def test_files_of_tests_are_short() -> None:
    """The scenarios of a stock client are one program, which imports no file of the tests."""
    for file in TESTS:
        if not file.match("clients/python/scenarios.py"):
            lines = file.read_text(encoding="utf-8").count("\n")
            assert lines <= TEST_LINES_MAX, f"{file} has {lines} lines: split it by behaviour"


def test_functions_are_typed_and_public_ones_name_their_types() -> None:
    for module in MODULES:
        for function in _functions(module.tree):
            place = f"{module.file}:{function.lineno} {function.name}"
            assert function.returns is not None, f"{place} does not say what it returns"
            if not function.name.startswith("_"):
                given = function.args
                arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                for annotation in [function.returns, *(a.annotation for a in arguments)]:
                    assert not _is_any(annotation), f"{place}: Any in a public signature"


def test_public_functions_of_the_engine_are_explained() -> None:
    for module in [m for m in MODULES if m.path.startswith("engine")]:
        for node in module.tree.body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{module.file}:{node.lineno} {node.name}"


@pytest.mark.parametrize("file", [*PROGRAMS, *SCRIPTS], ids=_id)
def test_scripts_name_things_that_exist(file: Path) -> None:
    """No other test runs most of these programs, so a moved name would go unnoticed."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    whole = dict[str, str]()  # a module's name in this file -> its full name
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole[alias.asname or alias.name.partition(".")[0]] = alias.name
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            assert node.module is not None
            if node.module.startswith("airflow."):
                continue  # not installed here; test_example_services has a stand-in
            path = f"{node.module.replace('.', '/')}.py"
            own_files = [
                candidate for candidate in (file.parent / path, ROOT / path) if candidate.exists()
            ]
            defined: Container[str] = _defined(own_files[0]) if own_files else _Names(node.module)
            for alias in node.names:
                assert alias.name in defined, f"{file}:{node.lineno} {node.module}.{alias.name}"
    names_of_txlog = _Names("txlog")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if whole.get(node.value.id) == "txlog":
            assert node.attr in names_of_txlog, f"{file}:{node.lineno} txlog.{node.attr}"


class _Names:
    """The names of a module that can be imported, its submodules among them."""

    def __init__(self, module: str) -> None:
        self._module = importlib.import_module(module)

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, str)
        if hasattr(self._module, name):
            return True
        return importlib.util.find_spec(f"{self._module.__name__}.{name}") is not None


def _defined(file: Path) -> set[str]:
    """The names that a program defines at its top."""
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def test_every_command_is_in_the_catalogue() -> None:
    """Kills: a command that its module defines, and that users cannot call."""
    defined = set()
    for module in MODULES:
        if module.path.startswith("cli/"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, Command) and value.function.__module__ == module.name:
                    defined.add((module.path.removeprefix("cli/").replace("/", "."), name))
    assert len(defined) > 100
    assert defined == {(entry.module, entry.name) for entry in catalogue.COMMANDS.values()}


def test_large_functions_get_fewer() -> None:
    """Only the listed functions exceed 60 lines, 8 parameters or 14 slots.

    Entries may only be removed: a list that can grow is no limit.
    """
    exceeding = {"lines": set[str](), "parameters": set[str](), "slots": set[str]()}
    for module in MODULES:
        for node in ast.walk(module.tree):
            if isinstance(node, Function):
                assert node.end_lineno is not None
                arguments = node.args
                names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                of_self = bool(names) and names[0].arg in ("self", "cls", "call")
                if node.end_lineno - node.lineno >= FUNCTION_LINES_MAX:
                    exceeding["lines"].add(f"{module.path}:{node.name}")
                if len(names) - of_self > PARAMETERS_MAX and not _is_declaration(node):
                    exceeding["parameters"].add(f"{module.path}:{node.name}")
            elif isinstance(node, ast.ClassDef) and _slots(node) > SLOTS_MAX:
                exceeding["slots"].add(f"{module.path}:{node.name}")
    assert exceeding == LARGE


OPEN_ANSWERS = {  # their fields depend on the arguments
    *("client/answers/changes:recent_of_key", "client/answers/changes:recent_of_subscription"),
    *("client/answers/inspect:inspect", "client/client:inspect"),
}


def test_answers_have_types() -> None:
    """A public answer is a row of txlog.base.rows, so that mypy finds a misspelt key."""
    untyped = set()
    for module in MODULES:
        tree = module.tree
        names = [
            target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
        ]
        assert "Answer" not in map(ast.unparse, names), f"{module.file} names a dict Answer"
        if not module.path.startswith(("client/", "lake/jobs/")):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                returned = "" if node.returns is None else ast.unparse(node.returns)
                if "dict[str, Any]" in returned:
                    untyped.add(f"{module.path}:{node.name}")
    assert untyped == OPEN_ANSWERS


def test_only_the_command_line_prints() -> None:
    for module in MODULES:
        if module.path != "cli" and not module.path.startswith("cli/"):
            for call in _calls(module.tree, "print"):
                raise AssertionError(f"{module.file}:{call.lineno} prints")


def test_engine_opens_no_file_but_through_the_disk() -> None:
    for module in MODULES:
        if module.path.startswith("engine"):
            for call in _calls(module.tree, "open"):
                raise AssertionError(f"{module.file}:{call.lineno} uses the builtin open")


def test_code_holds_no_marks_of_unfinished_work() -> None:
    mark = re.compile("TO" + "DO|FIX" + "ME|XX" + "X")
    for file in [*(m.file for m in MODULES), *SCRIPTS, *TESTS]:
        match = mark.search(file.read_text(encoding="utf-8"))
        assert match is None, f"{file} holds an unfinished mark"


def test_broad_excepts_have_a_reason() -> None:
    """A broad except also catches bugs, perhaps Ctrl-C and exits: a comment says why it must."""
    broad = re.compile(r"except( \(?(.*, *)?(Base)?Exception\b.*)?:")
    for module in MODULES:
        for line in module.file.read_text(encoding="utf-8").splitlines():
            if broad.match(line.strip()):
                assert "  # " in line, f"{module.path}: {line.strip()}"


def test_tests_never_sleep() -> None:
    for file in TESTS:
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "sleep(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                raise AssertionError(f"{file}:{node.lineno} sleeps")


@pytest.mark.parametrize("name", ["spark", "clients"])
def test_tests_of_a_step_are_in_the_folder_that_it_collects(name: str) -> None:
    """scripts/check.py collects no other folder for the marker of that name."""
    assert check.STEPS[name][-1] == f"tests/{name}"
    marked = [
        file for file in TESTS if re.search(rf"mark\.{name}\b", file.read_text(encoding="utf-8"))
    ]
    assert marked and all(file.parent.name == name for file in marked), marked


def test_no_large_file_outside_data() -> None:
    for top in ("src", "scripts", "tests", "man", "bench", ".ci"):
        for file in (ROOT / top).rglob("*"):
            if file.is_file() and not {"format", "__pycache__", ".work"} & set(file.parts):
                is_linked = any(parent.is_symlink() for parent in file.parents)
                assert is_linked or file.stat().st_size <= FILE_BYTES_MAX, f"{file} is large"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-demo.lock"])
def test_lock_has_hashes_and_names_no_index(name: str) -> None:
    """A lock that names an index would work only where that index is reached."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(r"https?:|file:|--index|--extra-index|--find-links", text)
    for entry in re.split(r"\n(?=[a-z])", text.strip()):
        assert "==" in entry
        assert "--hash=sha256:" in entry


def test_programs_that_tests_need_are_installed_where_changes_are_checked() -> None:
    """Kills: a test that CI always skips, because .ci/run does not install the program it needs."""
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    names = re.findall(r'mark\.needs\("([\w.-]+)"', text)
    assert names
    done = (ROOT / ".ci" / "run").read_text()
    assert [name for name in names if not re.search(rf"[\w-]+:{name}\b", done)] == []


def test_data_comes_with_its_licence_note() -> None:
    note = (ROOT / "src" / "txlog" / "data" / "README.md").read_text(encoding="utf-8")
    assert "Creative Commons" in note
    assert (ROOT / "src" / "txlog" / "data" / "online-retail.parquet").is_file()


def _functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def _is_command(decorator: ast.expr) -> bool:
    return (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "command"
    )


def _is_declaration(node: Function) -> bool:
    """True for a command: its parameters are the options of its help."""
    setters = ("_setter",)  # of policies: it calls `command`
    return any(
        _is_command(each) or ast.unparse(each).partition("(")[0] in setters
        for each in node.decorator_list
    )


def _slots(node: ast.ClassDef) -> int:
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "__slots__":
            return len(item.value.elts) if isinstance(item.value, ast.Tuple | ast.List) else 1
    return 0


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def _is_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) in ("Any", "typing.Any")
