"""Owns the command `produce`: which options go together; the work is in `work`."""

from __future__ import annotations

import os

from txlog.base.ids import TopicName
from txlog.base.suggest import command_line
from txlog.base.text import formats
from txlog.cli.call.call import Call, is_terminal
from txlog.cli.input import percent as percentin
from txlog.cli.line.command import command, exclusive
from txlog.cli.output import percent
from txlog.cli.produce import work
from txlog.cli.produce.request import IN_FORMATS, NEVER, Request
from txlog.errors import InvalidArgument, Usage


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
    options=Request,
)
def produce(call: Call, request: Request) -> None:
    """Write messages from stdin, files, or -m.

    With --watermark-from the run asserts watermarks: the greatest event time so far, less the lag;
    at the end, and every N messages or DUR. With --txn they take effect with the commit.
    """
    if request.chosen_form == "help":
        call.output.field_help()
        return
    _choose_form(request)
    _check_input(call, request)
    _check_txn(request)
    _check_sequence_and_watermarks(request)
    name = TopicName.parse(request.topic, allow_partition=True)
    if name.partition is not None:
        if request.partition not in (None, name.partition):
            raise Usage(
                f"{request.topic} and --partition {request.partition} name different partitions"
            )
        request.partition = name.partition
    request.topic = name.short
    if request.join is None and not request.own_txn:
        request.join = call.txn_of(None, no_join=request.no_join)
    if request.messages is None and not request.files and is_terminal(0):
        call.note("reading from the terminal; ctrl-d ends the input")
    work.run(call, request)


def _choose_form(request: Request) -> None:
    """Set the format of the input: by --in, or by the suffixes of the files."""
    files = [] if request.messages is not None else request.files
    form = formats.chosen_form(files, request.chosen_form, "--in")
    if form is not None and request.chosen_form is None and form not in IN_FORMATS:
        hint = command_line("import", files[0], request.topic)
        formats.check_form(files[0], form, formats.TEXTS, hint)
    request.form = form or "lines"


def _check_input(call: Call, request: Request) -> None:
    """Refuse an unknown format of the input, and options about records that exclude each other."""
    if "%" in request.form:
        form = percentin.InputFormat(request.form)
        if form.has_sequence and request.producer is None:
            raise Usage("%q, the sequence id, needs --producer")
        if form.has_sequence and request.seq_from is not None:
            raise Usage("--seq-from and %q of --in exclude each other")
        request.keep_partition |= form.has_partition
        request.keep_sequence |= form.has_sequence
    else:
        call.check_choice("--in", request.form, (*IN_FORMATS, "%…"))
    exclusive(message=request.messages, FILE=request.files)
    exclusive(key=request.key is not None, key_delim=request.key_delimiter)
    exclusive(
        deliver_after=request.deliver_after_ms is not None,
        deliver_at=request.deliver_at is not None,
    )
    exclusive(json=call.flags.json, ack_format=request.ack_format)
    if request.key_delimiter == b"":
        raise InvalidArgument("--key-delim is empty")
    if request.ack_format is not None and request.ack_format != "ndjson":
        if "%" not in request.ack_format:
            raise Usage("--ack-format is ndjson or holds %-verbs")
        percent.Format(request.ack_format)
    is_stdin = request.messages is None and not request.files
    if request.form == "raw" and is_stdin and call.flags.verbose:
        call.note("all of stdin is one message")


def _check_txn(request: Request) -> None:
    """Refuse options about transactions that exclude or need each other."""
    own_txn = request.own_txn
    exclusive(txn=request.txn, txn_every=request.txn_every != NEVER, txn_id=request.join)
    if own_txn and os.environ.get("TXLOG_TXN") and not request.no_join:
        raise Usage("TXLOG_TXN is set: --no-join ignores it", hint="or leave out --txn")
    if request.transaction_key is not None and not own_txn:
        raise Usage("--transaction-key needs --txn or --txn-every")
    if request.epoch is not None and request.transaction_key is None:
        raise Usage("--epoch needs --transaction-key")
    if not request.txn and (request.expect is not None or request.trailer is not None):
        raise Usage("--expect and --trailer need --txn: without it nothing can be undone")
    if request.txn_timeout_ms is not None and not own_txn:
        raise Usage("--txn-timeout needs --txn or --txn-every")


def _check_sequence_and_watermarks(request: Request) -> None:
    """Refuse options about sequence ids and watermarks without the option that they need."""
    if request.seq_from is not None and request.producer is None:
        raise Usage("--seq-from needs --producer")
    if request.watermark_from is None:
        if request.watermark_lag_ms is not None or request.watermark_every != NEVER:
            raise Usage("--watermark-lag and --watermark-every need --watermark-from event-time")
        if request.idle_on_close and request.producer is None:
            raise Usage("--idle-on-close needs --producer or --watermark-from")
