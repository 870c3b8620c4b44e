"""Batch after batch: neighbouring rows become one table, and each batch is a slice of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog.engine import view as views
from txlog.engine.plan.reading.dispatch import Piece, Rows, received
from txlog.engine.view import View

ROWS = 600
Make = Callable[[int, int], pa.Table]


pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, ledger_entries_max=2 * ROWS),
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each table has that is built, not sliced."""
    counted: list[int] = []
    make = Rows.table

    def count(rows: Rows) -> pa.Table:
        counted.append(rows.num_rows)
        return make(rows)

    monkeypatch.setattr(Rows, "table", count)
    return counted


def frames(bench: Bench, count: int, rows: int = ROWS) -> None:
    """Send frames of this many rows; some have keys and times, some come in transactions."""
    producer = bench.client.producer("t")
    for at in range(count):
        bench.clock.advance(1_000)
        table = pa.table({"value": [b"%d.%d" % (at, n) for n in range(rows)]})
        if at % 2:
            keys = pa.array([b"k%d" % n if n % 3 else None for n in range(rows)], pa.binary())
            table = table.append_column("key", keys)
        if at % 3 == 2:
            with bench.client.transaction() as txn:
                producer.send_batch(table, txn=txn)
        else:
            producer.send_batch(table)


@pytest.mark.parametrize("where", ["frames", "parts", "sealed"])
def test_rows_are_the_same_cut_or_made(bench: Bench, where: str) -> None:
    """Law 1: a table that is kept for slicing is never used for other rows."""
    frames(bench, 5 if where == "sealed" else 2)
    if where != "frames":
        bench.client.checkpoint()
    chance = random.Random(20)
    print("seed 20")

    def look(view: View) -> None:
        ledger = view.topic(1).ledgers[0].ledger
        assert bool(view.files.of(ledger)) == (where != "frames")
        at = 0
        for _ in range(300):
            at = chance.choice((at, at, at + chance.randrange(9), chance.randrange(2 * ROWS)))
            rows = chance.choice((1, 5, 5, 40))
            at = 0 if at + rows > 2 * ROWS else at
            names = chance.choice((None, None, ("value",), ["key"]))
            counts: dict[tuple[int, int, int], int] | None = chance.choice((None, {}))
            if chance.random() < 0.2:
                counts = {(ledger, at + rows - 1, 0): 3, (ledger, at + rows, 0): 1}
            piece = Piece(ledger, at, rows, 0, None)
            found_rows = received(view, "t", 0, 1, [piece], counts, names)
            alone = received(view, "t", 0, 1, [*map(one, range(at, at + rows))], counts, names)
            assert found_rows.equals(alone)
            assert found_rows.schema.equals(alone.schema, check_metadata=True)
            at += rows

        view.files._cuts.clear()

    def one(entry: int) -> Piece:
        return Piece(1, entry, 1, 0, None)

    [ledger] = bench.client.store.read(lambda view: [view.topic(1).ledgers[0].ledger])
    assert ledger == 1
    bench.client.store.read(look)


def test_a_table_is_made_for_many_batches(bench: Bench, made: list[int]) -> None:
    """Guards against a table of twenty columns for each batch."""
    frames(bench, 1)
    client = bench.client
    client.create_subscription("t", "s", type="shared")
    values = [b"0.%d" % n for n in range(ROWS)]
    with client.consumer("t", "s") as consumer, client.consumer("t", "s") as other:
        for at in range(0, ROWS, 20):
            table = (other if at % 60 == 20 else consumer).receive_batch(20)
            assert table.column("value").to_pylist() == values[at : at + 20]
            assert table.column("entry").to_pylist() == [*range(at, at + 20)]
    assert made == [20, 320, 260]
    assert client.reading()["rows_read"] == ROWS


def test_scattered_reads_do_not_read_ahead(bench: Bench, made: list[int]) -> None:
    """The store reads ahead only when a request follows the one before."""
    frames(bench, 1)

    def look(view: View) -> None:
        for at in (0, 500, 40, 300, 5):
            received(view, "t", 0, 1, [Piece(1, at, 2, 0, None)])

    bench.client.store.read(look)
    assert made == [2] * 5


def test_tables_kept_for_slicing_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tables, of few bytes; a table that was read to its end is dropped."""
    frames(bench, 1)

    def look(view: View) -> None:
        cuts = view.files._cuts

        def read(topic: str, at: int, rows: int) -> None:
            received(view, topic, 0, 1, [Piece(1, at, rows, 0, None)])

        def kept() -> int:
            return sum(known_items[2] is not None for known_items in cuts._known.values())

        for at in range(20):
            read(f"t{at}", 0, 30)
            read(f"t{at}", 30, 30)
        assert kept() == views.CUTS_MAX
        for at in range(60, ROWS, 30):
            read("t19", at, 30)
        assert kept() == views.CUTS_MAX - 1
        largest = max(known_items[3] for known_items in cuts._known.values())
        monkeypatch.setattr(views, "CUT_BYTES_MAX", 2 * largest + largest // 2)
        read("t", 0, 30)
        read("t", 30, 30)
        assert kept() == 2
        monkeypatch.setattr(views, "CUT_BYTES_MAX", 1)
        read("u", 0, 30)
        read("u", 30, 30)
        assert kept() == 0
        assert cuts._bytes == 0

    bench.client.store.read(look)
