"""Owns Buffer: the messages that wait in a transaction until something writes them.

    send ──▶ the newest Run of its topic ──seal──▶ one batch ──▶ one frame
             a tuple in a list                     Arrow

A message costs a tuple and its receipt. The write makes one batch of a run. Messages of one topic
stay in the order of their sends: another producer of the topic, or a batch, begins a new run.
Between topics there is no order.

Threads may share a transaction, and the exception of a signal handler may end a send between any
two steps, so a message takes no lock. It belongs to a run if it stands before SEAL in its list: one
step of C decides that. A message behind it goes to a new run.

A run that the store refuses as a whole is written again message by message, so a single bad message
does not refuse the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from txlog.base.settings import TXN_BUFFER_BYTES_MAX, TXN_BUFFER_MESSAGES_MAX
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending.send import REFUSALS
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import Use
from txlog.engine.store.appender import Call
from txlog.engine.view import View
from txlog.errors import InvalidTxnStatus, ProducerBusy, ProducerFenced, TopicNotFound, TxlogError

if TYPE_CHECKING:
    from txlog.base.ids import TxnId

T = TypeVar("T")
Item: TypeAlias = tuple[Any, ...]  # one message: as in engine/session/sending/message
DecideIn = Callable[[View, Instant, Use], "Decision[tuple[TxnId, T] | None]"]
# The decision of a call whose earlier calls must be repeated first: it has no effect.
AGAIN: Decision[None] = Decision([])
SEAL: Final = object()
BEGIN_S: Final = 1.0
KEY_SHOWN_MAX: Final = 40  # bytes of a key in a note
# They refuse every message of their producer alike, so the run is not taken apart.
_ALL_ALIKE: Final = (ProducerBusy, ProducerFenced, TopicNotFound)


class Owner(Protocol):
    """The part of `Transaction` that a run uses."""

    _status: str

    @property
    def use(self) -> Use: ...

    def flush(self) -> None: ...
    def enqueue(self, run: Run) -> None: ...
    def number_of(self, messages: int) -> int: ...
    def _opened(self, call: Call, decision: Decision[Any]) -> None: ...
    def _uses_of(self, uses: CallScope) -> CallScope: ...
    def _await(self, call: Call) -> None: ...
    def _tell(self, call: Call) -> None: ...
    def _has_ended(self) -> InvalidTxnStatus: ...


class Together(NamedTuple):
    """The call that writes the messages of a run.

    decide:   the decision; uses: its scope, for the sweep before it
    answered: turns the answer of `decide` into the receipts, by `receipt(row)`
    """

    decide: DecideIn[Any]
    uses: CallScope
    answered: Callable[[Any], Any]


Gather = Callable[[list[Item]], Together]


class Lane(NamedTuple):
    """Messages that can be one batch: of one producer, with the same schema and columns.

    topic, name: the topic's number and short name
    """

    gather: Gather
    topic: int
    name: str


def never(view: View, now: Instant) -> Decision[None]:
    """The decision of a call that the store decides only inside another call."""
    raise AssertionError("a run is decided by its batch")


class Run(Call):
    """Messages of one lane, in a row: a deferred call of the transaction.

    last_sequence: of the newest message, -1 without numbers
    number:        of its first message in the transaction, from 1; 0: not sealed yet
    parts:         its messages as runs of their own, once the batch was refused
    seen:          the rows whose refusal a caller has seen
    """

    __slots__ = (
        "_batch",
        "_is_again",
        "_rows",
        "is_sealed",
        "items",
        "key",
        "lane",
        "last_sequence",
        "number",
        "parts",
        "seen",
        "txn",
    )

    def __init__(self, txn: Owner, lane: Lane, item: Item, sequence: int = -1) -> None:
        super().__init__(never)
        self.txn, self.lane = txn, lane
        self.items: list[Any] = [item]
        self.key: bytes | None = item[2]
        self.last_sequence = sequence
        self.is_sealed = self._is_again = False
        self.seen: set[int] = set()
        self.number = 0
        self.parts: list[Run] = []
        self._rows: list[Item] = []
        self._batch: Call | None = None

    @property
    def count(self) -> int:
        """How many messages it has."""
        return len(self._rows) or len(self.items)

    def row_of(self, items: list[Any], end: int, item: Item) -> int | None:
        """The row of a message that was just added; None if the run was sealed before it.

        end: the last place that it can have; another thread may have added one meanwhile
        """
        row = next(at for at in range(end, -1, -1) if items[at] is item)
        if self.is_sealed and any(other is SEAL for other in items[:row]):
            return None
        return row

    def seal(self) -> list[Item]:
        """Take no more messages; returns those that it has."""
        if not self._rows:
            items = self.items
            self.is_sealed = True  # before SEAL: `row_of` looks for it only then
            if not any(item is SEAL for item in items):
                items.append(SEAL)
            at = next(at for at, item in enumerate(items) if item is SEAL)
            self.number = self.txn.number_of(at)
            self._rows = items[:at]
        return self._rows

    # --- writing it --------------------------------------------------------------------------

    def calls(self, before: Run | None) -> list[Call]:
        """The calls that write it; before: the run of its topic that is written just before it."""
        if self.parts:
            return [call for part in self.parts if not part.done for call in part.calls(None)]
        self._is_again = False
        self._batch = self._made(before)
        return [self._batch]

    def _made(self, before: Run | None) -> Call:
        txn = self.txn
        try:
            together = self.lane.gather(self.seal())
        except TxlogError as error:  # the topic has another shape or schema by now
            refusal = error  # the name `error` ends with this block

            def refuse(view: View, now: Instant) -> Decision[None]:
                raise refusal

            return Call(refuse)

        def decide(view: View, now: Instant) -> Decision[Any]:
            if before is not None and (before._is_apart or before._is_again):
                self._is_again = True
                return AGAIN  # its messages come first
            return together.decide(view, now, txn.use)

        def then(batch: Call, decision: Decision[Any]) -> None:
            txn._opened(batch, decision)
            if type(decision.answer) is tuple:
                txn_id, stored = decision.answer
                self.answer = (txn_id, together.answered(stored))

        return Call(decide, uses=txn._uses_of(together.uses), then=then)

    @property
    def _is_apart(self) -> bool:
        """True when the batch was refused, and its messages are going to be written alone."""
        batch = self._batch
        return (
            not self.parts
            and batch is not None
            and isinstance(batch.error, REFUSALS)
            and not isinstance(batch.error, _ALL_ALIKE)
            and len(self._rows) > 1
        )

    def settle(self, *, broken: bool = False) -> None:
        """Take the outcome of its calls; broken: their write was interrupted."""
        if self.parts:
            self._settle_parts(broken=broken)
            return
        batch = self._batch
        if batch is None or self.done:
            return
        self.stage = batch.stage
        if batch.error is None:
            self.done = batch.done and self.answer is not None
            if self.done:  # a receipt keeps the run, but no messages
                self.items = [SEAL]
                self._rows = []
        elif not broken and self._is_apart:
            parts = [Run(self.txn, self.lane, item) for item in self._rows]
            for at, part in enumerate(parts):
                part.is_sealed, part._rows = True, part.items
                part.number = self.number + at
            self.parts = parts
        else:
            self.error, self.done = batch.error, batch.done
            self._name(batch.error)

    def _settle_parts(self, *, broken: bool) -> None:
        for part in self.parts:
            part.settle(broken=broken)
        self.stage = next((part.stage for part in self.parts if part.is_in_doubt), self.stage)
        if all(part.done for part in self.parts):
            self.answer = self.parts[0].answer
            self.error = next((part.error for part in self.parts if part.error is not None), None)
            self.done = True

    def _name(self, error: BaseException) -> None:
        """Add to an error which message it refused."""
        if not isinstance(error, TxlogError) or hasattr(error, "__notes__"):
            return
        key = ""
        if self.key is not None:
            key = f", key {self.key[:KEY_SHOWN_MAX]!r}{'…' * (len(self.key) > KEY_SHOWN_MAX)}"
        which, others = f"message {self.number}", len(self._rows) - 1
        if others:
            which = f"messages {self.number} to {self.number + others}"
        error.add_note(f"{which} of the transaction, topic {self.lane.name}{key}")

    def end(self, error: BaseException) -> None:
        """End it, and all its messages that have no outcome."""
        for part in self.parts:
            if not part.done:
                part.end(error)
        super().end(error)

    def renew(self) -> None:
        """Reset it to a call not decided yet; messages that have an outcome keep it."""
        for part in self.parts:
            if part.error is not None and part.error is self.error:
                part.renew()
        super().renew()

    def _refused_rows(self) -> Iterable[int]:
        if self.parts:
            return [row for row, part in enumerate(self.parts) if part.error is not None]
        return range(len(self._rows))

    # --- its messages' receipts --------------------------------------------------------------

    def is_written(self, row: int) -> bool:
        """True once the message was written or refused."""
        return self.done or bool(self.parts and self.parts[row].done)

    def receipt(self, row: int) -> object:
        """Write the waiting messages; return a message's receipt, or raise its error."""
        self.txn._await(self)
        run, at = (self.parts[row], 0) if self.parts else (self, row)
        error = run.error
        if error is None and run.answer is None:
            error = self.error  # dropped between its parts
        if error is not None:
            self.seen.add(row)
            if self.seen.issuperset(self._refused_rows()):
                self.txn._tell(self)
            raise error
        if run.answer is None:
            raise lost_write()
        return run.answer[1].receipt(at)


def lost_write() -> InvalidTxnStatus:
    """The error for an operation whose outcome its handle does not know."""
    return InvalidTxnStatus(
        "writing a deferred operation was interrupted or is still under way in another thread",
        hint="repeat the transaction",
    )


class Buffer:
    """The runs of one transaction that still take messages, and how much waits in it.

    runs:            by topic
    messages, bytes: about how much waits; the bound need not be exact
    sealed:          messages in sealed runs
    """

    __slots__ = ("_lock", "_txn", "bytes", "messages", "runs", "sealed")

    def __init__(self, txn: Owner) -> None:
        self._txn = txn
        self._lock = RLock()
        self.runs: dict[int, Run] = {}  # by topic
        self.messages = self.bytes = self.sealed = 0

    def has_room(self, size: int) -> bool:
        """False when a message of this size and the waiting ones must be written."""
        if self.messages >= TXN_BUFFER_MESSAGES_MAX:
            return False
        return self.bytes + size <= TXN_BUFFER_BYTES_MAX or not self.messages

    def put(self, lane: Lane, item: Item, size: int, sequence: int | None) -> tuple[Run, int]:
        """Add a message; returns its run and row.

        sequence: its number if the producer has a name: in one run they rise
        raises:   InvalidTxnStatus: the transaction has ended, or is being committed; the errors of
                  `Transaction.flush` if there is no room
        """
        txn = self._txn
        if txn._status != "OPEN":
            raise txn._has_ended()
        messages, waiting = self.messages + 1, self.bytes + size
        if messages > TXN_BUFFER_MESSAGES_MAX or waiting > TXN_BUFFER_BYTES_MAX:
            if messages > 1:
                txn.flush()
            messages, waiting = 1, size
        self.messages, self.bytes = messages, waiting
        run = self.runs.get(lane.topic)
        if (
            run is not None
            and run.lane is lane
            and not run.is_sealed
            and (sequence is None or sequence > run.last_sequence)
        ):
            if sequence is not None:
                run.last_sequence = sequence
            items = run.items
            items.append(item)
            at = len(items) - 1
            row: int | None = at
            if items[at] is not item or run.is_sealed:  # another thread came between
                row = run.row_of(items, at, item)
            if row is not None:
                return run, row
        return self._begun(lane, item, -1 if sequence is None else sequence), 0

    def _begun(self, lane: Lane, item: Item, sequence: int) -> Run:
        """A new run, queued behind all others.

        A lock keeps `runs` at the newest. An interrupt may leave it taken; then threads that begin
        runs at the same time wait a moment, and their messages may change places.
        """
        run = Run(self._txn, lane, item, sequence)
        is_held = self._lock.acquire(timeout=BEGIN_S)
        try:
            self._txn.enqueue(run)
            self.runs[lane.topic] = run
        finally:
            if is_held:
                self._lock.release()
        return run
