"""Owns the vocabulary of histories: one event, its line of JSON, and the recorder that makes it.

A history is a list of events in the order in which one observer saw them. A call is two events
with the same number `call`: `invoke`, then its outcome. Everything that a call did happened
between the two. An event without a call (a kill, a power cut) has the type `event`.

    {"n": 7, "process": "p1", "call": 3, "type": "invoke", "op": "send",
     "args": {"topic": "t", "value": "m1"}}
    {"n": 9, "process": "p1", "call": 3, "type": "ok", "op": "send",
     "answer": {"partition": 0, "id": "1:0"}}

type:
    invoke   the call begins
    ok       it returned; `answer` holds what it returned
    fail     it was refused and had no effect; `error` is the name of the class
    unknown  OutcomeUnknown, or the process died in the call: it may take effect, now or later.
             A call that has no outcome at the end of the history is unknown, too.
    event    something that happened, not a call

Fields that nobody knows are left out. A value must be unique for each logical message: a producer
that repeats a sequence number sends the same value again. A number in `…_ms` is milliseconds of the
one clock that also sets `at`. A message id is `L:E` or `L:E:I` in numbers, which grow along a
partition. A transaction is named by any text that is unique in the history, such as `0:17`.

op, with its args -> its answer:

  topics
    create_topic     topic, partitions, retention_ms?, retention_acked? (policies that remove
                     messages), derived? (messages come into it without a `send`, as from
                     a function; topics named …-DLQ and …-RETRY are derived anyway)
    delete_topic     topic
    add_partitions   topic, partitions (the new number)
    trim             topic, partition?, ids? (removed) or before? (the first id that stays)
    flush            everything written before is durable
    settings         (an `event` at the beginning) those that differ: durability, tick_ms (how
                     early a delayed message may come if not strict), ack_timeout_ms,
                     producer_idle_timeout_ms, clock_jump_max_ms (a clock that was set ahead by
                     more is not trusted until the next boot)
  producers
    open_producer    topic, producer (its name), session, access? (shared | exclusive |
                     exclusive-with-fencing)      fences earlier sessions of this name, or all of
                     the topic
    close_producer   topic, session
    send             topic, value, key?, partition?, txn?, producer? (its name), sequence?,
                     session? (one producer object: it stores in the order of the invocations),
                     deliver_at_ms?, event_time_ms?
                     -> partition, id (a send in a transaction may have none; without a
                        partition, too, it may wait in the client), duplicate?
                        Batched sends: invoke each as it is queued, and answer each later.
    announce         topic, producer, time_ms (null: idle), txn?       a producer's watermark
  transactions
    connect_key      key, presented? (an epoch; without it, it takes over in any case)
                     -> epoch, fenced? (the transaction that it aborted)  fences earlier epochs
    delete_key       key                                               fences all epochs
    begin            key?, epoch? -> txn, epoch? (without an epoch it connects the key, too)
    commit, abort    txn -> state? (committed | committing | aborted | aborting)
  consumers
    subscribe        topic (or a list), subscription, consumer (a name for each object), kind
                     (exclusive | failover | shared | key_shared), initial? (latest | earliest),
                     ack_timeout_ms?, dead_letter_topic?, retry_topic?,
                     is_ahead? (a client's queue: what `receive` returns may have been
                     delivered at any time since `subscribe`)
    close            consumer
    unsubscribe      topic, subscription
    receive          topic, subscription, consumer
                     -> messages: [{topic?, partition, id, value, key?, redelivered?, late?}]
    acknowledge      topic, subscription, consumer?, ids or values, cumulative?, txn?
                     -> dropped?, stale?
    reconsume_later  topic, subscription, consumer, ids or values
    nack             topic, subscription, consumer, ids or values
    redeliver        topic, subscription, consumer                     all that it holds
    seek             topic, subscription, to (earliest | latest | an id | a time)
    watermark        consumer? or reader?, topic, subscription?, time_ms  (an `event`: it was
                     emitted to this consumer)
  readers
    read             reader?, start? (earliest), isolation? (committed | uncommitted),
                     partial?, compacted?, partitions? (not all of the topics are read)
                     -> topics: {topic: {partition: [[id, value], …]}}
                     Without `reader`: everything that is visible, at one moment. With `reader`:
                     what a continuing reader returned since its last read, up to one moment. A
                     covered partition without messages has an empty list. `partial`: there may
                     be more than it returned.
    round            reader, topics: {topic: [value, …]}   (an `event`: a reader of several topics
                     has come to the end of a round, in which it showed these)
  faults, of type `event`, or a call if they take time
    kill             (process) its open calls are unknown; without a process, the server of all
    power_cut        survivors?; every other process dies; what was not flushed may be lost
    lossy            unflushed frames may be lost, as after a failed flush
    stop, continue   (process) SIGSTOP, SIGCONT
    clock_jump       (process) by_ms
  after recovery, when nothing else runs
    final_read       -> as read, of all topics
    final_drain      topic, subscription -> messages, as receive: all that a fresh consumer gets;
                     moved? (ids that are dead letters although they were acknowledged once).
                     `at` is the time by which delayed messages should have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

Type = Literal["invoke", "ok", "fail", "unknown", "event"]

DIED = "died"  # the error of a call whose process died


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """One line of a history; the module's docstring describes the fields."""

    n: int
    type: Type
    op: str
    process: str = ""
    client: str = ""
    call: int | None = None
    at: int | None = None
    args: dict[str, Any] = {}
    answer: dict[str, Any] = {}
    error: str | None = None


class Recorder:
    """Records events in order; the caller's threads must take turns.

    now:   the clock that sets `at`, in milliseconds
    to:    write each event to this stream as it happens, so that it survives a kill
    order: sets `n`, if several processes record (`merged` puts their files together); such a
           recorder keeps nothing in memory
    """

    def __init__(
        self,
        now: Callable[[], int | None] | None = None,
        to: IO[str] | None = None,
        order: Callable[[], int] | None = None,
    ) -> None:
        self.events: list[Event] = []
        self._now = now
        self._to = to
        self._order = order
        self._calls = 0
        self._open: dict[int, Event] = {}

    def invoke(self, process: str, op: str, *, client: str = "", **args: Any) -> int:
        """A call begins; returns its number, which the outcome takes."""
        self._calls += 1
        event = self._add("invoke", op, process=process, client=client, args=args)
        event.call = self._calls
        self._open[self._calls] = event
        self._write(event)
        return self._calls

    def ok(self, call: int, **answer: Any) -> Event:
        """The call returned."""
        return self._end("ok", call, answer, None)

    def fail(self, call: int, error: str | BaseException) -> Event:
        """The call was refused and had no effect."""
        return self._end("fail", call, {}, error)

    def unknown(self, call: int, error: str | BaseException = DIED) -> Event:
        """Nobody knows whether the call had an effect."""
        return self._end("unknown", call, {}, error)

    def event(self, op: str, *, process: str = "", client: str = "", **args: Any) -> Event:
        """Something happened; after `kill` and `power_cut` the open calls are unknown."""
        event = self._add("event", op, process=process, client=client, args=args)
        self._write(event)
        survivors = args.get("survivors", ())  # processes on other machines
        if op in ("kill", "power_cut"):
            for call, invoked in list(self._open.items()):
                is_dead = op == "power_cut" and invoked.process not in survivors
                if is_dead or invoked.process == process:
                    self.unknown(call)
        return event

    def _end(
        self,
        type_: Type,
        call: int,
        answer: dict[str, Any],
        error: str | BaseException | None,
    ) -> Event:
        invoked = self._open.pop(call)
        event = self._add(type_, invoked.op, process=invoked.process, client=invoked.client)
        event.call, event.answer = call, answer
        event.error = type(error).__name__ if isinstance(error, BaseException) else error
        self._write(event)
        return event

    def _add(
        self, type_: Type, op: str, *, process: str, client: str, args: Mapping[str, Any] = {}
    ) -> Event:
        at = None if self._now is None else self._now()
        number = len(self.events) if self._order is None else self._order()
        event = Event(number, type_, op, process=process, client=client, at=at, args=dict(args))
        if self._order is None:
            self.events.append(event)
        return event

    def _write(self, event: Event) -> None:
        if self._to is not None:
            self._to.write(msgspec.json.encode(event).decode() + "\n")
            self._to.flush()


def load(lines: Iterable[bytes | str]) -> Iterator[Event]:
    """The events of lines of JSON; empty lines are skipped."""
    decoder = msgspec.json.Decoder(Event)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"line {number} is no event: {error}") from error


def merged(paths: Iterable[Path]) -> list[Event]:
    """The history of several files whose recorders share an order; a kill may cut a last line."""
    events: list[Event] = []
    calls = 0
    for path in paths:
        number_of: dict[int, int] = {}
        for event in load(path.read_bytes().rpartition(b"\n")[0].split(b"\n")):
            if event.call is not None:
                if event.type == "invoke":
                    calls += 1
                    number_of[event.call] = calls
                event.call = number_of[event.call]
            events.append(event)
    events.sort(key=lambda event: event.n)
    for number, event in enumerate(events):
        event.n = number
    return events


def save(events: Iterable[Event], path: Path) -> None:
    """Write a history as lines of JSON."""
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(event) + b"\n" for event in events)


def read_file(path: Path) -> list[Event]:
    """The history of a file of JSON lines."""
    with path.open("rb") as file:
        return list(load(file))
