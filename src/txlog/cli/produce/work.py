"""Owns the work of `produce`: input tables into batches, batches into frames or transactions.

    input ── limit, trailer ── batches ── columns of the flags ── send ── acknowledgement lines

With --txn-every the next transaction is filled while up to IN_FLIGHT_MAX commits are flushed. Each
commit depends on its predecessor, so the stored messages are always a prefix of the input.

When the flush of a peer fails, the recovery of the store aborts all open transactions. The run
keeps the calls of its own, up to KEPT_BYTES_MAX each, and makes them again in other transactions,
in order. It does so only if the store says that the recovery aborted the first of them; those
behind it depend on it.

The run ends its own transactions on every way out: it commits at the end of the input and aborts
in all other cases. If the abort fails, it looks the transaction up: another process, or a commit
whose answer was lost, may have committed it. It never ends a joined transaction. It writes whole
batches only: records of an unfinished batch before a bad record are discarded with it.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from txlog.base.ids import TxnId
from txlog.base.schemas.schema import told_names
from txlog.base.settings import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.base.suggest import command_line
from txlog.cli.call import progress
from txlog.cli.call.call import Call, is_terminal, split_key
from txlog.cli.input.inputs import Input, check_files, messages_table
from txlog.cli.produce import columns
from txlog.cli.produce.columns import Letters, Typed, filled
from txlog.cli.produce.request import NEVER, Request
from txlog.cli.produce.totals import Acks, Ended, Totals
from txlog.cli.terminal.signals import asked, raise_if_asked, shielded
from txlog.cli.terminal.tables import counted
from txlog.client.topics import created
from txlog.errors import (
    BadRecord,
    ConditionNotMet,
    InvalidMessage,
    InvalidTxnStatus,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PartlyDone,
    TopicNotFound,
    TryAgain,
    TxlogError,
    Usage,
    WrongState,
)

if TYPE_CHECKING:
    from txlog.base.rows.transactions import TransactionEnded
    from txlog.base.schemas.schema import Schema
    from txlog.client.client import Client
    from txlog.client.sending.producer import Producer
    from txlog.engine.door.sending import BatchReceipt, LargeReceipt
    from txlog.engine.door.transactions import CommitFuture

IN_FLIGHT_MAX: Final = 8
KEPT_BYTES_MAX: Final = 8 << 20  # of a transaction, nine of which may be unfinished
RECOVERIES_MAX: Final = 10  # in a row
T = TypeVar("T")
Act = Callable[[TxnId | None], "BatchReceipt | LargeReceipt | None"]


class Kept:
    """The calls that fill a transaction, so that they can be made again in another one.

    receipts: of its messages; is_whole: no call is missing, because they fit in memory
    """

    __slots__ = ("_bytes", "acts", "is_whole", "receipts")

    def __init__(self) -> None:
        self.acts: list[tuple[Act, int | None]] = []
        self.receipts: list[BatchReceipt | LargeReceipt] = []
        self.is_whole = True
        self._bytes = 0

    def add(self, act: Act, size: int | None) -> None:
        """Keep a call that has been made; size: of its messages; None: it can be made only once."""
        self._bytes += size or 0
        if size is None or self._bytes > KEPT_BYTES_MAX:
            self.is_whole = False
            self.acts.clear()
            self.receipts.clear()
        if self.is_whole:
            self.acts.append((act, size))


class Flight(NamedTuple):
    """A commit in flight: the messages that it stores, and their acknowledgement lines."""

    txn: TxnId
    future: CommitFuture
    messages: int
    rows: list[dict[str, Any]]
    kept: Kept


def run(call: Call, request: Request) -> None:
    """Write the input and print the summary."""
    if request.keep_sequence and request.producer is None:
        raise Usage("--keep-sequence needs --producer")
    if request.key_delimiter is not None and request.form not in ("lines", "ndjson", "null"):
        raise Usage(f"--key-delim does not go with --in {request.form}")
    if request.chunking and request.form == "raw" and request.trailer is not None:
        raise Usage(
            "--trailer does not go with --chunking and raw files: it does not look into them"
        )
    if request.deliver_at is not None and request.deliver_at <= call.now_ms():
        call.say("--deliver-at has passed: the messages are delivered at once")
    check_files(request.files)
    client = call.client(write=True, durability=request.durability)
    topics = [topic for topic in (request.topic, request.on_error.topic) if topic is not None]
    if not request.create:
        _run(call, request, client)
        return
    schema, told = _inferred(call, request, client)
    with created.created(client.store, topics, schema):
        if schema is not None:
            call.say(f"created {request.topic} with the schema {schema.words}{told}")
        _run(call, request, client)


def _inferred(call: Call, request: Request, client: Client) -> tuple[Schema | None, str]:
    """The schema for a topic that --create makes, if the input is rows of csv or tsv.

    The columns of a message (key, value, event_time, …) are no fields. Standard input is read to
    its end first, into a temporary file, as the types depend on all rows.
    """
    if request.form not in ("csv", "tsv") or request.messages is not None:
        return None, ""
    try:
        client.topic(request.topic)
    except TopicNotFound:
        pass
    else:
        return None, ""
    sources = request.files or ["-"]
    files = call.spooled(sources)
    head = Input(request.form, files)
    with suppress(BadRecord):  # the run reports it, or treats it as --on-error says
        next((table for table in head.tables() if table is not None), None)
    fields = [name for name in head.header or () if not columns.is_of_message(name)]
    request.files = files
    if not fields or "value" in (head.header or ()):
        return None, ""
    jobs = importlib.import_module("txlog.lake.jobs.import_files")
    try:
        schema: Schema = jobs.schema_of_files(files, request.form, fields)
    except BadRecord as error:
        for copy in {*files} - {*sources}:
            error.message = error.message.replace(copy, "standard input")
        if request.on_error.action == "stop":
            raise
        call.warn(f"{request.topic} gets no schema: {error.message}")
        return None, ""
    return schema, told_names(fields)


def _run(call: Call, request: Request, client: Client) -> None:
    if request.partition is not None:
        client.topic(f"{request.topic}/{request.partition}")  # raises if the partition is missing
    producer = client.producer(
        request.topic,
        request.producer,
        chunking=request.chunking,
        access_mode=request.access_mode,
    )
    if request.transaction_key is not None and request.epoch is None:
        owner, key = split_key(request.transaction_key)
        request.epoch = client.connect(key or "", owner=owner)["epoch"]
    Job(call, request, client, producer).run()


class Job:
    """One run of produce."""

    def __init__(self, call: Call, request: Request, client: Client, producer: Producer) -> None:
        self.call = call
        self.request = request
        self.client = client
        self.producer = producer
        self.totals = Totals(request)
        self.acks = Acks(call, request)
        self.marks = Marks(request, producer, self._make)
        self.letters = Letters(request, client)
        self.typed = Typed(client, request.topic, producer)
        self.txn: TxnId | None = None
        self.flights: deque[Flight] = deque()
        self.kept = Kept()
        self.aborted: deque[tuple[Kept, bool]] = deque()
        self.recoveries = 0
        self.txn_messages = 0
        self.txn_since = 0.0
        self.read = 0
        self.paced_since = 0.0
        self.pending_since: float | None = None
        limits = client.settings
        self._most = (
            limits.max_chunked_message_bytes if request.chunking else limits.max_message_bytes
        )
        size = None if request.messages is not None else progress.size_of(request.files)
        self.bar = progress.Amount(call, request.topic, size, prints=request.ack_format is not None)
        if request.messages is None and "-" in (request.files or ["-"]) and is_terminal(0):
            self.bar.shows = False  # the user is typing
        self.input = Input(
            request.form,
            request.files,
            key_delimiter=request.key_delimiter,
            skip_bad=request.on_error.action == "skip",
            aside=None if request.on_error.topic is None else self._aside,
            require_newline=request.require_newline,
            now_ms=call.now_ms(),
            warn=call.warn,
            wait_s=self._wait_s,
            seen=self.bar.count,
            value_bytes_max=self._most if request.chunking else MESSAGE_BYTES_MAX,
        )

    def run(self) -> None:
        """Read, send, commit; on any failure abort and report it."""
        request = self.request
        try:
            if request.txn:
                self._begin()
            with self.bar:
                if request.chunking and request.form == "raw" and request.messages is None:
                    self._send_files()
                else:
                    self._send_records()
            self._check_expectations()
            self.marks.send()
            self._land(0)
            self._commit()
            self.marks.close()
        except TxlogError as error:
            with shielded():
                raise self._failed(error) from error
        except BaseException:  # a signal must also end the transactions
            became = self._abort(in_doubt=self._wind_up())
            exit = asked()
            if exit is not None:
                self.totals.stopped(self.call, exit, self.read, request.join, became)
            raise
        self.totals.skipped = self.input.skipped
        self.totals.dead_lettered = self.letters.taken
        self.totals.report(self.call, request.join, self.marks.last)

    def _send_records(self) -> None:
        for table in self._batches():
            if table is None:
                self.marks.send_if_due()
                self._commit_if_due()
                self._land(0)
            else:
                self._send(table)
            self._send_letters()
        self._send_letters()

    def _aside(self, record: bytes | None, error: BadRecord) -> None:
        self.letters.add(record, error)
        if len(self.letters.held) >= self.request.batch_messages:
            self._send_letters()

    def _send_letters(self) -> None:
        """Send the bad records set aside so far, in the transaction of the good ones."""
        if not self.letters.held:
            return
        if self.request.own_txn and self.txn is None:
            self._begin()
        letters = self.letters.take()
        self._make(lambda txn: self.letters.send(letters, txn), letters.nbytes)

    def _send_files(self) -> None:
        """Send each file as one message, block by block."""
        for line, path in enumerate(self.input.files[: self.request.n], 1):
            if self.request.own_txn and self.txn is None:
                self._begin()
            self.read += 1
            empty = pa.table({"line": [line], "value": pa.nulls(1, pa.binary())})
            data = filled(self.request, empty, self.totals.sent).drop_columns("value")
            self._make(self._sending(data, self._pieces(path)), None)
            self._sent(data)

    def _pieces(self, path: str | None) -> Iterator[bytes]:
        for piece in columns.pieces(path):
            self.bar.count(len(piece))
            yield piece

    def _batches(self) -> Iterator[pa.Table | None]:
        """Yield tables of at most a batch, and None when no input came for a while."""
        tables: list[pa.Table] = []
        rows = 0
        for table in self._values():
            if table is not None and len(table):
                tables.append(table)
                rows += len(table)
                self.pending_since = self.pending_since or time.monotonic()
            while rows and self._is_full(tables, rows):
                whole = pa.concat_tables(tables, promote_options="default")
                count = self._batch_rows(whole)
                yield whole.slice(0, count)
                remainder = whole.slice(count)
                rows = len(remainder)
                tables = [remainder] if rows else []
                self.pending_since = time.monotonic() if rows else None
            if table is None:
                if tables and self._is_due():
                    yield pa.concat_tables(tables, promote_options="default")
                    tables, rows, self.pending_since = [], 0, None
                yield None
        if tables:
            self.pending_since = None
            yield pa.concat_tables(tables, promote_options="default")

    def _values(self) -> Iterator[pa.Table | None]:
        """Yield the records as values for the topic; the producer checks values of -m."""
        for table in self._records():
            if table is None:
                yield None
            elif self.request.messages is not None:
                yield self.typed.numbered(table)
            else:
                yield from self.typed.fitting(self.input, table)

    def _records(self) -> Iterator[pa.Table | None]:
        """Yield the records of the input up to the limit, without the trailer."""
        request = self.request
        if request.messages is not None:
            source: Iterator[pa.Table | None] = iter([messages_table(request.messages)])
        else:
            source = self.input.tables()
        last: pa.Table | None = None
        remaining = request.n
        for table in source:
            if remaining == 0:
                break
            if table is not None and remaining is not None:
                table = table.slice(0, remaining)
                remaining -= len(table)
            if table is not None and request.trailer is not None:
                whole = table if last is None else pa.concat_tables([last, table])
                last = whole.slice(len(whole) - 1)
                table = whole.slice(0, len(whole) - 1)
            if table is not None:
                table = self._within_size(table)
                self.read += len(table)
                self.bar.records = self.read
            yield table
            if remaining == 0:
                break
        if request.trailer is not None and (
            last is None or last["value"][0].as_py() != request.trailer
        ):
            raise ConditionNotMet("the last record is not the trailer", code=803)

    def _within_size(self, table: pa.Table) -> pa.Table:
        """Treat a record too large for a message as a bad record (spec/cli 12.3)."""
        most = self._most
        if self.request.messages is not None or not len(table):
            return table
        lengths = pc.fill_null(pc.binary_length(table["value"]), 0)
        large = pc.greater(lengths, most)
        if "key" in table.column_names:
            keys = pc.fill_null(pc.binary_length(table["key"]), 0)
            large = pc.or_(pc.greater(pc.add(lengths, keys), most), pc.greater(keys, KEY_BYTES_MAX))
        if not pc.any(large).as_py():
            return table
        for line in table["line"].filter(large).to_pylist():
            name = "max_chunked_message_bytes" if self.request.chunking else "max_message_bytes"
            reason = f"line {line}: more than {name} {most}, or its key is too long"
            if not self.input.skip_bad:
                if self.request.chunking:
                    raise LimitExceeded(reason, line=line, setting=name, limit=most)
                hint = "--chunking turns chunking on"
                raise InvalidMessage(reason, code=104, line=line, hint=hint)
            self.input.bad(BadRecord(reason, line=line), None)
        return table.filter(pc.invert(large))

    def _send(self, table: pa.Table) -> None:
        """Send records, in pieces that end where a commit or a watermark is due."""
        txn_messages_max = self.request.txn_every.messages
        while len(table):
            if self.request.own_txn and self.txn is None:
                self._begin()
            rooms = [len(table)]
            if txn_messages_max is not None:
                rooms.append(txn_messages_max - self.txn_messages)
            if self.marks.room is not None:
                rooms.append(self.marks.room)
            self._pace()
            self._send_some(table.slice(0, min(rooms)))
            table = table.slice(min(rooms))

    def _pace(self) -> None:
        """Wait until --rate allows the next record; the first records go at once."""
        rate = self.request.rate
        if rate is None:
            return
        self.paced_since = self.paced_since or time.monotonic()
        due = self.paced_since + self.totals.sent / rate
        while (delay_s := due - time.monotonic()) > 0:
            time.sleep(min(delay_s, 0.1))
            raise_if_asked()

    def _send_some(self, table: pa.Table) -> None:
        whole = filled(self.request, table, self.totals.sent)
        most, at = self.client.settings.max_message_bytes, 0
        for data in columns.runs(whole, most) if self.request.chunking else [whole]:
            try:
                self._make(self._sending(data), data.nbytes)
            except InvalidMessage as error:
                if self.request.messages is not None:
                    raise
                line = table["line"][at].as_py()
                raise InvalidMessage(
                    f"line {line} or after: {error.message}",
                    code=104,
                    hint=error.hint,
                    **{**error.fields, "line": line},
                ) from error
            at += len(data)
            self._sent(data)

    def _sending(self, data: pa.Table, value: Iterator[bytes] | None = None) -> Act:
        """The call that sends a table, and counts it."""
        sequences = data["sequence_id"] if "sequence_id" in data.column_names else None

        def send(txn: TxnId | None) -> BatchReceipt | LargeReceipt:
            receipt = columns.send(self.producer, data, txn, value)
            self.txn_messages += len(data)
            self.totals.add(receipt, txn is not None)
            self.acks.add(receipt, sequences, txn)
            return receipt

        return send

    def _sent(self, data: pa.Table) -> None:
        self.bar.done = self.totals.sent
        if self.txn is None:
            self.acks.flush()
        self.marks.note(data)
        self._commit_if_due()

    def _within(self) -> TxnId | None:
        """The transaction that the messages belong to, if any."""
        return self.txn or self.request.join

    def _begin(self) -> None:
        with shielded():
            owner, key = split_key(self.request.transaction_key)
            self.txn = self.client.begin(
                self.request.txn_timeout_ms, key=key, epoch=self.request.epoch, owner=owner
            )["txn"]
        self.kept = Kept()
        self.txn_messages = 0
        self.txn_since = time.monotonic()

    def _make(self, act: Act, size: int | None) -> None:
        """Make a call in the transaction, if any; size: as in Kept.add."""
        self._persist(lambda: self._keep(act, size))

    def _keep(self, act: Act, size: int | None) -> None:
        with shielded():
            receipt = act(self._within())
            if self.txn is None:
                return
            self.kept.add(act, size)
            if receipt is not None and self.kept.is_whole:
                self.kept.receipts.append(receipt)

    def _commit_if_due(self) -> None:
        """End a transaction of --txn-every that is full or old enough."""
        interval = self.request.txn_every
        if self.txn is None:
            return
        full = interval.messages is not None and self.txn_messages >= interval.messages
        old = interval.ms is not None and (time.monotonic() - self.txn_since) * 1000 >= interval.ms
        if full or old:
            self.marks.commit()
            self._take_off(self.txn)

    def _commit(self) -> None:
        """Commit the open transaction, if any."""
        self._persist(self._commit_open)

    def _commit_open(self) -> None:
        if self.txn is None:
            return
        with shielded():
            raise_if_asked()
            try:
                answer = self.client.commit(self.txn)
            except OutcomeUnknown as error:
                answer = self._commit_again(self.txn, error)
            self.txn = None
            self.recoveries = 0
            self.totals.committed(answer)
        self.acks.committed(answer)

    def _commit_again(self, txn: TxnId, error: TxlogError) -> TransactionEnded:
        """Repeat a commit: it returns the outcome, and commits if the first call did not."""
        try:
            return self.client.commit(txn)
        except TxlogError as again:
            if isinstance(again, InvalidTxnStatus) and again.aborted_by_recovery:
                raise
            raise error from again

    # --- commits in flight -------------------------------------------------------------------

    def _take_off(self, txn: TxnId) -> None:
        """Commit without waiting, unless too many commits are in flight."""
        with shielded():
            raise_if_asked()
            after = self.flights[-1].future if self.flights else None
            future = self.client.commit_async(txn, after)
            messages, rows = self.totals.take(), self.acks.take()
            self.flights.append(Flight(txn, future, messages, rows, self.kept))
            self.txn = None
        self._land(IN_FLIGHT_MAX - 1)

    def _land(self, most: int) -> None:
        """Wait until at most so many commits are in flight."""
        self._persist(lambda: self._settle(most))

    def _settle(self, most: int) -> None:
        """As `_land`; raises the error of the oldest."""
        flights = self.flights
        while flights and (len(flights) > most or flights[0].future.done()):
            with shielded():
                oldest = flights[0]
                answer = self._outcome(oldest)
                flights.popleft()
                self.recoveries = 0
                self.totals.committed(answer, oldest.messages)
            self.acks.committed(answer, oldest.rows)

    def _outcome(self, flight: Flight) -> TransactionEnded:
        try:
            answer = flight.future.result()
        except (OutcomeUnknown, TryAgain) as error:  # all before it are committed
            return self._commit_again(flight.txn, error)
        return self.client.describe_end(answer)

    # --- after a recovery of the store -------------------------------------------------------

    def _persist(self, step: Callable[[], None]) -> None:
        """Take a step. If a recovery aborts the transactions, send them again, then repeat it."""
        while True:
            try:
                self._send_again()
                step()
                return
            except InvalidTxnStatus as error:
                self._take_aborted(error)

    def _send_again(self) -> None:
        """Fill a transaction for each that was aborted; commit those that were full."""
        while self.aborted:
            kept, is_full = self.aborted[0]
            self._begin()
            for act, size in kept.acts:
                self._keep(act, size)
            if is_full:
                self._commit_open()
            self.aborted.popleft()

    def _take_aborted(self, error: InvalidTxnStatus) -> None:
        """Abort all unfinished transactions, to send them again.

        raises: the error, if no recovery caused it, or not all calls are kept
        """
        try:
            self._settle(0)  # the commits before the recovery stand
        except InvalidTxnStatus as first:
            error = first
        unfinished = [flight.kept for flight in self.flights]
        if self.txn is not None:
            unfinished.append(self.kept)
        may_repeat = error.aborted_by_recovery and self.recoveries < RECOVERIES_MAX
        if not unfinished or not may_repeat or not all(kept.is_whole for kept in unfinished):
            raise error
        self.recoveries += 1
        with shielded():
            for flight in self.flights:
                flight.future.exception()  # waits for it
                self.client.abort(flight.txn)
            if self.txn is not None:
                self.client.abort(self.txn)
            for receipt in (receipt for kept in unfinished for receipt in kept.receipts):
                self.totals.add(receipt, True, times=-1)
            if not self.aborted:  # else its first one is the open transaction
                self.aborted.extend((flight.kept, True) for flight in self.flights)
                self.aborted.extend([] if self.txn is None else [(self.kept, False)])
            self.flights.clear()
            self.txn = None
            self.totals.take()
            self.acks.take()
        count = counted(len(unfinished), "transaction")
        self.call.warn(f"{error.message}: the records of {count} are sent again")

    def _wind_up(self) -> bool:
        """On a way out: wait for the commits in flight, and abort all behind one that failed.

        The failed one is the open transaction then. Returns whether it may be committed.
        """
        try:
            self._settle(0)
        except TxlogError as error:
            failed, later = self.flights[0], [flight.txn for flight in self.flights][1:]
            self.flights.clear()
            with shielded():
                for txn in (*later, *([] if self.txn is None else [self.txn])):
                    with suppress(TxlogError):  # its time-out ends it
                        self.client.abort(txn)
            self.txn = failed.txn
            self.totals.take_back(failed.messages)
            return error.exit == 10
        return False

    def _abort(self, *, in_doubt: bool = False) -> Ended | None:
        """Abort the run's own open transaction; look it up if it cannot be aborted.

        in_doubt: a commit failed, and may be durable
        """
        txn, self.txn = self.txn, None
        if txn is None:
            return None
        ended = Ended(txn, "aborted")
        with shielded():
            try:
                self.client.abort(txn)
            except TxlogError as error:
                ended = Ended(txn, self._state(txn, in_doubt), error.message)
        if ended.is_stored:
            self.totals.stored(txn)
        return ended

    def _state(self, txn: TxnId, in_doubt: bool) -> str | None:
        """The state of a transaction; None if it may be, or may yet become, committed."""
        try:
            state: str = self.client.show_transaction(txn)["state"]
        except NotFound:  # it has ended, and is forgotten
            return None
        except TxlogError:
            state = "open"
        return None if in_doubt and state == "open" else state

    def _failed(self, error: TxlogError) -> TxlogError:
        """Abort, and return the error to raise: PartlyDone if some messages are durable."""
        in_doubt = self._wind_up() or error.exit == 10
        discarded = self.txn_messages if self.txn is not None else 0
        became = self._abort(in_doubt=in_doubt)
        message = error.message
        fields = {**error.fields}
        if became is not None:
            discarded = max(discarded, self.read - self.totals.durable)
            message = f"{message}; {became.told(discarded)}"
            fields["txn"] = became.txn
            if isinstance(error, WrongState) and self.request.own_txn:  # another call ended it
                advice = "send what was not stored" if self.totals.durable else "run it again"
                error.hint = f"{advice}: the transaction stored nothing"
            if became.state is None:
                hint = f"ask before anything else: {command_line('txn show', became.txn)}"
                error = OutcomeUnknown(message, hint=hint)
        if not self.totals.durable or error.exit == 10:
            error.message, error.fields = message, fields
            return error
        partly = PartlyDone(
            f"{message}; {self.totals.stored_before()}",
            hint=error.hint,
            done=[{"name": self.request.topic, "messages": self.totals.durable}],
            failed_list=[
                {
                    "name": self.request.topic,
                    "code": f"TXL-{error.code}",
                    "message": error.message,
                }
            ],
        )
        partly.fields.update(fields)
        return partly

    def _check_expectations(self) -> None:
        expected = self.request.expect
        if expected is not None and self.read != expected:
            raise ConditionNotMet(
                f"{counted(self.read, 'record')}, {expected} were expected", code=803
            )

    def _batch_rows(self, whole: pa.Table) -> int:
        """Return the number of rows that make a batch."""
        most = self.request.batch.bytes
        count = min(len(whole), self.request.batch_messages)
        if whole["value"].nbytes > most:
            ends = pc.cumulative_sum(pc.fill_null(pc.binary_length(whole["value"]), 0))
            within = pc.sum(pc.less_equal(ends, most)).as_py() or 0
            count = min(count, max(1, within))
        return count

    def _is_full(self, tables: list[pa.Table], rows: int) -> bool:
        most = self.request.batch.bytes
        if rows >= self.request.batch_messages or self._is_due():
            return True
        return bool(sum(table["value"].nbytes for table in tables) >= most)

    def _is_due(self) -> bool:
        if self.pending_since is None:
            return False
        return (time.monotonic() - self.pending_since) * 1000 >= self.request.flush_every_ms

    def _wait_s(self) -> float | None:
        """How long a read may wait: until records, a transaction or a watermark are due."""
        now = time.monotonic()
        stops = [now] if self.flights else []
        if self.pending_since is not None:
            stops.append(self.pending_since + self.request.flush_every_ms / 1000)
        if self.txn is not None and self.request.txn_every.ms is not None:
            stops.append(self.txn_since + self.request.txn_every.ms / 1000)
        mark_s = self.marks.wait_s()
        if mark_s is not None:
            stops.append(now + mark_s)
        return max(0.0, min(stops) - now) if stops else None


class Marks:
    """The watermarks of one run: its greatest event time, less the lag."""

    def __init__(
        self, request: Request, producer: Producer, make: Callable[[Act, int], None]
    ) -> None:
        """make: makes a call in the transaction of the run, if any."""
        self._request = request
        self._producer = producer
        self._make = make
        self._greatest: int | None = None
        self._asserted = 0
        self._messages = 0
        self._since = time.monotonic()

    @property
    def last(self) -> int | None:
        """The last asserted watermark; None before the first."""
        return self._asserted or None

    @property
    def room(self) -> int | None:
        """How many messages may be sent before the next watermark is due; None: any number."""
        most = self._request.watermark_every.messages
        return None if most is None else most - self._messages

    def note(self, data: pa.Table) -> None:
        """Count messages that were sent; assert a watermark if one is due."""
        if self._request.watermark_from is None:
            return
        self._messages += len(data)
        if "event_time" in data.column_names:
            greatest = pc.max(data["event_time"].cast(pa.int64())).as_py()
            if greatest is not None and (self._greatest is None or greatest > self._greatest):
                self._greatest = greatest
        if self.room == 0 or self.wait_s() == 0:
            self.send()

    def wait_s(self) -> float | None:
        """Seconds until a watermark is due by time; None: none will be."""
        interval_ms = self._request.watermark_every.ms
        if interval_ms is None or not self._rises():
            return None
        return max(0.0, self._since + interval_ms / 1000 - time.monotonic())

    def commit(self) -> None:
        """Before a commit of --txn-every, assert a watermark if no interval is set for them."""
        if self._request.watermark_every == NEVER:
            self.send()

    def send_if_due(self) -> None:
        """Assert a watermark if its time has come, even without a new message."""
        if self.wait_s() == 0:
            self.send()

    def send(self) -> None:
        """Assert the current watermark if it is higher than the last one."""
        self._messages, self._since = 0, time.monotonic()
        if self._rises():
            event_time = self._value()

            def send(txn: TxnId | None) -> None:
                self._producer.new_watermark(txn).event_time(event_time).send()

            self._make(send, 0)
            self._asserted = event_time

    def close(self) -> None:
        """With --idle-on-close, declare the producer idle, so that no watermark waits for it.

        In a joined transaction it becomes idle at the commit, when its messages become visible.
        """
        if self._request.idle_on_close:
            with shielded():
                self._producer.new_watermark(self._request.join).mark_idle().send()

    def _rises(self) -> bool:
        return self._request.watermark_from is not None and self._value() > self._asserted

    def _value(self) -> int:
        lag_ms = self._request.watermark_lag_ms or 0
        return 0 if self._greatest is None else self._greatest - lag_ms
