"""Owns the options of a run, its results so far, and the callbacks that observe it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from txlog.base.choices import OnError
from txlog.base.ids import TxnId
from txlog.base.settings import TXN_MESSAGES_MAX
from txlog.base.times import DurationLike, duration_ms
from txlog.errors import InvalidArgument

STOP: Final = "stop"
SKIP: Final = "skip"
DEAD_LETTER: Final = "dead-letter"
RETRIES_MAX: Final = 1000
IN_FLIGHT_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOptions:
    """The options of a run.

    name:             name of the function, for its transaction key; by default its own name
    instance:         number of this instance among those with the same name
    batch:            the function gets an Arrow table, not a message
    txn_size:         messages per transaction, at most
    txn_time_ms:      a transaction of single messages takes no more messages after this time
    txn_timeout_ms:   the store aborts a transaction open longer; None: the store's setting
    transaction_key:  instead of `function:NAME:INSTANCE`
    limit:            end after this many messages
    follow:           continue when the input is drained
    max_wait_ms:      without follow, end when no message has come for this long
    on_error:         what to do with an input that finally fails: stop, skip, or dead-letter
    dead_letter_topic: topic for failed inputs
    retries:          attempts after the first
    allow_loop:       an output topic may also be an input: the function gets its own messages,
                      forever. The run checks its output, dead-letter and late topics for this, not
                      a topic that the function sets in an Output: such a loop may well end
    take_over_ms:     how long to wait for an older instance to release the subscription
    max_in_flight:    commits that may be without an outcome while the next batch is processed. If
                      one fails, none behind it is committed, and their messages are processed again
    """

    name: str | None = None
    instance: int = 0
    batch: bool = False
    txn_size: int = 1000
    txn_time_ms: DurationLike = 1000
    txn_timeout_ms: DurationLike | None = None
    transaction_key: str | None = None
    limit: int | None = None
    follow: bool = False
    max_wait_ms: DurationLike = 0
    on_error: OnError = "stop"
    dead_letter_topic: str | None = None
    retries: int = 0
    take_over_ms: DurationLike = 30_000
    allow_loop: bool = False
    max_in_flight: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.txn_size <= TXN_MESSAGES_MAX:
            raise InvalidArgument(f"txn_size is {self.txn_size}, from 1 to {TXN_MESSAGES_MAX} go")
        for name in ("txn_time_ms", "txn_timeout_ms", "max_wait_ms", "take_over_ms"):
            object.__setattr__(self, name, duration_ms(getattr(self, name)))
        if duration_ms(self.txn_time_ms) < 1:
            raise InvalidArgument(f"txn_time_ms is {self.txn_time_ms}, it must be positive")
        if not 0 <= self.retries <= RETRIES_MAX:
            raise InvalidArgument(f"retries is {self.retries}, from 0 to {RETRIES_MAX} go")
        if not 1 <= self.max_in_flight <= IN_FLIGHT_MAX:
            raise InvalidArgument(
                f"max_in_flight is {self.max_in_flight}, from 1 to {IN_FLIGHT_MAX} go"
            )
        if self.instance < 0 or (self.limit is not None and self.limit < 0):
            raise InvalidArgument("instance and limit are not negative")
        if self.on_error not in (STOP, SKIP, DEAD_LETTER):
            raise InvalidArgument(f"on_error is stop, skip or dead-letter, not {self.on_error}")
        if (self.on_error == DEAD_LETTER) != (self.dead_letter_topic is not None):
            raise InvalidArgument("dead-letter and a dead_letter_topic belong together")


@dataclass(slots=True)
class Summary:
    """The results of a run so far: messages of committed transactions, and aborted transactions.

    late: number of messages that came after watermarks closed their window
    """

    consumed: int = 0
    produced: int = 0
    transactions: int = 0
    aborted: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    late: int = 0
    last_txn: TxnId | None = None


def nothing(*_: object) -> None:
    """The callback that does nothing."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Callbacks that observe a run and may end it; omitted ones do nothing.

    joined:     the consumers have subscribed; returns when the first message may be received
    drained:    the input is drained; returns when the subscriptions may be released
    guard:      surrounds calls into the store, not user code or waiting
    stop:       called between messages and while waiting; true ends the run after a complete commit
    committing: the transaction is complete and will be committed next; arguments: the results so
                far, and the number of messages it produces. With it commits do not overlap
    committed:  the commit is durable; called in the order of the commits, a little later if others
                were in flight
    tell:       an event: a word and its details
    """

    joined: Callable[[], object] = nothing
    drained: Callable[[], object] = nothing
    guard: Callable[[], AbstractContextManager[object]] = nullcontext
    stop: Callable[[], bool] = _never
    committing: Callable[[Summary, int], object] = nothing
    committed: Callable[[Summary], object] = nothing
    tell: Callable[[str, Mapping[str, object]], object] = field(default=nothing)
