"""Owns the processes of --parallelism: starts them, watches them, restarts killed ones.

    an instance was killed    it is restarted with the same number and key
    it failed                 all are stopped, and the run fails with its error
    it is done                the others continue; after the last, some run again for the backlog
    a signal                  all are stopped, then this process

With failover, partition i belongs to attached consumer i mod n. If instances came and left at
different times, the first would lease messages of all partitions, and later ones would find none
and end. So there are two gates, `joined` and `drained`. An instance reports that it is at a gate
and reads from a pipe without data. This process closes the writing end when all
have come; if it dies, the kernel does. A restarted instance passes an open gate at once.

An instance reports through a pipe after each commit, one JSON object a line. While this process
draws bars, it also reads what instances print on stderr, and prints whole lines above the bars.
When the reader of the pipe dies, the instance stops by itself: no instance outlives the process
that watches it.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from txlog import errors
from txlog.base.ids import TopicName, TxnId
from txlog.base.startup import json as orjson
from txlog.cli.call.call import Call
from txlog.cli.run.log import JobLog
from txlog.cli.run.request import Request
from txlog.cli.terminal.signals import shielded
from txlog.errors import CommandFailed, NotAllowed, SubscriptionNotFound, TxlogError
from txlog.functions import Summary
from txlog.functions.watermarked import windows_need_shared
from txlog.functions.windows import Windowed

if TYPE_CHECKING:
    from txlog.client.client import Client

_GRACE_S: Final = 10
_LOOK_EVERY_MS: Final = 20
_DEATHS_MAX: Final = 5  # deaths in a row without a commit; after more the run fails
_COUNTS: Final = {  # fields of a report, and their names in Summary
    **{name: name for name in (
        "consumed", "produced", "transactions", "aborted", "skipped", "dead_lettered",
    )},
    "late_messages": "late",
}  # fmt: skip
_STOPPED: Final = frozenset({130, 143})
_SOURCE: Final = str(Path(__file__).absolute().parents[3])


def check(client: Client, topics: list[str], request: Request, windowed: Windowed | None) -> int:
    """Refuse a subscription that cannot have several consumers.

    windowed: a function whose windows close on watermarks
    returns:  how many instances can get messages: with failover, a partition has one consumer
    raises: NotAllowed, SubscriptionNotFound
    """
    processes = request.parallelism
    busy: set[int] = set()
    for word, topic in zip(request.inputs, topics, strict=True):
        rows = [r for r in client.subscriptions(topic) if r["subscription"] == request.subscription]
        if not rows:
            raise SubscriptionNotFound(
                f"no subscription {request.subscription} on {topic}",
                hint="--create makes it",
                topic=topic,
                subscription=request.subscription,
            )
        if rows[0]["type"] == "exclusive":
            raise NotAllowed(
                f"subscription {request.subscription} of {topic} is exclusive",
                hint="--parallelism needs failover, shared or key-shared",
                topic=topic,
                subscription=request.subscription,
            )
        if windowed is not None and rows[0]["type"] == "failover":
            raise windows_need_shared(request.subscription)
        if rows[0]["type"] != "failover":
            busy.update(range(processes))
        elif (partition := TopicName.parse(word, allow_partition=True).partition) is not None:
            busy.add(partition % processes)
        else:
            partitions = int(client.describe_topic(topic)["partitions"])
            busy.update(range(min(partitions, processes)))
    return len(busy)


def idle_note(busy: int, request: Request) -> str:
    """The note that some instances of a run will get no messages; busy: how many will."""
    return (
        f"{request.parallelism - busy} of {request.parallelism} processes do nothing: on the "
        f"failover subscription {request.subscription}, only one process reads a partition; with "
        "--type shared or key-shared, all would"
    )


@dataclass
class Instance:
    """One process, and its last report."""

    number: int
    process: subprocess.Popen[bytes]
    reports: int  # the reading end of its pipe
    printed: int | None  # the reading end of its stderr, if this process prints its lines
    rest: bytes = b""
    line: bytes = b""  # the beginning of a line that it has not printed to its end
    said: dict[str, Any] = field(default_factory=dict)
    error: TxlogError | None = None
    gates: set[str] = field(default_factory=set)  # those that it has reached


class Fleet:
    """All instances of one run.

    topics: the inputs of the run
    """

    def __init__(
        self,
        call: Call,
        request: Request,
        log: JobLog,
        client: Client,
        topics: list[str],
        windowed: Windowed | None = None,
    ) -> None:
        self._client, self._topics = client, topics
        self._windowed = windowed
        self._call = call
        self._request = request
        self._log = log
        self._summary = Summary()
        self._deaths: dict[int, int] = {}
        self._consumed = dict.fromkeys(range(request.parallelism), 0)
        self._selector = selectors.DefaultSelector()
        self._instances: dict[int, Instance] = {}
        self._gates: dict[str, tuple[int, int]] = {}  # closed gates: both ends of a pipe

    def run(self) -> tuple[Summary, TxlogError | None]:
        """Run all instances to their end; return the totals, and the first error."""
        error: TxlogError | None = None
        if self._log.draws and not self._request.follow:
            self._log.total = self._backlog()
        try:
            self._gates = {gate: os.pipe() for gate in ("joined", "drained")}
            for number in range(self._request.parallelism):
                self._start(number)
            error = self._watch()
            if error is None and (unfinished := self._unfinished()):
                for number in unfinished:
                    self._start(number)
                error = self._watch()
        finally:
            self._stop()
        return self._summary, error

    def _watch(self) -> TxlogError | None:
        """Read reports until all instances have ended, or one has failed."""
        error: TxlogError | None = None
        while self._instances and error is None:
            for key, _ in self._selector.select():
                error = key.data() or error
        return error

    def _unfinished(self) -> range:
        """The instances that must run again after all have ended.

        An instance also ends if its peers hold leases on all messages that remain. So instance 0
        runs again if there is a backlog. With windows that close on watermarks, all run again:
        such leases held the watermark back, and each instance must check which of its windows
        can close now.
        """
        if self._windowed is not None:
            return range(self._request.parallelism)
        return range(bool(self._backlog()))

    def _backlog(self) -> int:
        return sum(
            int(row["backlog"])
            for topic in self._topics
            for row in self._client.subscriptions(topic)
            if row["subscription"] == self._request.subscription
        )

    def _start(self, number: int) -> None:
        with shielded():  # a signal must not come before the process is recorded
            self._spawn(number)

    def _spawn(self, number: int) -> None:
        reading, writing = os.pipe()
        gates = {gate: ends[0] for gate, ends in self._gates.items()}
        arguments = [*self._global_words(), *self._words(number, writing, gates)]
        paths = [_SOURCE, os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        printed, stderr = os.pipe() if self._log.draws else (None, None)
        try:
            # Its own session: Ctrl-C reaches it only once, through this process.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "txlog", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=(writing, *gates.values()),
                start_new_session=True,
            )
        except OSError:
            _close(reading, printed)
            raise
        finally:
            _close(writing, stderr)
        instance = Instance(number, process, reading, printed)
        self._instances[number] = instance
        self._selector.register(reading, selectors.EVENT_READ, partial(self._hear, instance))
        if printed is not None:
            os.set_blocking(printed, False)
            self._selector.register(printed, selectors.EVENT_READ, partial(self._relay, instance))

    def _words(self, number: int, report_to: int, gates: dict[str, int]) -> list[str]:
        """The command line of one instance, without --create: topics and subscription exist."""
        changes = {
            **{"name": self._request.name, "instance": number, "report_to": report_to, **gates},
            **{"create": False, "type": None, "parallelism": 1, "n": None},
        }
        return self._call.command.words({**self._call.values, **changes})

    def _global_words(self) -> list[str]:
        flags = self._call.flags
        arguments = ["--store", os.path.abspath(self._call.store_path()), "--no-progress"]
        if self._call.lock_timeout_ms is not None:
            arguments += ["--lock-timeout", f"{self._call.lock_timeout_ms}ms"]
        if flags.log_format is not None:
            arguments += ["--log-format", flags.log_format]
        if flags.log_file is not None:
            arguments += ["--log-file", flags.log_file]
        if flags.now is not None:
            arguments += ["--now", flags.now]
        if self._log.draws:
            arguments += ["--color", self._log.color]
        quiet = flags.quiet or int(self._call.output.as_json)
        return arguments + ["-q"] * quiet + ["-v"] * flags.verbose

    def _hear(self, instance: Instance) -> TxlogError | None:
        """Read reports of an instance; return the error that ends the run, if there is one."""
        data = os.read(instance.reports, 1 << 16)
        if not data:
            return self._ended(instance)
        *lines, instance.rest = (instance.rest + data).split(b"\n")
        for line in lines:
            facts = orjson.loads(line)
            if "error" in facts:
                instance.error = rebuilt(facts["error"])
                continue
            if "gate" in facts:
                instance.gates.add(facts["gate"])
                self._open_gates()
                continue
            if facts.get("transactions"):
                self._deaths[instance.number] = 0
            self._count(instance, facts)
            instance.said = facts
        self._log.progress(self._summary, self._consumed)
        return None

    def _relay(self, instance: Instance) -> None:
        """Print all whole lines that an instance has written on stderr."""
        while instance.printed is not None:
            try:
                data = os.read(instance.printed, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._forget_printed(instance)
                return
            lines, end, instance.line = (instance.line + data).rpartition(b"\n")
            if end:
                self._log.relay(lines + end)

    def _wait(self, instance: Instance, seconds: float | None = None) -> int:
        """Wait for the end of a process; no instance must block on a full pipe meanwhile.

        raises: TimeoutExpired
        """
        process = instance.process
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._log.draws and process.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, seconds or 0)
            waiting = select.poll()
            if instance.printed is not None:
                waiting.register(instance.printed, select.POLLIN)
            waiting.poll(_LOOK_EVERY_MS)
            for each in [*self._instances.values()]:
                self._relay(each)
        code = process.wait(seconds)
        self._relay(instance)
        return code

    def _open_gates(self) -> None:
        """Open each gate that all running instances have reached."""
        for gate, ends in list(self._gates.items()):
            if all(gate in instance.gates for instance in self._instances.values()):
                del self._gates[gate]
                for end in ends:
                    os.close(end)

    def _count(self, instance: Instance, facts: dict[str, Any]) -> None:
        previous, number = instance.said, instance.number
        more = facts.get("consumed", 0) - previous.get("consumed", 0)
        self._consumed[number] += more
        for name, attribute in _COUNTS.items():
            more = facts.get(name, 0) - previous.get(name, 0)
            setattr(self._summary, attribute, getattr(self._summary, attribute) + more)
        last = facts.get("last_txn")
        if last not in (None, "None"):
            self._summary.last_txn = TxnId.parse(last)

    def _ended(self, instance: Instance) -> TxlogError | None:
        code = self._wait(instance)
        self._forget(instance)
        if code == 0:
            self._open_gates()
            return None
        if instance.error is not None:
            return instance.error
        if code > 0 and code not in _STOPPED:
            return CommandFailed(f"instance {instance.number} ended with {code}")
        deaths = self._deaths[instance.number] = self._deaths.get(instance.number, 0) + 1
        if deaths > _DEATHS_MAX:
            return CommandFailed(
                f"instance {instance.number} died {deaths} times without a commit",
                hint="a message may be killing it: try a smaller --txn-size",
            )
        self._log.tell("restarted", {"number": instance.number, "signal": abs(code)})
        self._start(instance.number)
        return None

    def _forget(self, instance: Instance) -> None:
        self._selector.unregister(instance.reports)
        os.close(instance.reports)
        self._forget_printed(instance)
        del self._instances[instance.number]

    def _forget_printed(self, instance: Instance) -> None:
        if instance.printed is not None:
            self._selector.unregister(instance.printed)
            os.close(instance.printed)
            instance.printed = None
            if instance.line:
                self._log.relay(instance.line + b"\n")
                instance.line = b""

    def _stop(self) -> None:
        """Ask all running instances to stop, and wait for their end."""
        instances = list(self._instances.values())
        for instance in instances:
            if instance.process.poll() is None:
                instance.process.send_signal(signal.SIGTERM)
                # a suspended process would not handle the other signal
                instance.process.send_signal(signal.SIGCONT)
        for instance in instances:
            try:
                self._wait(instance, _GRACE_S)
            except subprocess.TimeoutExpired:
                instance.process.kill()
                self._wait(instance)
            self._forget(instance)
        self._selector.close()
        self._instances = {}
        self._open_gates()


def _close(*descriptors: int | None) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


def rebuilt(facts: dict[str, Any]) -> TxlogError:
    """Rebuild the error that another process reported, for this process to raise."""
    fields = dict(facts)
    kind = getattr(errors, str(fields.pop("class", "")), None)
    message, hint = str(fields.pop("message", "")), fields.pop("hint", None)
    code = int(str(fields.pop("code", "TXL-106"))[4:])
    for name in ("kind", "exit", "retryable"):
        fields.pop(name, None)
    if not (isinstance(kind, type) and issubclass(kind, TxlogError) and code in kind.codes):
        return CommandFailed(message, hint=hint)
    error = kind(message, hint=hint, code=code)
    error.fields = fields
    return error
