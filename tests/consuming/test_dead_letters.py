"""Dead letters and retries: one frame moves a message, in every state exactly the due ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine_kit import Bench, begin, pending, read, rows, send, send_txn, values
from txlog import Client, Message, MessageId, Range
from txlog.base.ids import TopicName
from txlog.engine.decide.consuming import dead_letters as deadletter
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.model.ops import Acked, Appended, DeadLettered, SubscriptionPolicySet
from txlog.engine.plan.lookup import subscription, topic
from txlog.engine.plan.reading.dispatch import fetch, taken_apart
from txlog.engine.session.consuming import dead_letters
from txlog.engine.session.consuming.dead_letters import DeadLetters
from txlog.engine.view import View
from txlog.errors import InvalidArgument, MessageNotFound, PartitionUnavailable

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2}, [("t", "s")])]
DLQ, RETRY = "t-s-DLQ", "t-s-RETRY"


def found(view: View, name: str = "t") -> tuple[Topic, Subscription]:
    of = topic(view, TopicName.parse(name))
    return of, subscription(view, of, "s")


def set_policies(client: Client, name: str = "t", **policies: int | str | None) -> None:
    """Set policies of subscription s."""
    client.store.write(
        lambda view, now: Decision(
            [
                SubscriptionPolicySet(found(view, name)[1].number, key, value)
                for key, value in policies.items()
            ],
            None,
            True,
        )
    )


def abort(client: Client, *ids: MessageId, name: str = "t") -> None:
    """Make messages come again: a transaction acknowledges them and aborts."""
    txn = begin(client)
    client.acknowledge(name, "s", list(ids), txn=txn)
    client.abort(txn)


def receive(client: Client, name: str = "t") -> list[Message]:
    with client.consumer(name, "s") as consumer:
        return rows([consumer.receive_batch(1000)])


def unacked(client: Client, name: str = "t") -> list[bytes]:
    return values(client, name, Range(kind="unacked", subscription="s"))


def topics(client: Client) -> list[str]:
    return [row["topic"] for row in client.topics()]


def test_maximum_of_one_and_two_aborts_the_third_time_goes_there(bench: Bench) -> None:
    """Pulsar #17287: returns by an aborted transaction count, too."""
    set_policies(bench.client, max_redeliver_count=1)
    a = send(bench.client, b"a", b"b")[0]
    with bench.client.consumer("t", "s") as consumer:
        for count in (0, 1):
            assert [(m.value, m.redelivery_count) for m in rows([consumer.receive_batch()])] == [
                (b"a", count),
                (b"b", 0),
            ]
            abort(bench.client, a)
        assert [m.value for m in rows([consumer.receive_batch()])] == [b"b"]
        assert consumer.receive() is None
    [copy] = read(bench.client, DLQ)
    assert copy.value == b"a"
    assert copy.properties == {
        "REAL_TOPIC": "t",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": str(a),
        "REDELIVERY_COUNT": "2",
    }
    assert unacked(bench.client) == [b"b"]
    assert [m.value for m in receive(bench.client)] == [b"b"]
    assert len(read(bench.client, DLQ)) == 1


def test_copy_keeps_key_properties_and_event_time(bench: Bench) -> None:
    set_policies(bench.client, max_redeliver_count=0)
    sent = bench.client.producer("t").send(
        None, key=b"k", properties={"a": "1", "REAL_TOPIC": "other"}, event_time=5, deliver_at=7
    )
    assert sent.message_id is not None
    abort(bench.client, sent.message_id)
    assert receive(bench.client) == []
    [copy] = read(bench.client, DLQ)
    assert (copy.value, copy.key, copy.event_time, copy.deliver_at) == (None, b"k", 5, None)
    assert copy.properties["a"] == "1"
    assert copy.properties["REAL_TOPIC"] == "t"
    assert (copy.producer, copy.txn, copy.sequence_id) == (None, None, None)


def test_one_message_of_a_transaction_goes_alone(bench: Bench) -> None:
    set_policies(bench.client, max_redeliver_count=0)
    _, ids = send_txn(bench.client, b"1", b"2", b"3")
    abort(bench.client, ids[1])
    assert [m.value for m in receive(bench.client)] == [b"1", b"3"]
    [copy] = read(bench.client, DLQ)
    assert copy.properties["ORIGIN_MESSAGE_ID"] == str(ids[1])
    bench.client.acknowledge("t", "s", [ids[0], ids[2]])
    bench.client.flush()
    assert bench.client.subscriptions("t")[0]["backlog"] == 0


def test_whole_marker_goes_message_by_message(bench: Bench) -> None:
    """A count on the marker's own id is a count on each of its messages."""
    set_policies(bench.client, max_redeliver_count=1)
    marker, ids = send_txn(bench.client, b"1", b"2")
    abort(bench.client, marker)
    abort(bench.client, ids[0])
    assert [m.value for m in receive(bench.client)] == [b"2"]
    assert values(bench.client, DLQ) == [b"1"]
    abort(bench.client, ids[1])
    assert receive(bench.client) == []
    assert values(bench.client, DLQ) == [b"1", b"2"]


def test_derived_topic_is_made_once_with_one_partition(bench: Bench) -> None:
    set_policies(bench.client, max_redeliver_count=0)
    for partition in (0, 1):
        abort(bench.client, *send(bench.client, b"x", partition=partition))
        receive(bench.client)
    assert bench.client.describe_topic(DLQ)["partitions"] == 1
    assert len(values(bench.client, DLQ)) == 2
    assert topics(bench.client) == ["t", DLQ]


def test_named_topic_keeps_its_partitions_and_key_routing(bench: Bench) -> None:
    bench.client.create_topic("dead", partitions=3)
    set_policies(bench.client, max_redeliver_count=0, dead_letter_topic="dead")
    keys = [b"a", b"b", b"c", b"d"]
    expected = {key: bench.client.producer("dead").send(b"", key=key).partition for key in keys}
    sent = [bench.client.producer("t").send(b"v", key=key).message_id for key in keys]
    abort(bench.client, *(message_id for message_id in sent if message_id is not None))
    assert receive(bench.client) == []
    copies = [m for m in read(bench.client, "dead") if m.value]
    assert {m.key: m.partition for m in copies} == expected


def test_without_the_policy_nothing_moves(bench: Bench) -> None:
    [a] = send(bench.client, b"a")
    for _ in range(5):
        abort(bench.client, a)
    assert [m.redelivery_count for m in receive(bench.client)] == [5]
    assert topics(bench.client) == ["t"]
    set_policies(bench.client, max_redeliver_count=4)
    assert receive(bench.client) == []
    assert values(bench.client, DLQ) == [b"a"]


def states(client: Client) -> dict[str, MessageId]:
    """Messages with a count of one, each in another state."""
    names = ("pending", "acked", "held", "behind", "inner")
    first_id, pend, acked, held_id = send(client, b"behind", b"pending", b"acked", b"held")
    _, [inner, _] = send_txn(client, b"inner", b"other")
    out = dict(zip(names, (pend, acked, held_id, first_id, inner), strict=True))
    abort(client, *out.values())
    client.acknowledge("t", "s", [acked, first_id])
    client.acknowledge("t", "s", [held_id], txn=begin(client))
    return out


def test_only_what_is_pending_is_due(bench: Bench) -> None:
    """Every state of 9.2: DELETED below and above mark-delete, PENDING_ACK, PENDING."""
    set_policies(bench.client, max_redeliver_count=0)
    known_states = states(bench.client)
    plain = known_states["pending"]
    inner = known_states["inner"]

    def look(view: View) -> object:
        of, held_id = found(view)
        return deadletter.due(view, of, held_id, of.first_partition)

    assert bench.client.store.read(look) == [
        (plain.ledger, plain.entry, plain.entry, 0, 0),
        (inner.ledger, inner.entry, inner.entry, 1, 1),
    ]


def test_decision_leaves_what_changed_since_it_was_read(bench: Bench) -> None:
    """Rows are read without the lock; the decision sees every change since then."""
    set_policies(bench.client, max_redeliver_count=0)
    known_states = states(bench.client)
    runs = [(i.ledger, i.entry, i.entry, i.index, i.index) for i in known_states.values()]

    def decide(view: View, now: object) -> Decision[None]:
        of, _ = found(view)
        number = of.first_partition
        table = fetch(view, "t", 0, number, taken_apart(view, number, sorted(runs)))
        record = deadletter.bury(
            view, bench.client.settings, bench.clock.now(), found, {number: table}
        )
        kinds = [type(op) for op in record.ops]
        assert kinds[-3:] == [Appended, Acked, DeadLettered]
        assert isinstance(record.batch, pa.RecordBatch)
        assert sorted(record.batch.column("value").to_pylist()) == [b"inner", b"pending"]
        assert record.answer == deadletter.MoveResult(DLQ, 2, 3)
        assert record.sync
        return Decision([])

    bench.client.store.write(decide)


def moved_by(*clients: Client) -> list[int]:
    """Let all clients read the rows to move, then let each move them; the counts of moved rows."""
    movers = [DeadLetters(client.store, found) for client in clients]
    numbers = clients[0].store.read(lambda view: [found(view)[0].first_partition])
    prepared = [mover._read(numbers, 8) for mover in movers]
    return [mover._move(table) for mover, table in zip(movers, prepared, strict=True)]


def test_two_processes_move_a_message_once(bench: Bench) -> None:
    """Both read the row before either of them has the lock."""
    set_policies(bench.client, max_redeliver_count=0)
    abort(bench.client, *send(bench.client, b"a", b"b"))
    other = bench.another()
    assert moved_by(bench.client, other) == [2, 0]
    assert values(other, DLQ) == [b"a", b"b"]
    assert unacked(other) == []


def test_message_that_is_held_moves_once_it_is_free(bench: Bench) -> None:
    set_policies(bench.client, max_redeliver_count=0)
    [a] = send(bench.client, b"a")
    abort(bench.client, a)
    txn = begin(bench.client)
    bench.client.acknowledge("t", "s", [a], txn=txn)
    assert receive(bench.client) == []
    assert topics(bench.client) == ["t"]
    bench.client.abort(txn)
    assert receive(bench.client) == []
    assert values(bench.client, DLQ) == [b"a"]


def test_only_what_is_in_no_hand_is_due(bench: Bench) -> None:
    """A leased message may still be processed; one that waits for its redelivery moves at once."""
    send(bench.client, b"a", b"b", b"c")
    with bench.client.consumer("t", "s", type="shared") as consumer:
        found_rows = rows([consumer.receive_batch()])
        consumer.negative_acknowledge(found_rows)
        assert consumer.receive_batch(1).num_rows == 1  # a
        set_policies(bench.client, max_redeliver_count=0)
        with bench.another().consumer("t", "s") as other:
            assert other.receive() is None
            assert values(bench.client, DLQ) == [b"b", b"c"]
            consumer.negative_acknowledge(found_rows[0], delay_ms=60_000)
            assert other.receive() is None
            assert values(bench.client, DLQ) == [b"b", b"c", b"a"]
    assert unacked(bench.client) == []


def test_no_way_back_leads_past_the_maximum(bench: Bench) -> None:
    """Nack, redelivery, ack time-out, a consumer that closed or died: each counts."""
    set_policies(bench.client, max_redeliver_count=0)
    for value in (b"nack", b"redeliver", b"timeout", b"close"):
        send(bench.client, value)
        with bench.client.consumer("t", "s", ack_timeout_ms=1000) as consumer:
            message = consumer.receive()
            assert message is not None
            assert message.value == value
            if value == b"nack":
                consumer.negative_acknowledge(message)
            elif value == b"redeliver":
                consumer.redeliver_unacknowledged_messages()
            elif value == b"timeout":
                bench.clock.advance(1001)
            if value != b"close":
                assert consumer.receive() is None
        assert receive(bench.client) == []
        assert read(bench.client, DLQ)[-1].value == value


def test_message_that_was_never_received_is_not_given_up(bench: Bench) -> None:
    """It was in the queue of a consumer that closed."""
    set_policies(bench.client, max_redeliver_count=0)
    send(bench.client, b"a", b"b")
    with bench.client.consumer("t", "s") as consumer:
        assert consumer.receive() is not None
    assert [m.value for m in receive(bench.client)] == [b"b"]
    assert values(bench.client, DLQ) == [b"a"]


def test_offline_target_moves_nothing(bench: Bench) -> None:
    bench.client.create_topic(DLQ)
    set_policies(bench.client, max_redeliver_count=0)
    abort(bench.client, *send(bench.client, b"a"))
    bench.client.admin.set_offline(f"{DLQ}/0")
    with pytest.raises(PartitionUnavailable, match=DLQ):
        receive(bench.client)
    assert unacked(bench.client) == [b"a"]
    bench.client.admin.set_online(f"{DLQ}/0")
    assert receive(bench.client) == []
    assert (values(bench.client, DLQ), unacked(bench.client)) == ([b"a"], [])


def test_stored_message_moves_whatever_the_limit_is_now(bench: Bench) -> None:
    """Its copy has more properties than the original, which was as large as allowed."""
    limit = bench.client.settings.max_message_bytes
    set_policies(bench.client, max_redeliver_count=0)
    abort(bench.client, *send(bench.client, b"x" * limit))
    assert receive(bench.client) == []
    assert [len(value) for value in values(bench.client, DLQ)] == [limit]


def test_many_messages_go_in_frames_that_stay_small(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many each time while they are small; a large message moves alone."""
    set_policies(bench.client, max_redeliver_count=0)
    plain = send(bench.client, *[b"x"] * 40)
    large = [send_txn(bench.client, b"y" * 1000, b"z")[0] for _ in range(3)]
    abort(bench.client, *plain, *large)
    monkeypatch.setattr(dead_letters, "FRAME_BYTES_MOST", 1500)
    assert receive(bench.client) == []
    copies = read(bench.client, DLQ)
    assert len(copies) == 46
    numbers = bench.client.store.read(lambda view: found(view)[0].first_partition)
    frames = bench.client.store.read(
        lambda view: view.cursor(found(view)[1].number, numbers).figures.ops
    )
    # opened, pending, aborted; then two ops a frame: 1, 2, 4, 8, 16, 9 and a marker, 2 markers
    assert frames == 3 + 2 * 8


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A store with a low limit for large messages."""
    bench = Bench(tmp_path / "large", max_message_bytes=1000, max_chunked_message_bytes=10_000)
    monkeypatch.setattr(dead_letters, "FRAME_BYTES_MOST", 2000)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    yield bench
    bench.close()


def send_large(client: Client, value: bytes) -> MessageId:
    sent = client.producer("t", chunking=True).send(
        value, key=b"k", properties={"a": "1"}, event_time=5
    )
    assert sent.message_id is not None
    return sent.message_id


def test_large_message_goes_in_chunks(large: Bench) -> None:
    """Also one of the maximum size, whose copy has more properties."""
    set_policies(large.client, max_redeliver_count=0)
    value = bytes(range(250)) * 39 + b"x" * 240
    message_id = send_large(large.client, value)
    [other] = send(large.client, b"small")
    abort(large.client, message_id, other)
    assert receive(large.client) == []
    copy, small = read(large.client, DLQ)
    assert (copy.value, copy.key, copy.event_time, small.value) == (value, b"k", 5, b"small")
    assert copy.properties == {
        "a": "1",
        "REAL_TOPIC": "t",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": str(message_id),
        "REDELIVERY_COUNT": "1",
    }
    assert unacked(large.client) == []
    figures = large.client.store.read(
        lambda view: view.cursor(found(view)[1].number, found(view)[0].first_partition).figures
    )
    assert figures.dead_lettered == 2
    large.reopen()
    assert read(large.client, DLQ)[0].value == value


def test_large_message_is_moved_once_by_two(large: Bench) -> None:
    set_policies(large.client, max_redeliver_count=0)
    value = b"y" * 5000
    abort(large.client, send_large(large.client, value))
    assert moved_by(large.client, large.another()) == [1, 0]
    assert values(large.client, DLQ) == [value]
    assert unacked(large.client) == []


def test_large_message_is_put_off(large: Bench) -> None:
    value = b"z" * 5000
    message_id = send_large(large.client, value)
    with large.client.consumer("t", "s") as consumer:
        assert consumer.reconsume_later(message_id, 1000) == deadletter.MoveResult(RETRY, 1, 0)
        assert consumer.reconsume_later(message_id) == deadletter.MoveResult(RETRY, 0, 1)
    [copy] = receive(large.client, RETRY)
    assert copy.value == value
    assert copy.properties["RECONSUMETIMES"] == "1"
    assert copy.deliver_at == large.clock.now().wall_ms + 1000
    assert copy.event_time == 5


def test_figures_count_what_went(bench: Bench) -> None:
    set_policies(bench.client, max_redeliver_count=0)
    abort(bench.client, *send(bench.client, b"a", b"b"))
    receive(bench.client)
    figures = bench.client.store.read(
        lambda view: view.cursor(found(view)[1].number, found(view)[0].first_partition).figures
    )
    assert (figures.dead_lettered, figures.redelivered) == (2, 2)
    bench.reopen()
    assert values(bench.client, DLQ) == [b"a", b"b"]


def test_topic_is_not_its_own_dead_letter_topic(bench: Bench) -> None:
    """Its messages would come again for ever, each time as new ones."""
    for name in ("dead_letter_topic", "retry_topic"):
        with pytest.raises(InvalidArgument, match="itself"):
            bench.client.subscription("t", "s").set_policies(**{name: "public/default/t"})
        with pytest.raises(InvalidArgument, match="itself"):
            bench.client.create_subscription("t", "other", **{name: "t"})  # type: ignore[arg-type]
    bench.client.subscription("t", "s").set_policies(dead_letter_topic="other", retry_topic="x/y/t")


# --- retry -------------------------------------------------------------------------------------


def test_reconsume_later_goes_to_the_retry_topic_and_comes_again(bench: Bench) -> None:
    a = send(bench.client, b"a", b"b")[0]
    with bench.client.consumer("t", "s") as consumer:
        message = consumer.receive()
        assert message is not None
        answer = consumer.reconsume_later(message, 5000, {"why": "later"})
    assert answer == deadletter.MoveResult(RETRY, 1, 0)
    assert unacked(bench.client) == [b"b"]
    [copy] = receive(bench.client, RETRY)
    assert copy.deliver_at == bench.clock.now().wall_ms + 5000
    assert copy.properties == {
        "why": "later",
        "REAL_TOPIC": "t",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": str(a),
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "5000",
    }


def test_message_put_off_again_stays_on_the_retry_topic(bench: Bench) -> None:
    [a] = send(bench.client, b"a")
    with bench.client.consumer("t", "s") as consumer:
        consumer.reconsume_later(a)
    for times in (1, 2, 3):
        with bench.client.consumer(RETRY, "s") as consumer:
            message = consumer.receive()
            assert message is not None
            assert message.properties["RECONSUMETIMES"] == str(times)
            assert message.properties["ORIGIN_MESSAGE_ID"] == str(a)
            consumer.reconsume_later(message)
    assert topics(bench.client) == ["t", RETRY]
    assert bench.client.subscriptions(RETRY)[0]["backlog"] == 1


def test_message_put_off_too_often_is_given_up(bench: Bench) -> None:
    set_policies(bench.client, max_redeliver_count=2)
    [a] = send(bench.client, b"a")
    with bench.client.consumer("t", "s") as consumer:
        assert consumer.reconsume_later(a).topic == RETRY
    for target in (RETRY, DLQ):
        with bench.client.consumer(RETRY, "s") as consumer:
            message = consumer.receive()
            assert message is not None
            assert consumer.reconsume_later(message, 1000).topic == target
    [copy] = read(bench.client, DLQ)
    assert copy.properties["RECONSUMETIMES"] == "3"
    assert copy.properties["REAL_TOPIC"] == "t"
    assert copy.properties["ORIGIN_MESSAGE_ID"] == str(a)
    assert copy.deliver_at is None


def test_named_retry_topic_has_the_policies_of_its_home(bench: Bench) -> None:
    set_policies(bench.client, retry_topic="again", dead_letter_topic="dead", max_redeliver_count=1)
    [a] = send(bench.client, b"a")
    with bench.client.consumer("t", "s") as consumer:
        assert consumer.reconsume_later(a).topic == "again"
    [copy] = receive(bench.client, "again")
    assert copy.message_id is not None
    for _ in range(2):
        abort(bench.client, copy.message_id, name="again")
    assert receive(bench.client, "again") == []
    assert values(bench.client, "dead") == [b"a"]


def test_retry_topic_that_exists_gets_the_subscription_from_now_on(bench: Bench) -> None:
    """This subscription has not put off the messages that were there before."""
    bench.client.create_topic(RETRY, partitions=2)
    send(bench.client, b"old", topic=RETRY)
    a, b = send(bench.client, b"a", b"b")
    with bench.client.consumer("t", "s") as consumer:
        consumer.reconsume_later(a, properties={"RECONSUMETIMES": "7"})
        consumer.reconsume_later(b)
    message = receive(bench.client, RETRY)
    assert sorted(m.value or b"" for m in message) == [b"a", b"b"]
    assert {m.properties["RECONSUMETIMES"] for m in message} == {"1"}


def test_reconsume_later_of_settled_messages_moves_nothing(bench: Bench) -> None:
    acked, held_id = send(bench.client, b"acked", b"held")
    bench.client.acknowledge("t", "s", [acked])
    bench.client.acknowledge("t", "s", [held_id], txn=begin(bench.client))
    with bench.client.consumer("t", "s") as consumer:
        for message_id in (acked, held_id):
            answer = consumer.reconsume_later(message_id)
            assert (answer.moved, answer.left) == (0, 1)
        with pytest.raises(MessageNotFound):
            consumer.reconsume_later(MessageId(acked.ledger, 99))
        with pytest.raises(InvalidArgument):
            consumer.reconsume_later(acked, -1)
    assert topics(bench.client) == ["t"]


def test_message_in_another_hand_is_not_put_off(bench: Bench) -> None:
    [a] = send(bench.client, b"a")
    with (
        bench.client.consumer("t", "s", type="shared") as consumer,
        bench.another().consumer("t", "s") as other,
    ):
        assert consumer.receive() is not None
        assert other.reconsume_later(a) == deadletter.MoveResult(RETRY, 0, 1)
        assert consumer.reconsume_later(a).moved == 1
    assert values(bench.client, RETRY) == [b"a"]


# --- original and copies always add up ------------------------------------------------------------

STEP = st.tuples(
    st.sampled_from(
        ["send", "txn", "abort", "ack", "receive", "later", "hold", "end", "nack", "reopen"]
    ),
    st.integers(0, 9),
)


@settings(max_examples=25)
@given(steps=st.lists(STEP, min_size=3, max_size=25), most=st.integers(0, 2))
def test_original_and_copies_always_add_up(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], most: int
) -> None:
    """Each message exists once: acknowledged, or unacknowledged in one of three topics."""
    bench = Bench(tmp_path_factory.mktemp("store") / "store")
    try:
        run(bench, steps, most)
    finally:
        bench.close()


def run(bench: Bench, steps: list[tuple[str, int]], most: int) -> None:
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s")
    set_policies(client, max_redeliver_count=most)
    sent: list[bytes] = []
    acked: list[bytes] = []
    held_rows: list[tuple[object, list[bytes]]] = []

    def waiting() -> list[Message]:
        unacked_range = Range(kind="unacked", subscription="s")
        names = [name for name in ("t", RETRY) if name in topics(client)]
        return [m for name in names for m in read(client, name, unacked_range)]

    for kind, number in steps:
        taken_values = {value for _, batch_values in held_rows for value in batch_values}
        free = [m for m in waiting() if m.value not in taken_values]
        if kind == "send":
            sent.append(b"%d" % len(sent))
            send(client, sent[-1])
        elif kind == "txn":
            batch_values = [b"%d" % (len(sent) + step) for step in range(3)]
            sent += batch_values
            send_txn(client, *batch_values)
        elif kind == "reopen":
            client = bench.reopen()
        elif kind == "receive":
            for name in ("t", RETRY):
                if name in topics(client):
                    receive(client, name)
        elif kind == "nack":
            with client.consumer("t", "s") as consumer:
                delay_ms = 1000 * (number % 2)
                consumer.negative_acknowledge(consumer.receive_batch(1 + number), delay_ms)
        elif kind == "end" and held_rows:
            txn, batch_values = held_rows.pop()
            if number % 2:
                client.commit(txn)  # type: ignore[arg-type]
                acked += batch_values
            else:
                client.abort(txn)  # type: ignore[arg-type]
        elif free:
            message = free[number % len(free)]
            assert message.message_id is not None
            assert message.value is not None
            if kind == "ack":
                client.acknowledge(message.topic, "s", [message.message_id])
                client.flush()
                acked.append(message.value)
            elif kind == "abort":
                abort(client, message.message_id, name=message.topic)
            elif kind == "hold":
                txn = begin(client)
                client.acknowledge(message.topic, "s", [message.message_id], txn=txn)
                held_rows.append((txn, [message.value]))
            elif kind == "later":
                with client.consumer(message.topic, "s") as consumer:
                    consumer.reconsume_later(message)
        dead = values(client, DLQ) if DLQ in topics(client) else []
        there = [m.value for m in waiting()]
        assert Counter(dead + acked + there) == Counter(sent)
    for name in ("t", RETRY):
        if name in topics(client):
            assert pending(client, name) is not None
            assert all((m.redelivery_count or 0) <= most for m in receive(client, name))
