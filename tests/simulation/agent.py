"""Owns the agent: the program of a simulated process, which performs the operations of its plan.

It uses the public API as an application does, records each call in the history, and carries on
after errors of txlog. A process that was killed starts again with the next operation; its named
producers then repeat what may not have been stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import Thread, current_thread
from typing import Any

from tests.history.events import Recorder
from tests.simulation.answers import acked, nothing, rows_of, sent, text_id, value_of
from tests.simulation.claims import Claims
from tests.simulation.commands import run_command
from tests.simulation.database import Together
from tests.simulation.handing import Handing
from tests.simulation.machine import Interrupted, SharedDisk, SimulatedProcess
from tests.simulation.memory import Memory
from tests.simulation.returning import SIDE_THREAD, Returning
from tests.simulation.scenario import ProcessPlan, Scenario, TopicPlan
from tests.simulation.upkeep import Upkeep
from tests.simulation.watching import Watching
from tests.simulation.working import Working
from txlog import Client, Message
from txlog.base.ranges import END, Bound
from txlog.client.answers.integrity import verify_disk
from txlog.client.open import open_on
from txlog.clock import SystemClock
from txlog.engine.door.transactions import CommitFuture
from txlog.errors import Corruption, OutcomeUnknown, TxlogError

LARGE_BYTES = 250  # above max_message_bytes of some scenarios
CLOSING_ROUNDS = 3


@dataclass
class Record:
    """The record of typed topics."""

    name: str


class Damage(Exception):
    """`verify` or a call has found that the store is damaged, and no fault damages it."""


class LeftBehind(Exception):
    """A client has closed, and a commit of it has no answer."""


class Agent(Upkeep, Watching, Claims, Working, Together, Returning, Handing):
    """One life of a process."""

    rows_of = staticmethod(rows_of)

    def __init__(
        self,
        scenario: Scenario,
        plan: ProcessPlan,
        process: SimulatedProcess,
        recorder: Recorder,
        memory: Memory,
    ) -> None:
        self.scenario, self.plan, self.process = scenario, plan, process
        self.recorder, self.memory = recorder, memory
        self.topics = {topic.name: topic for topic in scenario.topics}
        self.client: Client = None  # type: ignore[assignment]
        self.consumers: dict[tuple[str, ...], Any] = {}
        self.readers: dict[str, tuple[str, Any]] = {}
        self.producers: dict[tuple[str, str | None], Any] = {}
        self.claimed: dict[str, tuple[str, Any]] = {}
        self.queued: list[tuple[int, Any, Callable[[Any], dict[str, Any]]]] = []

    # --- the life ----------------------------------------------------------------------------

    def live(self) -> None:
        """Perform the operations that are left, and end properly."""
        while not self._open():
            pass
        self._repeat_unsettled()
        operations = self.plan.operations
        while self.memory.next < len(operations):
            operation = operations[self.memory.next]
            self.memory.next += 1
            self._guarded(lambda op=operation: getattr(self, op["op"])(op))  # type: ignore[misc]
        self._guarded(self._settle)
        self._close()

    def _open(self) -> bool:
        try:
            self.client = open_on(SharedDisk(self.process), SystemClock())
        except Corruption as error:
            raise Damage(str(error)) from error
        except (TxlogError, Interrupted):
            self.process.world.scheduler.sleep(0.1)
            return False
        return True

    def _close(self) -> None:
        """Close; a fault may need another try. Afterwards nothing of this life is left."""
        names = [consumer.name for consumer in self.consumers.values()]
        calls = [self.recorder.invoke(self.process.name, "close", consumer=name) for name in names]
        for _ in range(CLOSING_ROUNDS):
            try:
                self.client.close()
            except (TxlogError, Interrupted):
                continue
            commits = [each for _, each, _ in self.queued if isinstance(each, CommitFuture)]
            if any(not commit.done() for commit in commits):
                raise LeftBehind(f"{self.process.name} closed with commits that have no answer")
            break
        self._answer_queued()
        for call in calls:
            self.recorder.ok(call)
        self.recorder.event("kill", process=self.process.name)

    def _guarded(self, act: Callable[[], object]) -> None:
        """Carry on after what txlog refuses; damage and any other error are findings."""
        try:
            act()
        except Corruption as error:
            raise Damage(str(error)) from error
        except (TxlogError, Interrupted):
            return

    def _call(
        self, op: str, act: Callable[[], Any], answer: Callable[[Any], dict[str, Any]], **args: Any
    ) -> Any:
        """Make a call and record it with its outcome."""
        call = self.recorder.invoke(self.process.name, op, **args)
        try:
            result = act()
        except (OutcomeUnknown, Interrupted) as error:
            self.recorder.unknown(call, error)
            raise
        except TxlogError as error:
            self.recorder.fail(call, error)
            raise
        self.recorder.ok(call, **answer(result))
        self.process.world.answered(self.process, op)
        return result

    def _queue(
        self, op: str, act: Callable[[], Any], answer: Callable[[Any], dict[str, Any]], **args: Any
    ) -> None:
        """Begin a call whose outcome comes later, and record that."""
        call = self.recorder.invoke(self.process.name, op, **args)
        try:
            self.queued.append((call, act(), answer))
        except (OutcomeUnknown, Interrupted) as error:
            self.recorder.unknown(call, error)
            raise
        except TxlogError as error:
            self.recorder.fail(call, error)
            raise

    def _value(self) -> str:
        self.memory.count += 1
        return f"{self.process.name}-{self.memory.count}"

    def _payload(self, topic: str, value: str) -> Any:
        plan = self.topics.get(topic)
        padded = value + "-" * self.scenario.padding
        return Record(value) if plan is not None and plan.is_typed else padded

    def _producer(self, topic: str, name: str | None = None, **options: Any) -> Any:
        at = topic, name
        if at not in self.producers:
            self.producers[at] = self.client.producer(topic, name, **options)
        return self.producers[at]

    def _session(self, topic: str, name: str | None = None) -> str:
        thread = current_thread()
        mark = f".{self.memory.count}" if thread.name == SIDE_THREAD else ""
        return f"{self.process.name}.{self.memory.incarnation}.{topic}.{name or ''}{mark}"

    # --- sending -----------------------------------------------------------------------------

    def send(self, op: dict[str, Any]) -> None:
        topic, key, value = op["topic"], op["key"], self._value()
        producer, payload = self._producer(topic), self._payload(topic, value)
        facts = {"topic": topic, "value": value, "session": self._session(topic)}
        if key:
            facts["key"] = key
        if not op["queued"]:
            self._call("send", lambda: producer.send(payload, key=key), sent, **facts)
            self._answer_queued()
            return
        self._queue("send", lambda: producer.send_async(payload, key=key), sent, **facts)

    def send_many(self, op: dict[str, Any]) -> None:
        for _ in range(op["count"]):
            self.send({**op, "queued": True})
        self._settle()

    def send_delayed(self, op: dict[str, Any]) -> None:
        topic, key, value = op["topic"], op["key"], self._value()
        now_ms = SystemClock().now().wall_ms
        facts: dict[str, Any] = {"topic": topic, "value": value, "session": self._session(topic)}
        if key:
            facts["key"] = key
        due = now_ms + op["after_ms"]
        facts["deliver_at_ms"] = due
        producer, payload = self._producer(topic), self._payload(topic, value)
        self._call("send", lambda: producer.send(payload, key=key, deliver_at=due), sent, **facts)

    def send_large(self, op: dict[str, Any]) -> None:
        topic, value = op["topic"], self._value()
        producer = self.client.producer(topic, chunking=True)
        padded = value + "-" * LARGE_BYTES
        facts = {"topic": topic, "value": value, "session": f"large {value}"}
        self._call("send", lambda: producer.send(padded), sent, **facts)

    def send_named(self, op: dict[str, Any]) -> None:
        topic, name = op["topic"], f"{self.process.name}-{op['producer']}"
        at = topic, name
        if at in self.memory.unsettled:
            self._repeat(at)
        sequence = self.memory.sequences.get(at, 0)
        self.memory.sequences[at] = sequence + 1
        time_ms = max(SystemClock().now().wall_ms, self.memory.announced.get(at, 0))
        self.memory.unsettled[at] = sequence, self._value(), op["key"], time_ms
        self._repeat(at)

    def _repeat_unsettled(self) -> None:
        for at in list(self.memory.unsettled):
            self._guarded(lambda at=at: self._repeat(at))  # type: ignore[misc]

    def _repeat(self, at: tuple[str, str]) -> None:
        """Send the newest message of a named producer, once more if need be."""
        unsettled = self.memory.unsettled.get(at)
        if unsettled is None:  # another thread was faster
            return
        (topic, name), (sequence, value, key, time_ms) = at, unsettled
        producer, payload = self._producer(topic, name), self._payload(topic, value)
        facts: dict[str, Any] = {"topic": topic, "value": value, "session": self._session(*at)}
        facts |= {"producer": name, "sequence": sequence, "event_time_ms": time_ms}
        if key:
            facts["key"] = key
        self._call(
            "send",
            lambda: producer.send(
                payload, key=key, sequence_id=sequence, partition=0, event_time=time_ms
            ),
            sent,
            **facts,
        )
        if self.memory.unsettled.get(at) is unsettled:
            del self.memory.unsettled[at]

    def announce(self, op: dict[str, Any]) -> None:
        topic, name = op["topic"], f"{self.process.name}-{op['producer']}"
        if not self.topics[topic].has_watermarks:
            return
        at = topic, name
        if at in self.memory.unsettled:
            self._repeat(at)
        time_ms = SystemClock().now().wall_ms - op["back_ms"]
        self.memory.announced[at] = max(time_ms, self.memory.announced.get(at, 0))
        producer = self._producer(topic, name)
        self._call(
            "announce",
            lambda: producer.new_watermark().event_time(time_ms).send(),
            nothing,
            topic=topic,
            producer=name,
            time_ms=time_ms,
        )

    def flush(self, op: dict[str, Any]) -> None:
        self._settle()

    def _settle(self) -> None:
        """Flush, and record the answers of queued messages."""
        call = self.recorder.invoke(self.process.name, "flush")
        try:
            for producer in [*self.producers.values()]:  # another thread may add one
                producer.flush()
            self.client.flush()
        except (TxlogError, Interrupted) as error:
            self.recorder.unknown(call, error)
            raise
        else:
            self.recorder.ok(call)
        finally:
            self._answer_queued()

    def _answer_queued(self) -> None:
        left = []
        for call, future, answer in self.queued:
            if future.done():
                self._answer(call, answer, future)
            else:
                left.append((call, future, answer))
        self.queued = left

    # --- transactions ------------------------------------------------------------------------

    def transfer(self, op: dict[str, Any]) -> None:
        """Receive, send to several topics and acknowledge in one transaction."""
        received, consumer = self._take(op, op["take"])
        self._in_transaction(op, received, consumer, {})

    def keyed(self, op: dict[str, Any]) -> None:
        key = op["transaction_key"]
        connected = self._connect(key, as_before=op.get("as_before", False))
        self.process.world.scheduler.sleep(op.get("wait_s", 0))
        received, consumer = self._take(op, op["take"])
        self._in_transaction(op, received, consumer, {"key": key, "epoch": connected["epoch"]})

    def _connect(self, key: str, *, as_before: bool) -> Any:
        """Connect a key; as_before: with the epoch that this process had, which may be old."""
        presented = {}
        if as_before and key in self.memory.epochs:
            presented = {"presented": self.memory.epochs[key]}
        connected = self._call(
            "connect_key",
            lambda: self.client.connect(key, *presented.values()),
            _connected,
            key=key,
            **presented,
        )
        self.memory.epochs[key] = connected["epoch"]
        return connected

    def delete_key(self, op: dict[str, Any]) -> None:
        """Stop whoever holds a key; a holder that goes on must be refused."""
        key = op["transaction_key"]
        delete = partial(self.client.admin.delete_transaction_key, key)
        self._call("delete_key", delete, nothing, key=key)
        if key in self.memory.epochs:
            self._connect(key, as_before=True)

    def leave_open(self, op: dict[str, Any]) -> None:
        """A transaction that nobody ends: its time-out does."""
        received, consumer = self._take(op, op["take"])
        txn = self._begin({})
        self._fill(op, txn, received, consumer)

    def _begin(self, holder: dict[str, Any]) -> Any:
        txn = self._call(
            "begin",
            lambda: self._begun(holder),
            lambda answer: {"txn": str(answer.id)},
            **holder,
        )
        return txn

    def _begun(self, holder: dict[str, Any]) -> Any:
        txn = self.client.transaction(**holder)
        _ = txn.id
        return txn

    def _fill(self, op: dict[str, Any], txn: Any, received: list[Message], consumer: Any) -> None:
        txn_id = str(txn.id)
        for topic, key in op["to"]:
            self._send_in(op, txn, txn_id, topic, key)
        if received:
            self._call(
                "acknowledge",
                lambda: consumer.acknowledge(received, txn=txn),
                acked,
                **self._acked_of(op, consumer, received),
                txn=txn_id,
            )
        if op.get("flushes"):
            txn.flush()

    def _send_in(
        self, op: dict[str, Any], txn: Any, txn_id: str, topic: str, key: str | None
    ) -> None:
        """Send in a transaction: the message waits for the commit, as no call reads the receipt."""
        producer, facts, payload, options = self._facts_in(op, txn_id, topic, key)
        if op.get("in_flight", False):
            act = lambda: producer.send_async(payload, txn=txn, **options)  # noqa: E731
            self._queue("send", act, sent, **facts)
        else:
            self._call("send", lambda: producer.send(payload, txn=txn, **options), nothing, **facts)

    def _facts_in(
        self, op: dict[str, Any], txn_id: str, topic: str, key: str | None
    ) -> tuple[Any, dict[str, Any], Any, dict[str, Any]]:
        """For a send in a transaction: the producer, what the history records, the payload, and
        the options of the send.
        """
        value, producer = self._value(), self._producer(topic)
        payload = self._payload(topic, value)
        facts: dict[str, Any] = {"topic": topic, "value": value, "txn": txn_id}
        facts["session"] = f"{self._session(topic)}.{txn_id}"
        options: dict[str, Any] = {"key": key}
        if key:
            facts["key"] = key
        if op.get("after_ms") is not None:
            due = SystemClock().now().wall_ms + op["after_ms"]
            facts["deliver_at_ms"] = options["deliver_at"] = due
        return producer, facts, payload, options

    def pipeline(self, op: dict[str, Any]) -> None:
        """Transactions whose commits overlap; none has an id before its commit is decided.

        What the producers of the pipeline send is stored in the order of the commits.
        """
        received, consumer = self._take(op, len(op["txns"]))
        began, left = self._value(), [*received]
        endings: list[tuple[Any, str]] = []
        for sends in op["txns"]:
            txn, txn_id = self.client.transaction(), f"in flight {self._value()}"
            for topic, key in sends:
                producer, facts, payload, options = self._facts_in(op, txn_id, topic, key)
                facts["session"] = f"{self._session(topic)}.{began}"
                act = partial(producer.send_async, payload, txn=txn, **options)
                self._queue("send", act, sent, **facts)
            if left:
                facts = self._acked_of(op, consumer, [message := left.pop()]) | {"txn": txn_id}
                act = partial(consumer.acknowledge_async, [message], txn=txn)
                self._queue("acknowledge", act, acked, **facts)
            self._queue("commit", txn.commit_async, nothing, txn=txn_id)
            endings.append((txn, txn_id))
        if op.get("closes"):
            self.reopen({"at_once": True})
        elif op["repeats"]:
            self._settle()
            for txn, txn_id in endings:  # what failed without an effect is committed now
                if txn.state == "OPEN":
                    self._guarded(partial(self._end, txn, txn_id, "commit", {}))
            self._answer_queued()

    def _in_transaction(
        self,
        op: dict[str, Any],
        received: list[Message],
        consumer: Any,
        holder: dict[str, Any],
    ) -> None:
        txn = self._begin(holder)
        txn_id = str(txn.id)
        if op["joined"]:
            self._in_one_frame(op, txn, received, consumer, holder)
            return
        try:
            self._fill(op, txn, received, consumer)
        except (TxlogError, Interrupted):
            self._guarded(lambda: self._end(txn, txn_id, "abort", holder))
            raise
        if op["rest_s"]:
            self.process.world.scheduler.sleep(op["rest_s"])
        if op["end"] == "commit" and op.get("in_flight"):
            self._queue("commit", txn.commit_async, nothing, txn=txn_id, **holder)
            self._answer_queued()
        else:
            self._end(txn, txn_id, op["end"], holder)
            if op["end"] == "abort" and op.get("at_once"):  # a commit by its id is refused
                commit = partial(self.client.commit, txn.id)
                self._call("commit", commit, nothing, txn=txn_id)

    def _in_one_frame(
        self,
        op: dict[str, Any],
        txn: Any,
        received: list[Message],
        consumer: Any,
        holder: dict[str, Any],
    ) -> None:
        """Defer sends and an acknowledgement, so that the end writes all of it."""
        txn_id = str(txn.id)
        deferred: list[tuple[int, Callable[[Any], dict[str, Any]], Any]] = []
        try:
            for topic, key in op["to"]:
                producer, facts, payload, options = self._facts_in(op, txn_id, topic, key)
                call = self.recorder.invoke(self.process.name, "send", **facts)
                deferred.append((call, sent, producer.send_async(payload, txn=txn, **options)))
            if received:
                facts = self._acked_of(op, consumer, received) | {"txn": txn_id}
                call = self.recorder.invoke(self.process.name, "acknowledge", **facts)
                deferred.append((call, acked, consumer.acknowledge_async(received, txn=txn)))
            self._end(txn, txn_id, op["end"], holder)
        except (TxlogError, Interrupted):
            self._guarded(lambda: self._end(txn, txn_id, "abort", holder))
            raise
        finally:
            for call, answer, later in deferred:
                self._answer(call, answer, later)

    def _answer(self, call: int, answer: Callable[[Any], dict[str, Any]], later: Any) -> None:
        """Record the outcome of a deferred operation, without writing it."""
        if not later.done():
            self.recorder.unknown(call, "its transaction never wrote it")
            return
        try:
            result = later.result()
        except (OutcomeUnknown, Interrupted) as error:
            self.recorder.unknown(call, error)
        except TxlogError as error:
            self.recorder.fail(call, error)
        else:
            self.recorder.ok(call, **answer(result))

    def _end(self, txn: Any, txn_id: str, end: str, holder: dict[str, Any]) -> None:
        self._call(end, getattr(txn, end), nothing, txn=txn_id, **holder)

    # --- receiving ---------------------------------------------------------------------------

    def _consumer(self, op: dict[str, Any], *, watches: bool = False) -> Any:
        topic, subscription = op["topic"], op["subscription"]
        at = (topic, subscription, "watches") if watches else (topic, subscription)
        if at not in self.consumers:
            kind: Any = self.topics[topic].kinds[subscription]
            place = f"{self.memory.incarnation}.{self.memory.count}.{topic}.{subscription}"
            self.memory.count += 1
            name = f"{self.process.name}.{place}"
            consumer = self._call(
                "subscribe",
                lambda: self.client.consumer(
                    topic,
                    subscription,
                    type=kind.replace("_", "-"),
                    name=name,
                    enable_watermarking=watches,
                ),
                nothing,
                topic=topic,
                subscription=subscription,
                consumer=name,
                kind=kind,
            )
            if self.consumers.setdefault(at, consumer) is not consumer:  # a thread was faster
                self._call("close", consumer.close, nothing, consumer=name)
        return self.consumers[at]

    def _take(
        self, op: dict[str, Any], most: int, timeout_ms: int = 0, *, ahead: bool = False
    ) -> tuple[list[Message], Any]:
        if not most:
            return [], None
        consumer = self._consumer(op)
        topic, subscription = op["topic"], op["subscription"]

        def receive() -> list[Message]:
            if not ahead:
                return [*_messages(consumer.receive_batch(most, timeout_ms))]
            message = consumer.receive(timeout_ms)
            return [] if message is None else [message]

        received: list[Message] = self._call(
            "receive",
            receive,
            lambda messages: {"messages": rows_of(messages)},
            topic=topic,
            subscription=subscription,
            consumer=consumer.name,
        )
        return received, consumer

    def _acked_of(
        self, op: dict[str, Any], consumer: Any, messages: list[Message]
    ) -> dict[str, Any]:
        return {
            "topic": op["topic"],
            "subscription": op["subscription"],
            "consumer": consumer.name,
            "values": [value_of(message.value) for message in messages],
            "ids": [text_id(message.message_id) for message in messages],
        }

    def consume(self, op: dict[str, Any]) -> None:
        received, consumer = self._take(op, op["take"], op["timeout_ms"], ahead=op["ahead"])
        then = op["then"]
        if then == "close":
            at = op["topic"], op["subscription"]
            self._call("close", self.consumers.pop(at).close, nothing, consumer=consumer.name)
            return
        if not received or then == "nothing":
            return
        if then == "ends":  # the mark must wait for what is in between
            facts = self._acked_of(op, consumer, received[:1])
            self._call("acknowledge", partial(consumer.acknowledge, received[:1]), acked, **facts)
            received = received[-1:]
        facts = self._acked_of(op, consumer, received)
        kind = self.topics[op["topic"]].kinds[op["subscription"]]
        if then == "nack":
            self._call("nack", lambda: consumer.negative_acknowledge(received), nothing, **facts)
        elif then in ("cumulative", "stale") and kind in ("exclusive", "failover"):
            last = received[-1]
            if then == "stale":  # what is behind it has come back
                facts = self._acked_of(op, consumer, received[:1])
                nack = partial(consumer.negative_acknowledge, received[:1])
                self._call("nack", nack, nothing, **facts)
            facts = self._acked_of(op, consumer, [last])
            del facts["values"]  # the checker finds out which messages come before
            self._call(
                "acknowledge",
                lambda: consumer.acknowledge_cumulative(last),
                acked,
                **facts,
                partition=last.partition,
                cumulative=True,
            )
        else:
            self._call("acknowledge", lambda: consumer.acknowledge(received), acked, **facts)

    def recreate_subscription(self, op: dict[str, Any]) -> None:
        topic, subscription = op["topic"], op["subscription"]
        facts = {"topic": topic, "subscription": subscription}
        handle = self.client.subscription(topic, subscription)
        self._call("unsubscribe", lambda: handle.delete(force=True), nothing, **facts)
        subscribe(self.client, self.recorder, self.process.name, self.topics[topic], subscription)

    def recreate_topic(self, op: dict[str, Any]) -> None:
        plan = self.topics[op["topic"]]
        self._call(
            "delete_topic",
            lambda: self.client.admin.delete_topic(plan.name, force=True),
            nothing,
            topic=plan.name,
        )
        make_topic(self.client, self.recorder, self.process.name, plan)

    # --- reading -----------------------------------------------------------------------------

    def read(self, op: dict[str, Any]) -> None:
        """Read everything; a slow reader rests between the tables that it gets."""
        topics = [topic.name for topic in self.scenario.topics]
        sleep, rest_s = self.process.world.scheduler.sleep, op.get("rest_s")
        rest = partial(sleep, rest_s) if rest_s else dict
        self._call(
            "read",
            lambda: snapshot(self.client, topics, rest),
            lambda seen: {"topics": seen},
            topics=topics,
        )

    # --- upkeep ------------------------------------------------------------------------------

    def trim(self, op: dict[str, Any]) -> None:
        topic, to = op["topic"], Bound("skip", op["skip"]) if op.get("skip") else END
        self._call(
            "trim",
            lambda: self.client.admin.trim(topic, to, force_unacked=op["force"]),
            nothing,
            topic=topic,
        )

    def add_partition(self, op: dict[str, Any]) -> None:
        topic = op["topic"]
        count = self.client.describe_topic(topic)["partitions"] + 1
        self._call(
            "add_partitions",
            lambda: self.client.admin.update_topic(topic, count),
            nothing,
            topic=topic,
            partitions=count,
        )

    def sleep(self, op: dict[str, Any]) -> None:
        self.process.world.scheduler.sleep(op["seconds"])

    def together(self, op: dict[str, Any]) -> None:
        """Two operations at the same time, in threads of one client."""
        threads = [
            Thread(target=self._perform, args=(each,), name=SIDE_THREAD) for each in op["of"]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _perform(self, op: dict[str, Any]) -> None:
        self._guarded(lambda: getattr(self, op["op"])(op))

    def command(self, op: dict[str, Any]) -> None:
        """The same by the command layer, as a program of its own."""
        topic, name = op["topic"], op["command"]
        if name.startswith("produce"):
            value = self._value()
            text = json.dumps({"name": value}) if self.topics[topic].is_typed else value
            args = ["produce", topic, "-m", text, *(["--txn"] if name == "produce-txn" else [])]
            facts = {"topic": topic, "value": value}
            self._call("send", lambda: _need_success(args), nothing, **facts)
        elif name == "consume":
            run_command(["consume", topic, "--json"])
        else:
            run_command(["txn", "list", "--json"])

    def reopen(self, op: dict[str, Any]) -> None:
        if not op.get("at_once"):
            self._guarded(self._settle)
        self._close()
        self.memory.incarnation += 1
        self.consumers, self.readers, self.producers, self.claimed = {}, {}, {}, {}
        while not self._open():
            pass

    def verify(self, op: dict[str, Any]) -> None:
        with self.process.world.calm():
            disk = SharedDisk(self.process, read_only=True)
            need_sound(verify_disk(disk, SystemClock(), deep=True))


def _connected(answer: Any) -> dict[str, Any]:
    """The facts of a connection of a key for a history."""
    fenced = answer["fenced_txn"]
    return {"epoch": answer["epoch"]} | ({"fenced": str(fenced)} if fenced else {})


def _need_success(args: list[str]) -> None:
    """Run a command; its exit code says what became of it."""
    code, _, error = run_command(args)
    if "Traceback" in error or "internal error" in error:
        raise Damage(f"txlog {' '.join(args)} ended with {code}: {error}")
    if code:
        raise OutcomeUnknown(error)


def make_topic(client: Client, recorder: Recorder, process: str, plan: TopicPlan) -> None:
    """Create a topic and its subscriptions."""
    kept = {name: each for name, each in plan.policies.items() if name.startswith("retention_")}
    facts: dict[str, Any] = {"topic": plan.name, "partitions": plan.partitions, **kept}
    call = recorder.invoke(process, "create_topic", **facts)
    try:
        client.create_topic(
            plan.name,
            partitions=plan.partitions,
            schema=Record if plan.is_typed else None,
            **plan.policies,
        )
    except BaseException as error:
        recorder.unknown(call, error)
        raise
    recorder.ok(call)
    for name in plan.kinds:
        subscribe(client, recorder, process, plan, name)


def subscribe(client: Client, recorder: Recorder, process: str, plan: TopicPlan, name: str) -> None:
    """Create a subscription at the first message."""
    consumer = f"{process}.{len(recorder.events)}"
    facts = {"topic": plan.name, "subscription": name, "kind": plan.kinds[name]}
    kind: Any = plan.kinds[name].replace("_", "-")
    policies: dict[str, Any] = {}
    if plan.redeliveries is not None:
        policies["max_redeliver_count"] = plan.redeliveries
    call = recorder.invoke(process, "subscribe", **facts, consumer=consumer, initial="earliest")
    try:
        client.create_subscription(plan.name, name, type=kind, position="earliest", **policies)
    except BaseException as error:
        recorder.unknown(call, error)
        raise
    recorder.ok(call)
    recorder.ok(recorder.invoke(process, "close", consumer=consumer))


def need_sound(answer: Any) -> None:
    """Raise Damage if `verify` has found an error."""
    if answer["errors"]:
        raise Damage("; ".join(row["message"] for row in answer["problem_list"]))


def snapshot(
    client: Client, topics: list[str], rest: Callable[[], object] = dict
) -> dict[str, dict[str, list[list[str | None]]]]:
    """All committed messages of topics, as of one moment; rest: between two tables."""
    seen: dict[str, dict[str, list[list[str | None]]]] = {topic: {} for topic in topics}
    for table in client.read(topics):
        rest()
        for message in _messages(table):
            rows = seen[message.topic].setdefault(str(message.partition), [])
            rows.append([text_id(message.message_id), value_of(message.value)])
    return seen


def _messages(table: Any) -> Iterable[Message]:
    from txlog import messages

    return messages(table)
