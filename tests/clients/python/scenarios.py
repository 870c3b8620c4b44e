"""Owns the scenarios of the stock Python client, for its sync and its asyncio flavour.

    scenarios.py (sync | asyncio) URL PREFIX [NAME ...]

It runs the scenarios that are named, or all, and prints a JSON object for each: its name, whether
it held, and why not. Topics have names that begin with the prefix.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as TimedOut
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pulsar
import pulsar.asyncio
from pulsar import schema

AT_ONCE = 4
PATIENCE_MS = 30_000
POLL_MS = 100
SILENCE_MS = 700  # how long nothing has to come for it to be "nothing"
Scenario = Callable[["Bed"], None]
Connect = Callable[..., Any]
LONGEST = "regex"  # begins first
SCENARIOS: dict[str, Scenario] = {}
ONLY_SYNC: set[str] = set()
SECURED: dict[str, Scenario] = {}
SECRETS = os.environ.get("CREDENTIALS", "")  # a folder; without one nothing is secured
ALONE = "tls_reloaded"  # it changes the server
PRINTING = threading.Lock()


def scenario(act: Scenario) -> Scenario:
    """A scenario of both flavours."""
    SCENARIOS[act.__name__] = act
    return act


def only_sync(act: Scenario) -> Scenario:
    """A scenario of a feature that the asyncio flavour lacks."""
    ONLY_SYNC.add(act.__name__)
    return scenario(act)


def secured(act: Scenario) -> Scenario:
    """A scenario of a server with TLS and rules."""
    SECURED[act.__name__] = act
    return act


class Bed:
    """Gives a scenario a client of its own, and names of topics that no other scenario uses.

    A client has one connection. If it is lost, unacknowledged messages come again, so scenarios
    that shared one would disturb each other.
    """

    def __init__(self, client: Any, prefix: str, connect: Connect) -> None:
        self.client, self._prefix, self._connect = client, prefix, connect

    @contextmanager
    def with_client(self, who: Any = None, authority: str = "ca", **options: Any) -> Iterator[Bed]:
        """A bed with another client, with its own login and its own trusted authority."""
        client = self._connect(
            authentication=who,
            tls_trust_certs_file_path=secret(f"{authority}.pem"),
            tls_validate_hostname=True,
            **options,
        )
        try:
            yield Bed(client, self._prefix, self._connect)
        finally:
            closed(client)

    def topic(self, *parts: str) -> str:
        return "persistent://public/default/" + "-".join([self._prefix, *parts])

    def producer(self, topic: str | None = None, **options: Any) -> Any:
        options.setdefault("batching_enabled", False)
        return self.client.create_producer(topic or self.topic(), **options)

    def consumer(self, topic: Any = None, name: str = "s", **options: Any) -> Any:
        return self.client.subscribe(
            topic or self.topic(), name, initial_position=pulsar.InitialPosition.Earliest, **options
        )

    def shared(self, **options: Any) -> Any:
        return self.consumer(consumer_type=pulsar.ConsumerType.Shared, **options)

    def send(self, count: int, topic: str | None = None) -> list[Any]:
        """Send m0, m1, ... one by one."""
        producer = self.producer(topic)
        ids = [producer.send(f"m{n}".encode()) for n in range(count)]
        producer.close()
        return ids

    def send_batch(self, count: int) -> list[Any]:
        """Send m0, m1, ... in one batch."""
        producer = self.producer(
            batching_enabled=True,
            batching_max_messages=count,
            batching_max_publish_delay_ms=1000,
        )
        ids = send_all(producer, values(0, count))
        producer.close()
        return ids


def send_all(producer: Any, texts: Sequence[str]) -> list[Any]:
    """Send without waiting in between; returns the ids."""
    sent: list[Future[Any]] = []
    for text in texts:
        if isinstance(producer, Awaited):
            sent.append(producer.begin("send", text.encode()))
            continue
        future: Future[Any] = Future()
        sent.append(future)

        def done(result: Any, message_id: Any, future: Future[Any] = future) -> None:
            if result == pulsar.Result.Ok:
                future.set_result(message_id)
            else:
                future.set_exception(Exception(str(result)))

        producer.send_async(text.encode(), done)
    producer.flush()
    return [future.result(PATIENCE_MS / 1000) for future in sent]


class Awaited:
    """An object of the asyncio flavour; a scenario's thread waits for each of its calls."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop
        self._receiving: Future[Any] | None = None

    def begin(self, name: str, *args: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(getattr(self._inner, name)(*args), self._loop)

    def receive(self, timeout_millis: int) -> Any:
        if self._receiving is None:
            self._receiving = self.begin("receive")
        try:
            message = self._receiving.result(timeout_millis / 1000)
        except TimedOut:
            raise pulsar.Timeout("nothing came") from None
        self._receiving = None
        return message

    def read_next(self, timeout_millis: int) -> Any:
        return self.begin("read_next").result(timeout_millis / 1000)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            result = attribute(*args, **kwargs)
            if inspect.isawaitable(result):
                result = asyncio.run_coroutine_threadsafe(_of(result), self._loop).result(
                    PATIENCE_MS / 1000
                )
            kinds = (pulsar.asyncio.Producer, pulsar.asyncio.Consumer, pulsar.asyncio.Reader)
            return Awaited(result, self._loop) if isinstance(result, kinds) else result

        return call


async def _of(awaitable: Any) -> Any:
    return await awaitable


def values(start: int, end: int) -> list[str]:
    return [f"m{n}" for n in range(start, end)]


def following(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(count)]


def texts(messages: Sequence[Any]) -> list[str]:
    return [message.data().decode() for message in messages]


def nothing(consumer: Any) -> None:
    try:
        message = consumer.receive(timeout_millis=SILENCE_MS)
    except pulsar.Timeout:
        return
    raise AssertionError(f"a message came: {message.data()[:50]!r}")


def polled(consumers: Sequence[Any], count: int) -> Iterator[tuple[int, Any]]:
    """Messages of several consumers as they come, each with the number of its consumer."""
    silent = 0
    while count:
        for n, consumer in enumerate(consumers):
            try:
                message = consumer.receive(timeout_millis=POLL_MS)
            except pulsar.Timeout:
                silent += 1
                assert silent * POLL_MS < PATIENCE_MS * len(consumers), f"{count} did not come"
                continue
            silent, count = 0, count - 1
            yield n, message
            if not count:
                return


def same(actual: object, expected: object) -> None:
    assert actual == expected, f"expected {expected!r}, found {actual!r}"


def fails(act: Callable[[], object], *texts: str) -> None:
    try:
        act()
    except Exception as error:
        said = f"{type(error).__name__} {error}"
        assert any(text in said for text in texts), said
        return
    raise AssertionError("nothing was raised")


def wrapped(message_id: Any) -> pulsar.MessageId:
    """The class of ids that users see; some calls answer with another."""
    is_wrapped = isinstance(message_id, pulsar.MessageId)
    return message_id if is_wrapped else pulsar.MessageId.wrap(message_id)


def arrived(messages: Sequence[Any], ids: Sequence[Any]) -> None:
    for n, (message, message_id) in enumerate(zip(messages, ids, strict=True)):
        found = wrapped(message.message_id())
        message_id = wrapped(message_id)
        assert not found < message_id and not message_id < found, f"{found} is not {message_id}"
        assert n == 0 or wrapped(ids[n - 1]) < message_id, "ids are not in order"


# --- sending ---------------------------------------------------------------------------------


@scenario
def send(bed: Bed) -> None:
    ids = bed.send(5)
    messages = following(bed.consumer(), 5)
    same(texts(messages), values(0, 5))
    arrived(messages, ids)


@scenario
def send_async(bed: Bed) -> None:
    ids = send_all(bed.producer(), values(0, 200))
    messages = following(bed.consumer(), 200)
    same(texts(messages), values(0, 200))
    arrived(messages, ids)


@scenario
def batches(bed: Bed) -> None:
    ids = [*bed.send_batch(20), *bed.send(1), *bed.send_batch(20)]
    messages = following(bed.consumer(), 41)
    same(texts(messages), [*values(0, 20), "m0", *values(0, 20)])
    arrived(messages, ids)


@scenario
def compression(bed: Bed) -> None:
    value = "compressible " * 1000
    consumer = bed.consumer()
    for name in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
        for batching in (False, True):
            producer = bed.producer(
                compression_type=getattr(pulsar.CompressionType, name), batching_enabled=batching
            )
            send_all(producer, [value + name, value])
            producer.close()
            same(texts(following(consumer, 2)), [value + name, value])


@scenario
def chunks(bed: Bed) -> None:
    value = "0123456789abcdef" * 700_000
    producer, consumer = bed.producer(chunking_enabled=True), bed.consumer()
    for each in ("before", value, "behind"):
        producer.send(each.encode())
    messages = following(consumer, 3)
    assert texts(messages) == ["before", value, "behind"], "other values came"
    for message in messages:
        consumer.acknowledge(message)
    nothing(consumer)


@scenario
def metadata(bed: Bed) -> None:
    producer, consumer = bed.producer(producer_name="named"), bed.consumer()
    producer.send(
        b"v", properties={"p": "v", "empty": ""}, partition_key="a key", event_timestamp=1234567
    )
    (message,) = following(consumer, 1)
    same(message.partition_key(), "a key")
    same(message.properties(), {"p": "v", "empty": ""})
    same(message.event_timestamp(), 1234567)
    same(message.producer_name(), "named")
    same(message.topic_name(), bed.topic())
    assert message.publish_timestamp() > 1234567


@scenario
def null_value(bed: Bed) -> None:
    consumer = bed.consumer()
    for in_batch in (True, False):
        producer = bed.producer(batching_enabled=in_batch)
        ids = [producer.send(value, partition_key="k") for value in (b"a", b"", b"b")]
        messages = following(consumer, 3)
        same([message.data() for message in messages], [b"a", b"", b"b"])
        same(
            [message.message_id().entry_id() for message in messages], [it.entry_id() for it in ids]
        )


@scenario
def delayed(bed: Bed) -> None:
    producer, consumer = bed.producer(), bed.shared()
    at = int(time.time() * 1000) + 2000
    producer.send(b"later", deliver_at=at)
    producer.send(b"now")
    came = {}
    for message in following(consumer, 2):
        came[message.data()] = time.time() * 1000
        consumer.acknowledge(message)
    same(came.keys(), {b"now", b"later"})
    assert came[b"later"] >= at - 1000, "it came too early"


@scenario
def deduplication(bed: Bed) -> None:
    for _ in range(2):
        producer = bed.producer(producer_name="p")
        for n in range(5):
            producer.send(f"m{n}".encode(), sequence_id=n + 1)  # it takes 0 for none
        producer.close()
    consumer = bed.consumer()
    same(texts(following(consumer, 5)), values(0, 5))
    nothing(consumer)


@scenario
def exclusive_producer(bed: Bed) -> None:
    first = bed.producer(access_mode=pulsar.ProducerAccessMode.Exclusive)
    fails(bed.producer, "ProducerBusy", "ProducerFenced")
    first.send(b"m0")
    first.close()
    bed.send(1)


@scenario
def waiting_producer(bed: Bed) -> None:
    first = bed.producer(access_mode=pulsar.ProducerAccessMode.Exclusive)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(bed.producer, access_mode=pulsar.ProducerAccessMode.WaitForExclusive)
        first.send(b"m0")
        assert not second.done()
        first.close()
        second.result(PATIENCE_MS / 1000).send(b"m1")
    same(texts(following(bed.consumer(), 2)), values(0, 2))


@scenario
def fencing_producer(bed: Bed) -> None:
    first = bed.producer(access_mode=pulsar.ProducerAccessMode.Exclusive)
    second = bed.producer(access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    second.send(b"m0")
    fails(lambda: first.send(b"m1"), "ProducerFenced", "AlreadyClosed")
    second.send(b"m2")


@scenario
def partitions(bed: Bed) -> None:
    names = bed.client.get_topic_partitions(bed.topic())
    same(len(names), 3)
    producer, consumer = bed.producer(), bed.consumer()
    for n in range(30):
        producer.send(f"m{n}".encode())
    messages = following(consumer, 30)
    same(sorted(texts(messages)), sorted(values(0, 30)))
    same(len({message.topic_name() for message in messages}), 3)
    for message in messages:
        consumer.acknowledge(message)
    for n in range(10):
        producer.send(f"m{n}".encode(), partition_key="the key")
    same(len({message.topic_name() for message in following(consumer, 10)}), 1)
    (message,) = following(bed.consumer(names[1], "one"), 1)
    same(message.topic_name(), names[1])


# --- consuming -------------------------------------------------------------------------------


@scenario
def exclusive(bed: Bed) -> None:
    bed.send(10)
    first = bed.consumer()
    fails(bed.consumer, "ConsumerBusy")
    same(texts(following(first, 10)), values(0, 10))
    first.close()
    same(texts(following(bed.consumer(), 10)), values(0, 10))


@scenario
def failover(bed: Bed) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Failover}
    consumers = [bed.consumer(**options), bed.consumer(**options)]
    bed.send(10)
    ((number, first),) = polled(consumers, 1)
    active, waiting = consumers[number], consumers[1 - number]
    messages = [first, *following(active, 9)]
    same(texts(messages), values(0, 10))
    nothing(waiting)
    active.acknowledge_cumulative(messages[4])
    active.close()
    same(texts(following(waiting, 5)), values(5, 10))


@scenario
def shared(bed: Bed) -> None:
    consumers = [bed.shared(receiver_queue_size=5) for _ in range(2)]
    bed.send(100)
    texts_of_both: list[str] = []
    counts = [0, 0]
    for n, message in polled(consumers, 100):
        texts_of_both += texts([message])
        counts[n] += 1
        consumers[n].acknowledge(message)
    same(sorted(texts_of_both), sorted(values(0, 100)))
    assert all(counts), "one of them got everything"


@scenario
def key_shared(bed: Bed) -> None:
    consumers = [bed.consumer(consumer_type=pulsar.ConsumerType.KeyShared) for _ in range(2)]
    producer = bed.producer()
    for n in range(100):
        producer.send(f"{n:03}".encode(), partition_key=f"key {n % 20}")
    owners: dict[str, int] = {}
    newest: dict[str, bytes] = {}
    for n, message in polled(consumers, 100):
        key = message.partition_key()
        same(owners.setdefault(key, n), n)
        assert newest.get(key, b"") < message.data(), "a key lost its order"
        newest[key] = message.data()
        consumers[n].acknowledge(message)
    same(set(owners.values()), {0, 1})


@scenario
def acknowledge(bed: Bed) -> None:
    bed.send(10)
    consumer = bed.shared()
    for message in following(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = bed.shared()
    same(sorted(texts(following(consumer, 5))), ["m1", "m3", "m5", "m7", "m9"])
    nothing(consumer)


@scenario
def acknowledge_cumulative(bed: Bed) -> None:
    bed.send(10)
    consumer = bed.consumer()
    consumer.acknowledge_cumulative(following(consumer, 6)[5])
    consumer.close()
    same(texts(following(bed.consumer(), 4)), values(6, 10))


@scenario
def acknowledge_in_batch(bed: Bed) -> None:
    bed.send_batch(10)
    consumer = bed.shared(batch_index_ack_enabled=True)
    for message in following(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = bed.shared(batch_index_ack_enabled=True)
    same(sorted(texts(following(consumer, 5))), ["m1", "m3", "m5", "m7", "m9"])
    nothing(consumer)


@scenario
def nack(bed: Bed) -> None:
    bed.send(3)
    consumer = bed.shared(negative_ack_redelivery_delay_ms=500)
    messages = following(consumer, 3)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1])
    consumer.acknowledge(messages[2])
    for count in (1, 2):
        (redelivered,) = following(consumer, 1)
        same((redelivered.data(), redelivered.redelivery_count()), (b"m1", count))
        if count == 1:
            consumer.negative_acknowledge(redelivered)
    consumer.acknowledge(redelivered)
    nothing(consumer)


@scenario
def redeliver(bed: Bed) -> None:
    bed.send(5)
    consumer = bed.consumer()
    consumer.acknowledge_cumulative(following(consumer, 5)[1])
    consumer.redeliver_unacknowledged_messages()
    same(texts(following(consumer, 3)), values(2, 5))


@scenario
def seek(bed: Bed) -> None:
    ids = bed.send(10)
    consumer = bed.consumer()
    following(consumer, 10)
    consumer.seek(wrapped(ids[4]))
    same(texts(following(consumer, 5)), values(5, 10))
    consumer.seek(wrapped(pulsar.MessageId.earliest))
    same(texts(following(consumer, 10)), values(0, 10))
    consumer.seek(wrapped(pulsar.MessageId.latest))
    bed.send(1)
    same(texts(following(consumer, 1)), values(0, 1))
    consumer.close()
    consumer = bed.consumer(name="inclusive", start_message_id_inclusive=True)
    consumer.seek(wrapped(ids[4]))
    same(texts(following(consumer, 6)), values(4, 10))


@scenario
def seek_time(bed: Bed) -> None:
    bed.send(5)
    threading.Event().wait(0.05)  # so that the times differ
    between = int(time.time() * 1000)
    threading.Event().wait(0.05)  # so that the times differ
    bed.producer().send(b"m5")
    consumer = bed.consumer()
    following(consumer, 6)
    consumer.seek(between)
    same(texts(following(consumer, 1)), ["m5"])


def rest(reader: Any) -> list[str]:
    messages = []
    while reader.has_message_available():
        messages += texts([reader.read_next(timeout_millis=PATIENCE_MS)])
    return messages


@scenario
def reader(bed: Bed) -> None:
    ids = bed.send(10)
    reading = bed.client.create_reader
    first = reading(bed.topic(), pulsar.MessageId.earliest)
    same(rest(first), values(0, 10))
    first.seek(wrapped(ids[7]))
    same(rest(first), values(8, 10))
    same(rest(reading(bed.topic(), ids[3])), values(4, 10))
    same(rest(reading(bed.topic(), ids[3], start_message_id_inclusive=True)), values(3, 10))
    newest = reading(bed.topic(), pulsar.MessageId.latest)
    same(rest(newest), [])
    bed.send(2)
    same(rest(newest), values(0, 2))


@scenario
def last_message_id(bed: Bed) -> None:
    last = bed.send(3)[2]
    message_id = bed.consumer().get_last_message_id()
    same((message_id.ledger_id(), message_id.entry_id()), (last.ledger_id(), last.entry_id()))


@scenario
def id_bytes(bed: Bed) -> None:
    bed.send_batch(6)
    for n, message in enumerate(following(bed.consumer(), 6)):
        message_id = message.message_id()
        read = pulsar.MessageId.deserialize(message_id.serialize())
        assert not read < message_id and not message_id < read
        same(rest(bed.client.create_reader(bed.topic(), read)), values(n + 1, 6))


@scenario
def many_topics(bed: Bed) -> None:
    topics = [bed.topic(name) for name in "abc"]
    consumer = bed.consumer(topics)
    for topic in topics:
        bed.send(2, topic)
    names = [message.topic_name() for message in following(consumer, 6)]
    same({topic: names.count(topic) for topic in topics}, dict.fromkeys(topics, 2))


@only_sync
def regex(bed: Bed) -> None:
    import re

    for name in ("x-1", "x-2", "y"):
        bed.send(1, bed.topic(name))
    consumer = bed.consumer(re.compile(bed.topic("x-.*")))
    following(consumer, 2)
    bed.send(1, bed.topic("x-3"))
    # It looks once a minute: the argument pattern_auto_discovery_period is checked and not used.
    message = consumer.receive(timeout_millis=60_000 + PATIENCE_MS)
    same(message.topic_name(), bed.topic("x-3"))
    nothing(consumer)


@scenario
def dead_letters(bed: Bed) -> None:
    bed.send(1)
    consumer = bed.shared(
        negative_ack_redelivery_delay_ms=200,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, bed.topic("dead")),
    )
    dead = bed.consumer(bed.topic("dead"))
    for count in range(3):
        (message,) = following(consumer, 1)
        same(message.redelivery_count(), count)
        consumer.negative_acknowledge(message)
    same(texts(following(dead, 1)), ["m0"])
    nothing(consumer)


@scenario
def unsubscribe(bed: Bed) -> None:
    bed.send(3)
    consumer = bed.consumer()
    consumer.acknowledge_cumulative(following(consumer, 3)[2])
    consumer.unsubscribe()
    same(texts(following(bed.consumer(), 3)), values(0, 3))


@only_sync
def table_view(bed: Bed) -> None:
    producer = bed.producer()
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        producer.send(value, partition_key=key)
    view = bed.client.create_table_view(bed.topic())
    same((view.get("a"), view.get("b"), len(view)), (b"3", b"2", 2))


# --- schemas ---------------------------------------------------------------------------------


class Order(schema.Record):  # type: ignore[misc]
    customer = schema.String()
    quantity = schema.Integer()


class Broken(schema.Record):  # type: ignore[misc]
    customer = schema.Integer()


def round_trip(bed: Bed, kind: Any) -> None:
    bed.producer(schema=kind(Order)).send(Order(customer="Ada", quantity=3))
    (message,) = following(bed.consumer(schema=kind(Order)), 1)
    same((message.value().customer, message.value().quantity), ("Ada", 3))


@scenario
def schema_json(bed: Bed) -> None:
    round_trip(bed, schema.JsonSchema)


@scenario
def schema_avro(bed: Bed) -> None:
    round_trip(bed, schema.AvroSchema)


@scenario
def schema_refused(bed: Bed) -> None:
    bed.producer(schema=schema.AvroSchema(Order)).close()
    fails(lambda: bed.producer(schema=schema.AvroSchema(Broken)), "IncompatibleSchema")


# --- TLS, tokens, certificates ---------------------------------------------------------------

# Connections that TLS refuses are tried again until a call's time is over.
SOON: dict[str, Any] = {"operation_timeout_seconds": 3}
NO_CONNECTION = ("ConnectError", "Timeout", "Disconnected", "Retryable")


def secret(name: str) -> str:
    return os.path.join(SECRETS, name)


def by_token(role: str) -> Any:
    with open(secret(f"{role}.token")) as file:
        return pulsar.AuthenticationToken(file.read())


def by_certificate(role: str) -> Any:
    return pulsar.AuthenticationTLS(secret(f"{role}.pem"), secret(f"{role}.key"))


def pause(wish: str) -> None:
    """Ask the process that runs this program for something, and wait until it is done."""
    with PRINTING:
        print(json.dumps({"pause": wish}), flush=True)
        sys.stdin.readline()


@secured
def tls(bed: Bed) -> None:
    with bed.with_client(by_token("worker")) as client:
        client.send(3)
        same(texts(following(client.consumer(), 3)), values(0, 3))
    with bed.with_client(by_token("worker"), "other", **SOON) as unknown:
        fails(unknown.producer, *NO_CONNECTION)


@secured
def tls_reloaded(bed: Bed) -> None:
    with bed.with_client(by_token("worker")) as client:
        producer = client.producer()
        producer.send(b"m0")
        pause("certificate")
        producer.send(b"m1")
        with bed.with_client(by_token("worker"), "other") as later:
            same(texts(following(later.consumer(), 2)), values(0, 2))
    with bed.with_client(by_token("worker"), **SOON) as late:
        fails(late.producer, *NO_CONNECTION)


def each_client_by_its_rights(bed: Bed, logged_in: Callable[[str], Any]) -> None:
    """One client may produce, one consume, one nothing; each is refused everything else."""
    with (
        bed.with_client(logged_in("sender")) as sender,
        bed.with_client(logged_in("reader")) as reader,
        bed.with_client(logged_in("idle")) as idle,
    ):
        sender.send(2)
        same(texts(following(reader.consumer(), 2)), values(0, 2))
        for refused in (sender.consumer, reader.producer, idle.consumer, idle.producer):
            fails(refused, "NotAllowed")
        fails(lambda: sender.producer("persistent://acme/shop/orders"), "NotAllowed")


@secured
def token_roles(bed: Bed) -> None:
    each_client_by_its_rights(bed, by_token)


@secured
def certificate_roles(bed: Bed) -> None:
    each_client_by_its_rights(bed, by_certificate)
    with bed.with_client(by_certificate("stranger"), **SOON) as stranger:
        fails(stranger.producer, *NO_CONNECTION)


@secured
def token_refused(bed: Bed) -> None:
    # The library of C++ reads no error before it is connected, and tries again till the time-out.
    for who in (None, by_token("expired"), by_token("forged")):
        with bed.with_client(who, **SOON) as refused:
            fails(refused.producer, "AuthenticationError", *NO_CONNECTION)


@secured
def token_renewed(bed: Bed) -> None:
    is_late, was_asked = threading.Event(), threading.Event()

    def supplied() -> str:
        if is_late.is_set():
            name = "sender"
            was_asked.set()
        else:
            name = "short"
            pause("token")  # a new one: it may be asked before it has sent
        with open(secret(f"{name}.token")) as file:
            return file.read()

    with bed.with_client(pulsar.AuthenticationToken(supplied)) as client:
        producer = client.producer()
        producer.send(b"m0")
        is_late.set()
        # in half the time: its connection ends after 30 s, and then any client asks anew
        assert was_asked.wait(PATIENCE_MS / 2000), "it was not asked for another token"
        # The library of C++ may leave lying what it sends while it gives the token (with TLS),
        # until it writes again, which else is a ping half a minute later.
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(producer.send, b"m1")
            while wait([sent], timeout=0.1).not_done:
                client.client.get_topic_partitions(bed.topic())
        sent.result()


# --- running ---------------------------------------------------------------------------------


def run(connect: Connect, prefix: str, name: str) -> None:
    error = ""
    try:
        client = connect()
        try:
            act = (SCENARIOS | SECURED)[name]
            act(Bed(client, f"{prefix}-{name.replace('_', '-')}", connect))
        finally:
            closed(client)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:500]
        if "TRACE" in os.environ:
            traceback.print_exc()
    with PRINTING:
        print(json.dumps({"scenario": name, "error": error}), flush=True)


def closed(client: Any) -> None:
    """Close a client, in bounded time; one whose producer was fenced says that it is closed."""

    def close() -> None:
        with suppress(Exception):
            client.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(PATIENCE_MS / 1000)


def main(flavour: str, url: str, prefix: str, *names: str) -> None:
    """Run the scenarios."""
    silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    options: dict[str, Any] = {"logger": silent, "operation_timeout_seconds": PATIENCE_MS // 1000}
    connect: Connect
    if flavour == "sync":

        def connect(**more: Any) -> Any:
            return pulsar.Client(url, **(options | more))
    else:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()

        async def opened(more: dict[str, Any]) -> Any:
            return pulsar.asyncio.Client(url, **(options | more))

        def connect(**more: Any) -> Any:
            return Awaited(asyncio.run_coroutine_threadsafe(opened(more), loop).result(), loop)

    left_out = ONLY_SYNC if flavour == "asyncio" else set()
    there = SECURED.keys() if SECRETS else SCENARIOS.keys() - left_out
    chosen = names or sorted(there, key=LONGEST.__ne__)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(run, connect, prefix), (name for name in chosen if name != ALONE)))
    if ALONE in chosen:
        run(connect, prefix, ALONE)
    sys.stdout.flush()
    os._exit(0)  # whatever a scenario left running


if __name__ == "__main__":
    main(*sys.argv[1:])
