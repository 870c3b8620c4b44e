"""Waiting readers get every message once and in order, whatever happens to the files meanwhile."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.engine_kit import Bench, begin, send, send_txn
from tests.tiers import graded
from txlog import Bound, Client, MessageId, Range
from txlog.client.reading.reader import Reader
from txlog.engine.session.reading import pause
from txlog.engine.store.wakeups import Wakeups
from txlog.errors import AlreadyClosed, MessageNotFound

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, ledger_entries_max=4),
]


def values(reader: Any) -> list[bytes]:
    out = []
    while (message := reader.read_next()) is not None:
        out.append(message.value)
    return out


def drawn(client: Client, rng: random.Random, opened: list[Any], number: int) -> list[bytes]:
    """Run one step of a history; returns the messages that it makes visible, in order."""
    producer, step = client.producer("t"), rng.random()
    value = b"%d" % number
    if step < 0.3:
        producer.send(value)
        return [value]
    if step < 0.5:
        if len(opened) < 3:
            opened.append((begin(client), []))
        txn, sent = rng.choice(opened)
        for index in range(rng.randrange(1, 4)):
            sent.append(b"%d.%d" % (number, index))
            producer.send(sent[-1], txn=txn)
        return []
    if step < 0.75 and opened:
        txn, sent = opened.pop(rng.randrange(len(opened)))
        if rng.random() < 0.7:
            client.commit(txn)
            return list(sent)
        client.abort(txn)
        return []
    if step < 0.85:
        client.checkpoint()
    elif step < 0.95:
        client.admin.compact("t")
    else:
        client.admin.trim("t", Bound("last", rng.randrange(1, 8)))
    return []


class Follower:
    """A reader, and how many messages it should have had; one that keeps only an id is reopened."""

    def __init__(self, client: Client, *, keeps_an_id: bool) -> None:
        self._client, self._keeps_an_id = client, keeps_an_id
        self._reader = client.reader("t")
        self.at = 0
        self.jumps = 0

    def read(self, expected: list[bytes], most: int) -> None:
        """Read on; the reader must report missing messages, which a trim removed."""
        for _ in range(most):
            try:
                message = self._reader.read_next()
            except MessageNotFound:
                remaining = values(self._client.reader("t"))
                assert len(remaining) < len(expected) - self.at
                self.at, self.jumps = len(expected) - len(remaining), self.jumps + 1
                self._reader.seek("earliest")
                continue
            if message is None:
                assert self.at == len(expected)
                return
            assert message.value == expected[self.at]
            self.at += 1
            if self._keeps_an_id:
                assert message.message_id is not None
                self._reader = self._client.reader("t", Bound("after", message.message_id))


@pytest.mark.parametrize("seed", graded(range(20), 1))
def test_random_histories_are_followed(bench: Bench, seed: int) -> None:
    """Three readers get all visible messages in order, through checkpoints and compaction.

    One of them is reopened after each message. For messages trimmed before it, a reader gets an
    error.
    """
    rng = random.Random(seed)
    other = bench.another()
    followers = [Follower(other, keeps_an_id=keeps_id) for keeps_id in (False, False, True)]
    expected: list[bytes] = []
    opened: list[Any] = []
    for number in range(60):
        expected += drawn(bench.client, rng, opened, number)
        for follower, most in zip(followers, (1000, 2, 2), strict=True):
            if rng.random() < 0.4:
                follower.read(expected, most)
    for follower in followers:
        follower.read(expected, 1000)
        assert follower.at == len(expected), seed


def test_behind_each_message(bench: Bench) -> None:
    """A reader may start after any message, also within a transaction and after its last message.

    seek does the same.
    """
    client = bench.client
    plain = send(client, b"0")
    _, inner = send_txn(client, b"1", b"2", b"3")
    ids = [*plain, *inner, *send(client, b"4")]
    with client.reader("t") as reader:
        for at, message_id in enumerate(ids):
            remaining = [b"%d" % n for n in range(at + 1, 5)]
            assert values(client.reader("t", Bound("after", message_id))) == remaining
            assert values(client.reader("t", Bound.parse(f"after={message_id}"))) == remaining
            reader.seek(Bound("after", message_id))
            assert values(reader) == remaining
    assert str(Bound("after", inner[1])) == f"after={inner[1]}"
    beyond = MessageId(ids[-1].ledger, ids[-1].entry + 1, 0)
    with pytest.raises(MessageNotFound, match="does not exist yet"):
        client.reader("t", Bound("after", beyond))
    with pytest.raises(MessageNotFound):
        client.reader("t", Bound("after", MessageId(inner[0].ledger, inner[0].entry, 4)))


def test_trimmed_messages_are_an_error_and_never_a_jump(bench: Bench) -> None:
    """R22: for an open reader, and for one that starts after an id."""
    client = bench.client
    first = send(client, b"1")[0]
    reader = client.reader("t")
    assert reader.read_next() is not None
    send(client, b"2")
    client.checkpoint(roll=["t"])
    client.admin.trim("t", Bound("end"))
    send(client, b"3")
    following = reader.follow()
    with pytest.raises(MessageNotFound) as caught:
        next(following)
    assert caught.value.fields["last"] is not None
    with pytest.raises(MessageNotFound):
        client.reader("t", Bound("after", first)).read_next()
    reader.seek("earliest")
    assert next(reader.follow()).value == b"3"


def test_a_range_with_an_end_is_not_waited_for(bench: Bench) -> None:
    send(bench.client, b"1")
    reader = Reader(bench.client.store, "t", Range.parse("start..end"), None)
    assert [message.value for message in reader.follow()] == [b"1"]
    assert reader.read_next(timeout_ms=None) is None
    assert reader.receive_batch(timeout_ms=None).num_rows == 0


def test_it_waits_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel wakes it; it never looks again after a time. A close ends the wait."""
    for name in ("POLL_SECONDS_MIN", "POLL_SECONDS_MAX", "REST_SECONDS_MAX"):
        monkeypatch.setattr(pause, name, 600.0)
    monkeypatch.setattr("txlog.engine.session.reading.pause.REST_SECONDS_MAX", 600.0)
    rests, wait = threading.Semaphore(0), Wakeups.wait

    def noted(self: Wakeups, seen: int, seconds: float) -> bool:
        rests.release()
        return wait(self, seen, seconds)

    monkeypatch.setattr(Wakeups, "wait", noted)
    path = str(tmp_path / "store")
    txlog.init(path, free_bytes_min=0)
    with txlog.open(path) as own_client, txlog.open(path) as other:
        other.create_topic("t")
        reader = own_client.reader("t", "latest")
        got: list[object] = []

        def follow() -> None:
            try:
                for message in reader.follow():
                    got.append(message.value)
            except AlreadyClosed:
                got.append("closed")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        for number in range(3):
            assert rests.acquire(timeout=60)
            other.producer("t").send(b"%d" % number)
        assert rests.acquire(timeout=60)
        reader.close()
        thread.join(60)
        assert got == [b"0", b"1", b"2", "closed"]
        assert own_client.reader("t", "latest").read_next(timeout_ms=1) is None
