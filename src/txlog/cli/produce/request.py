"""Owns the options of `produce`: for each its flag, its help, and the value that the work gets."""

from __future__ import annotations

import os
import re
from typing import Annotated, Final

import msgspec

from txlog.base.choices import AccessMode
from txlog.base.ids import TopicName, TxnId, check_name
from txlog.base.ranges import parse_size
from txlog.base.times import parse_duration
from txlog.cli.call.call import encoded, properties
from txlog.cli.line.command import Argument, Duration, Option, Time
from txlog.errors import InvalidArgument, Usage

ACCESS_MODES = ("shared", "exclusive", "exclusive-with-fencing", "wait-for-exclusive")
IN_FORMATS = ("lines", "ndjson", "envelope", "csv", "tsv", "raw", "null")
_BATCH_BYTES = 16 << 20  # bound on values, if --batch is a number of records
_MESSAGES_MAX = 1_000_000


class OnError(msgspec.Struct, frozen=True, gc=False):
    """The treatment of a bad record: `stop`, `skip`, or `dead-letter` and the topic for it."""

    action: str
    topic: str | None = None

    @classmethod
    def parse(cls, text: str) -> OnError:
        """Parse the value of --on-error. Raises Usage (201), InvalidArgument (202)."""
        action, colon, topic = text.partition(":")
        if action not in ("stop", "skip", "dead-letter") or bool(colon) != (
            action == "dead-letter"
        ):
            raise Usage(f"--on-error is stop, skip or dead-letter:TOPIC, not {text[:40]}")
        return cls(action, TopicName.parse(topic).short if colon else None)


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The size of a batch: number of records, and bytes of values."""

    messages: int = _MESSAGES_MAX
    bytes: int = _BATCH_BYTES

    @classmethod
    def parse(cls, text: str) -> Batch:
        """Parse N or SIZE. Raises InvalidArgument (203)."""
        is_count = text.isdecimal() and len(text) < 20
        batch = cls(messages=int(text)) if is_count else cls(bytes=parse_size(text))
        if not 1 <= batch.messages <= _MESSAGES_MAX or batch.bytes < 1:
            raise InvalidArgument("--batch is 1 to 1000000 records, or a size", code=203)
        return batch


class Every(msgspec.Struct, frozen=True, gc=False):
    """An interval: a number of messages, or a time."""

    messages: int | None = None
    ms: int | None = None


NEVER: Final = Every()
ON_ERROR: Final = Option(
    "--on-error", metavar="stop|skip|dead-letter:TOPIC", reads=OnError.parse, default="stop"
)


def _every(flag: str, text: str) -> Every:
    if text.isdecimal() and len(text) < 20 and int(text) > 0:
        return Every(messages=int(text))
    if text.isdecimal() or parse_duration(text) == 0:
        raise InvalidArgument(f"{flag} is a number or a time above 0", code=203)
    return Every(ms=parse_duration(text))


def _rate(text: str) -> float:
    """N/s, N/m or N/h as records a second."""
    parsed = re.fullmatch(r"([0-9]{1,9})(?:/(s|m|h))?", text)
    if parsed is None or int(parsed[1]) == 0:
        raise InvalidArgument(f'--rate is N/s, not "{text[:40]}"', code=203)
    return int(parsed[1]) / {"s": 1, "m": 60, "h": 3600}[parsed[2] or "s"]


class Request(msgspec.Struct, kw_only=True):
    """The options of one `produce`, checked as far as possible without the store.

    topic, partition: of the argument TOPIC, as orders or orders/2, and of --partition
    form:             of the input, by --in and the names of the files
    join:             the transaction to send in; another call began it and will end it
    """

    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)]
    files: Annotated[list[str], Argument(metavar="FILE", show_default=False)] = []
    chosen_form: Annotated[
        str | None,
        Option(
            *("--in", "-f", "--format"),
            metavar=f"{'|'.join(IN_FORMATS)}|%…",
            help="the input; else by the suffix of FILE, or lines",
        ),
    ] = None
    messages: Annotated[
        list[bytes] | None, Option("--message", "-m", metavar="TEXT…", many=True, reads=encoded)
    ] = None
    key: Annotated[bytes | None, Option("--key", "-k", metavar="KEY", reads=os.fsencode)] = None
    key_delimiter: Annotated[
        bytes | None, Option("--key-delim", "-K", metavar="STR", reads=os.fsencode)
    ] = None
    properties: Annotated[
        dict[str, str], Option("--prop", "-H", metavar="K=V…", many=True, reads=properties)
    ] = {}
    n: Annotated[int | None, Option("-n", min=0, metavar="N", help="at most N records")] = None
    partition: Annotated[int | None, Option("--partition", "-p", min=0, metavar="N")] = None
    event_time: Annotated[int | None, Time("--event-time")] = None
    deliver_after_ms: Annotated[
        int | None,
        Duration(
            "--deliver-after", help="deliver this long after storing, on shared subscriptions"
        ),
    ] = None
    deliver_at: Annotated[
        int | None,
        Time("--deliver-at", help="earliest delivery time"),
    ] = None
    require_newline: Annotated[bool, Option("--require-newline")] = False
    producer: Annotated[
        str | None,
        Option("--producer", metavar="NAME", reads=lambda name: check_name("producer", name)),
    ] = None
    seq_from: Annotated[int | None, Option("--seq-from", min=0, metavar="N")] = None
    access_mode: Annotated[
        AccessMode,
        Option(
            "--access-mode",
            choices=ACCESS_MODES,
            help="access of other producers",
            reads=str,
            default="shared",
        ),
    ] = "shared"
    watermark_from: Annotated[
        str | None, Option("--watermark-from", choices=("event-time",), help="assert watermarks")
    ] = None
    watermark_lag_ms: Annotated[
        int | None, Duration("--watermark-lag", help="expected lateness of messages")
    ] = None
    watermark_every: Annotated[
        Every,
        Option(
            "--watermark-every",
            metavar="N|DUR",
            help="also in between",
            reads=lambda text: _every("--watermark-every", text),
        ),
    ] = NEVER
    idle_on_close: Annotated[
        bool, Option("--idle-on-close", help="at the end, declare the producer idle")
    ] = False
    create: Annotated[bool, Option("--create", help="create the topic if it is missing")] = False
    batch: Annotated[Batch, Option("--batch", metavar="N|SIZE", reads=Batch.parse, default="5000")]
    flush_every_ms: Annotated[int, Duration("--flush-every", default="1s")]
    rate: Annotated[
        float | None,
        Option("--rate", metavar="N/s", help="at most this many records a second", reads=_rate),
    ] = None
    durability: Annotated[str | None, Option("--durability", choices=("sync", "os"))] = None
    chunking: Annotated[bool, Option("--chunking", help="allow large messages")] = False
    keep_partition: Annotated[bool, Option("--keep-partition", help="of an envelope")] = False
    keep_sequence: Annotated[bool, Option("--keep-sequence", help="of an envelope")] = False
    txn: Annotated[bool, Option("--txn", help="the whole input in one transaction")] = False
    txn_every: Annotated[
        Every,
        Option("--txn-every", metavar="N|DUR", reads=lambda text: _every("--txn-every", text)),
    ] = NEVER
    join: Annotated[
        TxnId | None, Option("--txn-id", metavar="ID", help="join it", reads=TxnId.parse)
    ] = None
    no_join: Annotated[bool, Option("--no-join", help="ignore TXLOG_TXN")] = False
    transaction_key: Annotated[str | None, Option("--transaction-key", metavar="KEY")] = None
    epoch: Annotated[int | None, Option("--epoch", metavar="N", help="of txn connect")] = None
    txn_timeout_ms: Annotated[int | None, Duration("--txn-timeout")] = None
    expect: Annotated[int | None, Option("--expect", min=0, metavar="N", help="records")] = None
    trailer: Annotated[bytes | None, Option("--trailer", metavar="LINE", reads=os.fsencode)] = None
    on_error: Annotated[OnError, ON_ERROR]
    ack_format: Annotated[str | None, Option("--ack-format", metavar="ndjson|%…")] = None

    form: str = "lines"

    @property
    def own_txn(self) -> bool:
        """Whether the run begins transactions of its own."""
        return self.txn or self.txn_every != NEVER

    @property
    def batch_messages(self) -> int:
        """Records of a batch: at most a transaction, and at most what --rate allows in 0.1 s."""
        most = self.batch.messages
        if self.rate is not None:
            most = min(most, max(1, int(self.rate / 10)))
        return min(most, self.txn_every.messages or most)
