"""Owns the work of `run` and `transform` in one process: load, create missing topics, run, report.

A signal interrupts the user's function, and its transaction is aborted; calls into the store are
never interrupted. The function's standard output goes to stderr, because stdout carries data.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from txlog.base.choices import OnError, SubscriptionType
from txlog.base.ids import TopicName
from txlog.base.startup import json as orjson
from txlog.cli.call.call import Call
from txlog.cli.input.inputs import Input
from txlog.cli.output.records import Beside, Records, beside_of
from txlog.cli.run import workers
from txlog.cli.run.log import JobLog, counts
from txlog.cli.run.request import Request, Run, Transform
from txlog.cli.terminal.signals import Interrupted, shielded
from txlog.cli.terminal.tables import Look, counted
from txlog.client.reading.record_columns import RecordColumns
from txlog.engine.door.topics import function_name
from txlog.errors import CommandFailed, PartlyDone, TxlogError
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


# --- the command of transform ---------------------------------------------------------------------

_GRACE_S: Final = 10
_SENT: Final = ("value", "key", "properties", "event_time", "deliver_at", "deliver_after")
_PLAIN: Final = Look(human=False, color=False, utc=True, width=0)


class Command:
    """A command as a function of batches.

    raises: CommandFailed when there is no such command
    """

    def __init__(self, command: list[str], in_format: str, out_format: str, store: str) -> None:
        self._words = command
        self._in_format = in_format
        self._out_format = out_format
        self._environment = {**os.environ, "TXLOG_STORE": os.path.abspath(store)}
        self._beside: Beside | None = None
        self._typed: RecordColumns | None = None
        self.__name__ = os.path.basename(command[0])
        if shutil.which(command[0]) is None:
            raise CommandFailed(f"{command[0]}: no such command", command=command[0])

    def look_up(self, client: Client) -> None:
        """Use this client to look up facts that the input format needs and messages lack."""
        self._beside = beside_of(client, self._in_format)
        self._typed = RecordColumns(client.store)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Run it for a batch and return its output as columns; raises CommandFailed, BadRecord."""
        input_bytes = self._encoded(rows)
        child = None
        try:
            with shielded():  # a signal must not come before `child` is set
                child = subprocess.Popen(
                    self._words,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            written, _ = child.communicate(input_bytes)
        except OSError as error:
            raise CommandFailed(f"{self._words[0]}: {error.strerror}") from error
        except (Interrupted, KeyboardInterrupt):
            if child is not None:
                _stop(child)
            raise
        if child.returncode:
            code = child.returncode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise CommandFailed(f"{self._words[0]} ended with {how}", command=self._words[0])
        parsed = Input(self._out_format, []).parse(written)
        return parsed.select([name for name in _SENT if name in parsed.column_names])

    def _encoded(self, rows: pa.Table) -> bytes:
        if self._in_format == "null":
            values = rows["value"].to_pylist()
            return b"".join([(value or b"") + b"\0" for value in values])
        records = Records(self._in_format, None, self._typed, look=_PLAIN, beside=self._beside)
        return records.encode(rows)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end, kill it if it does not, and wait for its end."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
