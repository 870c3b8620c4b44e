"""Owns ids of messages in the admin API: the same that clients of the binary protocol get.

See serve/pulsar/ids for what they are.
"""

from __future__ import annotations

from typing import Any

from txlog.base.ids import MessageId
from txlog.client.client import Client
from txlog.engine.door.store import View
from txlog.errors import MessageNotFound
from txlog.serve.http.core.declared import integer
from txlog.serve.pulsar import ids
from txlog.serve.pulsar.messages import MessageIdData, Proto


def as_pulsar(client: Client, place: MessageId | None, partition: int) -> dict[str, object]:
    """An id by Pulsar's names; -1 for none."""
    if place is None:
        return {"ledgerId": -1, "entryId": -1, "partitionIndex": partition}
    ledger, entry = client.store.ask(lambda view: _on_wire(view, place))
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition}


def wire_text(client: Client, place: MessageId) -> str:
    """An id as `LEDGER:ENTRY`."""
    ledger, entry = client.store.ask(lambda view: _on_wire(view, place))
    return f"{ledger}:{entry}"


def _on_wire(view: View, place: MessageId) -> tuple[int, int]:
    """The id of a message by itself, whatever batch it was sent in."""
    alone = place.ledger, place.entry * ids.STEP
    number = ids.partition_of(view, MessageIdData(ledgerId=place.ledger, entryId=0))
    span = None
    if number is not None:
        span = ids.span_at(view, number, place.ledger, place.entry, place.index)
    if span is None or (span.size == 1 and not span.inner):
        return alone
    found = ids.wire_id(span, span.at(place), 0, is_alone=True)
    return found.ledgerId, found.entryId


def message_of(client: Client, given: dict[str, Any], *, is_last: bool) -> MessageId:
    """The message that an id names; of an id that names a batch, its first or its last.

    raises: InvalidArgument, MessageNotFound
    """
    ledger, entry = integer(given.get("ledgerId")), integer(given.get("entryId"))
    if not 0 <= ledger < 1 << 63 or not 0 <= entry < 1 << 63:
        raise MessageNotFound(f"there is no message {ledger}:{entry}")
    wire = MessageIdData(ledgerId=ledger, entryId=entry)
    if integer(given.get("batchIndex", -1)) >= 0:
        wire.batch_index = given["batchIndex"]
    found = client.store.ask(lambda view: _named(view, wire, is_last))
    if found is None:
        raise MessageNotFound(
            f"there is no message {ledger}:{entry}",
            hint=f"ids are those that Pulsar's clients get, with steps of {ids.STEP}",
        )
    return found


def _named(view: View, wire: Proto, is_last: bool) -> MessageId | None:
    number = ids.partition_of(view, wire)
    found = None if number is None else ids.place_of(view, number, wire)
    if found is None:
        return None
    return found.span.id(found.at if found.is_one or is_last else 0)
