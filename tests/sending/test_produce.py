"""Sending: routing, deduplication, batches, limits; spec/transactions 7."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from tests.engine_kit import START_MS, Bench, begin, read, send, values
from txlog import MessageId
from txlog.base.ids import TxnId
from txlog.base.settings import KEY_BYTES_MAX, PROPERTIES_MAX
from txlog.engine.model import sequences
from txlog.engine.plan import route
from txlog.engine.storage import journal
from txlog.engine.store import appender
from txlog.errors import (
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    ProducerFenced,
    TransactionNotFound,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 3}, ledger_entries_max=4),
]


def test_a_key_goes_to_crc32_of_it(bench: Bench) -> None:
    """7: the same in every release and in Spark's crc32, one by one and in a batch."""
    client = bench.client
    keys = [b"k%d" % number for number in range(40)] + [b""]
    producer = client.producer("t")
    for key in keys:
        assert producer.send(b"x", key=key).partition == zlib.crc32(key) % 3
    receipt = producer.send_batch(pa.table({"value": keys, "key": pa.array(keys, pa.binary())}))
    assert [each_receipt.partition for each_receipt in receipt.receipts()] == [
        zlib.crc32(key) % 3 for key in keys
    ]
    for message in read(client):
        assert message.partition == zlib.crc32(message.key or b"") % 3


def test_without_a_key_batches_go_round_robin(bench: Bench) -> None:
    """All messages of a batch go to one partition."""
    producer = bench.client.producer("t")
    batch = pa.table({"value": [b"a", b"b"]})
    seen = [producer.send_batch(batch).receipts() for _ in range(6)]
    assert [receipt.partition for pair in seen for receipt in pair] == [0, 0, 1, 1, 2, 2] * 2


def test_a_batch_keeps_its_order_and_answers_row_by_row(bench: Bench) -> None:
    """Each partition has the order of the input; ids() follows the rows of the input."""
    expected = [2, 0, 1, 0, 2, 2]
    table = pa.table({"value": [b"%d" % n for n in range(6)], "partition": expected})
    receipt = bench.client.producer("t").send_batch(table)
    messages = {m.message_id: m for m in read(bench.client)}
    assert (receipt.messages, receipt.duplicates) == (6, 0)
    for number, message_id in enumerate(receipt.ids()):
        assert (messages[message_id].value, messages[message_id].partition) == (
            b"%d" % number,
            expected[number],
        )
    for partition in range(3):
        own_values = values(bench.client, partitions=[partition])
        assert own_values == [b"%d" % n for n in range(6) if expected[n] == partition]
    for row in receipt.partitions:
        got = [
            message_id
            for message_id, p in zip(receipt.ids(), expected, strict=True)
            if p == row.partition
        ]
        assert (row.first, row.last, row.messages) == (got[0], got[-1], len(got))


def test_everything_of_a_message_comes_back(bench: Bench) -> None:
    """Also empty and null fields, and fields of one message only; over a checkpoint, sealed."""
    client = bench.client
    producer = client.producer("t", "me")
    producer.send(
        b"\x00\xff",
        key=b"k",
        properties={"a": "1", "ü": ""},
        event_time=5,
        deliver_at=7,
        sequence_id=3,
        partition=0,
    )
    producer.send(None, partition=0)
    producer.send(b"", partition=0)
    bench.clock.advance(10)
    with client.transaction() as txn:
        producer.send(b"in", properties={"b": "2"}, partition=0, txn=txn)
    for act in (None, "cut", "roll"):
        if act:
            client.checkpoint(roll_all=act == "roll")
        message, empty, blank, inner = read(client)
        assert (message.value, message.key, message.properties) == (
            b"\x00\xff",
            b"k",
            {"a": "1", "ü": ""},
        )
        assert (message.event_time, message.deliver_at, message.publish_time) == (5, 7, START_MS)
        assert (message.producer, message.sequence_id, message.txn) == ("me", 3, None)
        assert (empty.value, empty.key, empty.properties, empty.event_time) == (
            None,
            None,
            {},
            None,
        )
        assert (blank.value, blank.sequence_id) == (b"", 5)
        assert (inner.properties, inner.txn, inner.sequence_id) == ({"b": "2"}, txn.id, 0)
        assert inner.visible_time == START_MS + 10


def test_a_repeated_sequence_is_stored_once(bench: Bench) -> None:
    """7, I-13: success, `duplicate`, the id of the newest; a skipped number is no repetition."""
    producer = bench.client.producer("t", "p")
    first = producer.send(b"a", sequence_id=5, partition=0)
    message_ids_again = producer.send(b"other", sequence_id=5, partition=0)
    assert (message_ids_again.duplicate, message_ids_again.message_id) == (True, first.message_id)
    late = producer.send(b"late", sequence_id=2, partition=0)
    assert (late.duplicate, late.message_id is None) == (False, False)
    older = producer.send(b"other", sequence_id=2, partition=0)
    assert (older.duplicate, older.message_id) == (True, None)
    assert producer.send(b"other", sequence_id=5, partition=0).message_id == first.message_id
    producer.send(b"b", sequence_id=9, partition=0)
    assert producer.send(b"c", partition=0).duplicate is False  # last + 1
    assert values(bench.client) == [b"a", b"late", b"b", b"c"]
    assert producer.last_sequence_id() == 10
    # each partition has a scope of its own
    assert producer.send(b"d", sequence_id=5, partition=1).duplicate is False
    assert bench.client.producer("t", "q").send(b"e", sequence_id=5, partition=0).duplicate is False
    assert bench.client.producer("t").send(b"f", sequence_id=5, partition=0).duplicate is False


def test_bytes_count_only_stored_messages(bench: Bench) -> None:
    """A receipt counts the keys and values of new messages, in every partition."""
    producer = bench.client.producer("t", "p")
    table = pa.table(
        {
            "value": [b"1", b"22", b"333", None],
            "key": [b"k", None, None, None],
            "partition": [2, 0, 2, 0],
            "sequence_id": [5, 5, 6, 6],
        }
    )
    assert producer.send_batch(table.slice(0, 2)).bytes == 4
    receipt = producer.send_batch(table)
    assert (receipt.messages, receipt.duplicates, receipt.bytes) == (2, 2, 3)
    assert producer.send_batch(table).bytes == 0


def test_older_sequences_are_repetitions_for_ever(bench: Bench) -> None:
    """7: after checkpoints and restarts; the store knows the id of the newest one only."""
    client = bench.client
    for number in range(12):
        last = client.producer("t", "p").send(b"%d" % number, sequence_id=number, partition=0)
        send(client, b"noise")
        if number in (3, 7):
            client.checkpoint(roll_all=number == 3)
    for restart in (False, True):
        producer = (bench.reopen() if restart else client).producer("t", "p")
        for number in range(12):
            receipt = producer.send(b"again", sequence_id=number, partition=0)
            is_newest = number == 11 and not restart
            assert receipt.message_id == (last.message_id if is_newest else None)
            assert receipt.duplicate
        batch = pa.table({"value": [b"x"] * 14, "partition": [0] * 14, "sequence_id": range(14)})
        answer = producer.send_batch(batch)
        if not restart:
            assert (answer.messages, answer.duplicates) == (2, 12)
            assert answer.ids()[:12] == [None] * 11 + [last.message_id]
            assert [each_receipt.duplicate for each_receipt in answer.receipts()] == [True] * 12 + [
                False
            ] * 2
            newest = answer.ids()[13]
        else:
            assert (answer.messages, answer.ids()) == (0, [None] * 13 + [newest])
    assert len(values(bench.client)) == 12 + 12 + 2


def test_a_batch_stores_what_none_before_it_has_stored(bench: Bench) -> None:
    """7: in any order; each row of the receipt says whether it is a duplicate."""
    producer = bench.client.producer("t", "p")
    where: dict[int, MessageId] = {}

    def repeated(*numbers: int) -> list[int]:
        """Send a batch; returns the numbers of its duplicates, and checks the ids."""
        value = [b"%d" % number for number in numbers]
        table = pa.table({"value": value, "partition": [0] * len(value), "sequence_id": numbers})
        newest = max(where, default=-1)
        out = []
        for number, receipt in zip(numbers, producer.send_batch(table).receipts(), strict=True):
            if receipt.duplicate:
                out.append(number)
                assert receipt.message_id == (where[number] if number == newest else None)
            else:
                assert receipt.message_id is not None
                where[number] = receipt.message_id
        return out

    assert repeated(0, 2, 4, 6) == []
    assert repeated(1, 2, 3, 6, 7) == [2, 6]
    bench.client.checkpoint()
    assert repeated(4, 5, 7, 9) == [4, 7]
    producer = bench.reopen().producer("t", "p")
    assert repeated(*range(10)) == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    stored = {message.message_id: int(message.value or b"") for message in read(bench.client)}
    assert stored == {location: number for number, location in where.items()}


def test_a_batch_over_partitions_leaves_no_gaps(bench: Bench) -> None:
    """Guards against a gap for each row of another partition, and rows stored twice."""
    client = bench.client
    producer = client.producer("t", "p")

    def batch(first: int, stop: int) -> pa.Table:
        numbers = range(first, stop)
        keys = [b"%d" % (number % 7) for number in numbers]
        return pa.table({"value": keys, "key": keys, "sequence_id": numbers})

    for start in range(0, 500, 50):
        assert producer.send_batch(batch(start, start + 50)).duplicates == 0
    numbers = range(1, 4)
    retained = client.store.read(lambda view: [view.topic(n).producers["p"].gaps for n in numbers])
    assert retained == [[]] * 3
    # keys move to other partitions, and their messages are still duplicates
    client.admin.update_topic("t", 5)
    sent_again = producer.send_batch(batch(450, 550))
    assert (sent_again.duplicates, sent_again.messages) == (50, 50) or sent_again.duplicates < 50
    assert producer.send_batch(batch(450, 550)).messages == 0


def test_partitions_that_rows_name_are_numbered_apart(bench: Bench) -> None:
    """Guards against a message taken for stored because another partition has its number."""
    producer = bench.client.producer("t", "p")

    def batch(partitions: list[int], numbers: list[int]) -> pa.Table:
        value = [b"x"] * len(numbers)
        return pa.table({"value": value, "partition": partitions, "sequence_id": numbers})

    assert producer.send_batch(batch([0, 1, 2], [0, 1, 2])).messages == 3
    assert producer.send_batch(batch([0, 1, 1], [1, 0, 2])).messages == 3
    assert producer.send_batch(batch([0, 1, 2], [2, 1, 2])).duplicates == 2


def test_a_sequence_that_was_forgotten_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receipt for it could be wrong; later numbers are accepted, also after a restart."""
    monkeypatch.setattr(sequences, "GAPS_MAX", 8)
    producer = bench.client.producer("t", "p")
    for number in range(0, 200, 10):
        assert not producer.send(b"x", sequence_id=number, partition=0).duplicate
    for restart in (False, True):
        if restart:
            producer = bench.reopen().producer("t", "p")
        for number in (0, 5, 100):
            with pytest.raises(LimitExceeded, match=f"sequence {number} of producer p may be"):
                producer.send(b"x", sequence_id=number, partition=0)
        assert producer.send(b"x", sequence_id=190, partition=0).duplicate
        assert not producer.send(b"x", sequence_id=185 + restart, partition=0).duplicate
        assert producer.send(b"x", sequence_id=185, partition=0).duplicate
    assert len(values(bench.client)) == 22


def test_the_scope_in_a_transaction_is_its_own(bench: Bench) -> None:
    """7: (transaction, producer, partition); the two scopes never meet."""
    client = bench.client
    producer = client.producer("t", "p")
    producer.send(b"plain", sequence_id=5, partition=0)
    first, second = begin(client), begin(client)
    for txn in (first, second):
        for sequence in (2, 5, 7):
            receipt = producer.send(b"%d" % sequence, sequence_id=sequence, partition=0, txn=txn)
            assert not receipt.duplicate
        client.checkpoint()
        for sequence, index in ((7, 3), (5, None), (2, None)):
            receipt = producer.send(b"no", sequence_id=sequence, partition=0, txn=txn)
            assert (receipt.duplicate, receipt.txn_index) == (True, index)
        late = producer.send(b"3", sequence_id=3, partition=0, txn=txn)
        assert (late.duplicate, late.txn_index) == (False, 4)
        assert producer.send(b"no", sequence_id=3, partition=0, txn=txn).duplicate
        assert not producer.send(b"1", sequence_id=1, partition=1, txn=txn).duplicate
    client.commit(first)
    client.abort(second)
    assert values(client, partitions=[0]) == [b"plain", b"2", b"5", b"7", b"3"]
    assert producer.send(b"no", sequence_id=5, partition=0).duplicate
    assert not producer.send(b"yes", sequence_id=4, partition=0).duplicate
    assert not producer.send(b"yes", sequence_id=6, partition=0).duplicate


def test_a_retry_answers_a_duplicate_from_another_process(bench: Bench) -> None:
    """7: after OutcomeUnknown, a repeat with the same sequence finds out."""
    first = bench.client.producer("t", "p").send(b"a", sequence_id=1, partition=2)
    message_ids_again = bench.another().producer("t", "p").send(b"a", sequence_id=1, partition=2)
    assert (message_ids_again.duplicate, message_ids_again.message_id) == (True, first.message_id)


def test_sequences_must_rise_within_a_batch(bench: Bench) -> None:
    """The numbers within a batch must be consistent; otherwise no row is stored."""
    producer = bench.client.producer("t", "p")
    for wrong in ([1, 1], [2, 1], [1, None], [-1, 0]):
        table = pa.table(
            {"value": [b"a", b"b"], "partition": [0, 0], "sequence_id": pa.array(wrong, pa.int64())}
        )
        with pytest.raises(InvalidMessage):
            producer.send_batch(table)
    assert values(bench.client) == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"key": b"k" * (KEY_BYTES_MAX + 1)}, InvalidMessage),
        ({"properties": {str(n): "" for n in range(PROPERTIES_MAX + 1)}}, InvalidMessage),
        ({"partition": 3}, InvalidArgument),
        ({"partition": -1}, InvalidArgument),
        ({"event_time": "soon"}, InvalidArgument),
    ],
)
def test_refused_messages(bench: Bench, given: dict[str, object], error: type[Exception]) -> None:
    """3, 14: refused before anything is written, in a transaction too."""
    txn = begin(bench.client)
    for extra in ({}, {"txn": txn}):
        with pytest.raises(error):
            bench.client.producer("t").send(b"x", **given, **extra)  # type: ignore[arg-type]
    assert bench.client.commit(txn)["messages"] == 0
    assert values(bench.client) == []


def test_the_size_of_a_message_is_bounded(tmp_path: Path) -> None:
    """3: key + payload + properties: a message at the limit is stored, one byte more is refused."""
    bench = Bench(tmp_path / "store", max_message_bytes=100)
    bench.client.create_topic("t")
    producer = bench.client.producer("t")
    producer.send(bytes(90), key=b"0123456789")
    with pytest.raises(InvalidMessage, match="100"):
        producer.send(bytes(91), key=b"0123456789")
    with pytest.raises(InvalidMessage):
        producer.send_batch(pa.table({"value": [b"a", bytes(101)]}))
    with pytest.raises(InvalidMessage):
        producer.send(bytes(60), properties={"p" * 30: "v" * 30})
    assert len(values(bench.client)) == 1


def test_a_transaction_holds_so_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a transaction stays one frame; the refused send leaves it open."""
    monkeypatch.setattr("txlog.engine.decide.sending.send.TXN_MESSAGES_MAX", 3)
    txn = begin(bench.client)
    producer = bench.client.producer("t")
    producer.send_batch(pa.table({"value": [b"a", b"b"], "partition": [0, 1]}), txn=txn)
    with pytest.raises(LimitExceeded):
        producer.send_batch(pa.table({"value": [b"c", b"d"], "partition": [0, 1]}), txn=txn)
    producer.send(b"e", partition=0, txn=txn)
    assert bench.client.commit(txn)["messages"] == 3


@pytest.mark.parametrize("limit", ["DECISION_BYTES_MAX", "FRAME_BYTES_MAX"])
def test_a_frame_above_the_read_limit_is_not_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A batch of more than 1 GiB was once answered, and made the store unreadable."""
    client = bench.client
    send(client, b"a")
    rows = pa.table({"value": [b"x" * 1000] * 20})
    with monkeypatch.context() as patched:
        patched.setattr(appender if limit == "DECISION_BYTES_MAX" else journal, limit, 10_000)
        with pytest.raises(LimitExceeded) as refused:
            client.producer("t").send_batch(rows)
        assert refused.value.fields["limit"] == 10_000
        txn = begin(client)
        with pytest.raises(LimitExceeded):
            client.producer("t").send_batch(rows, txn=txn)
        send(client, b"b")  # later sends work
    assert values(bench.another()) == values(client) == [b"a", b"b"]
    client.producer("t").send_batch(rows)
    assert len(values(bench.another())) == 22


def test_batches_of_a_wrong_shape(bench: Bench) -> None:
    """Columns are named and typed; an empty batch is success."""
    producer = bench.client.producer("t")
    for table in (
        pa.table({"key": [b"a"]}),
        pa.table({"value": [b"a"], "colour": [1]}),
        pa.table({"value": [1]}),
    ):
        with pytest.raises(InvalidArgument):
            producer.send_batch(table)
    receipt = producer.send_batch(pa.table({"value": pa.array([], pa.binary())}))
    assert (receipt.messages, receipt.receipts()) == (0, [])


def test_a_producer_of_a_partition(bench: Bench) -> None:
    """2: `t/2` and `t-partition-2` address a partition."""
    for name in ("t/2", "t-partition-2"):
        assert bench.client.producer(name).send(b"x", key=b"k0").partition == 2


def test_a_producer_opened_later_fences_the_older_of_its_name(bench: Bench) -> None:
    """Also in a transaction, for a repeated sequence, and from another process after a restart."""
    client = bench.client
    old = client.producer("t", name="till")
    old.send(b"1", sequence_id=1, partition=1)
    other = client.producer("t", name="office")
    new = bench.another().producer("t", name="till")
    txn = begin(client)
    for given_values in ({}, {"txn": txn}, {"partition": 2}, {"sequence_id": 1, "partition": 1}):
        with pytest.raises(ProducerFenced, match="till of t was opened again") as caught:
            old.send(b"zombie", **given_values)
        assert caught.value.code == 405
    assert new.send(b"1", sequence_id=1, partition=1).duplicate
    assert not new.send(b"2", sequence_id=2, partition=1).duplicate
    assert not other.send(b"3").duplicate
    client.checkpoint()
    late = bench.reopen().producer("t", name="till")
    assert late.last_sequence_id() == 2
    with pytest.raises(TransactionNotFound):
        late.send(b"x", txn=TxnId(9, 9))  # the transaction is checked first
    assert sorted(values(bench.client)) == [b"1", b"2", b"3"]


def test_the_longest_idle_names_are_forgotten(tmp_path: Path) -> None:
    """3: dedup_producers_max for each partition, and dedup_idle_ms."""
    bench = Bench(tmp_path / "store", dedup_producers_max=2, dedup_idle_ms=1000)
    client = bench.client
    client.create_topic("t", 2)
    producers = {}
    for name in ("a", "b", "c"):
        bench.clock.advance(10)
        producers[name] = client.producer("t", name=name)
        producers[name].send(b"1", sequence_id=5, partition=1)
    state = client.store.read(lambda view: view.topic(2).producers)
    assert list(state) == ["b", "c"]
    assert producers["c"].send(b"1", sequence_id=5, partition=1).duplicate
    assert not producers["a"].send(b"2", sequence_id=5, partition=1).duplicate  # now b is forgotten
    assert client.producer("t", name="b").last_sequence_id() == -1
    bench.clock.advance(1001)
    assert not producers["a"].send(b"3", sequence_id=5, partition=1).duplicate
    assert bench.reopen().producer("t", name="a").last_sequence_id() == 5


@pytest.mark.parametrize("is_first", [True, False])
def test_a_name_that_is_forgotten_for_another_in_its_frame(tmp_path: Path, is_first: bool) -> None:
    """Guards against numbers in its gaps that count as stored, and a frame that forgets its own
    rows.
    """
    bench = Bench(tmp_path / "store", dedup_producers_max=1)
    bench.client.create_topic("t", 2)
    old = bench.client.producer("t", name="old", batching_max_publish_delay_ms=60_000)
    for number in (0, 1, 5):
        old.send(b"x", sequence_id=number, partition=1)
    new = bench.client.producer("t", name="new", batching_max_publish_delay_ms=60_000)
    for producer in (old, new) if is_first else (new, old):
        producer.send_async(b"x", sequence_id=6, partition=1)
    bench.client.flush()
    assert old.send(b"x", sequence_id=6, partition=1).duplicate
    assert not old.send(b"x", sequence_id=3, partition=1).duplicate
    assert old.send(b"x", sequence_id=1, partition=1).duplicate == is_first
    bench.close()


def test_few_rows_are_sized_without_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against ten kernels for a message with two properties; large messages are still
    refused.
    """
    bench = Bench(tmp_path / "store", max_message_bytes=1024)
    bench.client.create_topic("t")
    looked: list[int] = []
    check_sizes = route._check_sizes

    def noted(batch: pa.RecordBatch, message_bytes_max: int) -> None:
        looked.append(batch.num_rows)
        check_sizes(batch, message_bytes_max)

    monkeypatch.setattr(route, "_check_sizes", noted)
    producer = bench.client.producer("t")
    pairs = [None, [("a", "b")], [("a", None), ("c", "d" * 100)], [], [("e", "f" * 50)]]
    column = pa.array(pairs, pa.map_(pa.string(), pa.string()))
    rows = pa.table({"value": [b"%d" % n for n in range(5)], "properties": column})
    for table in (rows, rows.slice(1, 3), rows.slice(4), rows.slice(0, 0)):
        producer.send_batch(table)
        [batch] = table.to_batches() or [None]
        if batch is not None:
            each = [
                sum(len(name) + len(item or "") for name, item in pair or ())
                for pair in table["properties"].to_pylist()
            ]
            assert route._property_total(batch.column("properties")) == sum(each)
    producer.send(b"v", key=b"k", properties={"a": "b"})
    assert not looked
    for size in (1024, 2048):
        with pytest.raises(InvalidMessage, match="max_message_bytes is 1024"):
            producer.send(b"v", properties={"a": "b" * size})
    producer.send_batch(rows.append_column("key", pa.array([b"k" * 250] * 5)))  # together too large
    assert looked == [1, 1, 5]
