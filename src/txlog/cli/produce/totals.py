"""Owns the report of `produce`: totals, positions, the summary line, the acknowledgement lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.base.startup import json as orjson
from txlog.base.text.columns import data_of
from txlog.base.text.messages import Messages
from txlog.base.times import format_time
from txlog.cli.call.call import Call, split_key
from txlog.cli.output import percent
from txlog.cli.produce.request import Request
from txlog.cli.terminal.tables import counted, duration, local_time, size

if TYPE_CHECKING:
    from txlog.engine.door.sending import BatchReceipt, LargeReceipt


class PartitionTotal:
    """The messages that were sent to one partition."""

    __slots__ = ("first", "last", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.first: MessageId | None = None
        self.last: MessageId | None = None

    def reach(self, first: MessageId | None, last: MessageId | None) -> None:
        """Extend the range of ids by these two; None leaves that end as it is."""
        self.first = self.first or first
        self.last = last or self.last


class Ended(NamedTuple):
    """How the own transaction of a failed run ended.

    state:   as the store has it after the abort; None: it cannot be looked up
    refused: why the abort failed, or None
    """

    txn: TxnId
    state: str | None
    refused: str | None = None

    @property
    def is_stored(self) -> bool:
        """Whether its messages are stored: its commit was durable, or another process did it."""
        return self.state in ("committing", "committed")

    def told(self, discarded: int) -> str:
        """Describe the end of the transaction, and the loss of the records read for it."""
        if self.is_stored:
            return f"transaction {self.txn} was committed"
        if self.state is None:
            return f"whether transaction {self.txn} was committed is unknown ({self.refused})"
        lost = f"{counted(discarded, 'record')} discarded"
        if self.state == "open":
            return (
                f"transaction {self.txn} could not be aborted ({self.refused}) and ends by its "
                f"time-out; {lost}"
            )
        return f"transaction {self.txn} aborted, {lost}"


class Totals:
    """The figures of one run; `durable` counts messages that no later abort discards."""

    def __init__(self, request: Request) -> None:
        self.topic = request.topic
        self._request = request
        self.sent = 0
        self.messages = 0
        self.bytes = 0
        self.duplicates = 0
        self.skipped = 0
        self.dead_lettered = 0
        self.beyond_ttl = 0
        self.durable = 0
        self.transactions = 0
        self.places: dict[int, PartitionTotal] = {}
        self.last_txn: TxnId | None = None
        self._open = 0

    def add(self, receipt: BatchReceipt | LargeReceipt, in_txn: bool, times: int = 1) -> None:
        """Count one batch; times: -1: it was aborted, and will be sent again."""
        duplicates = times * int(receipt.duplicates)
        stored = times * receipt.messages
        self.sent += stored + duplicates
        self.messages += stored
        self.bytes += times * receipt.bytes
        self.duplicates += duplicates
        self.beyond_ttl += times * receipt.beyond_ttl
        if in_txn:
            self._open += stored
        else:
            self.durable += stored
        for part in receipt.partitions:
            total = self.places.setdefault(part.partition, PartitionTotal())
            total.messages += times * part.messages
            if not in_txn:
                total.reach(part.first, part.last)

    def stored_before(self) -> str:
        """Describe how many records are stored although the run failed."""
        if self.durable == 1:
            return "1 record before it is stored"
        return f"{self.durable} records before it are stored"

    def take(self) -> int:
        """The messages of the open transaction, whose commit is in flight from now on."""
        messages, self._open = self._open, 0
        return messages

    def take_back(self, messages: int) -> None:
        """Count the messages in the open transaction again: their commit failed."""
        self._open = messages

    def stored(self, txn: TxnId, messages: int | None = None) -> None:
        """Count a transaction that was committed.

        messages: its messages, as `take` gave them; None: all messages of the open transaction
        """
        self.transactions += 1
        self.last_txn = txn
        self.durable += self.take() if messages is None else messages

    def committed(self, answer: Mapping[str, Any], messages: int | None = None) -> None:
        """Count one commit, as `stored`; its markers complete the ids."""
        self.stored(answer["txn"], messages)
        for row in answer.get("marker_list") or []:
            total = self.places.get(row["partition"])
            if total is not None:
                marker = as_id(row["marker"])
                count = int(row.get("messages") or total.messages)
                total.reach(
                    MessageId(marker.ledger, marker.entry, 1),
                    MessageId(marker.ledger, marker.entry, count),
                )

    def stopped(
        self, call: Call, exit: int, read: int, joined: TxnId | None, ended: Ended | None
    ) -> None:
        """Report how far a run got before a signal ended it, and the end of its transaction.

        read: records of the input, including records in unfinished batches
        ended: the run's own transaction that was open; None without one
        """
        discarded = read - self.sent + (0 if ended is None else self._open)
        text = f"{counted(self.durable, 'message')} stored in {self.topic}"
        txn, state = self.last_txn, None if self.last_txn is None else "committed"
        if ended is not None:
            txn, state = ended.txn, ended.state
            text += f"; {ended.told(discarded)}"
        elif joined is not None:
            txn, state = joined, "open"
            text = f"{counted(self._open, 'message')} of {self.topic} in transaction {joined}"
            text += ", which is left open"
        if (ended is None or ended.is_stored) and discarded:
            text += f"; {counted(discarded, 'record')} of the input discarded"
        call.stopped(
            exit,
            text,
            {
                "topic": self.topic,
                "messages": self._open if joined is not None else self.durable,
                "discarded": discarded,
                "transactions": self.transactions,
                "txn": txn,
                "txn_state": state,
            },
        )

    def report(self, call: Call, joined: TxnId | None, watermark: int | None) -> None:
        """Print the summary line, or the result object."""
        txn = joined or self.last_txn
        elapsed_ms = call.elapsed_ms()
        plural = "" if self.messages == 1 else "s"
        text = f"{self.messages:,} message{plural} in {self.topic}{self._where(joined)}"
        text += f" ({size(self.bytes)}, {duration(elapsed_ms)})"
        if self.transactions == 1:
            text = f"committed {self.last_txn}: {text}"
        elif self.transactions:
            text = f"committed {self.transactions:,} transactions, last {self.last_txn}: {text}"
        if self.duplicates:
            text += f", {self.duplicates:,} duplicate{'' if self.duplicates == 1 else 's'}"
        if self.skipped:
            text += f", {self.skipped:,} left out"
        if self.dead_lettered:
            text += f", {self.dead_lettered:,} dead letters"
        if watermark is not None:
            text += f", watermark {format_time(watermark)}"
        due_ms = self._request.deliver_at
        if due_ms is not None and due_ms > call.now_ms() and self.messages:
            text += f", due {local_time(format_time(due_ms), call.flags.utc)}"
        call.summary(text)
        if self.beyond_ttl:
            late = f"{self.beyond_ttl:,} message{'' if self.beyond_ttl == 1 else 's'}"
            call.warn(
                f"{late} will expire before delivery: the time to live of {self.topic} ends earlier"
            )
        rows = [
            {"partition": number, "messages": p.messages, "first": p.first, "last": p.last}
            for number, p in sorted(self.places.items())
        ]
        call.output.result(
            {
                "topic": self.topic,
                "messages": self.messages,
                "size_bytes": self.bytes,
                "duplicates": self.duplicates,
                "skipped": self.skipped,
                "dead_lettered": self.dead_lettered,
                "partition_list": rows,
                "transactions": self.transactions,
                "txn": txn,
                "txn_state": None if txn is None else "open" if joined else "committed",
                "transaction_key": split_key(self._request.transaction_key)[1],
                "epoch": self._request.epoch,
                "elapsed_ms": elapsed_ms,
            }
        )

    def _where(self, joined: TxnId | None) -> str:
        if joined is not None:
            return f", in transaction {joined}"
        if len(self.places) > 1:
            return f", {len(self.places)} partitions"
        total = next(iter(self.places.values()), None)
        if total is None or total.first is None:
            return ""
        return f", {total.first}" + (f" to {total.last}" if total.last != total.first else "")


class Acks:
    """The lines of --ack-format, each printed once its message is durable."""

    def __init__(self, call: Call, request: Request) -> None:
        self._call = call
        self._topic = request.topic
        self._producer = request.producer
        self._wanted = request.ack_format
        is_json = self._wanted in (None, "ndjson")
        self._format = None if is_json else percent.Format(self._wanted or "")
        self._held: list[dict[str, Any]] = []
        self._number = 0

    def add(
        self,
        receipt: BatchReceipt | LargeReceipt,
        sequences: pa.ChunkedArray | None,
        txn: TxnId | None,
    ) -> None:
        """Add the rows of one batch; `flush` or `committed` prints them.

        sequences: sequence ids that were sent with the rows; None without any
        """
        if self._wanted is None:
            return
        rows = receipt.receipts()
        sequence_ids = [None] * len(rows) if sequences is None else sequences.to_pylist()
        for sent, sequence in zip(rows, sequence_ids, strict=True):
            row = {
                "topic": self._topic,
                "partition": sent.partition,
                "id": sent.message_id,
                "txn": txn,
                "index": sent.txn_index,
                "sequence_id": sequence,
                "duplicate": sent.duplicate,
            }
            self._held.append(row)

    def flush(self) -> None:
        """Print the rows that wait for no commit."""
        self._print(self.take())

    def take(self) -> list[dict[str, Any]]:
        """The rows of the open transaction, whose commit is in flight from now on."""
        rows, self._held = self._held, []
        return rows

    def committed(
        self, answer: Mapping[str, Any], rows: list[dict[str, Any]] | None = None
    ) -> None:
        """Fill in the ids, which follow from the commit markers, and print.

        rows: as `take` gave them; None: all messages of the open transaction
        """
        rows = self.take() if rows is None else rows
        markers = {
            row["partition"]: as_id(row["marker"]) for row in answer.get("marker_list") or []
        }
        for row in rows:
            marker = markers.get(row["partition"])
            if marker is not None and row["index"]:
                row["id"] = MessageId(marker.ledger, marker.entry, row["index"])
        self._print(rows)

    def _print(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        data: bytes | memoryview
        if self._format is None:
            data = b"".join([_line(row) for row in rows])
        else:
            data = data_of(self._format.lines(Messages(self._columns(rows))))
        self._number += len(rows)
        self._call.output.answer(str(data, "utf-8", "surrogateescape"))

    def _columns(self, rows: list[dict[str, Any]]) -> pa.Table:
        """The rows as columns, in the form that %-formats read."""
        places: list[MessageId | None] = [row["id"] for row in rows]
        txns: list[TxnId | None] = [row["txn"] for row in rows]
        columns: dict[str, list[Any]] = {
            "topic": [row["topic"] for row in rows],
            "partition": [row["partition"] for row in rows],
            "ledger": [None if message_id is None else message_id.ledger for message_id in places],
            "entry": [None if message_id is None else message_id.entry for message_id in places],
            "index": [None if row["txn"] is None else row["index"] for row in rows],
            "txn_most": [None if txn is None else txn.most for txn in txns],
            "txn_least": [None if txn is None else txn.least for txn in txns],
            "sequence_id": [row["sequence_id"] for row in rows],
            "producer": [self._producer] * len(rows),
            "number": list(range(self._number, self._number + len(rows))),
        }
        texts = ("topic", "producer")
        return pa.table(
            {
                name: pa.array(values, pa.string() if name in texts else pa.int64())
                for name, values in columns.items()
            }
        )


def _line(row: dict[str, Any]) -> bytes:
    message_id: MessageId | None = row["id"]
    txn: TxnId | None = row["txn"]
    fields = {
        "topic": row["topic"],
        "partition": row["partition"],
        "message_id": None if message_id is None else str(message_id),
        "txn": None if txn is None else str(txn),
        "txn_index": row["index"] if txn is not None else None,
        "sequence_id": row["sequence_id"],
        "duplicate": row["duplicate"],
    }
    return orjson.dumps(fields) + b"\n"


def as_id(value: object) -> MessageId:
    """Return a message id, parsing it if it is text."""
    return value if isinstance(value, MessageId) else MessageId.parse(str(value))
