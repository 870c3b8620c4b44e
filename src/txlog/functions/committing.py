"""Owns the transactions of a run: one per batch, under a key that fences earlier runs.

    connect     the transaction key, once: the store aborts an older instance's open transaction and
                refuses all its later calls
    begin       under the key
    call        the handler calls the user's function
    send, acknowledge, commit     one frame

A batch may fail without naming the failing input. Then the run retries it in parts, so that the
good inputs succeed. It gives an input up that has failed alone as often as allowed.

While one batch is flushed, the next is processed, if the input has more:

    full batch ──▶ handle ──▶ commit_async ──▶ a Flight ──▶ outcome: counted, in order
                                                  └──failed: none behind it is committed;
                                                     its rows are processed again

Each commit depends on the one before it, so outputs keep the order of their inputs. A batch that
drains the input, a retry and a flow with state of its own commit alone, and wait for the others.

An aborted transaction returns what it acknowledged, and an exclusive consumer then goes back and
receives all later messages again. So after a failure the run keeps only the rows that failed. When
these are done, it returns everything else that it has in hand, and receives that again, in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event
from typing import Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from txlog.base.ids import TxnId
from txlog.client.client import Client
from txlog.client.sending.producer import Producer
from txlog.engine.door.reading import RECEIVED, Decoder
from txlog.engine.door.topics import function_key
from txlog.engine.door.transactions import CommitFuture, Transaction
from txlog.errors import (
    ConsumerBusy,
    ExpiredTransaction,
    InvalidArgument,
    InvalidMessage,
    InvalidTxnStatus,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    ProducerFenced,
    TopicNotFound,
    TransactionConflict,
    TransactionTimedOut,
    TxlogError,
)
from txlog.functions.attempt import Attempt, GivenUp, Unsettled, failure_of, named, reason
from txlog.functions.context import Context
from txlog.functions.handlers import Handled, Handler
from txlog.functions.options import STOP, FunctionOptions, Hooks, Summary, nothing
from txlog.functions.outputs import Outbox

_CONFLICTS_MAX: Final = 10
_TAKE_OVER_POLL_S: Final = 0.05
# The store refuses the outputs, which is the function's fault.
_UNSENDABLE: Final = (InvalidMessage, InvalidArgument, LimitExceeded, TopicNotFound)
# The rows of a commit in flight that fails so are processed again.
_REPEATED: Final = (*_UNSENDABLE, TransactionTimedOut)
# Another consumer acknowledged some rows, or the store aborted what was open when it recovered from
# the failed flush of a peer.
_ABORTED: Final = (TransactionConflict, InvalidTxnStatus)
T = TypeVar("T")


class Source(Protocol):
    """The origin of a batch's rows, and its part of the transaction that ends them."""

    def settle(self, handled: Handled, txn: Transaction) -> None:
        """Acknowledge handled rows in the transaction, and add the source's own changes."""

    def settled(self, handled: Handled, txn: Transaction) -> int:
        """Note that the transaction is committed; returns how many inputs it consumed."""

    def renew(self) -> None:
        """Start again with the remaining rows: other consumers acknowledged some rows."""


class _Piece(NamedTuple):
    """Rows to process together, and how often they have failed alone."""

    rows: pa.Table
    attempts: int


class _Prepared(NamedTuple):
    """A transaction that is complete, with what it counts for once it is committed.

    held: what the function held back before it
    """

    txn: Transaction
    handled: Handled
    attempt: Attempt
    source: Source
    produced: int
    held: pa.Table | None


class _Flight(NamedTuple):
    """A commit in flight; rows: what it handled, without the rows held back before it."""

    prepared: _Prepared
    future: CommitFuture
    rows: pa.Table
    handler: Handler


class _Failed(Exception):
    """An attempt was aborted; its inputs will be retried."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Work:
    """The transactions of one run.

    held: rows that the function held back; they come first in the next batch
    """

    __slots__ = (
        "_client",
        "_conflicts",
        "_context",
        "_decoder",
        "_epoch",
        "_flights",
        "_hooks",
        "_is_returned",
        "_key",
        "_options",
        "_output",
        "_producers",
        "held",
        "summary",
    )

    def __init__(
        self,
        client: Client,
        context: Context,
        output: str | None,
        options: FunctionOptions,
        hooks: Hooks,
    ) -> None:
        self._client, self._options, self._hooks = client, options, hooks
        self._context = context
        self._output = output
        self._key = options.transaction_key or (
            function_key(context.function_name, options.instance)
        )
        self._decoder = Decoder(client.store)
        self._epoch = 0
        self._conflicts = 0
        self._producers: dict[str, Producer] = {}
        self._flights: deque[_Flight] = deque()
        self._is_returned = False  # an abort may have returned messages that are in hand
        self.held: pa.Table | None = None
        self.summary = Summary()

    # --- the key -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect the key; the store then refuses all calls of older instances."""
        with self._hooks.guard():
            self._epoch = self._client.connect(self._key)["epoch"]

    def started(self) -> None:
        """Report that the run has begun."""
        self._hooks.tell("started", {"transaction_key": self._key, "epoch": self._epoch})

    def take_over(self, make: Callable[[], T], until: float, details: Mapping[str, object]) -> T:
        """Open a resource that an older instance may hold until the time `until`.

        raises: ConsumerBusy, ExpiredTransaction (a newer instance runs)
        """
        reported = False
        while True:
            try:
                with self._hooks.guard():
                    return make()
            except ConsumerBusy:
                # A new key had no holder before, so the consumer is not an older instance.
                if not self._epoch or time.monotonic() >= until or self._hooks.stop():
                    raise
            if not reported:
                self._hooks.tell("waiting", details)
                reported = True
            Event().wait(_TAKE_OVER_POLL_S)
            self.check_fence()

    def check_fence(self) -> None:
        """Notice a newer instance even when there is no work; raises ExpiredTransaction."""
        try:
            with self._hooks.guard():
                epoch = self._client.admin.transaction_key(self._key)["epoch"]
        except NotFound as error:
            raise self._fenced() from error
        if epoch != self._epoch:
            raise self._fenced()

    def _fenced(self) -> ExpiredTransaction:
        return ExpiredTransaction(
            f"a newer instance runs under transaction key {self._key}",
            hint="this instance stops; its open transaction was aborted",
            transaction_key=self._key,
            epoch=self._epoch,
        )

    # --- a batch -----------------------------------------------------------------------------

    def process(self, rows: pa.Table, handler: Handler, source: Source) -> None:
        """Process all rows: in one transaction if it succeeds, else in smaller and smaller ones.

        Its commits may still be in flight when this returns; `land` waits for them.
        raises: GivenUp
        """
        self._work_off([_Piece(rows, 0)], handler, source, is_alone=not self._overlaps(handler))

    def land(self) -> bool:
        """Wait for the commits in flight; True if one failed, and its rows were processed again.

        raises: as process
        """
        flights = self._failed_flights(0)
        if not flights:
            return False
        handler, source = flights[0].handler, flights[0].prepared.source
        todo = self._after_failure(flights)
        if todo is not None:
            self._work_off(todo, handler, source, is_alone=True)
        return True

    def _overlaps(self, handler: Handler) -> bool:
        """Whether commits of this run may be in flight while the next rows are processed."""
        is_observed = self._hooks.committing is not nothing
        return handler.may_overlap and self._options.max_in_flight > 1 and not is_observed

    def _work_off(
        self, todo: list[_Piece], handler: Handler, source: Source, *, is_alone: bool
    ) -> None:
        """Process pieces, the last one first; is_alone: no commits in flight beside them."""
        while todo and not self._hooks.stop():
            # nothing follows the rows that drained the input: their commit need not overlap
            is_last = len(todo) == 1 and self._context.is_quiet
            waits = is_alone or is_last or todo[-1].attempts > 0
            flights = self._failed_flights(0 if waits else self._options.max_in_flight - 1)
            if flights:
                again = self._after_failure(flights)
                if again is None:
                    return
                todo, is_alone = again, True
                continue
            rows, attempts = todo.pop()
            try:
                handled = self._run(handler, source, rows, attempts + 1, waits=waits)
            except (_Failed, *_ABORTED) as error:
                is_alone = True  # what follows commits after those in flight, if none of them fails
                if flights := self._failed_flights(0):
                    again = self._after_failure(flights)
                    if again is None:
                        return
                    todo = again
                elif isinstance(error, _Failed):
                    todo += self._again(rows, attempts, error.error, handler, source)
                else:
                    self._interrupted(error, source)
                    return
                continue
            self.held = handled.held
            if waits:
                self._conflicts = 0
            if handled.left is not None:
                todo.append(_Piece(handled.left, 0))
        if self._is_returned and not todo:
            self._receive_again(source)

    def _receive_again(self, source: Source) -> None:
        """Receive everything in hand again, beginning with the rows held back."""
        self.held, self._is_returned = None, False
        with self._hooks.guard():
            source.renew()

    # --- commits in flight -------------------------------------------------------------------

    def _failed_flights(self, most: int) -> list[_Flight]:
        """Wait until at most so many commits are in flight, and count those that are committed.

        returns: the first flight that failed, with all behind it, whose commits fail as well
        """
        flights = self._flights
        while flights and (len(flights) > most or flights[0].future.done()):
            with self._hooks.guard():
                error = flights[0].future.exception()
                if error is not None:
                    for flight in flights:
                        flight.future.exception()
                    return list(flights)
                self._count(flights.popleft().prepared)
                self._conflicts = 0
        return []

    def _after_failure(self, flights: list[_Flight]) -> list[_Piece] | None:
        """Abort failed flights; returns the rows of the first as pieces, the next one last.

        None: all rows come again from the source
        raises: the error, unless the rows are to be processed again; GivenUp
        """
        first = flights[0]
        error = first.future.exception()
        assert error is not None
        self._abort_all(flights)
        if isinstance(error, ExpiredTransaction):
            raise self._fenced() from error
        if not isinstance(error, _REPEATED):
            if not isinstance(error, _ABORTED):
                raise error
            self._interrupted(error, first.prepared.source)
            return None
        self.held, self._is_returned = first.prepared.held, True
        return self._again(first.rows, 0, error, first.handler, first.prepared.source)

    def abandon(self, error: BaseException) -> None:
        """After an error of the run: wait for the commits in flight, and note the first failure."""
        flights = self._failed_flights(0)
        if flights:
            error.add_note(f"a commit in flight failed: {flights[0].future.exception()}")
        self._abort_all(flights)

    def _abort_all(self, flights: list[_Flight]) -> None:
        """Abort the transactions of failed flights, unless they may be committed."""
        self._flights.clear()
        for flight in flights:
            if not isinstance(flight.future.exception(), OutcomeUnknown):
                self._abort(flight.prepared.txn)

    def _again(
        self, rows: pa.Table, attempts: int, error: BaseException, handler: Handler, source: Source
    ) -> list[_Piece]:
        """The pieces to process after a failure, the next one last."""
        options = self._options
        if options.on_error == STOP and not options.retries:
            raise GivenUp(failure_of(self._context.function_name, error, rows)) from error
        parts = handler.parts(rows)
        if len(parts) > 1:
            self._hooks.tell(
                "split", {"messages": rows.num_rows, **named(rows), "reason": reason(error)}
            )
            return [_Piece(part, 0) for part in reversed(parts)]
        attempts += 1
        if attempts <= options.retries:
            facts = {"attempt": attempts + 1, **named(rows), "reason": reason(error)}
            self._hooks.tell("retry", facts)
            return [_Piece(rows, attempts)]
        culprits = joined(self.held, rows)
        self.held = None
        try:
            self._run(_Resigned(error, attempts), source, culprits, 1)
        except _Failed as failed:  # a dead letter that the store refuses
            name = self._context.function_name
            raise GivenUp(failure_of(name, failed.error, culprits)) from failed.error
        return []

    def _interrupted(self, error: TxlogError, source: Source) -> None:
        """The store aborted a transaction for no fault of the function: receive again.

        raises: the error, if it happens too often in a row
        """
        self._conflicts += 1
        self._hooks.tell("conflict", {"reason": error.message})
        if self._conflicts > _CONFLICTS_MAX:
            raise error
        self._receive_again(source)

    # --- one transaction ---------------------------------------------------------------------

    def _run(
        self,
        handler: Handler,
        source: Source,
        rows: pa.Table,
        number: int,
        *,
        waits: bool = True,
    ) -> Handled:
        """Process rows, after those held back, in one transaction.

        waits: False: the commit is in flight when this returns
        raises: _Failed, GivenUp, _ABORTED
        """
        with self._hooks.guard():
            txn = self._begin()
        outbox = Outbox(self._output, self._client.settings.max_message_bytes, self.producer)
        attempt = Attempt(self._options, self._context, outbox, self._hooks.tell, self._decoder)
        self._context.attempt = number
        try:
            handled = handler.handle(joined(self.held, rows), attempt)
            with self._hooks.guard():
                prepared = self._prepare(txn, attempt, handled, source)
                if prepared is not None and waits:
                    self._commit(prepared)
                elif prepared is not None:
                    self._take_off(prepared, rows, handler)
        except BaseException as error:  # a signal must also end the transaction
            if not isinstance(error, OutcomeUnknown):  # check before the first decision
                self._abort(txn)
            if isinstance(error, ExpiredTransaction):
                raise self._fenced() from error
            if isinstance(error, Unsettled | _Unsendable):
                raise _Failed(error.error) from error
            if isinstance(error, TransactionTimedOut):
                raise _Failed(error) from error
            raise
        return handled

    def _begin(self) -> Transaction:
        try:
            return self._client.transaction(
                self._options.txn_timeout_ms, key=self._key, epoch=self._epoch
            )
        except ProducerFenced as error:
            raise self._fenced() from error

    def _prepare(
        self, txn: Transaction, attempt: Attempt, handled: Handled, source: Source
    ) -> _Prepared | None:
        """Produce and acknowledge; abort and return None if there is nothing to do."""
        batches = attempt.outbox.batches()
        if not (batches or handled.done.num_rows):
            txn.abort()
            return None
        produced = sum([table.num_rows for _, table in batches]) - attempt.aside
        try:
            for topic, table in batches:
                self.producer(topic).send_batch_async(table, txn=txn)
            source.settle(handled, txn)
        except _UNSENDABLE as error:
            raise _Unsendable(error) from error
        self._hooks.committing(self.summary, produced)
        return _Prepared(txn, handled, attempt, source, produced, self.held)

    def _commit(self, prepared: _Prepared) -> None:
        try:
            prepared.txn.commit()
        except _UNSENDABLE as error:
            raise _Unsendable(error) from error
        self._count(prepared)

    def _take_off(self, prepared: _Prepared, rows: pa.Table, handler: Handler) -> None:
        """Commit without waiting, but only if the commits in flight do not fail."""
        flights, left = self._flights, prepared.handled.left
        reached = rows if left is None else rows.slice(0, rows.num_rows - left.num_rows)
        after = flights[-1].future if flights else None
        future = prepared.txn.commit_async(after)
        flights.append(_Flight(prepared, future, reached, handler))

    def _count(self, prepared: _Prepared) -> None:
        """Count a committed transaction."""
        summary, attempt = self.summary, prepared.attempt
        summary.consumed += prepared.source.settled(prepared.handled, prepared.txn)
        summary.produced += prepared.produced
        summary.transactions += 1
        summary.skipped += attempt.skipped
        summary.dead_lettered += attempt.dead_lettered
        summary.late += attempt.late
        summary.last_txn = prepared.txn.id
        self._hooks.committed(summary)

    def _abort(self, txn: Transaction) -> None:
        if txn.state in ("COMMITTING", "COMMITTED"):
            return  # the exception came after the commit
        self.summary.aborted += 1
        if isinstance(txn.use, TxnId):  # it was written, and its acknowledgements with it
            self._is_returned = True
        if txn.state != "OPEN":
            return
        # It may have ended already, by a conflict, its time-out or a fence; report the first error.
        with suppress(TxlogError), self._hooks.guard():
            txn.abort()

    def producer(self, topic: str) -> Producer:
        """The producer of a topic. Raises TopicNotFound."""
        if topic not in self._producers:
            self._producers[topic] = self._client.producer(topic)
        return self._producers[topic]


class _Unsendable(Exception):
    """The store refuses the outputs, which is the function's fault."""

    def __init__(self, error: TxlogError) -> None:
        super().__init__(error.message)
        self.error = error


class _Resigned:
    """A handler that calls no function and gives its rows up."""

    wants_quiet = False
    may_overlap = False

    def __init__(self, error: BaseException, attempts: int) -> None:
        self._error, self._attempts = error, attempts

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """One part: the rows are given up together."""
        return [rows]

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Treat the rows as on_error says. Raises GivenUp."""
        attempt.give_up(rows, self._error, self._attempts)
        return Handled(rows)


def joined(*tables: pa.Table | None) -> pa.Table:
    """The rows of several tables in one."""
    nonempty = [table for table in tables if table is not None and table.num_rows]
    if not nonempty:
        return RECEIVED.empty_table()
    return nonempty[0] if len(nonempty) == 1 else pa.concat_tables(nonempty)
