"""Owns the options of `run` and `transform`; the work is in `work`."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.base.ids import TopicName, check_name
from txlog.base.ranges import parse_duration
from txlog.cli.call.call import Call
from txlog.cli.input import percent as percentin
from txlog.cli.line.command import command, exclusive
from txlog.cli.line.declared import Argument, Option
from txlog.cli.output import percent
from txlog.cli.produce.command import IN_FORMATS
from txlog.cli.run.request import Request
from txlog.errors import InvalidArgument, Usage

_TYPES = ("exclusive", "failover", "shared", "key-shared")
_TO_COMMAND = ("lines", "ndjson", "envelope", "raw", "null")
_PARALLELISM_MAX = 256

SubscriptionOption = Annotated[str, Option("--subscription", "-s", metavar="SUB")]
TxnSize = Annotated[int, Option("--txn-size", min=1, metavar="N", help="messages, at most")]
TxnTime = Annotated[str, Option("--txn-time", metavar="DUR", help="commit after this time")]
TxnTimeout = Annotated[str | None, Option("--txn-timeout", metavar="DUR")]
KeyOption = Annotated[str | None, Option("--transaction-key", metavar="KEY")]
NameOption = Annotated[str | None, Option("--name", metavar="NAME", help="name of the function")]
LimitOption = Annotated[int | None, Option("-n", min=0, metavar="N", help="at most N messages")]
FollowOption = Annotated[bool, Option("--follow", "-F", help="wait for more at the end")]
MaxWait = Annotated[str, Option("--max-wait", metavar="DUR", help="for the next one")]
CreateOption = Annotated[
    bool, Option("--create", help="create subscription and output topics if missing")
]
LoopOption = Annotated[
    bool, Option("--allow-loop", help="allow an output that is an input: an endless run")
]
TypeOption = Annotated[
    str | None, Option("--type", metavar="|".join(_TYPES), help="of the new subscription")
]
OnError = Annotated[str, Option("--on-error", metavar="stop|skip|dead-letter:TOPIC")]
Retries = Annotated[int, Option("--retries", min=0, max=1000, metavar="N")]
Parallelism = Annotated[
    int, Option("--parallelism", min=1, max=_PARALLELISM_MAX, metavar="N", help="processes")
]
Instance = Annotated[int | None, Option("--instance", hidden=True)]
ReportTo = Annotated[int | None, Option("--report-to", hidden=True)]


@command(
    "run",
    "run a Python function between topics, exactly once",
    examples=(
        "txlog run prices:total --input orders --output totals -s billing",
        "txlog run f.py:total --input a --input b --output c -s s --create -F --parallelism 4",
        "txlog run f.py:clean --input raw --output good -s s --on-error dead-letter:bad",
    ),
    rows="sending.Processed",
    changes=True,
)
def run(
    call: Call,
    function: Annotated[str, Argument(metavar="MODULE:FUNCTION", show_default=False)],
    inputs: Annotated[list[str], Option("--input", metavar="T…")],
    subscription: SubscriptionOption,
    output: Annotated[str | None, Option("--output", metavar="T")] = None,
    batch: Annotated[bool, Option("--batch", help="pass it an Arrow table")] = False,
    path: Annotated[list[str] | None, Option("--path", metavar="DIR…", help="modules")] = None,
    name: NameOption = None,
    parallelism: Parallelism = 1,
    txn_size: TxnSize = 1000,
    txn_time: TxnTime = "1s",
    txn_timeout: TxnTimeout = None,
    transaction_key: KeyOption = None,
    n: LimitOption = None,
    follow: FollowOption = False,
    max_wait: MaxWait = "0s",
    create: CreateOption = False,
    allow_loop: LoopOption = False,
    type: TypeOption = None,
    on_error: OnError = "stop",
    retries: Retries = 0,
    instance: Instance = None,
    report_to: ReportTo = None,
) -> None:
    """Run a Python function between topics, exactly once.

    The function gets a message, and a context if it takes one; it returns bytes, text, a dict, an
    Output, several outputs, or None. FILE.py:FUNCTION names a file. One transaction acknowledges
    a batch's inputs and produces its outputs; an earlier run under the same name is fenced.
    """
    _start(
        call,
        Request(
            function=function,
            batch=batch,
            path=list(path or []),
            inputs=inputs,
            output=output,
            subscription=subscription,
            name=name,
            parallelism=parallelism,
            txn_size=txn_size,
            txn_time_ms=parse_duration(txn_time),
            txn_timeout_ms=call.duration(txn_timeout),
            transaction_key=transaction_key,
            limit=n,
            follow=follow,
            max_wait_ms=parse_duration(max_wait),
            create=create,
            allow_loop=allow_loop,
            type=type,
            on_error=on_error,
            retries=retries,
            instance=instance,
            report_to=report_to,
        ),
    )


@command(
    "transform",
    "run a command between topics, exactly once",
    examples=(
        "txlog transform orders upper -s shout -- tr a-z A-Z",
        "txlog transform raw clean -s s --create --in-format ndjson -- jq -c .value",
        "txlog transform orders sorted -s sort --create --in-format '%k %v\\n' "
        "--out-format '%k %v\\n' -- sort",
    ),
    rows="sending.Processed",
    changes=True,
)
def transform(
    call: Call,
    input: Annotated[str, Argument(metavar="IN", show_default=False)],
    output: Annotated[str, Argument(metavar="OUT", show_default=False)],
    command_words: Annotated[list[str], Argument(metavar="CMD", show_default=False)],
    subscription: SubscriptionOption,
    in_format: Annotated[
        str, Option("--in-format", metavar="|".join((*_TO_COMMAND, "%…")), help="CMD reads")
    ] = "lines",
    out_format: Annotated[
        str,
        Option("--out-format", metavar="|".join((*IN_FORMATS, "%…")), help="CMD writes"),
    ] = "lines",
    name: NameOption = None,
    parallelism: Parallelism = 1,
    txn_size: TxnSize = 1000,
    txn_time: TxnTime = "1s",
    txn_timeout: TxnTimeout = None,
    transaction_key: KeyOption = None,
    n: LimitOption = None,
    follow: FollowOption = False,
    max_wait: MaxWait = "0s",
    create: CreateOption = False,
    allow_loop: LoopOption = False,
    type: TypeOption = None,
    on_error: OnError = "stop",
    retries: Retries = 0,
    instance: Instance = None,
    report_to: ReportTo = None,
) -> None:
    """Run a command between topics, exactly once: a batch on its stdin, its stdout to the output.

    The command runs once for each batch. An exit code other than 0 aborts the batch.
    """
    _check_formats(call, in_format, out_format)
    _start(
        call,
        Request(
            function="",
            words=command_words,
            in_format=in_format,
            out_format=out_format,
            batch=True,
            inputs=[input],
            output=output,
            subscription=subscription,
            name=name,
            parallelism=parallelism,
            txn_size=txn_size,
            txn_time_ms=parse_duration(txn_time),
            txn_timeout_ms=call.duration(txn_timeout),
            transaction_key=transaction_key,
            limit=n,
            follow=follow,
            max_wait_ms=parse_duration(max_wait),
            create=create,
            allow_loop=allow_loop,
            type=type,
            on_error=on_error,
            retries=retries,
            instance=instance,
            report_to=report_to,
        ),
    )


def _check_formats(call: Call, in_format: str, out_format: str) -> None:
    """Refuse formats that cannot encode a command's input or decode its output."""
    if "%" in in_format:
        percent.Format(in_format, stored=True)
    else:
        call.check_choice("--in-format", in_format, (*_TO_COMMAND, "%…"))
    if "%" not in out_format:
        call.check_choice("--out-format", out_format, (*IN_FORMATS, "%…"))
    else:
        output_format = percentin.InputFormat(out_format)
        if output_format.has_partition or output_format.has_sequence:
            raise Usage("%p and %q in --out-format: the key of an output decides its partition")


def _start(call: Call, request: Request) -> None:
    """Check the options that need no store, then run."""
    call.check_choice("--type", request.type, _TYPES)
    check_name("subscription", request.subscription)
    for topic in request.inputs:
        TopicName.parse(topic, allow_partition=True)
    if len(set(request.inputs)) != len(request.inputs):
        raise Usage("--input names a topic twice")
    if request.output is not None:
        TopicName.parse(request.output)
    word, colon, topic = request.on_error.partition(":")
    if word not in ("stop", "skip", "dead-letter") or bool(colon) != (word == "dead-letter"):
        raise Usage(f"--on-error is stop, skip or dead-letter:TOPIC, not {request.on_error[:40]}")
    if colon:
        request.dead_letter_topic = TopicName.parse(topic).short
    request.on_error = word
    if request.txn_time_ms < 1:
        raise InvalidArgument("--txn-time is above 0", code=203)
    if request.type is not None and not request.create:
        raise Usage("--type needs --create", hint="an existing subscription has its type")
    if request.type == "exclusive" and request.parallelism > 1:
        raise Usage("an exclusive subscription has one consumer, --parallelism asks for more")
    if (request.instance is None) is not (request.report_to is None):
        raise Usage("--instance and --report-to are txlog's own", hint="--parallelism N")
    exclusive(parallelism=request.parallelism > 1, N=request.limit is not None)
    importlib.import_module("txlog.cli.run.work").start(call, request)
