"""Owns the row of a message that is sent by itself, with the columns that were given for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

import pyarrow as pa

from txlog.engine.decide.sending.deliver_at import AFTER, AT
from txlog.engine.plan.route import COLUMNS
from txlog.errors import InvalidArgument, InvalidMessage
from txlog.settings import PROPERTIES_MAX

T = TypeVar("T")

if TYPE_CHECKING:
    from txlog.api.sending.large import Value


def as_bytes(given: T | str) -> T | bytes:
    """What was given for a value or a key; a text as its UTF-8, wherever bytes are taken."""
    return given.encode() if isinstance(given, str) else given


def one_row(
    value: Value | None, head: Mapping[str, object], sequence_id: int | None, partition: int | None
) -> pa.RecordBatch:
    """A message as rows; head: what stands beside its value. Raises InvalidArgument."""
    given = {"value": value, **head}
    for name, item in (("sequence_id", sequence_id), ("partition", partition)):
        if item is not None:
            if type(item) is not int and not _is_integer(item):
                raise InvalidArgument(f"{name} is {item!r}, it must be an integer")
            given[name] = item
    try:
        columns = [pa.array([item], COLUMNS.get(name, pa.int64())) for name, item in given.items()]
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as exc:
        raise InvalidArgument(f"the message cannot be encoded: {exc}") from exc
    return pa.RecordBatch.from_arrays(columns, list(given))


def _is_integer(value: object) -> bool:
    """True for integers of other libraries; pyarrow would cut off what a float has more."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def beside(
    key: bytes | None, properties: Mapping[str, str] | None, event_time: int | None,
    deliver_at: int | None, deliver_after: int | None,
) -> dict[str, object]:  # fmt: skip
    """What stands beside a value, as far as it is given; raises InvalidMessage, InvalidArgument."""
    asked = {"key": key, "event_time": event_time, AT: deliver_at, AFTER: deliver_after}
    given: dict[str, object] = {name: item for name, item in asked.items() if item is not None}
    for name, when in (("event_time", event_time), (AT, deliver_at), (AFTER, deliver_after)):
        if when is not None and type(when) is not int and not _is_integer(when):
            raise InvalidArgument(f"{name} is {when!r}, it must be an integer: milliseconds")
    if properties:
        if len(properties) > PROPERTIES_MAX:
            raise InvalidMessage(
                f"a message has {len(properties)} properties, the most is {PROPERTIES_MAX}"
            )
        given["properties"] = list(properties.items())
    return given
