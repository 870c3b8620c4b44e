"""Owns the options of `run` and `transform`: for each its flag, its help, and its value."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from txlog.base.choices import SubscriptionType
from txlog.base.ids import check_name
from txlog.cli.line.command import Argument, Duration, Option
from txlog.cli.produce.request import IN_FORMATS, ON_ERROR, OnError

TO_COMMAND: Final = ("lines", "ndjson", "envelope", "raw", "null")
_PARALLELISM_MAX: Final = 256

SubscriptionOption = Annotated[
    str,
    Option(
        *("--subscription", "-s"),
        metavar="SUB",
        reads=lambda name: check_name("subscription", name),
    ),
]


class Request(msgspec.Struct, kw_only=True):
    """The options that `run` and `transform` share.

    instance:  number of this process in --parallelism; None: a run of one process, or the process
               that watches the instances
    report_to: the descriptor that the watching process reads
    joined:    the watching process closes the other end of this pipe when all instances have joined
    drained:   the same, when all have drained their inputs
    """

    inputs: list[str]
    output: str | None
    subscription: str
    batch: bool = True
    name: Annotated[str | None, Option("--name", metavar="NAME", help="name of the function")] = (
        None
    )
    parallelism: Annotated[
        int, Option("--parallelism", min=1, max=_PARALLELISM_MAX, metavar="N", help="processes")
    ] = 1
    txn_size: Annotated[int, Option("--txn-size", min=1, metavar="N", help="messages, at most")] = (
        1000
    )
    txn_time_ms: Annotated[int, Duration("--txn-time", help="commit after this time", default="1s")]
    txn_timeout_ms: Annotated[int | None, Duration("--txn-timeout")] = None
    transaction_key: Annotated[str | None, Option("--transaction-key", metavar="KEY")] = None
    n: Annotated[int | None, Option("-n", min=0, metavar="N", help="at most N messages")] = None
    follow: Annotated[bool, Option("--follow", "-F", help="wait for more at the end")] = False
    max_wait_ms: Annotated[int, Duration("--max-wait", help="for the next one", default="0s")]
    create: Annotated[
        bool, Option("--create", help="create subscription and output topics if missing")
    ] = False
    allow_loop: Annotated[
        bool, Option("--allow-loop", help="allow an output that is an input: an endless run")
    ] = False
    type: Annotated[
        SubscriptionType | None,
        Option(
            "--type",
            reads=str,
            choices=("exclusive", "failover", "shared", "key-shared"),
            help="of the new subscription",
        ),
    ] = None
    on_error: Annotated[OnError, ON_ERROR]
    retries: Annotated[int, Option("--retries", min=0, max=1000, metavar="N")] = 0
    instance: Annotated[int | None, Option("--instance", hidden=True)] = None
    report_to: Annotated[int | None, Option("--report-to", hidden=True)] = None
    joined: Annotated[int | None, Option("--joined", hidden=True)] = None
    drained: Annotated[int | None, Option("--drained", hidden=True)] = None


class Run(Request, kw_only=True):
    """The options of `run`."""

    function: Annotated[str, Argument(metavar="MODULE:FUNCTION", show_default=False)]
    inputs: Annotated[list[str], Option("--input", metavar="T…")]
    subscription: SubscriptionOption
    output: Annotated[str | None, Option("--output", metavar="T")] = None
    batch: Annotated[bool, Option("--batch", help="pass it an Arrow table")] = False
    path: Annotated[list[str], Option("--path", metavar="DIR…", help="modules", many=True)] = []


class Transform(Request, kw_only=True):
    """The options of `transform`."""

    inputs: Annotated[
        list[str], Argument(metavar="IN", show_default=False, reads=lambda word: [word])
    ]
    output: Annotated[str, Argument(metavar="OUT", show_default=False)]
    command_words: Annotated[list[str], Argument(metavar="CMD", show_default=False)]
    subscription: SubscriptionOption
    in_format: Annotated[
        str, Option("--in-format", metavar="|".join((*TO_COMMAND, "%…")), help="CMD reads")
    ] = "lines"
    out_format: Annotated[
        str, Option("--out-format", metavar="|".join((*IN_FORMATS, "%…")), help="CMD writes")
    ] = "lines"
