"""`produce --watermark-from event-time`: which times it asserts, when, and in which frame."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.tiers import graded
from txlog import TxnId
from txlog.base.rows.watermarks import WatermarkRow
from txlog.cli.main import main
from txlog.cli.produce.request import Batch, Every, OnError, Request
from txlog.cli.produce.work import Marks

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    txlog.init(str(path), durability="os", free_bytes_min=0)
    with txlog.open(str(path)) as client:
        client.create_topic("t", 2)
    return path


def produce(store: Path, times: list[int | None], *flags: str) -> int:
    """Send a message for each time, from a file."""
    path = store.parent / "in.csv"
    lines = [f"{number},{'' if time is None else time}" for number, time in enumerate(times)]
    path.write_text("\n".join(["value,event_time", *lines, ""]))
    return main(["-S", str(store), "produce", "t", str(path), "--in", "csv", "-q", *flags])


def history(store: Path, producer: str | None = None) -> list[WatermarkRow]:
    with txlog.open(str(store), read_only=True) as client:
        return client.topic("t").watermarks.history(partition=0, producer=producer)


def expected(
    times: list[int | None], lag: int, interval: int | None, txn_every: int | None
) -> Iterator[tuple[int | None, int]]:
    """(number of its transaction, time) of each assertion, computed message by message."""
    greatest, asserted, marked, sent, txn = 0, 0, 0, 0, 0
    for time in times:
        greatest = max(greatest, time or 0)
        marked, sent = marked + 1, sent + 1
        full = sent == txn_every
        if marked == interval or (full and interval is None):
            marked = 0
            if greatest - lag > asserted:
                asserted = greatest - lag
                yield txn if txn_every else None, asserted
        if full:
            sent, txn = 0, txn + 1
    if greatest - lag > asserted:
        yield txn if txn_every and sent else None, greatest - lag


@pytest.mark.parametrize("seed", graded(range(12), 1))
def test_random_inputs(store: Path, seed: int) -> None:
    """In batches of any size: after every N messages, in each transaction, at the end."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(4):
        count = chance.randrange(0, 30)
        # 13 digits: such an integer is read as milliseconds
        times = [chance.choice([None, *[10**12 + chance.randrange(500)] * 4]) for _ in range(count)]
        lag = chance.choice([0, 100, 10**12 + 250])
        choice = chance.choice([None, 1, 2, 7])
        txn_every = chance.choice([None, 1, 3, 10, 10**6])
        flags = ["--watermark-from", "event-time", "--watermark-lag", f"{lag}ms"]
        flags += [] if choice is None else ["--watermark-every", str(choice)]
        if txn_every is not None:
            flags += ["--txn"] if txn_every == 10**6 else ["--txn-every", str(txn_every)]
        name = f"till-{number}"
        flags += ["--batch", str(chance.choice([1, 4, 1000])), "--producer", name]
        assert produce(store, times, *flags) == 0
        expected_rows: dict[object, int] = {}  # the greatest time of a transaction counts
        for at, (txn, time) in enumerate(expected(times, lag, choice, txn_every)):
            expected_rows[("plain", at) if txn is None else txn] = time
        rows = history(store, name)
        assert [row["event_time"] for row in rows] == list(expected_rows.values())
        assert [row["txn"] is not None for row in rows] == [
            isinstance(at, int) for at in expected_rows
        ]
        assert not any(row["regressed"] for row in rows)


def test_an_aborted_run_asserts_nothing(store: Path) -> None:
    """Inside the transaction: all of them or none."""
    flags = ("--watermark-from", "event-time", "--watermark-every", "1", "--txn", "--expect", "9")
    assert produce(store, [10**12], *flags, "--idle-on-close") == 8
    assert history(store) == []


def test_idle_at_the_end(store: Path) -> None:
    """A row of its own after the commit; in a joined transaction, with its commit."""
    flags = ("--watermark-from", "event-time", "--idle-on-close")
    assert produce(store, [10**12], *flags, "--txn", "--producer", "A") == 0
    assert [(row["marker_type"], row["txn"] is None) for row in history(store, "A")] == [
        ("set", False),
        ("idle", True),
    ]
    assert produce(store, [], "--idle-on-close", "--producer", "B") == 0
    assert [row["by"] for row in history(store, "B")] == ["producer"]
    with txlog.open(str(store)) as client:
        txn = client.begin()["txn"]
    assert produce(store, [10**12], *flags, "--producer", "C", "--txn-id", str(txn)) == 0
    assert history(store, "C") == []
    with txlog.open(str(store)) as client:
        client.commit(txn)
    assert [row["marker_type"] for row in history(store, "C")] == ["idle"]
    assert produce(store, [10**12], *flags) == 0
    assert [row["marker_type"] for row in history(store, "(unnamed)")] == ["set", "idle"]


class Told:
    """A producer that records the asserted times."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, TxnId | None]] = []
        self._txn: TxnId | None = None
        self._time = 0

    def new_watermark(self, txn: TxnId | None = None) -> Told:
        self._txn = txn
        return self

    def event_time(self, time: int) -> Told:
        self._time = time
        return self

    def send(self) -> None:
        self.sent.append((self._time, self._txn))


def test_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """By time: not sooner, only if the time has risen, and also without a new message."""
    now = [100.0]
    monkeypatch.setattr("txlog.cli.produce.work.time.monotonic", lambda: now[0])
    request = Request(
        topic="t",
        watermark_from="event-time",
        watermark_every=Every(ms=5000),
        batch=Batch(),
        flush_every_ms=0,
        on_error=OnError("stop"),
    )
    reports = Told()
    txns: list[TxnId | None] = [None]
    make = lambda act, size: act(txns[-1])  # noqa: E731
    marks = Marks(request, reports, make)  # type: ignore[arg-type]

    def message(time: int) -> None:
        at = pa.array([time], pa.timestamp("ms", "UTC"))
        marks.note(pa.table({"value": [b"x"], "event_time": at}))

    assert marks.wait_s() is None
    message(10)
    assert marks.wait_s() == 5
    now[0] += 4
    message(7)
    assert (marks.wait_s(), reports.sent) == (1, [])
    now[0] += 2
    marks.send_if_due()
    assert reports.sent == [(10, None)]
    assert marks.wait_s() is None  # no time has risen
    now[0] += 60
    message(9)
    marks.send_if_due()
    assert reports.sent == [(10, None)]
    message(11)
    assert reports.sent == [(10, None), (11, None)]
    message(30)
    txns.append(TxnId(0, 1))
    marks.commit()  # --watermark-every decides
    assert len(reports.sent) == 2
    marks.send()
    assert reports.sent[2:] == [(30, txns[-1])]
    assert marks.last == 30
