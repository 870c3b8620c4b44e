"""Whether there is more to read: clients compare two positions that GET_LAST_MESSAGE_ID gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.serve.deliveries import filled, messages, subscribed
from tests.serve.served import Raw
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.ids import LATEST, STEP
from txlog.serve.pulsar.messages import MessageIdData

pytestmark = pytest.mark.usefixtures("quick_disk")
Position = tuple[int, int]


def came(raw: Raw, name: str) -> Any:
    """The next command, skipping changes of the active consumer."""
    while (frame := raw.frame()).kind == wire.BY_FIELD["active_consumer_change"]:
        pass
    assert frame.kind == wire.BY_FIELD[name], frame
    return frame.body


def positions(raw: Raw) -> tuple[Position, Position]:
    """(mark-delete position, last message), as clients compare them."""
    raw.send("getLastMessageId", request_id=7, consumer_id=1)
    response = came(raw, "getLastMessageIdResponse")
    return tuple(
        tuple(
            part - (1 << 64) if part > LATEST else part
            for part in (position.ledgerId, position.entryId)
        )
        for position in (response.consumer_mark_delete_position, response.last_message_id)
    )  # type: ignore[return-value]


def moved(raw: Raw, topic: str, durable: bool, **to: Any) -> bool:
    """Seek and subscribe again, as a client does; returns whether there is more."""
    raw.send("seek", consumer_id=1, request_id=9, **to)
    came(raw, "close_consumer")
    came(raw, "success")
    subscribed(raw, topic, durable=durable)
    done, last = positions(raw)
    return done < last


@pytest.mark.parametrize("durable", [True, False])
def test_there_is_more_after_a_seek_to_a_time_before_the_last_message(
    durable: bool, place: tuple[Path, str]
) -> None:
    """Kills: no position, or the last message's; then Java and Python answered the opposite."""
    path, url = place
    topic = f"times-{durable}"
    filled(url, topic)
    with txlog.open(str(path)) as client, Raw(url) as raw:
        times = [message.publish_time for message in client.reader(topic)]
        assert times == sorted(times)
        subscribed(raw, topic, durable=durable)
        for time_ms, has_more in (
            (times[-1] + 1_000, False),
            (times[0], True),
            (times[-1], True),
            (times[-1] + 1_000, False),
        ):
            assert moved(raw, topic, durable, message_publish_time=time_ms) is has_more, time_ms


def test_partly_acknowledged_batch_is_more(place: tuple[Path, str]) -> None:
    path, url = place
    ledger = filled(url, "parts")
    with txlog.open(str(path)) as client, Raw(url) as raw:
        subscribed(raw, "parts")
        assert positions(raw) == ((0, -1), (ledger, 4 * STEP))
        handle = client.subscription("parts", "s")
        for to, most in ((1, STEP - 1), (2, STEP - 1), (3, STEP - 1), (4, STEP)):
            start = MessageIdData(ledgerId=ledger, entryId=to * STEP)
            assert moved(raw, "parts", True, message_id=start)
            assert positions(raw)[0] <= (ledger, most)
        handle.clear_backlog()
        done, last = positions(raw)
        assert done == last


def test_more_of_a_transaction_is_seen_by_its_pieces(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        client.create_topic("txn")
        with client.transaction() as txn:
            client.producer("txn").send_batch(pa.table({"value": [b"x"] * 2_500}), txn=txn)
        subscribed(raw, "txn")
        pair = positions(raw)
        assert pair[0] < pair[1]
        client.subscription("txn", "s").clear_backlog()
        pair = positions(raw)
        assert pair[0] == pair[1]


def test_a_reader_at_the_end_has_more_with_the_next_message(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client, Raw(url) as raw:
        client.create_topic("end")
        end = MessageIdData(ledgerId=LATEST, entryId=LATEST)
        subscribed(raw, "end", durable=False, start_message_id=end)
        assert positions(raw)[1] == (-1, -1)
        client.producer("end").send(b"a")
        done, last = positions(raw)
        assert done < last
        assert messages(raw, 1)[0][:2] == (0, 1)
