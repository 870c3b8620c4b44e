"""Owns the order of schemas: Pulsar's strategies, applied to which schema can read which records.

BACKWARD: the new schema reads records of the last one, so readers change first. FORWARD: the last
one reads records of the new one, so writers change first. FULL: both. With _TRANSITIVE, this holds
for all older schemas, not only the last one. Reading follows the rules of `resolution`. For values
of Avro it also follows Avro's own rules, which stock clients and other programs use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txlog.base.schemas.resolution import Unreadable, source_of, steps
from txlog.base.schemas.schema import DECLARED, TYPES, Schema, Type

NONE: Final = "NONE"
BACKWARD: Final = "BACKWARD"
BACKWARD_TRANSITIVE: Final = "BACKWARD_TRANSITIVE"
FORWARD: Final = "FORWARD"
FORWARD_TRANSITIVE: Final = "FORWARD_TRANSITIVE"
FULL: Final = "FULL"
FULL_TRANSITIVE: Final = "FULL_TRANSITIVE"
ALWAYS_INCOMPATIBLE: Final = "ALWAYS_INCOMPATIBLE"
STRATEGIES: Final = (
    *(NONE, BACKWARD, BACKWARD_TRANSITIVE, FORWARD, FORWARD_TRANSITIVE, FULL, FULL_TRANSITIVE),
    ALWAYS_INCOMPATIBLE,
)
_NAMED: Final = ("record", "enum", "fixed")


def can_read(reader: Schema, writer: Schema) -> str | None:
    """None if `reader` can read all records of `writer`; otherwise the reason, with the field."""
    try:
        steps(writer, reader)
    except Unreadable as error:
        return str(error)
    return None


def can_read_anywhere(reader: Schema, writer: Schema) -> str | None:
    """The same, also for programs that read values of Avro without this library."""
    reason = can_read(reader, writer)
    if reason is not None or reader.type != "avro":
        return reason
    try:
        _check_avro(writer.record, reader.record, "")
    except Unreadable as error:
        return str(error)
    return None


def _shown(schema: Schema) -> str:
    """The type of a schema, for messages."""
    kind = schema.type.removeprefix(DECLARED)
    return kind if schema.is_record or kind not in TYPES else f"{kind} that is no record"


def _check_avro(old: Type, new: Type, path: str) -> None:
    """Raise Unreadable if Avro's rules refuse a change that `resolution` allows.

    A new field needs a default, even if it may be null. Records, enums and fixed need the same
    name, without namespace, or an alias. The outermost record is exempt: clients of Java name it
    after a class, and Pulsar lets another class follow. An enum is not a string.
    """
    if path and new.kind in _NAMED and new.kind == old.kind:
        names = {_short(new.name), *map(_short, new.aliases)}
        if _short(old.name) not in names:
            raise Unreadable(
                f"{path} was {new.kind} {_short(old.name)}, which Avro does not read as"
                f" {_short(new.name)}: name it the same, or give it an alias"
            )
    if old.kind == "enum" and new.kind == "string":
        raise Unreadable(f"{path} was enum, which does not become string in Avro")
    if new.items is not None and old.items is not None:
        _check_avro(old.items, new.items, f"{path}{'[]' if new.kind == 'array' else '{}'}")
    for field in new.fields:
        here = f"{path}.{field.name}" if path else field.name
        source = source_of(old, field)
        if source is not None:
            _check_avro(source.type, field.type, here)
        elif not field.has_default:
            raise Unreadable(f"{here} is new and has no default")


def _short(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


def check(strategy: str, new: Schema, older: Sequence[Schema]) -> str | None:
    """None if a schema may follow the older ones, oldest first; otherwise the reason.

    A topic's type, avro or json, never changes: consumers of bytes know only one.
    """
    if strategy == NONE or not older:
        return None
    if strategy == ALWAYS_INCOMPATIBLE:
        return "the topic takes no other schema (ALWAYS_INCOMPATIBLE)"
    for older_schema in reversed(older if strategy.endswith("_TRANSITIVE") else older[-1:]):
        if older_schema.type != new.type:
            return f"its type is {_shown(new)}, before it was {_shown(older_schema)}"
        if not new.is_record:
            return f"definitions of type {_shown(new)} cannot be compared"
        if not strategy.startswith(FORWARD):
            reason = can_read_anywhere(new, older_schema)
            if reason is not None:
                return f"it cannot read existing records ({strategy}): {reason}"
        if not strategy.startswith(BACKWARD):
            reason = can_read_anywhere(older_schema, new)
            if reason is not None:
                return f"readers of an older version cannot read it ({strategy}): {reason}"
    return None
