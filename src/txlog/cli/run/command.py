"""Owns the commands `run` and `transform`: which options go together; the work is in `work`."""

from __future__ import annotations

from txlog.base.ids import TopicName
from txlog.cli.call.call import Call
from txlog.cli.input import percent as percentin
from txlog.cli.line.command import command, exclusive
from txlog.cli.output import percent
from txlog.cli.produce.request import IN_FORMATS
from txlog.cli.run import work
from txlog.cli.run.request import TO_COMMAND, Request, Run, Transform
from txlog.errors import InvalidArgument, Usage


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
    options=Run,
)
def run(call: Call, request: Run) -> None:
    """Run a Python function between topics, exactly once.

    The function gets a message, and a context if it takes one; it returns bytes, text, a dict, an
    Output, several outputs, or None. FILE.py:FUNCTION names a file. One transaction acknowledges
    a batch's inputs and produces its outputs; an earlier run under the same name is fenced.
    """
    _start(call, request)


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
    options=Transform,
)
def transform(call: Call, request: Transform) -> None:
    """Run a command between topics, exactly once: a batch on its stdin, its stdout to the output.

    The command runs once for each batch. An exit code other than 0 aborts the batch.
    """
    if "%" in request.in_format:
        percent.Format(request.in_format, stored=True)
    else:
        call.check_choice("--in-format", request.in_format, (*TO_COMMAND, "%…"))
    if "%" not in request.out_format:
        call.check_choice("--out-format", request.out_format, (*IN_FORMATS, "%…"))
    else:
        output_format = percentin.InputFormat(request.out_format)
        if output_format.has_partition or output_format.has_sequence:
            raise Usage("%p and %q in --out-format: the key of an output decides its partition")
    _start(call, request)


def _start(call: Call, request: Request) -> None:
    """Check the options that need no store, then run."""
    for topic in request.inputs:
        TopicName.parse(topic, allow_partition=True)
    if len(set(request.inputs)) != len(request.inputs):
        raise Usage("--input names a topic twice")
    if request.output is not None:
        TopicName.parse(request.output)
    if request.txn_time_ms < 1:
        raise InvalidArgument("--txn-time is above 0", code=203)
    if request.type is not None and not request.create:
        raise Usage("--type needs --create", hint="an existing subscription has its type")
    if request.type == "exclusive" and request.parallelism > 1:
        raise Usage("an exclusive subscription has one consumer, --parallelism asks for more")
    if (request.instance is None) is not (request.report_to is None):
        raise Usage("--instance and --report-to are txlog's own", hint="--parallelism N")
    exclusive(parallelism=request.parallelism > 1, n=request.n is not None)
    work.start(call, request)
