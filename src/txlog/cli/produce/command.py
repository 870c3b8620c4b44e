"""Owns the options of `produce`; the work is in `work`."""

from __future__ import annotations

import importlib
import os
import re
from typing import Annotated

from txlog.base.ids import TopicName, check_name
from txlog.base.ranges import parse_duration, parse_instant, parse_size
from txlog.cli.call.call import Call, is_terminal, utf8
from txlog.cli.input import percent as percentin
from txlog.cli.line.command import command, exclusive
from txlog.cli.line.declared import Argument, Option
from txlog.cli.output import percent
from txlog.cli.produce.request import BATCH_BYTES, Request
from txlog.errors import InvalidArgument, Usage

ACCESS_MODES = ("shared", "exclusive", "exclusive-with-fencing", "wait-for-exclusive")
IN_FORMATS = ("lines", "ndjson", "envelope", "csv", "tsv", "raw", "null")


@command(
    "produce",
    "write messages from stdin, files or -m",
    examples=(
        "seq 3 | txlog produce orders",
        "txlog produce orders -m 'pay the bill' -k ana -H lang=en --deliver-after 90s",
        "printf 'ana:hello\\nbob:bye\\n' | txlog produce orders --in '%k:%v\\n' --txn",
        "txlog produce orders in.ndjson --in envelope --watermark-from event-time "
        "--watermark-lag 5m",
    ),
    rows="sending.Produced",
    changes=True,
    input_format=True,
)
def produce(
    call: Call,
    topic: Annotated[str, Argument(metavar="TOPIC", show_default=False)],
    files: Annotated[list[str] | None, Argument(metavar="FILE", show_default=False)] = None,
    form: Annotated[
        str,
        Option("--in", "-f", "--format", metavar=f"{'|'.join(IN_FORMATS)}|%…", help="the input"),
    ] = "lines",
    message: Annotated[list[str] | None, Option("--message", "-m", metavar="TEXT…")] = None,
    key: Annotated[str | None, Option("--key", "-k", metavar="KEY")] = None,
    key_delim: Annotated[str | None, Option("--key-delim", "-K", metavar="STR")] = None,
    prop: Annotated[list[str] | None, Option("--prop", "-H", metavar="K=V…")] = None,
    n: Annotated[int | None, Option("-n", min=0, metavar="N", help="at most N records")] = None,
    partition: Annotated[int | None, Option("--partition", "-p", min=0, metavar="N")] = None,
    event_time: Annotated[str | None, Option("--event-time", metavar="TIME")] = None,
    deliver_after: Annotated[
        str | None, Option("--deliver-after", metavar="DUR", help="deliver this long after storing")
    ] = None,
    deliver_at: Annotated[
        str | None, Option("--deliver-at", metavar="TIME", help="earliest delivery time")
    ] = None,
    require_newline: Annotated[bool, Option("--require-newline")] = False,
    producer: Annotated[str | None, Option("--producer", metavar="NAME")] = None,
    seq_from: Annotated[int | None, Option("--seq-from", min=0, metavar="N")] = None,
    access_mode: Annotated[
        str,
        Option(
            "--access-mode",
            metavar="|".join(ACCESS_MODES),
            help="access of other producers",
        ),
    ] = "shared",
    watermark_from: Annotated[
        str | None, Option("--watermark-from", metavar="event-time", help="assert watermarks")
    ] = None,
    watermark_lag: Annotated[
        str | None, Option("--watermark-lag", metavar="DUR", help="expected lateness of messages")
    ] = None,
    watermark_every: Annotated[
        str | None, Option("--watermark-every", metavar="N|DUR", help="also in between")
    ] = None,
    idle_on_close: Annotated[
        bool, Option("--idle-on-close", help="at the end, declare the producer idle")
    ] = False,
    create: Annotated[bool, Option("--create", help="create the topic if it is missing")] = False,
    batch: Annotated[str, Option("--batch", metavar="N|SIZE")] = "5000",
    flush_every: Annotated[str, Option("--flush-every", metavar="DUR")] = "1s",
    rate: Annotated[
        str | None, Option("--rate", metavar="N/s", help="at most this many records a second")
    ] = None,
    durability: Annotated[str | None, Option("--durability", metavar="sync|os")] = None,
    chunking: Annotated[bool, Option("--chunking", help="allow large messages")] = False,
    keep_partition: Annotated[bool, Option("--keep-partition", help="of an envelope")] = False,
    keep_sequence: Annotated[bool, Option("--keep-sequence", help="of an envelope")] = False,
    txn: Annotated[bool, Option("--txn", help="the whole input in one transaction")] = False,
    txn_every: Annotated[str | None, Option("--txn-every", metavar="N|DUR")] = None,
    txn_id: Annotated[str | None, Option("--txn-id", metavar="ID", help="join it")] = None,
    no_join: Annotated[bool, Option("--no-join", help="ignore TXLOG_TXN")] = False,
    transaction_key: Annotated[str | None, Option("--transaction-key", metavar="KEY")] = None,
    epoch: Annotated[int | None, Option("--epoch", metavar="N", help="of txn connect")] = None,
    txn_timeout: Annotated[str | None, Option("--txn-timeout", metavar="DUR")] = None,
    expect: Annotated[int | None, Option("--expect", min=0, metavar="N", help="records")] = None,
    trailer: Annotated[str | None, Option("--trailer", metavar="LINE")] = None,
    on_error: Annotated[str, Option("--on-error", metavar="stop|skip|dead-letter:TOPIC")] = "stop",
    ack_format: Annotated[str | None, Option("--ack-format", metavar="ndjson|%…")] = None,
) -> None:
    """Write messages from stdin, files, or -m.

    With --watermark-from the run asserts watermarks: the greatest event time so far, less the lag;
    at the end, and every N messages or DUR. With --txn they take effect with the commit.
    """
    if form == "help":
        call.output.field_help()
        return
    says_partition, says_sequence = _says(call, form)
    call.durability(durability)
    call.check_choice("--access-mode", access_mode, ACCESS_MODES)
    letters = _dead_letters(on_error)
    exclusive(txn=txn, txn_every=txn_every, txn_id=txn_id)
    exclusive(message=message, FILE=files)
    exclusive(key=key is not None, key_delim=key_delim)
    exclusive(deliver_after=deliver_after is not None, deliver_at=deliver_at is not None)
    exclusive(json=call.flags.json, ack_format=ack_format)
    has_own_txn = txn or txn_every is not None
    if has_own_txn and os.environ.get("TXLOG_TXN") and not no_join:
        raise Usage("TXLOG_TXN is set: --no-join ignores it", hint="or leave out --txn")
    _check_key(transaction_key, epoch, has_own_txn)
    if not txn and (expect is not None or trailer is not None):
        raise Usage("--expect and --trailer need --txn: without it nothing can be undone")
    if txn_timeout is not None and not has_own_txn:
        raise Usage("--txn-timeout needs --txn or --txn-every")
    _check_sequence(producer, seq_from, says_sequence)
    if key_delim == "":
        raise InvalidArgument("--key-delim is empty")
    if ack_format is not None and ack_format != "ndjson":
        if "%" not in ack_format:
            raise Usage("--ack-format is ndjson or holds %-verbs")
        percent.Format(ack_format)
    if form == "raw" and not files and message is None and call.flags.verbose:
        call.note("all of stdin is one message")
    _check_watermarks(call, watermark_from, watermark_lag, watermark_every)
    _check_idle(idle_on_close, producer, watermark_from)
    batch_messages, batch_bytes = _batch(batch)
    every_messages, every_ms = _every("--txn-every", txn_every)
    per_second, most_at_once = _rate(rate)
    mark_messages, mark_ms = _every("--watermark-every", watermark_every)
    name = TopicName.parse(topic, allow_partition=True)
    if name.partition is not None and partition is not None and name.partition != partition:
        raise Usage(f"{topic} and --partition {partition} name different partitions")
    request = Request(
        topic=name.short,
        files=list(files or []),
        messages=None if message is None else [encode(text) for text in message],
        form=form,
        key=None if key is None else encode(key),
        key_delimiter=None if key_delim is None else encode(key_delim),
        properties=properties(prop),
        limit=n,
        partition=partition if name.partition is None else name.partition,
        event_time=None if event_time is None else parse_instant(event_time, call.now_ms()),
        deliver_at=None if deliver_at is None else parse_instant(deliver_at, call.now_ms()),
        deliver_after_ms=call.duration(deliver_after),
        producer=None if producer is None else check_name("producer", producer),
        sequence_from=seq_from,
        access_mode=access_mode,
        create=create,
        batch_messages=min(batch_messages, every_messages or batch_messages, most_at_once),
        rate=per_second,
        batch_bytes=batch_bytes,
        flush_every_ms=parse_duration(flush_every),
        durability=durability,
        own_txn=has_own_txn,
        txn_every_messages=every_messages,
        txn_every_ms=every_ms,
        join=None if has_own_txn else call.txn_of(txn_id, no_join=no_join),
        txn_timeout_ms=call.duration(txn_timeout),
        transaction_key=transaction_key,
        epoch=epoch,
        expect=expect,
        trailer=None if trailer is None else encode(trailer),
        skip_bad=on_error == "skip",
        dead_letter_topic=letters,
        require_newline=require_newline,
        ack_format=ack_format,
        keep_partition=keep_partition or says_partition,
        keep_sequence=keep_sequence or says_sequence,
        chunking=chunking,
        watermarks=watermark_from is not None,
        watermark_lag_ms=call.duration(watermark_lag) or 0,
        watermark_every_messages=mark_messages,
        watermark_every_ms=mark_ms,
        idle_on_close=idle_on_close,
    )
    if request.messages is None and not request.files and is_terminal(0):
        call.note("reading from the terminal; ctrl-d ends the input")
    importlib.import_module("txlog.cli.produce.work").run(call, request)


def _check_key(key: str | None, epoch: int | None, has_own_txn: bool) -> None:
    """Refuse a transaction key for a run without own transactions, and an epoch without a key."""
    if key is not None and not has_own_txn:
        raise Usage("--transaction-key needs --txn or --txn-every")
    if epoch is not None and key is None:
        raise Usage("--epoch needs --transaction-key")


def _check_sequence(producer: str | None, first: int | None, is_said: bool) -> None:
    """Refuse sequence ids without a producer, and sequence ids from both records and flag."""
    if first is not None and producer is None:
        raise Usage("--seq-from needs --producer")
    if is_said and producer is None:
        raise Usage("%q, the sequence id, needs --producer")
    if is_said and first is not None:
        raise Usage("--seq-from and %q of --in exclude each other")


def _check_watermarks(
    call: Call, source: str | None, lag: str | None, interval: str | None
) -> None:
    """Refuse flags about watermarks without the flag that makes them."""
    call.check_choice("--watermark-from", source, ("event-time",))
    if source is None and (lag is not None or interval is not None):
        raise Usage("--watermark-lag and --watermark-every need --watermark-from event-time")


def _check_idle(idle_on_close: bool, producer: str | None, source: str | None) -> None:
    """Refuse to declare an unnamed producer idle in a run that asserts no watermark."""
    if idle_on_close and producer is None and source is None:
        raise Usage("--idle-on-close needs --producer or --watermark-from")


def encode(text: str) -> bytes:
    """Return the original bytes of an argument."""
    return os.fsencode(text)


def properties(pairs: list[str] | None) -> dict[str, str]:
    """Return K=V words as a mapping.

    raises: InvalidArgument (201)
    """
    out: dict[str, str] = {}
    for word in pairs or []:
        name, equals, value = utf8(word, "--prop").partition("=")
        if not equals or not name:
            raise InvalidArgument("--prop is K=V")
        out[name] = value
    return out


def _batch(text: str) -> tuple[int, int]:
    """The size of a batch: number of records, and bytes of values."""
    if text.isdecimal() and len(text) < 20:
        count = int(text)
        if not 1 <= count <= 1_000_000:
            raise InvalidArgument("--batch is 1 to 1000000 records, or a size", code=203)
        return count, BATCH_BYTES
    size = parse_size(text)
    if size < 1:
        raise InvalidArgument("--batch is 1 to 1000000 records, or a size", code=203)
    return 1_000_000, size


def _dead_letters(on_error: str) -> str | None:
    """The topic of --on-error dead-letter:TOPIC."""
    word, colon, topic = on_error.partition(":")
    if word not in ("stop", "skip", "dead-letter") or bool(colon) != (word == "dead-letter"):
        raise Usage(f"--on-error is stop, skip or dead-letter:TOPIC, not {on_error[:40]}")
    return TopicName.parse(topic).short if colon else None


def _says(call: Call, form: str) -> tuple[bool, bool]:
    """Refuse an unknown format; return whether its records give a partition, and a sequence id."""
    if "%" in form:
        input_format = percentin.InputFormat(form)
        return input_format.has_partition, input_format.has_sequence
    call.check_choice("--in", form, (*IN_FORMATS, "%…"))
    return False, False


def _rate(text: str | None) -> tuple[float | None, int]:
    """N/s, N/m or N/h as records a second, and how many to send at once to keep it even."""
    if text is None:
        return None, 1_000_000
    parsed = re.fullmatch(r"([0-9]{1,9})(?:/(s|m|h))?", text)
    if parsed is None or int(parsed[1]) == 0:
        raise InvalidArgument(f'--rate is N/s, not "{text[:40]}"', code=203)
    rate = int(parsed[1]) / {"s": 1, "m": 60, "h": 3600}[parsed[2] or "s"]
    return rate, max(1, int(rate / 10))


def _every(flag: str, text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if text.isdecimal() and len(text) < 20 and int(text) > 0:
        return int(text), None
    if text.isdecimal() or parse_duration(text) == 0:
        raise InvalidArgument(f"{flag} is a number or a time above 0", code=203)
    return None, parse_duration(text)
