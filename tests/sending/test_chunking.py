"""Large messages: whole or absent, one id, one sequence, one acknowledgement.

spec/transactions 7, I-13.
"""

from __future__ import annotations

import io
import os
import random
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.engine_kit import Bench, begin, read, rows, send, values
from txlog import Bound, Client, MessageId, TxnId
from txlog.base.ranges import END
from txlog.cli.input import inputs
from txlog.cli.main import main
from txlog.client.reading import reader as readers
from txlog.engine.decide.consuming import lease
from txlog.engine.plan.reading import dispatch
from txlog.engine.plan.reading import uncommitted as previews
from txlog.engine.session.sending import large
from txlog.engine.storage.chunks import cut, reassembled
from txlog.errors import (
    Corruption,
    DiskFailed,
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    PartitionUnavailable,
    ProducerFenced,
    StoreFull,
    TransactionTimedOut,
)

LIMIT = 1000
BIG = random.Random(7).randbytes(4500)  # five chunks
OTHER = random.Random(8).randbytes(2500)


pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store(
        {"t": 2},
        [("t", "s")],
        max_message_bytes=LIMIT,
        max_chunked_message_bytes=50000,
        reader_grace_ms=0,
    ),
]


def put(client: Client, value: large.Value, txn: TxnId | None = None, partition: int = 0) -> object:
    """Send a value with chunking on; returns the id or index of the message."""
    receipt = client.producer("t", chunking=True).send(value, partition=partition, txn=txn)
    return receipt.txn_index if txn is not None else receipt.message_id


def files(bench: Bench) -> list[Path]:
    """The files of large messages, temporaries too."""
    return sorted(Path(bench.path).glob("topics/**/_txnlog/*parquet")) + sorted(
        Path(bench.path).glob("topics/**/_txnlog/.tmp*")
    )


# --- sending ----------------------------------------------------------------------------------


def test_the_refusal_names_the_fix(bench: Bench) -> None:
    """7: size, limit and the option to set."""
    with pytest.raises(InvalidMessage, match=r"4500 bytes.*1000.*turn chunking on"):
        bench.client.producer("t").send(BIG)
    with pytest.raises(InvalidArgument):
        bench.client.producer("t").send(io.BytesIO(BIG))
    batch = pa.table({"value": pa.array([b"a", BIG], pa.binary())})
    with pytest.raises(InvalidMessage, match="turn chunking on") as caught:
        bench.client.producer("t", chunking=True).send_batch(batch)
    assert "send()" in str(caught.value.hint)


def pieces() -> Iterator[bytes]:
    for at in range(0, len(BIG), 700):
        yield BIG[at : at + 700]
        yield b""


@pytest.mark.parametrize(
    "source",
    [
        BIG,
        bytearray(BIG),
        memoryview(BIG),
        io.BytesIO(BIG),
        pieces,
        [BIG],
        [BIG[:1], BIG[1:]],
    ],
)
def test_a_value_from_anywhere_is_the_same_message(bench: Bench, source: object) -> None:
    """Bytes, a file, an iterable: one message with the same further fields."""
    client = bench.client
    if callable(source):
        source = source()
    receipt = client.producer("t", chunking=True).send(
        source,
        key=b"k",
        properties={"a": "b", "c": ""},
        event_time=5,
        deliver_at=6,
        sequence_id=9,
    )
    partition = zlib.crc32(b"k") % 2
    assert receipt.partition == partition
    assert receipt.message_id is not None
    assert receipt.message_id.index == 1
    for _ in range(3):
        [message] = read(bench.client)
        assert message.value == BIG
        assert (message.key, message.properties) == (b"k", {"a": "b", "c": ""})
        assert (message.event_time, message.deliver_at, message.sequence_id) == (5, 6, 9)
        assert (message.message_id, message.partition) == (receipt.message_id, partition)
        assert message.txn is not None
        assert message.txn_state == "committed"
        assert message.publish_time == message.visible_time == bench.clock.now().wall_ms
        bench.client.checkpoint(roll_all=True)
        bench.reopen()


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_value_that_fits_is_a_plain_message(bench: Bench, size: int) -> None:
    value = BIG[:size]
    for source in (value, io.BytesIO(value), [value]):
        where = put(bench.client, source)
        assert isinstance(where, MessageId)
        assert where.index == 0
    assert values(bench.client) == [value] * 3
    assert not files(bench)


def test_key_and_properties_count(bench: Bench) -> None:
    """3: they count for a message's size, and are not cut."""
    producer = bench.client.producer("t", chunking=True)
    receipt = producer.send(BIG[:LIMIT], key=b"k")
    assert receipt.message_id is not None
    assert receipt.message_id.index == 1
    with pytest.raises(InvalidMessage, match="key and properties have 1000 bytes"):
        producer.send(b"v", key=b"k" * LIMIT)
    most = bench.client.settings.max_chunked_message_bytes
    assert producer.send(b"v" * (most - 1), key=b"k").message_id is not None
    with pytest.raises(LimitExceeded, match="max_chunked_message_bytes"):
        producer.send(b"v" * most, key=b"k")


@pytest.mark.parametrize("source", [b"v" * 60_000, io.BytesIO(b"v" * 60_000)])
def test_above_the_limit_nothing_stays(bench: Bench, source: large.Value) -> None:
    with pytest.raises(LimitExceeded, match="max_chunked_message_bytes is 50000"):
        put(bench.client, source)
    assert (values(bench.client), files(bench)) == ([], [])


def test_a_source_that_fails_leaves_nothing(bench: Bench) -> None:
    def failing(error: BaseException) -> Iterator[bytes]:
        yield BIG
        raise error

    for error, expected in (
        (OSError(5, "Input/output error"), DiskFailed),
        (ValueError("mine"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with pytest.raises(expected):
            put(bench.client, failing(error))
        assert (values(bench.client), files(bench)) == ([], [])
    with pytest.raises(InvalidArgument, match="must be bytes"):
        put(bench.client, ["text" * LIMIT])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="neither bytes nor"):
        put(bench.client, 7)  # type: ignore[arg-type]


def test_sends_stop_before_the_disk_is_full(tmp_path: Path) -> None:
    """R30."""
    bench = Bench(tmp_path / "store", max_message_bytes=LIMIT, free_bytes_min=1 << 60)
    bench.client.create_topic("t")
    with pytest.raises(StoreFull):
        put(bench.client, BIG)
    assert not files(bench)


def test_chunks_are_cut_to_size() -> None:
    for first, other in ((1, 1), (7, 10), (10, 7), (5000, 10), (4500, 1)):
        for step in (1, 9, 10, 11, 5000):
            source = [BIG[at : at + step] for at in range(0, len(BIG), step)]
            found_bytes = [bytes(piece) for piece in cut(source, first, other)]
            assert b"".join(found_bytes) == BIG
            assert [len(piece) for piece in found_bytes[:-1]] == [
                first,
                *[other] * len(found_bytes),
            ][: len(found_bytes) - 1]
            assert 0 < len(found_bytes[-1]) <= max(first, other)


# --- in transactions --------------------------------------------------------------------------


def test_in_a_transaction_it_is_one_message_among_others(bench: Bench) -> None:
    """I-3: I runs 1 … count over small and large ones; an abort leaves no message."""
    client = bench.client
    for end in (client.commit, client.abort):
        txn = begin(client)
        assert [put(client, value, txn) for value in (b"a", BIG, b"b", b"c", OTHER, BIG, b"d")] == [
            1,
            2,
            3,
            4,
            5,
            6,
            7,
        ]
        values_before = values(client)
        end(txn)
        assert values_before == [] or values(client) == values_before
    assert values(client) == [b"a", BIG, b"b", b"c", OTHER, BIG, b"d"]
    side = client.store.read(lambda view: view.buffer(1))
    assert [end.open_txns for end in side.ledgers] == [0] * len(side.ledgers)
    assert side.dead_bytes == sum(map(len, (b"a", BIG, b"b", b"c", OTHER, BIG, b"d")))


def test_one_that_timed_out_while_it_was_sent(bench: Bench) -> None:
    txn = begin(bench.client, 1000)

    def slow() -> Iterator[bytes]:
        yield BIG
        bench.clock.advance(5000)

    with pytest.raises(TransactionTimedOut):
        put(bench.client, slow(), txn)
    assert (values(bench.client), files(bench)) == ([], [])


def test_preview_shows_it_in_append_order(bench: Bench) -> None:
    """8: a reader with isolation `uncommitted` gets it whole, between its neighbours."""
    client = bench.client
    first, second = begin(client), begin(client)
    sent = [(b"a", first), (BIG, second), (b"b", first), (OTHER, first), (b"c", second)]
    reader = client.reader("t", isolation="uncommitted")
    seen: list[bytes | None] = []
    for value, txn in sent:
        put(client, value, txn)
        client.producer("t").flush()
        seen += [m.value for m in reader]
    expected_values = [value for value, _ in sent]
    assert seen == expected_values
    for limit in (1, 2, 100):
        tables = [*client.read("t", isolation="uncommitted", batch_messages=limit)]
        assert [m.value for m in rows(tables)] == expected_values
        assert [m.txn for m in rows(tables)] == [txn for _, txn in sent]
    client.commit(second)
    client.abort(first)
    found_rows = rows(client.read("t", isolation="uncommitted"))
    assert [(m.value, m.txn_state) for m in found_rows] == [
        (BIG, "committed"),
        (b"c", "committed"),
        (b"a", "aborted"),
        (b"b", "aborted"),
        (OTHER, "aborted"),
    ]


# --- sequences --------------------------------------------------------------------------------


def test_a_repeated_sequence_is_stored_once(bench: Bench) -> None:
    """I-13; the second send leaves no file."""
    client = bench.client
    producer = client.producer("t", "p", chunking=True)
    first = producer.send(BIG, sequence_id=5, partition=0)
    plain = producer.send(b"plain", sequence_id=6, partition=0)
    third = producer.send(OTHER, partition=0)
    kept_files = files(bench)
    assert len(kept_files) == 2
    for _ in range(2):
        for sequence, message in ((5, first), (6, plain), (7, third)):
            for value in (BIG, b"small"):
                message_ids_again = producer.send(value, sequence_id=sequence, partition=0)
                expected_id = message.message_id if message is third else None
                assert message_ids_again == message._replace(duplicate=True, message_id=expected_id)
        assert files(bench) == kept_files or not kept_files
        client.checkpoint(roll_all=True)
        kept_files = files(bench)
    late = producer.send(BIG, sequence_id=4, partition=0)
    assert (late.message_id is None, late.duplicate) == (False, False)
    assert producer.send(BIG, sequence_id=4, partition=0).duplicate
    assert [m.sequence_id for m in read(client)] == [5, 6, 7, 4]
    assert producer.last_sequence_id() == 7
    assert client.store.read(lambda view: view.topic(1).dedup_missing) == 9


def test_sequences_of_a_transaction_are_its_own(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("t", "p", chunking=True)
    producer.send(BIG, sequence_id=5, partition=0)
    txn = begin(client)
    sent = [
        producer.send(value, sequence_id=sequence, partition=0, txn=txn)
        for value, sequence in ((BIG, 3), (b"b", 4), (OTHER, 5), (BIG, 3), (BIG, 4), (b"x", 5))
    ]
    assert [(receipt.txn_index, receipt.duplicate) for receipt in sent] == [
        (1, False),
        (2, False),
        (3, False),
        (None, True),
        (None, True),
        (3, True),
    ]
    client.commit(txn)
    assert values(client) == [BIG, BIG, b"b", OTHER]
    assert len(files(bench)) == 3


def test_a_sequence_that_came_meanwhile_wins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later send removes its file: its frame finds the earlier message."""
    client = bench.client
    producer = client.producer("t", "p", chunking=True)

    def racing() -> Iterator[bytes]:
        yield BIG
        producer.send(b"first", sequence_id=1, partition=0)

    receipt = producer.send(racing(), sequence_id=1, partition=0)
    assert receipt.duplicate
    assert (values(client), files(bench)) == ([b"first"], [])


def test_a_fenced_producer_leaves_no_file(bench: Bench) -> None:
    producer = bench.client.producer("t", "p", chunking=True)

    def fenced() -> Iterator[bytes]:
        yield BIG
        bench.another().producer("t", "p")

    with pytest.raises(ProducerFenced):
        producer.send(fenced(), partition=0)
    assert (values(bench.client), files(bench)) == ([], [])


# --- receiving --------------------------------------------------------------------------------


def test_a_subscription_counts_and_acknowledges_one_message(bench: Bench) -> None:
    client = bench.client
    put(client, BIG)
    send(client, b"small")
    put(client, OTHER)
    last = read(client)[-1].message_id
    partition = client.describe_topic("t")["partition_list"][0]
    assert (partition["messages"], partition["last"]) == (3, last)
    assert client.subscriptions("t")[0]["backlog"] == 3
    with client.consumer("t", "s") as consumer:
        messages = [consumer.receive() for _ in range(3)]
        assert [m.value for m in messages if m is not None] == [BIG, b"small", OTHER]
        consumer.acknowledge(messages[0])
        assert client.subscriptions("t")[0]["backlog"] == 2
        with client.transaction() as txn:
            consumer.acknowledge(messages[2], txn=txn)
    with client.consumer("t", "s") as consumer:
        assert [m.value for m in rows([consumer.receive_batch()])] == [b"small"]
    assert [m.value for m in client.reader("t", last)] == [OTHER]
    assert [*values(client, range=None, limit=1)] == [BIG]


def bound_batches(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Limit a batch to this many bytes, in every module that has read the setting."""
    for module in (previews, lease, readers):
        monkeypatch.setattr(module, "RECEIVE_BYTES_MAX", most)
    monkeypatch.setattr(dispatch.plan, "__defaults__", ((), None, most))


def test_a_batch_that_a_large_message_fills_has_no_empty_messages_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: dividing the bytes that are left by the mean size of messages without bytes."""
    client = bench.client
    put(client, BIG)
    client.checkpoint()
    with client.producer("t") as producer:
        for _ in range(3):
            producer.send(None)
    bound_batches(monkeypatch, 1)
    tables = [table for table in client.read("t") if table.num_rows]
    assert [message.value for message in rows(tables)] == [BIG, None, None, None]
    with client.consumer("t", "s") as consumer:
        received = [message.value for message in iter(consumer.receive, None)]
    assert received == [BIG, None, None, None]


def test_batches_are_bounded_by_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many large messages come in many batches; the smallest has one message."""
    client = bench.client
    txn = begin(client)
    sent = []
    for number in range(12):
        value = BIG if number % 2 else b"%d" % number
        put(client, value)
        sent.append(value)
        put(client, value, txn)
    client.commit(txn)
    sent += sent
    for most, biggest in ((1, 1), (4500, 3), (2 * 4500 + 9, 5), (1 << 20, 24)):
        bound_batches(monkeypatch, most)
        tables = [table for table in client.read("t") if table.num_rows]
        assert [m.value for m in rows(tables)] == sent
        assert max(table.num_rows for table in tables) <= biggest
        for table in tables:
            size = sum(len(value) for value in table["value"].to_pylist())
            assert size <= max(most, 4500) + 4500
        with client.consumer("t", "s") as consumer:
            sizes = []
            while (table := consumer.receive_batch()).num_rows:
                sizes += [m.value for m in rows([table])]
            assert sizes == sent
    client.acknowledge("t", "s", [m.message_id for m in read(client)[:20] if m.message_id])
    bound_batches(monkeypatch, 1)
    with client.consumer("t", "s") as consumer:
        assert [m.value for m in rows([consumer.receive_batch()])] == sent[20:21]


# --- files and space --------------------------------------------------------------------------


def test_the_file_is_parquet_with_a_row_a_chunk(bench: Bench) -> None:
    """docs/format.md 5: the content of the file for another program."""
    put(bench.client, BIG)
    [path] = files(bench)
    rows_of = duckdb.read_parquet(str(path)).project("kind, entry, octet_length(value), value")
    found_rows = rows_of.order("entry").fetchall()
    assert [row[:3] for row in found_rows] == [
        (6, 0, 1000),
        (6, 1, 1000),
        (6, 2, 1000),
        (6, 3, 1000),
        (6, 4, 500),
    ]
    assert b"".join(row[3] for row in found_rows) == BIG


def test_checkpoints_seals_and_compactions_change_nothing(bench: Bench) -> None:
    """I-20."""
    client = bench.client
    held_txn = begin(client, 80_000_000)
    put(client, b"early", held_txn)
    put(client, OTHER, held_txn)
    for number in range(3):
        put(client, b"%d" % number)
        put(client, BIG)
        txn = begin(client)
        put(client, OTHER, txn)
        put(client, b"gone", txn)
        client.abort(txn)
        if number < 2:
            client.checkpoint(roll_all=number == 1)
    messages_before = read(client)
    planned = client.admin.compact("t", dry_run=True)
    done = client.admin.compact("t")
    assert planned["aborted_dropped"] == done["aborted_dropped"] == 2
    assert read(client) == messages_before
    assert read(bench.reopen()) == messages_before
    client = bench.client
    client.admin.gc(apply=True, keep_ms=0)
    chunked = client.store.read(lambda view: set(view.buffer(1).chunked))
    assert len(chunked) == 4
    assert chunked <= {int(path.name[7:19]) for path in files(bench)}
    assert client.admin.gc(keep_ms=0)["files"] == 0
    client.commit(held_txn)
    client.checkpoint(roll_all=True)
    assert [m.value for m in read(client)] == [m.value for m in messages_before] + [b"early", OTHER]
    side = client.store.read(lambda view: view.buffer(1))
    assert side.dead_bytes == 0
    assert len(side.chunked) == 4


def test_a_trim_takes_the_files_of_its_messages(bench: Bench) -> None:
    client = bench.client
    put(client, BIG)
    client.checkpoint(roll_all=True)
    put(client, OTHER)
    first = read(client)[1].message_id
    assert first is not None
    client.admin.trim("t", Bound("id", first), force_unacked=True)
    assert values(client) == [OTHER]
    client.admin.trim("t", END, force_unacked=True)
    client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    assert (values(client), files(bench)) == ([], [])
    assert client.store.read(lambda view: view.buffer(1).chunked) == {}


@pytest.mark.parametrize("named", [False, True])
def test_a_deleted_topic_takes_its_files_along(bench: Bench, named: bool) -> None:
    """Also files that no manifest names yet: no sweep lists the directory any more."""
    client = bench.client
    put(client, BIG)
    if named:
        client.checkpoint()
    put(client, OTHER)
    client = bench.reopen()
    client.admin.delete_topic("t", force=True)
    for _ in range(2):
        client = bench.reopen()
        client.checkpoint()
        client.admin.gc(apply=True, keep_ms=0)
    assert not files(bench)


def test_a_file_in_the_making_is_not_swept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """R19: the file is published and not named yet; in the second half its sender dies."""
    client, other = bench.client, bench.another()
    append = large._append
    listings: list[object] = []

    def slowly(*arguments: object) -> object:
        assert len(files(bench)) == len(listings) + 1
        listings.append(other.admin.gc(apply=True)["files"])
        return append(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(large, "_append", slowly)
    put(client, BIG)
    with client.transaction() as txn:
        client.producer("t", chunking=True).send(OTHER, txn=txn, partition=0)
        # a frame that is not flushed yet names it
        listings.append(other.admin.gc(apply=True)["files"])
    assert listings == [0, 0, 0]
    assert values(other) == [BIG, OTHER]

    def dying(*arguments: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(large, "_append", dying)
    with pytest.raises(KeyboardInterrupt):
        put(client, BIG)
    assert len(files(bench)) == 3
    assert [row["reason"] for row in other.admin.gc()["file_list"]] == ["unnamed"]
    assert other.admin.gc(apply=True)["files"] == 1
    assert len(files(bench)) == 2
    assert values(other) == [BIG, OTHER]


# --- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 4, 1200, -300, -1])
def test_damage_is_named_and_hides_only_later_messages(bench: Bench, at: int) -> None:
    """11: messages before the damage are read, the error has file and range, repair restores it."""
    client = bench.client
    send(client, b"before")
    put(client, BIG)
    send(client, b"behind")
    [path] = files(bench)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1
    path.write_bytes(bad)
    client = bench.reopen()
    reader = client.reader("t")
    with pytest.raises(Corruption) as caught:
        client.store.read(lambda view: view.rows([(3, 0, 1)]))
    assert caught.value.fields["path"] == str(path.relative_to(bench.path))
    first = int(str(caught.value.fields["offset"]))
    assert first <= at % len(good) < first + int(str(caught.value.fields["length"]))
    with pytest.raises(Corruption) as caught:
        assert [m.value for m in iter(reader.read_next, None)] == [b"before"]
    assert caught.value.fields["path"] == str(path.relative_to(bench.path))
    assert values(client, limit=1) == [b"before"]
    with pytest.raises(PartitionUnavailable):
        client.producer("t-partition-0").send(b"more")
    path.write_bytes(good)
    assert client.admin.set_online("t/0")["online"]
    assert values(client) == [b"before", BIG, b"behind"]


def test_the_whole_value_is_checked_too(bench: Bench) -> None:
    """The length and CRC32C of the op, in case the row groups are good but of another message."""
    put(bench.client, BIG)
    [path] = files(bench)
    view = bench.client.store.read(lambda view: view)
    [ref], chunks = view.files.of(3), view.buffer(1).chunked[3]
    file = view.disk.open(ref.path)
    assert reassembled(file, ref, chunks.value_bytes, chunks.crc)[1][0].as_py() == BIG
    for size, crc in ((4500, chunks.crc ^ 1), (4499, chunks.crc), (4501, chunks.crc), (0, 0)):
        with pytest.raises(Corruption, match=path.name):
            reassembled(file, ref, size, crc)
    file.close()


@pytest.mark.parametrize("cut_to", [0, 100])
def test_a_cut_or_missing_file_is_corruption(bench: Bench, cut_to: int) -> None:
    put(bench.client, BIG)
    [path] = files(bench)
    if cut_to:
        path.write_bytes(path.read_bytes()[:cut_to])
    else:
        path.unlink()
    with pytest.raises(Corruption) as caught:
        values(bench.reopen())
    assert path.name in str(caught.value)


def test_a_read_without_the_value_column_reads_no_value(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at keys or sequences costs no more than the first row group."""
    put(bench.client, BIG)
    monkeypatch.setattr(
        "txlog.engine.storage.chunks.reassembled", lambda *arguments: pytest.fail("was read")
    )
    [table] = bench.client.store.read(lambda view: view.rows([(3, 0, 1)], ("key", "lsn")))
    assert table.to_pylist()[0]["key"] is None


# --- the command line -------------------------------------------------------------------------


def test_the_command_sends_files_lines_and_arguments(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """--chunking: whole files, long lines among short ones, -m; a message above the limit is
    refused.
    """
    path = tmp_path / "page"
    path.write_bytes(BIG)
    (tmp_path / "huge").write_bytes(b"h" * 60_000)
    (tmp_path / "lines").write_bytes(b"a\n" + b"l" * 4500 + b"\nb\n" + b"h" * 60_000 + b"\nc\n")
    files_of = {name: str(tmp_path / name) for name in ("page", "huge", "lines")}

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["-S", bench.path, *arguments])
        return code, capfd.readouterr().err

    target = ("produce", "t", "-p", "0")
    code, error = run(*target, files_of["page"], "--in", "raw")
    assert (code, "--chunking" in error) == (1, True)
    assert run(*target, files_of["page"], "--in", "raw", "--chunking", "-k", "k")[0] == 0
    assert run(*target, "--chunking", "-m", "m" * 2000, "-m", "n")[0] == 0
    code, error = run(*target, files_of["lines"], "--chunking", "--on-error", "skip")
    assert (code, "left out: line 4" in error) == (0, True)
    code, error = run(*target, files_of["lines"], "--chunking")
    assert (code, "max_chunked_message_bytes" in error) == (2, True)
    code, error = run(*target, files_of["huge"], "--in", "raw", "--chunking", "--txn")
    assert (code, "max_chunked_message_bytes" in error) == (2, True)
    lines = [b"a", b"l" * 4500, b"b"]
    assert values(bench.client) == [BIG, b"m" * 2000, b"n", *lines, b"c"]
    assert read(bench.client)[0].key == b"k"


def test_a_raw_message_comes_back_byte_for_byte(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    put(bench.client, BIG)
    put(bench.client, b"small")
    for arguments in (["-s", "s"], []):
        assert main(["-S", bench.path, "consume", "t", "-f", "raw", *arguments]) == 0
        assert capfdbinary.readouterr().out == BIG + b"small"


def test_a_signal_before_the_end_of_the_input_is_no_message(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it came with the end: the input may be only half of the intended message."""

    def asked(path: str | None, wait_s: object) -> Iterator[bytes | None]:
        yield BIG
        yield None
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(inputs, "read_blocks", asked)
    arguments = ["produce", "t", "--in", "raw", "--chunking"]
    assert main(["-S", bench.path, *arguments]) == 130
    assert (values(bench.client), files(bench)) == ([], [])


def test_a_large_message_of_a_forgotten_producer_leaves_a_gap(tmp_path: Path) -> None:
    """Guards against lower numbers that count as stored only because the producer was forgotten."""
    settings = {"max_message_bytes": LIMIT, "max_chunked_message_bytes": 50_000}
    bench = Bench(tmp_path / "idle", dedup_idle_ms=1000, **settings)
    bench.client.create_topic("t")
    producer = bench.client.producer("t", name="p", chunking=True)
    for number in range(3):
        producer.send(b"x", sequence_id=number)

    def slow() -> Iterator[bytes]:
        """A value whose producer is forgotten while it is read."""
        yield BIG
        bench.clock.advance(1001)
        yield OTHER

    assert not producer.send(slow(), sequence_id=3).duplicate
    for restart in (False, True):
        if restart:
            producer = bench.reopen().producer("t", name="p", chunking=True)
        assert producer.send(BIG, sequence_id=3).duplicate
        assert not producer.send(b"x", sequence_id=1 + restart).duplicate
    bench.close()


@pytest.mark.parametrize("in_txn", [False, True])
@pytest.mark.parametrize("value", [b"small", BIG], ids=["small", "large"])
def test_there_is_no_number_above_the_highest(bench: Bench, value: bytes, in_txn: bool) -> None:
    """Guards against an unreadable message, as its number has 64 bits, and an OverflowError."""
    client, top = bench.client, 2**63 - 1
    producer = client.producer("t", name="p", chunking=True)
    txn = begin(client) if in_txn else None
    assert not producer.send(value, sequence_id=top, partition=0, txn=txn).duplicate
    with pytest.raises(InvalidArgument):
        producer.send(value, sequence_id=top + 1, partition=0, txn=txn)
    with pytest.raises(LimitExceeded, match="has no sequence above"):
        producer.send(value, partition=0, txn=txn)
    assert producer.send(value, sequence_id=top, partition=0, txn=txn).duplicate
    assert not producer.send(value, sequence_id=5, partition=0, txn=txn).duplicate
    if txn is not None:
        client.commit(txn)
    assert [message.sequence_id for message in read(client)] == [top, 5]
