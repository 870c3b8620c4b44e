"""Owns the work of `run` and `transform` in one process: load, create missing topics, run, report.

A signal interrupts the user's function, and its transaction is aborted; calls into the store are
never interrupted. The function's standard output goes to stderr, because stdout carries data.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import TYPE_CHECKING, Any, cast

from txlog.base.choices import OnError, SubscriptionType
from txlog.base.ids import TopicName
from txlog.base.startup import json as orjson
from txlog.cli.call.call import Call
from txlog.cli.run import workers
from txlog.cli.run.log import JobLog, counts
from txlog.cli.run.request import Request, Run, Transform
from txlog.cli.run.transform import Command
from txlog.cli.terminal.signals import Interrupted, shielded
from txlog.cli.terminal.tables import counted
from txlog.engine.door.topics import function_name
from txlog.errors import PartlyDone, TxlogError
from txlog.functions import FunctionOptions, Hooks, Summary, load, run
from txlog.functions.handlers import name_of
from txlog.functions.runner import check_loop
from txlog.functions.window_state import left_open
from txlog.functions.windows import Windowed

if TYPE_CHECKING:
    from txlog.client.client import Client


def start(call: Call, request: Request) -> None:
    """Run the function in this process, or in several child processes, and watch them."""
    function = _function(call, request)  # a bad function must fail before topics are created
    topics = [TopicName.parse(topic, allow_partition=True).topic.short for topic in request.inputs]
    request.name = request.name or function_name(name_of(function), topics, request.subscription)
    late = function.late_topic if isinstance(function, Windowed) else None
    outputs = (request.output, request.on_error.topic, late)
    # a loop must be refused before topics are created
    check_loop(topics, outputs, request.allow_loop)
    log = JobLog(call, request.name, request.instance)
    client = call.client(write=True)
    if isinstance(function, Command):
        function.look_up(client)
    if request.instance is not None:
        _run_instance(call, request, client, function, log)
        return
    windowed = function if isinstance(function, Windowed) and function.watermarks else None
    _create(request, client, topics, windowed)
    if windowed is not None:
        unread = left_open(client, topics, request.subscription, request.parallelism)
        for topic, messages in unread.items():
            log.tell("left-open", {"topic": topic, "messages": messages})
    if request.parallelism > 1:
        busy = workers.check(client, topics, request, windowed)
        if busy < request.parallelism:
            call.warn(workers.idle_note(busy, request))
        summary, error = workers.Fleet(call, request, log, client, topics, windowed).run()
    else:
        summary, error = _run_here(request, client, function, log)
    log.erase()
    if error is not None:
        raise partly(error, summary, request)
    _report(call, request, summary, topics, log)


def partly(error: TxlogError, summary: Summary, request: Request) -> TxlogError:
    """The error to raise: PartlyDone if some transactions were committed before it.

    A fence and an unknown outcome keep their own errors.
    """
    if not summary.transactions or error.exit == 10 or error.kind == "fenced":
        return error
    done = [{"name": request.output, **counts(summary)}]
    whole = PartlyDone(
        f"{error.message}; committed before it: {counted(summary.transactions, 'transaction')}",
        hint=error.hint,
        done=done,
        failed_list=[{"name": request.name, "code": f"TXL-{error.code}", "message": error.message}],
    )
    whole.fields.update(error.fields)
    return whole


def _function(call: Call, request: Request) -> Any:
    if isinstance(request, Transform):
        return Command(
            request.command_words, request.in_format, request.out_format, call.store_path()
        )
    assert isinstance(request, Run)
    _leave_working_directory()
    with contextlib.redirect_stdout(sys.stderr):
        return load(request.function, request.path)


def _leave_working_directory() -> None:
    """Remove the working directory, which `python -m txlog` adds, from sys.path (spec/cli 8.3)."""
    by_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    if by_module and not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]


def _create(request: Request, client: Client, topics: list[str], windowed: Windowed | None) -> None:
    """Create missing output topics and the subscription, if --create is given.

    windowed: a function whose windows close on watermarks
    """
    if not request.create:
        return
    several: SubscriptionType = "failover" if windowed is None else "key-shared"
    kind: SubscriptionType = request.type or (several if request.parallelism > 1 else "exclusive")
    late_topic = None if windowed is None else windowed.late_topic
    with shielded():
        for topic in (request.output, request.on_error.topic, late_topic):
            if topic is not None:
                client.create_topic(topic, 1, if_not_exists=True)
        for topic in topics:
            names = {row["subscription"] for row in client.subscriptions(topic)}
            if request.subscription not in names:
                client.create_subscription(
                    topic, request.subscription, type=kind, if_not_exists=True
                )


def _options(request: Request, lock_timeout_ms: int) -> FunctionOptions:
    key = request.transaction_key
    if key is not None and request.instance is not None:
        key = f"{key}:{request.instance}"
    return FunctionOptions(
        name=request.name,
        instance=request.instance or 0,
        batch=request.batch,
        txn_size=request.txn_size,
        txn_time_ms=request.txn_time_ms,
        txn_timeout_ms=request.txn_timeout_ms,
        transaction_key=key,
        limit=request.n,
        follow=request.follow,
        max_wait_ms=request.max_wait_ms,
        on_error=cast(OnError, request.on_error.action),
        dead_letter_topic=request.on_error.topic,
        retries=request.retries,
        take_over_ms=lock_timeout_ms,
        allow_loop=request.allow_loop,
        # Processes overlap their flushes anyway. Each reports a commit before it goes on, so the
        # totals stay right when one is killed.
        **({} if request.instance is None else {"max_in_flight": 1}),
    )


def _run_here(
    request: Request, client: Client, function: Any, log: JobLog
) -> tuple[Summary, TxlogError | None]:
    """Run the function in this process; return its totals, and the error that ended it."""
    seen = Summary()

    def committed(summary: Summary) -> None:
        nonlocal seen
        seen = summary
        log.progress(summary)

    hooks = Hooks(guard=shielded, committed=committed, tell=log.tell)
    return _run(request, client, function, log, hooks, lambda: seen)


def _run_instance(call: Call, request: Request, client: Client, function: Any, log: JobLog) -> None:
    """Run as one of several instances; report totals and errors through the pipe only."""
    assert request.report_to is not None, "an instance is started with both"
    reader_state = select.poll()
    reader_state.register(request.report_to, 0)  # the only event is that the reader closed the pipe
    seen = Summary()

    def send(facts: dict[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(request.report_to or 0, orjson.dumps(facts) + b"\n")

    def committed(summary: Summary) -> None:
        nonlocal seen
        seen = summary
        send({**counts(summary), "last_txn": str(summary.last_txn)})

    def wait_at(gate: str, descriptor: int | None) -> None:
        send({"gate": gate})
        if descriptor is not None:
            os.read(descriptor, 1)  # until its other end is closed

    hooks = Hooks(
        joined=lambda: wait_at("joined", request.joined),
        drained=lambda: wait_at("drained", request.drained),
        guard=shielded,
        committed=committed,
        tell=log.tell,
        stop=lambda: bool(reader_state.poll(0)),
    )
    summary, error = _run(request, client, function, log, hooks, lambda: seen)
    if error is not None:
        send({"error": error.as_dict()})
        call.exit = error.exit
    elif summary.transactions or summary.aborted:
        send({**counts(summary), "last_txn": str(summary.last_txn)})


def _run(
    request: Request, client: Client, function: Any, log: JobLog, hooks: Hooks, seen: Any
) -> tuple[Summary, TxlogError | None]:
    log.attach()
    options = _options(request, client.lock_timeout_ms)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            summary = run(
                client,
                function,
                request.inputs,
                request.output,
                request.subscription,
                options,
                hooks,
            )
    except TxlogError as error:
        return seen(), error
    except Interrupted:
        log.erase()
        log.ended("stopped", seen())
        raise
    log.erase()
    return summary, None


def _report(call: Call, request: Request, summary: Summary, topics: list[str], log: JobLog) -> None:
    elapsed_ms = call.elapsed_ms()
    log.ended("finished", summary)
    output = None if request.output is None else TopicName.parse(request.output).short
    call.output.result(
        {
            "input": ",".join(topics),
            "output": output,
            "last_txn": summary.last_txn,
            "elapsed_ms": elapsed_ms,
            **counts(summary),
        }
    )
