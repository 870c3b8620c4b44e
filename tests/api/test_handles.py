"""Handles in an interactive session: dir, repr, HTML in notebooks, loops over messages."""

from __future__ import annotations

import asyncio
import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest

import txlog
import txlog.aio
import txlog.errors
import txlog.spark
from tests.engine_kit import Bench
from txlog.errors import AlreadyClosed, TxlogError

HOSTILE = b"<script>alert(1)</script>"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    new_bench = Bench(tmp_path / "store")
    new_bench.client.create_topic("orders", partitions=2)
    new_bench.client.create_subscription("orders", "billing", type="shared")
    return new_bench


class Cells(HTMLParser):
    """The tags and the rows of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows = 0
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, _: object) -> None:
        self.tags.add(tag)
        self.rows += tag == "tr"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("module", [txlog, txlog.aio, txlog.errors, txlog.spark])
def test_dir_lists_the_public_names_and_nothing_else(module: object) -> None:
    names = dir(module)
    assert names == sorted(set(names))
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
    if module is not txlog.spark:  # its names need pyspark
        assert all(getattr(module, name) is not None for name in names)
    assert not {"annotations", "importlib", "lazy", "TYPE_CHECKING", "threading"} & set(names)


def test_dir_has_every_name_of_the_package() -> None:
    assert {*txlog.__all__, "aio", "errors", "functions", "spark", "testing"} == set(dir(txlog))
    kinds = {name for name, item in vars(txlog.errors).items() if _is_error(item)}
    assert kinds == {name for name in dir(txlog.errors) if name[0].isupper()}


def _is_error(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, TxlogError)


def test_every_handle_says_what_it_is(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("orders", name="till-7")
    with client.consumer("orders", "billing") as consumer, client.transaction() as txn:
        view = client.table_view("orders")
        handles: dict[object, list[str]] = {
            client: ["Client", bench.path],
            client.admin: ["Admin", bench.path],
            producer: ["Producer", "orders", "till-7"],
            producer.new_message(): ["MessageBuilder", "orders"],
            producer.new_watermark(): ["WatermarkBuilder", "orders"],
            consumer: ["Consumer", "orders", "billing"],
            client.reader("orders/1"): ["Reader", "orders", "1"],
            view: ["TableView", "orders", "0 keys"],
            client.topic("orders"): ["topic", "orders"],
            client.subscription("orders", "billing"): ["subscription", "billing", "orders"],
            client.topic("orders").watermarks: ["watermarks", "orders"],
            client.topic("orders").schemas: ["schemas", "orders"],
            client.bulk("orders", key="nightly", batch="b7"): ["bulk", "orders", "nightly", "b7"],
            txn: ["Transaction", "OPEN"],
            client.new_transaction(): ["TransactionBuilder"],
        }
        for handle, words in handles.items():
            assert all(word in repr(handle) for word in words), repr(handle)
            assert " object at " not in repr(handle)
        assert not client.transactions()  # looking at a transaction does not open it
        view.close()
        assert "closed" in repr(view)


def test_the_asynchronous_handles_say_what_they_are(bench: Bench) -> None:
    bench.client.close()

    async def act() -> list[str]:
        async with (
            txlog.aio.open(bench.path) as client,
            client.producer("orders") as producer,
            client.consumer("orders", "billing") as consumer,
            client.reader("orders") as reader,
        ):
            return [repr(handle) for handle in (client, producer, consumer, reader)]

    for text, word in zip(
        asyncio.run(act()), ("Client", "Producer", "Consumer", "Reader"), strict=True
    ):
        assert "txlog.aio of txlog." in text
        assert word in text


def test_html_has_a_few_rows_and_keeps_hostile_values_inert(bench: Bench) -> None:
    client = bench.client
    with client.producer("orders") as producer:
        for number in range(40):
            producer.send_async(HOSTILE + b"%d" % number, key=HOSTILE + b"%d" % number)
    reader = client.reader("orders")
    view = client.table_view("orders")
    with client.transaction() as txn:
        for handle in (reader, view, client.topic("orders"), txn):
            page = Cells(handle._repr_html_())
            assert page.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
            assert page.rows <= 11
            if handle is not txn:
                assert HOSTILE.decode() in page.text
    assert len(list(reader)) == 40  # nothing was consumed
    assert client.subscription("orders", "billing").describe()["backlog"] == 40


def test_html_of_a_closed_store_says_so(bench: Bench) -> None:
    reader = bench.client.reader("orders")
    bench.client.close()
    assert "closed" in reader._repr_html_()


def test_a_loop_over_a_consumer_waits_and_ends_when_it_closes(bench: Bench) -> None:
    client = bench.client
    client.producer("orders").send(b"one")
    received: list[bytes | None] = []
    both = threading.Event()
    consumer = client.consumer("orders", "billing")

    def loop() -> None:
        for message in consumer:
            received.append(message.value)
            consumer.acknowledge(message)
            if len(received) == 2:
                both.set()

    thread = threading.Thread(target=loop)
    thread.start()
    client.producer("orders").send(b"two")
    assert both.wait(60)
    consumer.close()
    thread.join(60)
    assert not thread.is_alive()
    assert received == [b"one", b"two"]
    with pytest.raises(AlreadyClosed):
        next(iter(consumer))


def test_a_loop_may_close_its_consumer(bench: Bench) -> None:
    bench.client.producer("orders").send(b"one")
    consumer = bench.client.consumer("orders", "billing")
    for message in consumer:
        consumer.acknowledge(message)
        consumer.close()
    assert bench.client.subscription("orders", "billing").describe()["backlog"] == 0


def test_an_asynchronous_loop_passes_watermarks_and_ends_at_the_end(bench: Bench) -> None:
    """A bug once ended the loop at the first watermark, with messages after it."""
    producer = bench.client.producer("orders/0", name="till-7")
    for number in (1, 2, 3):
        producer.send(b"%d" % number, event_time=1000 * number)
        producer.new_watermark().event_time(1000 * number).send()
    bench.client.close()

    async def act() -> tuple[list[bytes | None], list[bytes | None]]:
        async with (
            txlog.aio.open(bench.path) as client,
            client.reader("orders/0", enable_watermarking=True) as reader,
            client.consumer("orders", "billing") as consumer,
        ):
            read = [message.value async for message in reader]
            received = []
            async for message in consumer:
                received.append(message.value)
                if len(received) == 3:
                    await consumer.close()
            return read, received

    assert asyncio.run(act()) == ([b"1", b"2", b"3"], [b"1", b"2", b"3"])
