"""Owns how tests read docs/spec: headings, tables, and the shapes of JSON in cli.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.source_tree import ROOT
from txlog.base.ids import MessageId, TxnId

FOLDER = ROOT / "docs" / "spec"
STRINGS = frozenset(
    "topic subscription producer owner transaction_key key path file state type kind class name "
    "command code message hint detail".split()
)
IDS = frozenset("message_id position first last mark_delete marker".split())
_HEADING = re.compile(r"#+ ([0-9]+(?:\.[0-9]+)*|R[0-9]+)\.?(?: |$)")
_ITEM = re.compile(r"([0-9]+)\. ")
_FIELD = re.compile(
    r"(?P<name>[a-z][a-z0-9_]*)(?::(?P<mark>[a-z]+))?(?P<null>\?)?(?:\((?P<words>[A-Za-z|-]+)\))?"
)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TYPES = {
    "s": "string", "i": "integer", "n": "number", "b": "boolean", "t": "instant",
    "id": "message id", "o": "object", "a": "array",
}  # fmt: skip


@cache
def page(name: str) -> str:
    """The text of a page of docs/spec."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


@cache
def places(name: str) -> frozenset[str]:
    """The places of a page that code can cite: sections by number, items of a section's list as
    `12.5`, and rules that have a name, as R32."""
    cited_places = set[str]()
    section = ""
    for line in page(name).splitlines():
        if heading := _HEADING.match(line):
            section = heading[1]
            cited_places.add(section)
        elif section and (item := _ITEM.match(line)):
            cited_places.add(f"{section}.{item[1]}")
    return frozenset(cited_places)


def section(name: str, number: str) -> str:
    """The text below a heading, up to the next one of any depth."""
    out: list[str] = []
    inside = False
    for line in page(name).splitlines():
        if line.startswith("#"):
            heading = _HEADING.match(line)
            inside = heading is not None and heading[1] == number
        elif inside:
            out.append(line)
    assert out, f"{name}.md has no section {number}"
    return "\n".join(out)


def table(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose first cell of the header is given; `\\|` is a bar in a cell."""
    rows: list[list[str]] = []
    inside = False
    for line in map(str.strip, text.splitlines()):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[0] == header:
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            rows.append(cells)
    assert rows, f"no table {header}"
    return rows


def words(cell: str) -> list[str]:
    """The words between backticks."""
    return re.findall(r"`([^`]*)`", cell)


@dataclass
class Field:
    """A field of a shape.

    type:  the word of `-f help`
    inner: fields of the object or of the array's objects; None: the page does not give them
    every: an object whose keys are names, each with a value of the single field in `inner`
    mixed: an array of any elements
    enum:  the allowed words; empty: any
    """

    name: str
    type: str
    nullable: bool = False
    inner: list[Field] | None = None
    every: bool = False
    mixed: bool = False
    enum: tuple[str, ...] = ()


@dataclass
class Shape:
    """The shape of a command's answer, after `→`; kind: list, one, each or stream.

    extends: the command whose fields come first
    shown:   the number of fields before the bar; None: no bar
    """

    kind: str
    fields: list[Field]
    extends: str = ""
    shown: int | None = None


def shape_of(text: str) -> Shape:
    """Read a shape: `[{topic, messages ‖ backlog, created_time?}]`."""
    text = " ".join(text.split())
    kind = {"[": "list", "~": "stream"}.get(text[0], "each" if text.endswith("*") else "one")
    inner = text.lstrip("[~").rstrip("]*")
    assert inner[0] == "{" and inner[-1] == "}", text
    out = Shape(kind, [])
    for token in _split(inner[1:-1]):
        if token.startswith("…"):
            out.extends = token[1:]
            continue
        if token.startswith("‖"):
            out.shown = len(out.fields)
        out.fields.append(_field(token.removeprefix("‖").strip()))
    return out


def _field(token: str) -> Field:
    name, _, remainder = token.partition(":")
    if remainder[:1] in ("[", "{"):
        nullable = remainder.endswith("?")
        body = remainder.removesuffix("?")
        listed = body[0] == "["
        body = body[1:-1].strip("{}") if listed and body.count("{") == 1 else body.strip("[]")
        body = body.removeprefix("{").removesuffix("}") if not listed else body
        tokens = _split(body)
        kind = "array" if listed else "object"
        if tokens[0][0].isupper():  # names are keys, as in {TOPIC/P:{…}}
            return Field(
                name, kind, nullable, [_field(f"each:{tokens[0].partition(':')[2]}")], True
            )
        return Field(name, kind, nullable, [_field(each) for each in tokens])
    read = _FIELD.fullmatch(token)
    assert read, f"not a field: {token!r}"
    kind = TYPES[read["mark"]] if read["mark"] else type_by_name(read["name"])
    enum = tuple(read["words"].split("|")) if read["words"] else ()
    mixed = read["mark"] == "a"
    return Field(read["name"], kind, read["null"] is not None, mixed=mixed, enum=enum)


def type_by_name(name: str) -> str:
    """The type that section 1 of cli.md gives a name."""
    if name.endswith("_list"):
        return "array"
    if name.endswith(("_time", "_at")) or name in ("watermark", "emitted"):
        return "instant"
    if name in ("txn", "fenced_txn", "last_txn"):
        return "TxnID"
    if name in IDS:
        return "message id"
    return "string" if name in STRINGS else "integer"


def _split(text: str) -> list[str]:
    """Tokens between the commas and bars of the outermost level; the bar stays with its token."""
    out: list[str] = []
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if depth == 0 and char in ",‖":
            out.append(text[start:at].strip())
            start = at + (char == ",")
    return [token for token in [*out, text[start:].strip()] if token]


def misfit(field: Field, value: Any) -> str:
    """Why a JSON value does not fit its field; empty if it does."""
    if value is None:
        return "" if field.nullable else f"{field.name} is null"
    if field.enum and value not in field.enum:
        return f"{field.name} is {value}"
    if not _FITS[field.type](value):
        return f"{field.name} is no {field.type}: {value!r:.80}"
    if field.inner is None:
        if field.type == "array" and not field.mixed and {type(each) for each in value} - {str}:
            return f"{field.name} holds more than strings: {value!r:.80}"
        return ""
    rows = value if field.type == "array" else list(value.values()) if field.every else [value]
    for row in rows:
        why = misfit(field.inner[0], row) if field.every else misfits(field.inner, row)
        if why:
            return f"{field.name}: {why}"
    return ""


def misfits(fields: list[Field], row: dict[str, Any]) -> str:
    """Why a JSON object does not fit its fields; empty if it does."""
    names = [field.name for field in fields]
    if list(row) != names:
        return f"has {list(row)}, not {names}"
    return next(filter(None, (misfit(field, row[field.name]) for field in fields)), "")


def _is(parse: Any) -> Any:
    def fits(value: Any) -> bool:
        return isinstance(value, str) and parse(value) is not None

    return fits


_FITS: dict[str, Any] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "instant": _is(_INSTANT.fullmatch),
    "message id": _is(MessageId.parse),
    "TxnID": _is(TxnId.parse),
}
