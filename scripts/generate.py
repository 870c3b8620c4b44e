"""Write every file and table that follows from declarations, or list those that differ.

usage: python -m scripts.generate [--check]

From the commands: the catalogue, signatures and fields in section 8 of the command line, man pages,
and the output of commands in transcripts that have none yet. From the errors: the tables of the
exit codes, of the command line and of reliability.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
import sys
from pathlib import Path
from typing import Any, get_args, get_origin, is_typeddict

from scripts import golden
from txlog.base.rows.fields import Field, fields_of
from txlog.cli.help import man_pages
from txlog.cli.help.codes import CODES, EXITS, names_of
from txlog.cli.line import catalogue
from txlog.cli.line.command import Command
from txlog.cli.line.dispatch import load
from txlog.cli.line.parameters import Parameter, parameters_of
from txlog.errors import TxlogError, error_table

ROOT = Path(__file__).resolve().parent.parent
CLI = ROOT / "src" / "txlog" / "cli"
CATALOGUE = CLI / "line" / "catalogue.py"
SPEC = ROOT / "docs" / "spec" / "cli.md"
MAN = ROOT / "man"
_WIDTH = 131


def main() -> int:
    """Write the files that differ; with --check write nothing, and return 1 if one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    changed = differences()
    for path, text in changed.items():
        print(f"{'differs' if check else 'wrote'}: {path.relative_to(ROOT)}")
        if check:
            continue
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if CATALOGUE in changed and not check:  # the other files follow from the new one
        os.execv(sys.executable, [sys.executable, "-m", "scripts.generate"])
    if not check:
        for path in golden.unplayed():
            golden.rewrite(path)
    return 1 if check and changed else 0


def differences() -> dict[Path, str | None]:
    """The files that differ from the declarations, with their new text; None: to be removed.

    While the catalogue differs, it is the only one, as the others follow from it.
    """
    texts = {CATALOGUE: catalogue_text()}
    if CATALOGUE.read_text(encoding="utf-8") == texts[CATALOGUE]:
        exits = ROOT / "docs" / "exit-codes.md"
        texts[exits] = _with_tables(exits, {"exits": exits_table()})
        reliability = ROOT / "docs" / "spec" / "reliability.md"
        texts[reliability] = _with_tables(reliability, {"classes": classes_table()})
        texts[SPEC] = specification()
        for name in man_pages.page_names():
            texts[MAN / f"man{name[-1]}" / name] = man_pages.mdoc(name)
    out: dict[Path, str | None] = {
        path: text
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    if len(texts) > 1:
        out |= dict.fromkeys(path for path in sorted(MAN.glob("*/*")) if path not in texts)
    return out


def _with_tables(path: Path, tables: dict[str, str]) -> str:
    """The text of a document with its tables made anew, each between two comments.

    Raises:
        ValueError: it has no place for a table, or more than one
    """
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {name}: made by [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
        text, found = place.subn(lambda match, table=table: match[1] + table + match[2], text)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"{path.name} has {found} places for the table of {name}")
    return text


def _table(*rows: tuple[object, ...]) -> str:
    lines = ["".join(f"| {cell} " if cell != "" else "| " for cell in row) + "|" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:], ""])


# --- errors ----------------------------------------------------------------------------------


def exits_table() -> str:
    """A row for each exit code: its kinds, whether to try again, its codes and classes."""
    rows: list[tuple[object, ...]] = [("exit", "kind", "again", "errors"), (0, "done", "", "")]
    for code, group in itertools.groupby(error_table(), key=lambda error: error.exit):
        errors = list(group)
        kinds = ", ".join(dict.fromkeys(error.kind for error in errors))
        again = "yes" if all(error.retryable for error in errors) else ""
        names = ", ".join(f"{'/'.join(map(str, error.codes))} {error.__name__}" for error in errors)
        rows.append((code, kinds, again, names))
    return _table(*rows)


def classes_table() -> str:
    """A row for each class of errors, in the order of the tree."""
    module = importlib.import_module("txlog.errors")
    classes = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, TxlogError) and each in error_table()
    ]
    return _table(
        ("class", "codes", "exit", "kind"),
        *(
            (each.__name__, ", ".join(map(str, each.codes)), each.exit, each.kind)
            for each in classes
        ),
    )


def _codes_table() -> str:
    rows: list[tuple[object, ...]] = [("code", "meaning", "class", "kind")]
    for code, entry in CODES.items():
        carriers = [each for each in error_table() if code in each.codes]
        kinds = dict.fromkeys(each("x", code=code).kind for each in carriers)
        rows.append((code, entry.means, _quoted(names_of(code)), _quoted(kinds)))
    return _table(*rows)


def _quoted(words: Any) -> str:
    return " ".join(f"`{word}`" for word in words)


# --- commands --------------------------------------------------------------------------------


def commands() -> dict[str, tuple[str, str, Command]]:
    """Every command that a module declares, with its module and its name there."""
    out: dict[str, tuple[str, str, Command]] = {}
    for path in sorted(CLI.rglob("*.py")):
        if re.search(r"line\.command import .*\bcommand\b", path.read_text(encoding="utf-8")):
            module = ".".join(path.relative_to(CLI).with_suffix("").parts)
            declared = vars(importlib.import_module(f"txlog.cli.{module}"))
            for name, value in [*declared.items()]:
                if isinstance(value, Command):
                    out[value.path] = (module, name, value)
    return out


def catalogue_text() -> str:
    """The text that the catalogue should have. A new command comes after the last of its noun."""
    declared = commands()
    order = [path for path in catalogue.COMMANDS if path in declared]
    for path in declared:
        if path not in order:
            noun = path.rpartition(" ")[0]
            places = [at for at, each in enumerate(order) if each.rpartition(" ")[0] == noun]
            order.insert(places[-1] + 1 if places and noun else len(order), path)
    rows = []
    for path in order:
        module, name, command = declared[path]
        row = f'    "{path}": Entry("{module}", "{name}", "{command.short}"),'
        if len(row) > 100:
            row = f'    "{path}": Entry(\n        "{module}", "{name}", "{command.short}"\n    ),'
        if max(map(len, row.splitlines())) > 100:
            words = "".join(f'        "{word}",\n' for word in (module, name, command.short))
            row = f'    "{path}": Entry(\n{words}    ),'
        rows.append(row)
    head, _, rest = CATALOGUE.read_text(encoding="utf-8").partition("Entry]] = {\n")
    tail = rest.partition("\n}\n")[2]
    before, _, after = tail.partition("LEVELS: Final[dict[str, int]] = {\n")
    levels = [f'    "{path}": {declared[path][2].level},' for path in order]
    lines = "".join(f"{line}\n" for line in levels if not line.endswith(": 0,"))
    tail = f"{before}LEVELS: Final[dict[str, int]] = {{\n{lines}" + after[after.index("}\n") :]
    return f"{head}Entry]] = {{\n" + "\n".join(rows) + "\n}\n" + tail


# --- the specification -------------------------------------------------------------------------


def specification() -> str:
    """The text of the command line's specification, with its blocks and tables made anew."""
    exits = _table(("exit", "meaning"), *EXITS.items())
    text = _with_tables(SPEC, {"exits": exits, "codes": _codes_table()})
    head, title, rest = text.partition("\n## 8. ")
    body, end, tail = rest.partition("\n## 9. ")
    written = re.findall(r"(?ms)^```\n(txlog .*?)^```", body)
    listed = [_path(entry) for block in written for entry in _entries(block)]
    new = [path for path in catalogue.COMMANDS if path not in listed]
    whole: dict[tuple[str, ...], str] = {}

    def block(match: re.Match[str]) -> str:
        lines: list[str] = []
        for entry in _entries(match[1]):
            path = _path(entry)
            lines += _entry(path, entry, whole)
            for other in new:
                if path == _place(other, listed):
                    lines += _entry(other, "", whole)
        return "```\n" + "\n".join(lines) + "\n```"

    body = re.sub(r"(?ms)^```\n(txlog .*?)^```", block, body)
    return head + title + body + end + tail


def _entries(block: str) -> list[str]:
    return re.split(r"(?m)\n(?=txlog )", block.rstrip("\n"))


def _path(entry: str) -> str:
    words = entry.removeprefix("txlog ").split()
    paths = [" ".join(words[:count]) for count in (3, 2, 1)]
    return next((path for path in paths if path in catalogue.COMMANDS), paths[-1])


def _place(path: str, listed: list[str]) -> str:
    """The listed command after which a new one comes: the last of its noun, or else of all."""
    noun = path.split()[0]
    return [each for each in listed if each.split()[0] == noun or noun == path][-1]


def _entry(path: str, written: str, whole: dict[tuple[str, ...], str]) -> list[str]:
    """The lines of a command; of the written ones it keeps the outer brackets."""
    if path not in catalogue.COMMANDS:
        return []
    command = load(path)
    declared = [each for each in parameters_of(command) if not each.of_all and not each.hidden]
    tokens = [_argument(each) for each in declared if not each.is_flag]
    flags = [flag(each) for each in declared if each.is_flag]
    flags += ["(asks)"] * command.asks
    lines = _wrapped(" ".join(["txlog", path, *tokens]), flags, "  ", "  ")
    shape = written.partition("\n  → ")[2]
    if command.row and not command.records:
        lines += _shape(command, shape, whole)
    elif shape:
        lines.append(f"  → {shape}")
    return lines


def _argument(parameter: Parameter) -> str:
    name = parameter.name.removeprefix("[").removesuffix("]...")  # from a name in brackets
    text = name + (f"={parameter.default}" if parameter.default else "") + "…" * parameter.repeated
    return text if parameter.required else f"[{text}]"


def flag(parameter: Parameter) -> str:
    """A flag in the notation of the specification: `-n/--count N=1`."""
    settled = re.findall(r"\((\d\w*)\)", parameter.help) if parameter.metavar else []
    default = parameter.default or (settled[-1] if settled else "")
    return (
        "/".join(sorted(parameter.names, key=len))
        + (f" {parameter.metavar}" if parameter.metavar else "")
        + "!" * parameter.required
        + "…" * parameter.repeated
        + (f"={default}" if default else "")
    )


def _shape(command: Command, written: str, whole: dict[tuple[str, ...], str]) -> list[str]:
    """The lines from the arrow on. If the row begins with all fields of another command's row, and
    they are more than eight, the name of that command replaces them."""
    names = tuple(command.fields)
    known = next((row for row in whole if len(row) > 8 and names[: len(row)] == row), ())
    tokens = [f"…{whole[known]}"] if known else []
    shown = len(command.table_fields) if set(command.fields) - {"dry_run"} else 0
    for at, field in enumerate(command.row_fields[len(known) :], len(known)):
        bar = at == shown and not known and field.name != "dry_run"
        tokens.append(("‖ " if bar else "") + _field(field))
    whole.setdefault(names, command.path)
    text = written or ("{}" if command.changes else "[{}]")
    opening, closing = re.match(r"[\[~]*\{", text), re.search(r"\}[\]*]*$", text.strip())
    assert opening and closing, text
    body = ", ".join(tokens).replace(", ‖", " ‖")
    return _wrapped("", (f"{opening[0]}{body}{closing[0]}").split(" "), "  → ", "     ", " ")


def _wrapped(
    first: str, tokens: list[str], start: str, indent: str, between: str = "  "
) -> list[str]:
    """The tokens in lines of at most _WIDTH characters; a token is never split."""
    lines = [first] if first else [start + tokens.pop(0)]
    for token in tokens:
        if len(lines[-1]) + len(between) + len(token) > _WIDTH:
            lines.append(indent + token)
        else:
            lines[-1] += between + token
    return lines


_MARKS = {
    "string": "s", "integer": "i", "number": "n", "boolean": "b", "instant": "t",
    "message id": "id", "object": "o", "array": "a", "TxnID": "",
}  # fmt: skip
_STRINGS = frozenset(
    "topic subscription producer owner transaction_key key path file state type kind class name "
    "command code message hint detail".split()
)
_IDS = frozenset("message_id position first last mark_delete marker".split())


def _named(name: str) -> str:
    """The type that section 1 gives a name."""
    if name.endswith("_list"):
        return "array"
    if name.endswith(("_time", "_at")) or name in ("watermark", "emitted"):
        return "instant"
    if name in ("txn", "fenced_txn", "last_txn"):
        return "TxnID"
    return "message id" if name in _IDS else "string" if name in _STRINGS else "integer"


def _field(field: Field) -> str:
    null = "?" * field.nullable
    inner = _inner(field.hint, field.words)
    if inner:
        return f"{field.name}:{inner}{null}"
    kind = field.type
    mark = f":{_MARKS[kind]}" if kind != _named(field.name) or _plain_list(field.hint) else ""
    words = f"({'|'.join(field.words)})" if field.words else ""
    return f"{field.name}{mark}{null}{words}"


def _plain_list(hint: Any) -> bool:
    """Whether it is a list of anything but strings, whose items are not shown."""
    return get_origin(hint) is list and get_args(hint)[0] in (int, Any)


def _inner(hint: Any, words: tuple[str, ...] = ()) -> str:
    """The fields of an object, or of the objects of a list; empty: there are none to show."""
    if is_typeddict(hint):
        return "{" + ", ".join(map(_field, fields_of(hint))) + "}"
    items = get_args(hint)
    if get_origin(hint) is list and is_typeddict(items[0]):
        return f"[{_inner(items[0])}]"
    if get_origin(hint) is dict and words:
        return "{" + words[0] + ":" + _inner(items[1], words[1:]) + "}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
