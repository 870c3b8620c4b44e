"""Owns fields of results on the terminal: their JSON form, and the lines of `-f help`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from txlog.base.times import format_time, is_instant

if TYPE_CHECKING:
    from txlog.base.rows.fields import Field

RECORD_FIELDS: Final = (
    "kind topic partition message_id key key_encoding value value_encoding properties publish_time "
    "event_time deliver_at visible_time txn txn_index txn_state producer sequence_id "
    "redelivery_count late size_bytes record"
).split()


def help_lines(declared: Iterable[Field]) -> str:
    """Return `field<TAB>type<TAB>meaning` for each field."""
    return "".join(f"{field.name}\t{field.type}\t{field.meaning}\n" for field in declared)


def plain(name: str, value: object) -> object:
    """Return value in its JSON form: instants as RFC 3339, ids as text, others unchanged."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return format_time(value) if is_instant(name) else value
    if isinstance(value, Mapping):
        return {str(key): plain(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain("", item) for item in value]
    return str(value)


def select(row: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Return the named fields of row in JSON form, null for missing ones."""
    return {name: plain(name, row.get(name)) for name in names}
