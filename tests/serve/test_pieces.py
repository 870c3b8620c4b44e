"""A long batch or transaction comes in pieces that a client can acknowledge and start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.serve.deliveries import (
    acknowledge,
    backlog,
    messages,
    stored,
    subscribed,
)
from tests.serve.served import Raw, served
from txlog.base.ids import TopicName
from txlog.engine.folds.catalog import numbers
from txlog.engine.plan.lookup import topic
from txlog.engine.view import View
from txlog.serve.pulsar import ids, members
from txlog.serve.pulsar.ids import STEP
from txlog.serve.pulsar.messages import (
    MessageIdData,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_a_long_batch_of_the_library_comes_in_pieces(tmp_path: Path) -> None:
    """Kills: a batch whose acknowledgement in a transaction needs a frame above the limit."""
    path = tmp_path / "s"
    with served(path) as url:
        stored(path, "long", None, 700)
        with txlog.open(str(path)) as client, client.producer("long") as producer:
            producer.send_batch(pa.table({"value": [b"x"] * 2_000}))
        with Raw(url) as raw:
            subscribed(raw, "long")
            frames = messages(raw, 4, permits=5_000)
            assert [(entry // STEP, count) for entry, count, _ in frames] == [
                (0, 700),
                (700, 300),
                (1_000, 1_000),
                (2_000, 700),
            ]
            assert all(entry % STEP == 0 for entry, _, _ in frames)
            last = raw.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
            last_id = last.last_message_id
            assert (last_id.entryId, last_id.batch_index, last_id.batch_size) == (
                2_000 * STEP,
                699,
                700,
            )
            acknowledge(raw, last_id.ledgerId, 1_000 * STEP)
            acknowledge(raw, last_id.ledgerId, 2_000 * STEP, ack_set=[-2] + [-1] * 10)
            assert backlog(path, "long") == 2_700 - 1_000 - 1
            # ids of the whole batch, which an earlier server gave out
            acknowledge(raw, last_id.ledgerId, 700 * STEP, batch_index=1_302)
            acknowledge(raw, last_id.ledgerId, 700 * STEP + 1_304)
            ack_set = (1 << 2_000) - 1 - (1 << 1_304)
            words = [ack_set >> 64 * at & ids.NOWHERE for at in range(32)]
            signed = [word - (1 << 64) if word >> 63 else word for word in words]
            acknowledge(raw, last_id.ledgerId, 700 * STEP, ack_set=signed)
            assert backlog(path, "long") == 2_700 - 1_000 - 4


def test_a_batch_with_a_receipt_comes_whole(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with served(path) as url:
        stored(path, "named", "till", 3_000)
        with Raw(url) as raw:
            subscribed(raw, "named")
            assert messages(raw, 1, permits=5_000) == [(0, 3_000, 0)]


def test_oversized_batch_comes_in_pieces_despite_its_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "BATCH_MAX", 1_500)
    monkeypatch.setattr(ids, "WINDOW_MAX", 400)
    path = tmp_path / "s"
    with served(path) as url:
        stored(path, "named", "till", 4_300)
        for take in (5_000, 900):  # at once, and so that a turn begins within the batch
            monkeypatch.setattr(members, "TAKE_MAX", take)
            with Raw(url) as raw:
                subscribed(raw, "named")
                frames = messages(raw, 5, permits=5_000)
                assert [(entry // STEP, count) for entry, count, _ in frames] == [
                    *((at * 1_000, 1_000) for at in range(4)),
                    (4_000, 300),
                ]


@pytest.mark.parametrize("sizes", [[1] * 40, [3] * 20, [1, 2_000, 1, 1, 300, 1], [700, 900]])
def test_batches_are_found_by_their_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """Any row of a batch finds the whole batch, in few more row reads than the batch has rows."""
    txlog.init(str(tmp_path / "s"))
    row_counts = list[int]()
    marks = ids._marks

    def counted(view: View, ledger: int, start: int, stop: int, **options: Any) -> list[object]:
        row_counts.append(stop - start)
        return marks(view, ledger, start, stop, **options)

    monkeypatch.setattr(ids, "_marks", counted)
    with txlog.open(str(tmp_path / "s")) as client:
        client.create_topic("t")
        producer = client.producer("t", name="till")
        for size in sizes:
            producer.send_batch(pa.table({"value": pa.array([b""] * size, pa.binary())}))

        def look(view: View) -> None:
            [number] = numbers(topic(view, TopicName.parse("t")))
            [end] = view.topic(number).ledgers
            start = 0
            for size in sizes:
                want = [ids.BatchSpan(end.ledger, start, size)]
                for at in {start, start + size // 2, start + size - 1}:
                    row_counts.clear()
                    assert ids.spans(view, number, end.ledger, at, at) == want
                    assert sum(row_counts) <= 5 * size + 32
                    # a row that is alone in its frame is found without reading a row
                    assert size > 1 or row_counts in ([], [3]) or at in (0, sum(sizes) - 1)
                start += size

        client.store.read(look)


def test_a_large_transaction_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with served(path) as url:
        ledger = stored(path, "txn", None, 2_500, txn=True)
        second = STEP // 2 + 2_000
        with Raw(url) as raw:
            subscribed(raw, "txn")
            frames = messages(raw, 3, permits=5_000)
            assert frames == [(0, 1_000, 0), (second, 1_000, 0), (second + 2_000, 500, 0)]
            last = raw.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
            last_id = last.last_message_id
            assert (last_id.entryId, last_id.batch_index) == (second + 2_000, 499)
            acknowledge(raw, ledger, second, ack_set=[-3] + [-1] * 15)  # its second message
            acknowledge(raw, ledger, second + 2_000)
            # an id of the whole transaction, which an earlier server gave out
            acknowledge(raw, ledger, 0, batch_index=1_003)
            acknowledge(raw, ledger, 1_006)
            raw.ask("close_consumer", "success", consumer_id=1)
            subscribed(raw, "txn")
            frames = messages(raw, 2, permits=1_001)
            assert [frames[0], frames[1][0]] == [(0, 1_000, 1), second + 1]
        with Raw(url) as raw:
            subscribed(raw, "txn", subscription="up", subType=0)
            raw.read("active_consumer_change")
            messages(raw, 3, permits=5_000)
            remaining = []
            for entry, fields in (
                (second - 1, {}),  # what clients call the one before a piece
                (second, {"ack_set": [-1] * 15 + [(1 << 40) - 1]}),  # nothing of this piece
                (second, {"ack_set": [-16] + [-1] * 15}),
                (second + 2_000, {}),
            ):
                message_id = MessageIdData(ledgerId=ledger, entryId=entry, **fields)
                raw.ask("ack", "ackResponse", consumer_id=1, ack_type=1, message_id=[message_id])
                with txlog.open(str(path)) as client:
                    client.flush()
                    rows = client.subscriptions("txn")
                remaining.append(sum(row["backlog"] for row in rows if row["subscription"] == "up"))
    assert remaining == [1_500, 1_500, 1_496, 0]


def test_a_reader_starts_in_the_piece_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with served(path) as url:
        ledger = stored(path, "txn", None, 2_500, txn=True)
        second = STEP // 2 + 2_000
        for start_id, first in (
            ({"entryId": second, "batch_index": 7}, second),
            ({"entryId": second}, second),
            ({"entryId": second + 8}, second + 8),  # alone: the eighth of it
            ({"entryId": 0, "batch_index": 1_007}, second + 8),  # of the whole
        ):
            start = MessageIdData(ledgerId=ledger, **start_id)
            with Raw(url) as raw:
                fields = {"subscription": "r", "durable": False, "subType": 0}
                subscribed(raw, "txn", **fields, start_message_id=start)
                raw.read("active_consumer_change")
                assert messages(raw, 1)[0][0] == first
