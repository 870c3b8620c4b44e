"""The ops of cursors: what a subscription has acknowledged, holds and was given.

Part of the closed set of ops.py, which is where everybody takes them from.

`runs` are ids of messages as (ledger, first, last, index_first, index_last): with index_first 0 the
entries first..last as wholes, else the messages index_first..index_last of the transaction whose
marker is entry `first`.
"""

import msgspec

Run = tuple[int, int, int, int, int]
Mark = tuple[int, int, int]
Due = tuple[int, str, int]  # an instant to come: wall ms, boot id, boot ms


class _Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class CursorOpened(_Op, tag="curs", frozen=True, array_like=True, gc=False):
    """The subscription starts behind this position in the partition."""

    subscription: int
    partition: int
    mark_delete: Mark


class Acked(_Op, tag="ack", frozen=True, array_like=True, gc=False):
    """These messages are DELETED on the subscription; the mark-delete position is the new one.

    dropped: messages asked for that a transaction holds; without others runs is empty.
    """

    subscription: int
    partition: int
    runs: list[Run]
    mark_delete: Mark
    count: int
    dropped: int = 0


class DeadLettered(_Op, tag="dlq", frozen=True, array_like=True, gc=False):
    """Of the messages that this frame acknowledges here, so many went to the dead-letter topic."""

    subscription: int
    partition: int
    count: int


class PendingAcked(_Op, tag="pack", frozen=True, array_like=True, gc=False):
    """These messages are PENDING_ACK for the transaction; cumulative: up to and with this id.

    consumer: through which it was acknowledged, 0: by id
    """

    subscription: int
    partition: int
    coordinator: int
    sequence: int
    runs: list[Run]
    cumulative: Mark | None
    count: int
    consumer: int = 0


class PendingCommitted(_Op, tag="pcom", frozen=True, array_like=True, gc=False):
    """What the transaction held is DELETED; runs and mark_delete are the outcome."""

    subscription: int
    partition: int
    coordinator: int
    sequence: int
    runs: list[Run]
    mark_delete: Mark


class PendingAborted(_Op, tag="pabo", frozen=True, array_like=True, gc=False):
    """What the transaction held is PENDING again, each with one redelivery more."""

    subscription: int
    partition: int
    coordinator: int
    sequence: int


class AckConflicted(_Op, tag="conf", frozen=True, array_like=True, gc=False):
    """An acknowledgement here was a conflict; the same frame aborts its transaction."""

    subscription: int
    partition: int


class CursorTrimmed(_Op, tag="ctrm", frozen=True, array_like=True, gc=False):
    """Ledgers were trimmed: mark-delete moved over them, and what transactions still hold is this.

    pending: (coordinator, sequence, runs, cumulative, count) of those that held trimmed messages
    """

    subscription: int
    partition: int
    mark_delete: Mark
    pending: list[tuple[int, int, list[Run], Mark | None, int]]


class Leased(_Op, tag="leas", frozen=True, array_like=True, gc=False):
    """These messages are in a consumer's hand; due: with an ack time-out, until then.

    Messages of a marker stand one by one (index_first above 0), never as its entry. What is in this
    hand already, of a time-out that begins now, may stand here again.
    ahead: 0: the application has them; else the number of a batch that the consumer took ahead of
           its application, in the order of the runs: its lock file says how far that has come
    """

    subscription: int
    partition: int
    consumer: int
    runs: list[Run]
    due: Due | None = None
    ahead: int = 0


class Returned(_Op, tag="ret", frozen=True, array_like=True, gc=False):
    """Messages are in nobody's hand any more, and are delivered again.

    consumer:  who had them, 0: anybody
    counted:   those with one redelivery more; null: all that the consumer has left
    uncounted: those that no application has seen
    due:       the counted ones come not before; null: at once
    """

    subscription: int
    partition: int
    consumer: int
    counted: list[Run] | None
    uncounted: list[Run] = []
    due: Due | None = None


class Sought(_Op, tag="seek", frozen=True, array_like=True, gc=False):
    """Up to this position everything is DELETED, behind it nothing; counts and leases are void."""

    subscription: int
    partition: int
    mark_delete: Mark
