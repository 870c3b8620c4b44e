"""Owns the figures of the shape: how large the code is, what crosses its rooms, how it reads.

    python -m scripts.shape                 the figures of the working tree
    python -m scripts.shape --against REF   beside them those of a commit; exit code 1 if one rose
    python -m scripts.shape --worst 30      the sentences that need their actor most, by package

A figure comes from the syntax tree or the text alone, so a rename or a move does not change it.
A test compares the tree with the commit from `base()`. It has no bounds of its own: a change could
raise them together with the code.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "txlog"
ENGINE: Final = f"{PACKAGE}.engine."
AGE: Final = timedelta(days=1)
ROUNDING: Final = 0.05  # of a share in percent
WORDS_MIN: Final = 3  # of a sentence
MEASURED: Final = ("src", "tests", "docs", "scripts", "*.md", "pyproject.toml")
NAMED_TUPLE: Final = frozenset(("_replace", "_asdict", "_fields", "_make"))

# Phrases that leave out who acts. They find sentences to read again; they do not define English.
IDIOM: Final = re.compile(
    "|".join(
        (
            r"\bwho(?:m)?ever\b|(?:^|[;:,(] ?)who\b(?! is this)|\bwhom\b",
            r"\b(?:of|for|by|to|with|from|than|and|as|or|that) who\b",
            r"(?:^|[;:(] ?)what (?:is|was|has|comes|an?|the|it|they|this|must|may|no|others|follows"
            r"|waits|goes|lies|holds|each|all|does|can|would|will|stays)\b",
            r"\b(?:of|for|by|to|with|from|than|and|as|or|in|on|at|into|after|before|but|about|over)"
            r" what\b",
            r"\b(?:is|was|are|be|been|were) told\b|\bheed|\bmourn|\bbereft|\bhears? of\b",
            r"\b(?:tells?|told) (?:of|who|what|that|it|them|nothing|nobody)\b",
            r"\bsa(?:y|ys|id|ying) (?:of|so|who|what|it)\b",
            r"\b(?:that|those|these|this) of\b|\bof (?:these|those|them|others|ours|theirs)\b",
            r"\b(?:this|that|these|those) ones?\b|\bof which\b",
            r"\b(?:no|some|any|every)body\b|\bbeside\b|\b(?:is|are|was) (?:there|gone)\b",
            r"\bstands? (?:at|in|for|there|on)\b|\blies? (?:in|there)\b",
        )
    ),
    re.IGNORECASE,
)
LOCALS: Final = frozenset(
    "one found made told given known left some every mine wanted held taken gone shown said asked"
    " rest place before after words what beside again named kept behind own".split()
)
NODES: Final = (
    ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom,
    ast.Call, ast.Attribute, ast.Name, ast.arg,
)  # fmt: skip
_LEAVES: Final = frozenset((type(None), bool, int, str, ast.Load, ast.Store, ast.Del))
_COMMENT: Final = re.compile(r"(?:^[ ]*|[ ]{2})#[ ]?([^\n]+)", re.MULTILINE)
_MARKS: Final = ("---", "fmt", "noqa", "type", "!", "ruff")
_CODE: Final = re.compile(r"```.*?```", re.DOTALL)
_EXAMPLE: Final = re.compile(r">>>.*?(?=\n\n|\Z)", re.DOTALL)


class Source:
    """One file, parsed once for all trees that have it."""

    def __init__(self, text: str, *, is_python: bool) -> None:
        self.text, self.is_python = text, is_python

    @cached_property
    def nodes(self) -> dict[type[ast.AST], list[Any]]:
        """The nodes of the syntax tree, by their class, of the classes in NODES.

        Raises SyntaxError.
        """
        by_class: dict[type[ast.AST], list[Any]] = {kind: [] for kind in NODES}
        waiting: list[Any] = [ast.parse(self.text)]
        for node in waiting:  # which grows meanwhile
            kind = node.__class__
            if kind in by_class:
                by_class[kind].append(node)
            for field in node._fields:
                value = getattr(node, field, None)
                if value.__class__ is list:
                    waiting += [each for each in value if isinstance(each, ast.AST)]
                elif value.__class__ not in _LEAVES and isinstance(value, ast.AST):
                    waiting.append(value)
        return by_class

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences of the docstrings and comments, or of the document."""
        text = self.text
        chunks = list(self._chunks()) if self.is_python else [_CODE.sub("", text)]
        parts = (re.split(r"(?<=[.;:?!])\s+", re.sub(r"\s+", " ", chunk)) for chunk in chunks)
        return [part for some in parts for part in some if len(part.split()) >= WORDS_MIN]

    @cached_property
    def idiomatic(self) -> list[str]:
        """The sentences that leave out who acts."""
        return [sentence for sentence in self.sentences if IDIOM.search(sentence)]

    def _chunks(self) -> Iterator[str]:
        for kind in (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            for node in self.nodes[kind]:
                if doc := ast.get_docstring(node):
                    yield _EXAMPLE.sub("", doc)
        for comment in _COMMENT.findall(self.text):
            if not comment.startswith(_MARKS):
                yield comment


@cache
def source(text: str, is_python: bool) -> Source:
    """The file with this text."""
    return Source(text, is_python=is_python)


class Tree:
    """A checkout of the project."""

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, root / "src" / PACKAGE
        self.modules: dict[str, tuple[Path, Source]] = {}
        for path in sorted(self.package.rglob("*.py")):
            parts = path.relative_to(root / "src").with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            self.modules[name] = (path, _read(path))
        self.tests = [_read(path) for path in sorted((root / "tests").rglob("*.py"))]
        folders = (root, root / "docs", root / "docs" / "spec")
        self.documents = [_read(path) for folder in folders for path in sorted(folder.glob("*.md"))]

    def figures(self) -> dict[str, float]:
        """Every figure by its name. None of them should rise."""
        sources = [item for _, item in self.modules.values()]
        importers: dict[str, set[str]] = defaultdict(set)
        for name, targets in self.imports().items():
            for target in targets:
                importers[target].add(name)
        is_engine = {name: f"{name}.".startswith(ENGINE) for name in self.modules}
        single = [
            name
            for name, (path, _) in self.modules.items()
            if path.name != "__init__.py" and len(importers[name]) == 1
        ]
        open_to_others = [
            name
            for name in self.modules
            if is_engine[name] and not all(is_engine[user] for user in importers[name])
        ]
        return {
            "entries in src/txlog": len(
                {name.split(".")[1] for name in self.modules if "." in name}
            ),
            "modules": len(sources),
            "lines in src": sum(item.text.count("\n") for item in sources),
            "modules with one importer": len(single),
            "engine modules imported from outside": len(open_to_others),
            "private names across packages": len(self.private_uses()),
            "lines of tests with private names": sum(_private_lines(item) for item in self.tests),
            "% of sentences with the idiom in src": _share(sources),
            "% of sentences with the idiom in tests": _share(self.tests),
            "% of sentences with the idiom in documents": _share(self.documents),
            "% of locals with the idiom": _share_of_locals(sources),
        }

    def private_uses(self) -> list[str]:
        """`file:line name` for each use of a private name that another entry of src/txlog owns."""
        owners: dict[str, set[str]] = defaultdict(set)
        for name, (_, item) in self.modules.items():
            for private in _private_definitions(item):
                owners[private].add(_entry(name))
        return [
            f"{path.relative_to(self.root)}:{node.lineno} {node.attr}"
            for name, (path, item) in self.modules.items()
            for node in _private_attributes(item)
            if owners[node.attr] and _entry(name) not in owners[node.attr]
        ]

    def worst(self, count: int) -> Iterator[str]:
        """The share of each package, the highest first, then the worst `count` sentences of all."""
        packages: dict[str, list[Source]] = defaultdict(list)
        for name, (_, item) in self.modules.items():
            packages[".".join(name.split(".")[:3])].append(item)
        for package in sorted(packages, key=lambda name: -_share(packages[name])):
            yield f"{_share(packages[package]):5.1f} %  {package}"
        hits = Counter(
            {
                f"{path.relative_to(self.root)}: {sentence}": len(IDIOM.findall(sentence))
                for path, item in self.modules.values()
                for sentence in item.idiomatic
            }
        )
        for line, _ in hits.most_common(count):
            yield line

    def imports(self) -> dict[str, set[str]]:
        """The modules that each module imports."""
        return {
            name: {
                target
                for named in _targets(item)
                if (target := self._module_of(named)) not in ("", name)
            }
            | (_first_arguments(item) & self.modules.keys()) - {name}
            for name, (_, item) in self.modules.items()
        }

    def _module_of(self, name: str) -> str:
        """The module that an import of a dotted name loads; empty if it is not the project's."""
        if name in self.modules:
            return name
        package = name.rpartition(".")[0]
        return package if package in self.modules else ""


def _read(path: Path) -> Source:
    return source(path.read_text(encoding="utf-8"), path.suffix == ".py")


def _entry(name: str) -> str:
    """The entry of src/txlog that a module belongs to."""
    return f"{name}.".split(".")[1]


def _targets(item: Source) -> Iterator[str]:
    for node in item.nodes[ast.ImportFrom]:
        if node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for node in item.nodes[ast.Import]:
        yield from (alias.name for alias in node.names)


def _first_arguments(item: Source) -> set[str]:
    """Texts that are the first argument of a call, as of `import_module` and its wrappers."""
    return {
        node.args[0].value
        for node in item.nodes[ast.Call]
        if node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def _private_definitions(item: Source) -> Iterator[str]:
    """Private functions, methods and attributes of self."""
    for kind in (ast.FunctionDef, ast.AsyncFunctionDef):
        yield from (node.name for node in item.nodes[kind] if node.name.startswith("_"))
    for node in item.nodes[ast.Attribute]:
        if isinstance(node.ctx, ast.Store) and _is_own(node.value, ("self",)):
            yield node.attr


def _private_attributes(item: Source) -> Iterator[ast.Attribute]:
    """Uses of `thing._name`, where thing is neither self nor cls."""
    for node in item.nodes[ast.Attribute]:
        if (
            node.attr.startswith("_")
            and not node.attr.startswith("__")
            and node.attr not in NAMED_TUPLE
            and not _is_own(node.value, ("self", "cls"))
        ):
            yield node


def _is_own(node: ast.expr, names: Iterable[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _private_lines(item: Source) -> int:
    return len({node.lineno for node in _private_attributes(item)})


def _share(items: Iterable[Source]) -> float:
    """Percent of the sentences that have the idiom."""
    parts = [(len(item.sentences), len(item.idiomatic)) for item in items]
    return _percent(sum(hits for _, hits in parts), sum(total for total, _ in parts))


def _share_of_locals(items: Iterable[Source]) -> float:
    """Percent of the bound names that are in LOCALS."""
    names = list[str]()
    for item in items:
        names += (node.arg for node in item.nodes[ast.arg])
        names += (node.id for node in item.nodes[ast.Name] if isinstance(node.ctx, ast.Store))
    return _percent(sum(name in LOCALS for name in names), len(names))


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(whole, 1), 1)


# --- an earlier commit ---------------------------------------------------------------------------


def base(root: Path = ROOT) -> str:
    """The newest commit that is more than a day older than HEAD; empty if the history has none.

    There is one branch, so in a clean clone a merge base is HEAD itself. The age is that of the
    commit's own date. Raises CalledProcessError if this is no checkout.
    """
    head = datetime.fromisoformat(_git(root, "log", "-1", "--format=%cI").strip())
    until = (head - AGE).astimezone(UTC).isoformat()
    return _git(root, "rev-list", "-1", f"--before={until}", "HEAD").strip()


def unpack(commit: str, folder: Path, root: Path = ROOT) -> Path:
    """Write the measured files of a commit into a folder; returns the folder."""
    files = _git(root, "ls-tree", "--name-only", commit).split()
    parts = [name for name in files if any(Path(name).match(pattern) for pattern in MEASURED)]
    command = ["git", "-C", str(root), "archive", commit, *parts]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def risen(before: dict[str, float], now: dict[str, float]) -> dict[str, str]:
    """The figures that are higher now, as `before -> now`."""
    return {
        name: f"{before[name]:g} -> {figure:g}"
        for name, figure in now.items()
        if figure > before.get(name, figure) + (ROUNDING if name.startswith("%") else 0)
    }


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=True)
    return done.stdout.decode()


def main() -> int:
    """Print figures; 1 if one of them rose."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--against", metavar="REF", help="a commit")
    parser.add_argument("--worst", type=int, metavar="N", help="so many sentences")
    options = parser.parse_args()
    gc.disable()  # the trees live until the end, and collecting takes longer than parsing
    tree = Tree(ROOT)
    if options.worst:
        print(*tree.worst(options.worst), sep="\n")
        return 0
    now = tree.figures()
    if not options.against:
        print(*(f"{figure:>9g}  {name}" for name, figure in now.items()), sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        before = Tree(unpack(options.against, Path(folder))).figures()
    higher = risen(before, now)
    for name, figure in now.items():
        mark = "  <- higher" if name in higher else ""
        print(f"{before[name]:>9g} -> {figure:<9g} {name}{mark}")
    return int(bool(higher))


if __name__ == "__main__":
    sys.exit(main())
