"""READ_UNCOMMITTED: a preview of uncommitted messages after the committed ones; transactions 8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, begin, rows, send, send_txn
from txlog import Client, Consumer, Message, NonDurableConsumer, Reader, messages
from txlog.base.ids import TxnId
from txlog.base.ranges import parse_range
from txlog.engine.plan.reading import uncommitted
from txlog.engine.view import Files
from txlog.errors import ConsumerBusy, InvalidArgument, NotAllowed

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2})]
Seen = tuple[bytes | None, str | None, bool]


def seen(found_messages: list[Message]) -> list[Seen]:
    """(value, state, has an id) of each message."""
    return [(m.value, m.txn_state, m.message_id is not None) for m in found_messages]


def dirty(client: Client, text: str | None = None) -> list[Seen]:
    """The messages that a reader with isolation `uncommitted` gets."""
    chosen = None if text is None else parse_range(text, 0)
    return seen(rows(client.read("t", range=chosen, isolation="uncommitted")))


def open_with(client: Client, *values: bytes) -> TxnId:
    """An open transaction with these messages in partition 0."""
    txn = begin(client)
    for value in values:
        client.producer("t").send(value, partition=0, txn=txn)
    return txn


def test_preview_stands_behind_the_committed_in_append_order(bench: Bench) -> None:
    client = bench.client
    send(client, b"a")
    first = open_with(client, b"x1")
    second = open_with(client, b"y1")
    client.producer("t").send(b"x2", partition=0, txn=first)
    send(client, b"b")
    client.abort(second)
    committed = [(b"a", None, True), (b"b", None, True)]
    assert dirty(client) == [
        *committed,
        (b"x1", "open", False),
        (b"y1", "aborted", False),
        (b"x2", "open", False),
    ]
    client.commit(first)
    assert dirty(client) == [
        *committed,
        (b"x1", "committed", True),
        (b"x2", "committed", True),
        (b"y1", "aborted", False),
    ]
    assert [m.value for m in rows(client.read("t"))] == [b"a", b"b", b"x1", b"x2"]


def test_a_reader_sees_a_row_once_as_preview_and_once_at_its_place(bench: Bench) -> None:
    client = bench.client
    txn = open_with(client, b"x1", b"x2", b"x3")
    with client.reader("t", isolation="uncommitted") as reader:
        got: list[Message] = []
        while table := reader.receive_batch(1):
            got += messages(table)
        assert seen(got) == [(v, "open", False) for v in (b"x1", b"x2", b"x3")]
        assert [(m.txn, m.partition) for m in got] == [(txn, 0)] * 3
        client.producer("t").send(b"x4", partition=0, txn=txn)
        assert [m.value for m in messages(reader.receive_batch())] == [b"x4"]
        client.commit(txn)
        messages_again = list(messages(reader.receive_batch()))
        assert seen(messages_again) == [
            (v, "committed", True) for v in (b"x1", b"x2", b"x3", b"x4")
        ]
        assert [m.message_id.index for m in messages_again if m.message_id] == [1, 2, 3, 4]
        assert not reader.receive_batch().num_rows


@pytest.mark.parametrize("seal", [False, True])
def test_a_checkpoint_between_two_batches_repeats_nothing(bench: Bench, seal: bool) -> None:
    """A sealed sidecar has other row numbers, and no aborted rows."""
    client = bench.client
    send_txn(client, b"c")
    txn = open_with(client, b"x1")
    lost = open_with(client, b"l1", b"l2")
    with client.reader("t", isolation="uncommitted") as reader:
        assert len(seen(list(messages(reader.receive_batch(3))))) == 3
        client.abort(lost)
        client.commit(txn)
        client.checkpoint(roll_all=seal)
        late = open_with(client, b"z")
        remaining_rows: list[Seen] = []
        while table := reader.receive_batch(100):
            remaining_rows += seen(list(messages(table)))
        # the first row of its round
        expected: list[Seen] = [] if seal else [(b"l2", "aborted", False)]
        assert remaining_rows == [*expected, (b"x1", "committed", True), (b"z", "open", False)]
        client.abort(late)
    assert ((b"l1", "aborted", False) in dirty(client)) is not seal


def test_a_range_with_an_end_has_no_preview_and_a_transaction_has_its_own(bench: Bench) -> None:
    client = bench.client
    ids = send(client, b"a", b"b")
    txn = open_with(client, b"x")
    other = open_with(client, b"y")
    assert dirty(client, f"start..{ids[1]}") == [(b"a", None, True)]
    assert dirty(client, f"txn:{txn}") == [(b"x", "open", False)]
    client.commit(other)
    assert dirty(client, f"txn:{other}") == [(b"y", "committed", True)]
    assert dirty(client, "-1") == [(b"y", "committed", True), (b"x", "open", False)]


def test_a_subscription_previews_without_counting(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "u", isolation="uncommitted")
    send(client, b"a")
    txn = open_with(client, b"x")
    with client.consumer("t", "u", isolation="uncommitted") as consumer:
        table = consumer.receive_batch(100)
        assert seen(list(messages(table))) == [(b"a", None, True), (b"x", "open", False)]
        assert consumer.acknowledge(table).acked == 1  # rows without an id are left out
        assert client.subscriptions("t")[0]["backlog"] == 0
        client.commit(txn)
        assert client.subscriptions("t")[0]["backlog"] == 1
        batch_again = consumer.receive_batch(100)
        assert seen(list(messages(batch_again))) == [(b"x", "committed", True)]
        assert consumer.acknowledge(batch_again).acked == 1
        assert not consumer.receive_batch(100).num_rows


@pytest.mark.parametrize("kind", ["reader", "durable", "not durable"])
def test_previews_that_were_read_ahead_are_in_the_next_batch(bench: Bench, kind: str) -> None:
    """Previews have neither lease nor id, so a call that takes one must keep the others."""
    client = bench.client
    if kind == "durable":
        client.create_subscription("t", "u", isolation="uncommitted")
    send(client, b"a", b"b")
    open_with(client, b"x", b"y", b"z", b"w")
    handle: Reader | Consumer | NonDurableConsumer
    if kind == "reader":
        handle = client.reader("t", isolation="uncommitted")
    elif kind == "durable":
        handle = client.consumer("t", "u", isolation="uncommitted")
    else:
        handle = client.consumer("t", "u", isolation="uncommitted", durable=False)
    with handle:
        taken_messages: list[Message] = []
        for _ in range(4):
            message = handle.read_next() if isinstance(handle, Reader) else handle.receive()
            assert message is not None
            taken_messages.append(message)
        assert handle.has_message_available() or kind != "reader"
        for _ in range(3):
            taken_messages += messages(handle.receive_batch(2))
    assert [message.value for message in taken_messages] == [b"a", b"b", b"x", b"y", b"z", b"w"]


def test_isolation_is_a_property_of_the_subscription(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "u", isolation="uncommitted")
    with pytest.raises(NotAllowed, match="u is uncommitted, not committed"):
        client.consumer("t", "u", isolation="committed")
    with pytest.raises(InvalidArgument, match="isolation 'dirty'"):
        client.create_subscription("t", "v", isolation="dirty")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="isolation 'dirty'"):
        client.reader("t", isolation="dirty")  # type: ignore[arg-type]
    client.consumer("t", "u").close()


def test_isolation_changes_only_while_no_consumer_lives(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "u")
    open_with(client, b"x")
    with client.consumer("t", "u") as consumer:
        with pytest.raises(ConsumerBusy):
            client.admin.set_isolation("t", "u", "uncommitted")
        assert not consumer.receive_batch(10).num_rows
    assert client.admin.set_isolation("t", "u", "uncommitted")
    assert not client.admin.set_isolation("t", "u", "uncommitted")
    client.checkpoint()
    client = bench.reopen()
    with client.consumer("t", "u", isolation="uncommitted") as consumer:
        assert seen(list(messages(consumer.receive_batch(10)))) == [(b"x", "open", False)]
    with pytest.raises(InvalidArgument):
        client.admin.set_isolation("t", "u", "dirty")  # type: ignore[arg-type]


def test_every_batch_of_a_preview_goes_on_where_the_last_one_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against reading all markers for each batch, and a read for each stretch of rows."""
    client = bench.client
    for n in range(40):
        client.abort(open_with(client, *(b"%d.%d" % (n, at) for at in range(3))))
        send_txn(client, b"c")
    seen_markers: list[object] = []
    reads: list[int] = []
    markers_since, noted = uncommitted._markers_since, Files._noted

    def markers(*arguments: Any) -> Iterator[Any]:
        for marker in markers_since(*arguments):
            seen_markers.append(marker)
            yield marker

    def count(self: Files, table: pa.Table) -> pa.Table:
        reads.append(len(table))
        return noted(self, table)

    monkeypatch.setattr(uncommitted, "_markers_since", markers)
    monkeypatch.setattr(Files, "_noted", count)
    expected = [(b"%d.%d" % (n, at), "aborted", False) for n in range(40) for at in range(3)]
    with client.reader("t", "latest", isolation="uncommitted") as reader:
        got: list[Seen] = []
        while table := reader.receive_batch(10):
            got += seen(list(messages(table)))
        assert got == expected
        # all in the first round; the second one finds the end, and no marker after its position
        assert len(seen_markers) <= 42
        assert len(reads) <= 2 * 13
        seen_markers.clear()
        reads.clear()
        later = open_with(client, b"x", b"y")
        assert seen(list(messages(reader.receive_batch(10)))) == [
            (b"x", "open", False),
            (b"y", "open", False),
        ]
        assert len(seen_markers) <= 2
        client.commit(later)
        assert len(reader.receive_batch(10)) == 2
    client.checkpoint(roll_all=True)  # the rows of aborted transactions are removed
    assert dirty(client) == [
        *((b"c", "committed", True),) * 40,
        (b"x", "committed", True),
        (b"y", "committed", True),
    ]
