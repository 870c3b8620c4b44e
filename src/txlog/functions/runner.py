"""Owns the run of a function: receive, call, produce and acknowledge, one transaction a batch.

    connect     the transaction key: what an older instance has open is aborted, and whatever it
                does later is refused
    receive     at most txn_size messages, as soon as there are some
    begin       under the key
    call        the handler calls the user's function
    send, acknowledge, commit     one frame

A batch that fails without telling which input is to blame is tried again in halves, so that the
good ones go through; an input that fails alone as often as allowed is given up. Messages held back
by the function stay unacknowledged and come first in the next batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txlog.client import Client
from txlog.consumer import Consumer
from txlog.engine.flow.dispatch import RECEIVED
from txlog.errors import (
    ConsumerBusy,
    ExpiredTransaction,
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    ProducerFenced,
    TopicNotFound,
    TransactionConflict,
    TransactionTimedOut,
    TxlogError,
)
from txlog.functions.attempt import Attempt, GivenUp, Unsettled, as_ours, reason
from txlog.functions.context import Context
from txlog.functions.handlers import (
    BatchHandler,
    Handled,
    Handler,
    MessageHandler,
    UserFunction,
    name_of,
)
from txlog.functions.options import STOP, FunctionOptions, Hooks, Summary
from txlog.functions.outputs import Outbox
from txlog.functions.windows import Windowed, WindowHandler
from txlog.ids import TopicName
from txlog.producer import Producer
from txlog.transaction import Transaction

_POLL_S_MIN: Final = 0.002
_POLL_S_MAX: Final = 0.05
_CONFLICTS_MAX: Final = 10
_NAME_MAX: Final = 100


def run(
    client: Client, function: UserFunction | Windowed, inputs: Sequence[str] | str,
    output: str | None, subscription: str, options: FunctionOptions | None = None,
    hooks: Hooks | None = None,
) -> Summary:  # fmt: skip
    """Run a function until nothing is left, or for ever with `follow`.

    function: (message, context) -> outputs, or (message) -> outputs; with `batch` it gets a table
              of received rows; one of windows gets a list of messages, or a table
    inputs:   topics; each has the subscription
    output:   where outputs go that name no topic; None: each of them names one
    raises:   CommandFailed when the function fails for good and on_error is stop;
              ExpiredTransaction when a newer instance runs under the same key; ConsumerBusy,
              TopicNotFound, SubscriptionNotFound, InvalidArgument

    >>> import tempfile, txlog
    >>> from txlog import functions
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = [client.create_topic(topic) for topic in ("orders", "totals")]
    ...         _ = client.create_subscription("orders", "billing")
    ...         _ = client.producer("orders").send(b"2,3", key=b"ana")
    ...         def total(message):
    ...             return {"sum": sum(map(int, message.value.split(b",")))}
    ...         done = functions.run(client, total, "orders", "totals", "billing")
    ...         done.consumed, [message.value for message in client.reader("totals")]
    (1, [b'{"sum":5}'])
    """
    wanted, heard = options or FunctionOptions(), hooks or Hooks()
    runner = Runner(client, function, inputs, output, subscription, wanted, heard)
    try:
        runner.open()
        runner.loop()
    except BaseException as error:
        with suppress(TxlogError):  # the first error counts; a lock dies with its process
            runner.close()
        if isinstance(error, GivenUp):
            raise error.error from error.__cause__
        raise
    runner.close()
    return runner.summary


class _Piece(NamedTuple):
    """Rows to be processed together, and how often they failed alone."""

    rows: pa.Table
    attempts: int


class _Failed(Exception):
    """An attempt was aborted; its inputs are to be tried again."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Runner:
    """One run."""

    def __init__(
        self, client: Client, function: UserFunction | Windowed, inputs: Sequence[str] | str,
        output: str | None, subscription: str, options: FunctionOptions, hooks: Hooks,
    ) -> None:  # fmt: skip
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        names = [TopicName.parse(topic, allow_partition=True) for topic in given]
        self._inputs = given
        self._topics = [name.topic.short for name in names]
        if not names or len(set(self._topics)) != len(names):
            raise InvalidArgument("a function has input topics, each of them once")
        self._client, self._options, self._hooks = client, options, hooks
        self._subscription = subscription
        self._output = None if output is None else TopicName.parse(output).short
        self._producers: dict[str, Producer] = {}
        self._consumers: list[Consumer] = []
        self._held: pa.Table | None = None
        self._received = 0
        self._conflicts = 0
        self.summary = Summary()
        self.name = options.name or f"{name_of(function)}@{min(self._topics)}/{subscription}"
        self._key = options.transaction_key or f"function:{self.name}:{options.instance}"
        self._epoch = 0
        self._context = Context(
            self.name, options.instance, self._topics, self._output, subscription,
            logging.getLogger(f"txlog.function.{self.name}"),
        )  # fmt: skip
        for topic in (self._output, options.dead_letter_topic):
            if topic is not None:
                self._producer(TopicName.parse(topic).short)
        self._handler = self._made_handler(function)

    def _made_handler(self, function: UserFunction | Windowed) -> Handler:
        options = self._options
        if isinstance(function, Windowed):
            partitions = {
                name: int(self._client.describe_topic(name)["partitions"]) for name in self._topics
            }
            return WindowHandler(function, partitions, batch=options.batch)
        if options.batch:
            return BatchHandler(function)
        return MessageHandler(function, options.txn_time_ms, self._hooks.stop)

    # --- opening and closing -----------------------------------------------------------------

    def open(self) -> None:
        """Take the key, then the subscription; an older instance is given time to let it go."""
        with self._hooks.guard():
            self._epoch = self._client.connect(self._key)["epoch"]
        until = time.monotonic() + self._options.take_over_ms / 1000
        for topic in self._inputs:
            self._consumers.append(self._consumer(topic, until))
        self._hooks.tell("started", {"transaction_key": self._key, "epoch": self._epoch})

    def _consumer(self, topic: str, until: float) -> Consumer:
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.name)
        said = False
        while True:
            try:
                with self._hooks.guard():
                    return self._client.consumer(
                        topic, self._subscription, isolation="committed",
                        name=f"{name[:_NAME_MAX]}-{self._options.instance}",
                    )  # fmt: skip
            except ConsumerBusy:
                # Under a new key there was nobody before: the consumer is a stranger.
                if not self._epoch or time.monotonic() >= until or self._hooks.stop():
                    raise
            if not said:
                self._hooks.tell("waiting", {"topic": topic, "subscription": self._subscription})
                said = True
            Event().wait(_POLL_S_MAX)
            self._check_fence()

    def close(self) -> None:
        """Let the subscriptions go; what was not acknowledged comes again."""
        with self._hooks.guard():
            for consumer in self._consumers:
                consumer.close()
            self._consumers = []

    # --- the loop ----------------------------------------------------------------------------

    def loop(self) -> None:
        """Process batches until the end."""
        idle_since, pause, is_settled = time.monotonic(), _POLL_S_MIN, True
        while not self._hooks.stop():
            rows, is_quiet = self._receive()
            if rows.num_rows or not (is_settled or self._held is None):
                self._context.is_quiet = is_quiet
                self._process(rows)
                idle_since, pause = time.monotonic(), _POLL_S_MIN
                is_settled = is_quiet or not self._handler.wants_quiet
                continue
            self._check_room()
            left = idle_since + self._options.max_wait_ms / 1000 - time.monotonic()
            if self._is_full() or not (self._options.follow or left > 0):
                return
            self._check_fence()
            Event().wait(pause if self._options.follow else min(pause, left))
            pause = min(_POLL_S_MAX, pause * 2)

    def _check_room(self) -> None:
        """Refuse to hold back more than may be in hand: nothing more would ever come."""
        if self._held is not None and any(consumer.blocked for consumer in self._consumers):
            most = self._client.settings.unacked_max
            raise LimitExceeded(
                f"{self.name} holds back {self._held.num_rows} messages, unacked_max is {most}",
                hint="make its windows smaller", setting="unacked_max", limit=most,
                value=self._held.num_rows,
            )  # fmt: skip

    def _is_full(self) -> bool:
        return self._options.limit is not None and self._received >= self._options.limit

    def _receive(self) -> tuple[pa.Table, bool]:
        """The next messages, and whether nothing more was waiting."""
        wanted = self._options.txn_size
        if self._options.limit is not None:
            wanted = min(wanted, self._options.limit - self._received)
        left, tables = wanted, []
        for consumer in self._consumers:
            if left <= 0:
                break
            with self._hooks.guard():
                table = consumer.receive_batch(left, 0)
            if table.num_rows:
                tables.append(table)
                left -= table.num_rows
        if len(self._consumers) > 1:  # one that is full must not keep the others from their turn
            self._consumers.append(self._consumers.pop(0))
        rows = _joined(*tables)
        self._received += rows.num_rows
        return rows, left > 0

    def _process(self, rows: pa.Table) -> None:
        """Bring rows to their end: in one transaction if all goes well, else in ever smaller ones.

        raises: GivenUp
        """
        todo = [_Piece(rows, 0)]
        while todo and not self._hooks.stop():
            rows, attempts = todo.pop()
            try:
                left = self._attempt(_joined(self._held, rows), attempts + 1)
            except TransactionConflict as error:
                self._forget(error)
                return
            except _Failed as failed:
                todo += self._again(rows, attempts, failed.error)
                continue
            self._conflicts = 0
            if left is not None:
                todo.append(_Piece(left, 0))

    def _again(self, rows: pa.Table, attempts: int, error: BaseException) -> list[_Piece]:
        """What to do after a failure, the first thing last."""
        options = self._options
        if options.on_error == STOP and not options.retries:
            raise GivenUp(as_ours(self.name, error)) from error
        if rows.num_rows > 1 and self._handler.may_split:
            half = rows.num_rows // 2
            self._hooks.tell("split", {"messages": rows.num_rows, "reason": reason(error)})
            return [_Piece(rows.slice(half), 0), _Piece(rows.slice(0, half), 0)]
        attempts += 1
        if attempts <= options.retries:
            self._hooks.tell("retry", {"attempt": attempts + 1, "reason": reason(error)})
            return [_Piece(rows, attempts)]
        culprits = _joined(self._held, rows)
        self._held = None
        self._in_transaction(_Resigned(error, attempts), culprits)
        return []

    def _forget(self, error: TransactionConflict) -> None:
        """Somebody else acknowledged what we have in hand: receive anew what is still ours."""
        self._conflicts += 1
        self._hooks.tell("conflict", {"reason": error.message})
        if self._conflicts > _CONFLICTS_MAX:
            raise error
        self._held = None
        with self._hooks.guard():
            for consumer in self._consumers:
                consumer.redeliver_unacknowledged_messages()

    # --- one transaction ---------------------------------------------------------------------

    def _attempt(self, rows: pa.Table, number: int) -> pa.Table | None:
        """Process rows in one transaction; returns those that it did not come to.

        raises: _Failed, GivenUp, TransactionConflict
        """
        handled = self._in_transaction(self._handler, rows, number)
        self._held = handled.held
        return handled.left

    def _in_transaction(self, handler: Handler, rows: pa.Table, number: int = 1) -> Handled:
        with self._hooks.guard():
            txn = self._begin()
        outbox = Outbox(self._output, self._client.settings.max_message_bytes, self._producer)
        attempt = Attempt(self._options, self._context, outbox, self._hooks.tell)
        self._context.attempt = number
        try:
            handled = handler.handle(rows, attempt)
            with self._hooks.guard():
                self._finish(txn, attempt, handled)
        except BaseException as error:
            if not isinstance(error, OutcomeUnknown):  # nobody may decide before it is asked
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

    def _finish(self, txn: Transaction, attempt: Attempt, handled: Handled) -> None:
        """Produce, acknowledge and commit by one lock and one frame; nothing to do is aborted."""
        done, batches = handled.done, attempt.outbox.batches()
        if not (batches or done.num_rows):
            txn.abort()
            return
        produced = sum([table.num_rows for _, table in batches]) - attempt.dead_lettered
        try:
            for topic, table in batches:
                self._producer(topic).send_batch_async(table, txn=txn)
            self._acknowledge(done, txn)
            self._hooks.committing(self.summary, produced)
            txn.commit()
        except (InvalidMessage, InvalidArgument, LimitExceeded, TopicNotFound) as error:
            raise _Unsendable(error) from error
        summary = self.summary
        summary.consumed += done.num_rows
        summary.produced += produced
        summary.transactions += 1
        summary.skipped += attempt.skipped
        summary.dead_lettered += attempt.dead_lettered
        summary.last_txn = txn.id
        self._hooks.committed(summary)

    def _acknowledge(self, rows: pa.Table, txn: Transaction) -> None:
        if len(self._consumers) == 1:
            self._consumers[0].acknowledge_async(rows, txn=txn)
            return
        for consumer in self._consumers:
            mine = rows.filter(pc.equal(rows["topic"], consumer.short))
            if mine.num_rows:
                consumer.acknowledge_async(mine, txn=txn)

    def _abort(self, txn: Transaction) -> None:
        if txn.state in ("COMMITTING", "COMMITTED"):
            return  # what is raised came behind the commit
        self.summary.aborted += 1
        if txn.state != "OPEN":
            return
        # It may be gone already, by a conflict, its time-out or a fence; the first error counts.
        with suppress(TxlogError), self._hooks.guard():
            txn.abort()

    def _check_fence(self) -> None:
        """Notice a newer instance also while there is nothing to do; raises ExpiredTransaction."""
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
            hint="this one stops; what it had open was aborted", transaction_key=self._key,
            epoch=self._epoch,
        )  # fmt: skip

    def _producer(self, topic: str) -> Producer:
        if topic not in self._producers:
            self._producers[topic] = self._client.producer(topic)
        return self._producers[topic]


class _Unsendable(Exception):
    """Outputs that the store refuses: the function's fault."""

    def __init__(self, error: TxlogError) -> None:
        super().__init__(error.message)
        self.error = error


class _Resigned:
    """A handler that calls nothing: it gives its rows up."""

    wants_quiet = False
    may_split = False

    def __init__(self, error: BaseException, attempts: int) -> None:
        self._error, self._attempts = error, attempts

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Do with the rows what on_error says. Raises GivenUp."""
        attempt.give_up(rows, self._error, self._attempts)
        return Handled(rows)


def _joined(*tables: pa.Table | None) -> pa.Table:
    """Rows one after the other."""
    some = [table for table in tables if table is not None and table.num_rows]
    if not some:
        return RECEIVED.empty_table()
    return some[0] if len(some) == 1 else pa.concat_tables(some)
