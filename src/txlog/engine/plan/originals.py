"""Where the original of a repeated message is: by its producer and sequence, in either scope.

    plain             (partition, producer), as long as the settings keep it
    in a transaction  (transaction, producer, partition), until its end

For the last sequence the folds answer; an older one is searched for. Source: spec/transactions 7.
"""

from __future__ import annotations

from txlog.engine.folds import buffer as buffers
from txlog.engine.view.view import View
from txlog.ids import MessageId
from txlog.startup import compute as pc


def find_plain(view: View, partition: int, producer: str, sequence: int) -> MessageId | None:
    """Where a producer's message of this sequence is; None if it can no longer be found."""
    state = view.topic(partition)
    known = state.producers.get(producer)
    if known is not None and known.sequence == sequence:
        return MessageId(known.ledger, known.entry, known.index)
    side = view.buffer(partition)
    for large in side.chunked.values():
        if large.plain and (large.producer, large.last_sequence) == (producer, sequence):
            found = buffers.marker_of(side, large.coordinator, large.sequence, 0)
            return None if found is None else MessageId(found[0], found[1].entry, 1)
    for end in reversed(state.ledgers):
        for table in view.rows([(end.ledger, 0, end.entries)]) if end.entries else ():
            hit = pc.and_(
                pc.equal(table.column("producer"), producer),
                pc.equal(table.column("sequence_id"), sequence),
            )
            rows = table.column("entry").filter(hit)
            if len(rows):
                return MessageId(end.ledger, rows[0].as_py())
    return None


def find_in_txn(
    view: View, held: buffers.Held | None, producer: str | None, sequence: int
) -> int | None:
    """The index of the producer's message of this sequence in the open transaction."""
    for ledger, row, rows, index in () if held is None else held.ranges:
        at = index
        for table in view.rows([(ledger, row, row + rows)], ("producer", "sequence_id")):
            hit = pc.and_(
                pc.equal(table.column("producer"), producer),
                pc.equal(table.column("sequence_id"), sequence),
            )
            found = pc.index(hit, True).as_py()
            if found >= 0:
                return int(at + found)
            at += table.num_rows
    return None
