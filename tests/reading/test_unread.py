"""Rows that a reader reads ahead: messages made straight from the rows, and rows again."""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog import Client, Message, MessageId
from txlog.client.reading.reader import AHEAD_FIRST
from txlog.engine.model.schema import INSTANT, PROPERTY_MAP
from txlog.engine.plan.reading.dispatch import Rows, plan, rows_of, visible_end
from txlog.engine.session.reading import message as message_module
from txlog.engine.session.reading.message import messages, messages_of
from txlog.engine.session.reading.unread import Unread
from txlog.engine.view import View
from txlog.errors import AlreadyClosed

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store", ledger_entries_max=40, max_message_bytes=1024)


def fill(bench: Bench, topic: str, partitions: int, chance: random.Random) -> None:
    """Send messages with and without each field, plain and in transactions, and a large one."""
    client = bench.client
    client.create_topic(topic, partitions=partitions)
    producer, named_producer = client.producer(topic), client.producer(topic, name="n")
    for at in range(12):
        bench.clock.advance(1_000)
        rows = chance.randrange(1, 12)
        table = pa.table({"value": [b"%d.%d" % (at, n) for n in range(rows)]})
        if at % 2:
            keys = [b"k%d" % n if n % 3 else None for n in range(rows)]
            pairs = [[("a", str(n)), ("b", "")][: n % 3] if n % 4 else None for n in range(rows)]
            table = table.append_column("key", pa.array(keys, pa.binary()))
            table = table.append_column("properties", pa.array(pairs, PROPERTY_MAP))
        if at % 4 == 1:
            times = [n if n % 2 else None for n in range(rows)]
            table = table.append_column("event_time", pa.array(times, INSTANT))
        if at % 3 == 2:
            with client.transaction() as txn:
                (named_producer if at % 2 else producer).send_batch(table, txn=txn)
                bench.clock.advance(10)
        else:
            (named_producer if at % 2 else producer).send_batch(table)
        if at == 6:  # one large message
            client.producer(topic, chunking=True).send(b"x" * 5000)


@pytest.mark.parametrize("where", ["frames", "files"])
def test_a_message_is_the_same_with_and_without_a_table(bench: Bench, where: str) -> None:
    """Both shapes take the id and the visible time of a message from the same code."""
    chance = random.Random(7)
    print("seed 7")
    fill(bench, "t", 1, chance)
    if where == "files":
        bench.client.checkpoint()
        bench.client.checkpoint()
    kinds = set()

    def look(view: View) -> None:
        ledgers = [end.ledger for end in view.topic(1).ledgers]
        assert len(ledgers) > 1
        for _ in range(150):
            after = (chance.choice(ledgers), chance.randrange(-1, 40), 0)
            result = plan(view, 1, after, chance.choice((1, 3, 20, 60)))
            if not result.pieces:
                continue
            kinds.add((len(result.pieces) > 1, result.pieces[0].marker is not None))
            rows = rows_of(view, "t", 0, result.pieces)
            assert messages_of(rows) == list(messages(rows.table()))
            start = chance.randrange(rows.num_rows)
            part = rows.part(start, chance.randrange(start, rows.num_rows) + 1)
            assert part.table().equals(rows.table().slice(start, part.num_rows))
            assert messages_of(part) == list(messages(part.table()))
        assert visible_end(view, 1)[0] == ledgers[-1]

    bench.client.store.read(look)
    assert len(kinds) == 4
    fields = [name for name in Message.__slots__ if name not in ("_decoder", "txn_state")]
    seen = list(bench.client.reader("t"))
    never = {"deliver_at", "redelivery_count", "schema_version"}
    for name in set(fields) - never - {"is_late"}:
        assert any(getattr(each_plan, name) for each_plan in seen) or name == "partition", name


def test_no_table_is_made_for_messages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against nineteen columns that are split up again at once."""
    fill(bench, "t", 2, random.Random(1))
    row_counts: list[int] = []
    make = Rows.table

    def count(rows: Rows) -> pa.Table:
        row_counts.append(rows.num_rows)
        return make(rows)

    monkeypatch.setattr(Rows, "table", count)
    with bench.client.reader("t") as reader:
        assert reader.read_next() is not None
        assert sum(1 for _ in reader) > 2 * AHEAD_FIRST
    assert row_counts == []


def ids_of(table: pa.Table) -> list[tuple[int, MessageId | None]]:
    return [(message.partition, message.message_id) for message in messages(table)]


@pytest.mark.parametrize("watermarks", [False, True])
def test_messages_read_ahead_come_once_in_any_shape(bench: Bench, watermarks: bool) -> None:
    """Messages, batches and loops in turns: each message comes once, in order within its
    partition.
    """
    chance = random.Random(3)
    print("seed 3")
    fill(bench, "t", 3, chance)
    want = {
        partition: [
            (each_message.partition, each_message.message_id) for each_message in some_messages
        ]
        for partition in range(3)
        if (some_messages := list(bench.client.reader("t", partitions=[partition])))
    }
    for _ in range(20):
        got: list[tuple[int, MessageId | None]] = []
        with bench.client.reader("t", enable_watermarking=watermarks) as reader:

            def next_one() -> list[tuple[int, MessageId | None]]:
                message = reader.read_next()
                return [(message.partition, message.message_id)] if message else []

            def batch() -> list[tuple[int, MessageId | None]]:
                return ids_of(reader.receive_batch(chance.choice((1, 4, 30))))

            def loop() -> list[tuple[int, MessageId | None]]:
                few = islice(reader, chance.randrange(1, 15))
                return [(message.partition, message.message_id) for message in few]

            acts = (next_one, batch, loop)
            while choice := chance.choice(acts)():
                got += choice
        for partition, ids in want.items():
            assert [each_message for each_message in got if each_message[0] == partition] == ids
        assert len(got) == sum(map(len, want.values()))


def test_a_seek_forgets_what_was_read_ahead_of_its_partition_only(bench: Bench) -> None:
    fill(bench, "t", 2, random.Random(5))
    first, other = (list(bench.client.reader("t", partitions=[number])) for number in range(2))
    assert len(first) > 5 and len(other) > 5
    middle = first[len(first) // 2]
    assert middle.message_id is not None
    with bench.client.reader("t") as reader:
        list(islice(reader, AHEAD_FIRST + 3))  # in the middle of the second that it reads ahead
        got = [reader.read_next()]
        reader.seek(middle.message_id)
        got += list(reader)
    in_first = [number for number in got[1:] if number is not None and number.partition == 0]
    assert in_first == first[first.index(middle) :]
    in_other = [number for number in got if number is not None and number.partition == 1]
    assert in_other == other[len(other) - len(in_other) :]


def _shared(client: Client, is_mixed: bool) -> Counter[bytes | None]:
    """The values that threads sharing one reader receive up to the end.

    is_mixed: the threads read in several ways
    """
    reader = client.reader("t")
    values: list[list[bytes | None]] = [[], [], [], []]

    def one(out: list[bytes | None]) -> None:
        while (message := reader.read_next()) is not None:
            out.append(message.value)

    def loop(out: list[bytes | None]) -> None:
        out.extend(message.value for message in reader)

    def batches(out: list[bytes | None]) -> None:
        while (table := reader.receive_batch(7)).num_rows:
            out.extend(table.column("value").to_pylist())

    acts = zip((one, one, *((loop, batches) if is_mixed else (one, one))), values, strict=True)
    threads = [Thread(target=act, args=(out,)) for act, out in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rest_values = [
        message.value for message in reader
    ]  # the messages after a thread that ended too early
    return Counter([value for out in values for value in out] + rest_values)


def test_threads_that_share_a_reader_receive_each_message_once(bench: Bench) -> None:
    """A thread neither drops nor repeats the messages that another one has read ahead."""
    count = 4_000
    bench.client.create_topic("t", partitions=2)
    bench.client.producer("t").send_batch(pa.table({"value": [b"%d" % n for n in range(count)]}))
    interval_before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for turn in range(20):
            shared = _shared(bench.client, is_mixed=bool(turn % 2))
            assert set(shared.values()) == {1} and len(shared) == count
    finally:
        sys.setswitchinterval(interval_before)


def test_properties_of_many_pieces_need_not_fit_in_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow arrays have no room for texts of more than 2 GiB; separate pieces give the same
    messages.
    """
    bench.client.create_topic("t")
    producer = bench.client.producer("t")
    given = [{"n": str(n), "none": ""} if n % 3 else {} for n in range(40)]
    for properties in given:
        producer.send(b"v", properties=properties)
    whole = [message.properties for message in bench.client.reader("t")]
    joined: list[pa.DataType] = []
    real = message_module._whole

    def noted(column: pa.ChunkedArray) -> pa.Array:
        joined.append(column.type)
        return real(column)

    monkeypatch.setattr(message_module, "_whole", noted)
    monkeypatch.setattr(message_module, "_WHOLE_BYTES_MAX", 0)
    table = bench.client.reader("t").receive_batch(100)
    assert table.column("properties").num_chunks > 1
    apart = [message.properties for message in messages(table)]
    assert joined and PROPERTY_MAP not in joined
    assert whole == apart == given


def test_a_reader_that_is_closed_while_messages_are_made_has_the_one_it_gives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes the reader after the messages are made and before one is taken.

    The reader returns that message, then raises AlreadyClosed.
    """
    bench.client.create_topic("t")
    bench.client.producer("t").send_batch(pa.table({"value": [b"v", b"w"]}))
    reader, make = bench.client.reader("t"), Unread._make

    def closed(unread: Unread) -> None:
        make(unread)
        thread = Thread(target=reader.close)
        thread.start()
        thread.join()

    monkeypatch.setattr(Unread, "_make", closed)
    message = reader.read_next()
    assert message is not None and message.value == b"v"
    with pytest.raises(AlreadyClosed):
        reader.read_next()


def test_a_loop_takes_nothing_of_a_batch_that_is_being_taken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages read ahead first become rows, then are received; no other thread may come in
    between.
    """
    bench.client.create_topic("t")
    bench.client.producer("t").send_batch(pa.table({"value": [b"%d" % n for n in range(9)]}))
    reader, split = bench.client.reader("t"), Unread.split
    values: list[bytes | None] = []
    messages_left = iter(reader)
    values.append(next(messages_left).value)
    thread = Thread(target=lambda: values.append(next(messages_left).value))

    def beside(unread: Unread, limit: int) -> tuple[pa.Table, Unread]:
        values = split(unread, limit)
        thread.start()
        for _ in range(1_000_000):  # enough time for a thread that is not blocked
            if not thread.is_alive():
                break
        return values

    monkeypatch.setattr(Unread, "split", beside)
    values += reader.receive_batch(4).column("value").to_pylist()
    thread.join()
    values += [message.value for message in reader]
    assert sorted(value or b"" for value in values) == [b"%d" % n for n in range(9)]
