"""The visible messages of a partition and of a range, in order; spec/transactions 8."""

from __future__ import annotations

import pytest

from tests.engine_kit import START_MS, Bench, begin, ids, read, send, send_txn, values
from txlog import Bound, MessageId, Range
from txlog.base.ranges import parse_range
from txlog.errors import InvalidArgument, MessageNotFound, SubscriptionNotFound, TopicNotFound

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, ledger_entries_max=6),
]


def test_ten_plain_ten_open_ten_plain(bench: Bench) -> None:
    """8: 20 messages are visible at once; the 10 of the transaction follow at the end on commit."""
    client = bench.client
    first = [b"a%d" % n for n in range(10)]
    last = [b"c%d" % n for n in range(10)]
    inner = [b"b%d" % n for n in range(10)]
    send(client, *first)
    txn = begin(client)
    for value in inner:
        client.producer("t").send(value, txn=txn)
    send(client, *last)
    partition_before = client.describe_topic("t")["partition_list"][0]
    assert values(client) == first + last
    assert partition_before["last"] == ids(client)[-1]
    client.commit(txn)
    assert values(client) == first + last + inner
    messages = read(client)
    assert [m.message_id.index for m in messages if m.message_id] == [0] * 20 + list(range(1, 11))
    assert client.describe_topic("t")["partition_list"][0]["last"] == messages[-1].message_id
    assert client.topics()[0]["messages"] == 30  # markers are never counted


def test_transactions_are_whole_and_in_commit_order(bench: Bench) -> None:
    """8: contiguous, in the order of their commits, not of begin or send; I-7."""
    client = bench.client
    x, y = begin(client), begin(client)
    producer = client.producer("t")
    for value, txn in ((b"x1", x), (b"y1", y), (b"x2", x), (b"p", None), (b"y2", y)):
        producer.send(value, txn=txn)
    client.commit(y)
    send(client, b"q")
    client.commit(x)
    assert values(client) == [b"p", b"y1", b"y2", b"q", b"x1", b"x2"]
    got = ids(client)
    assert got == sorted(got)
    assert [m.txn for m in read(client)] == [None, y, y, None, x, x]


def test_open_and_aborted_are_never_visible(bench: Bench) -> None:
    """I-4, in every way to read; I-6 for a reader at the end of the log."""
    client = bench.client
    reader = client.reader("t")
    open_one, deleted_txn = begin(client), begin(client)
    for txn in (open_one, deleted_txn):
        client.producer("t").send(b"hidden", txn=txn)
    client.abort(deleted_txn)
    assert values(client) == [] and reader.read_next() is None
    assert not reader.has_message_available()
    assert read(client, "t", Range(kind="txn", txn=open_one)) == []
    assert read(client, "t", Range(kind="txn", txn=deleted_txn)) == []
    client.commit(open_one)
    assert reader.has_message_available()
    assert [m.value for m in reader] == [b"hidden"]


NAMES = "p0 p1 t1 t2 t3 p3 u1 p4 p5 p6".split()


@pytest.fixture
def mixed(bench: Bench) -> dict[str, MessageId]:
    """p0 p1 | t1 t2 t3 | p3 | u1 | p4 p5 p6, a second apart, in two ledgers; T, U: the markers."""
    client = bench.client
    message_ids: dict[str, MessageId] = {}
    for group in ("p0", "p1", "t1 t2 t3", "p3", "u1", "p4", "p5", "p6"):
        names = group.split()
        if names[0][0] == "p":
            message_ids[names[0]] = send(client, names[0].encode())[0]
        else:
            message_ids[names[0][0].upper()], inner = send_txn(client, *(n.encode() for n in names))
            message_ids |= dict(zip(names, inner, strict=True))
        bench.clock.advance(1000)
    assert len({message_id.ledger for message_id in message_ids.values()}) == 2
    return message_ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start..end", "p0 p1 t1 t2 t3 p3 u1 p4 p5 p6"), ("..", "p0 p1 t1 t2 t3 p3 u1 p4 p5 p6"),
        ("+0..+3", "p0 p1 t1"), ("+3..+4", "t2"), ("+9", "p6"), ("+10", ""), ("+99", ""),
        ("-1", "p6"), ("-3..-1", "p4 p5"), ("-7..-5", "t2 t3"),
        ("-99..+2", "p0 p1"), ("end", ""), ("+5..+2", ""),
        ("{t2}..", "t2 t3 p3 u1 p4 p5 p6"), ("..{t2}", "p0 p1 t1"), ("{t1}..{t3}", "t1 t2"),
        ("{T}..{p3}", "t1 t2 t3"), ("..{T}", "p0 p1"), ("{t3}..{U}", "t3 p3"),
        ("{p1}..{p1}", ""), ("{u1}..{p6}", "u1 p4 p5"), ("{p4}..", "p4 p5 p6"),
        ("@{2000}..@{4000}", "t1 t2 t3 p3"), ("@{1500}..@{2000}", ""), ("@{0}..@{1}", "p0"),
        ("@{6999}", "p6"), ("@{7001}", ""), ("..@{1000}", "p0"),
    ],
)  # fmt: skip
def test_ranges(bench: Bench, mixed: dict[str, MessageId], text: str, expected: str) -> None:
    """spec/cli 6: a range is half open, whatever its bounds, also in sealed files."""
    for name, message_id in mixed.items():
        text = text.replace(f"{{{name}}}", str(message_id))
    for at in (0, 1, 1000, 1500, 2000, 4000, 6999, 7001):
        text = text.replace(f"@{{{at}}}", f"@{START_MS + at}")
    expected_rows = parse_range(text, START_MS)
    for act in (None, "cut", "roll"):
        if act:
            bench.client.checkpoint(roll_all=act == "roll")
        for size in (1, 2, 100):
            found_values = values(bench.client, "t", expected_rows, batch_messages=size)
            assert b" ".join(found_values).decode() == expected


def test_readers_start_anywhere(bench: Bench, mixed: dict[str, MessageId]) -> None:
    """The first message of a reader is the one with the given id."""
    for name in NAMES:
        with bench.client.reader("t", mixed[name]) as reader:
            got = [(m.value or b"").decode() for m in reader]
            assert got == NAMES[NAMES.index(name) :]
    with bench.client.reader("t", Bound("last", 2)) as reader:
        assert [m.value for m in reader] == [b"p5", b"p6"]


def test_reading_is_bounded_by_the_end_when_it_began(bench: Bench) -> None:
    """`read` ends at the end of the log at the time of the call; a reader follows."""
    client = bench.client
    send(client, b"a", b"b")
    tables = client.read("t", batch_messages=1)
    reader = client.reader("t")
    got = [next(tables).column("value").to_pylist()]
    send(client, b"c")
    got += [table.column("value").to_pylist() for table in tables]
    assert got == [[b"a"], [b"b"]]
    assert [m.value for m in reader] == [b"a", b"b", b"c"]


def test_limit(bench: Bench, mixed: dict[str, MessageId]) -> None:
    """At most this many messages, from the start of the range."""
    for count in range(len(NAMES) + 2):
        got = values(bench.client, limit=count)
        assert b" ".join(got).decode().split() == NAMES[:count]


def test_the_messages_of_a_transaction(bench: Bench, mixed: dict[str, MessageId]) -> None:
    """txn:TC:SEQ has all messages that the transaction committed, in every partition."""
    txn = next(m.txn for m in read(bench.client) if m.txn)
    assert values(bench.client, "t", Range(kind="txn", txn=txn)) == [b"t1", b"t2", b"t3"]


def test_unacked_skips_acknowledged_messages(bench: Bench, mixed: dict[str, MessageId]) -> None:
    """unacked skips holes, inner messages and whole markers; pending acknowledgements do
    not count.
    """
    client = bench.client
    client.create_subscription("t", "s")
    client.acknowledge("t", "s", [mixed[n] for n in ("p1", "t2", "U", "p5")])
    client.acknowledge("t", "s", [mixed["p3"]], txn=begin(client))
    client.flush()
    for range_ in (Range(kind="unacked"), Range(kind="unacked", subscription="s")):
        assert values(client, "t", range_) == [b"p0", b"t1", b"t3", b"p3", b"p4", b"p6"]
    client.create_subscription("t", "other")
    with pytest.raises(InvalidArgument):
        read(client, "t", Range(kind="unacked"))
    assert len(read(client, "t", Range(kind="unacked", subscription="other"))) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_subscription_starts_at_its_position(
    bench: Bench, mixed: dict[str, MessageId], name: str
) -> None:
    """9.1: `5:7:2` is a legal position; its message comes next, and the backlog counts
    from there.
    """
    client = bench.client
    client.create_subscription("t", "s", position=Bound("id", mixed[name]))
    following_names = NAMES[NAMES.index(name) :]
    assert client.subscriptions("t")[0]["backlog"] == len(following_names)
    with client.consumer("t", "s") as consumer:
        table = consumer.receive_batch(100)
        assert b" ".join(table.column("value").to_pylist()).decode().split() == following_names
        consumer.acknowledge(table)
    client.flush()
    assert client.subscriptions("t")[0]["backlog"] == 0
    assert client.subscriptions("t")[0]["mark_delete"] == mixed["p6"]


def test_a_missing_topic_subscription_or_message_is_an_error(bench: Bench) -> None:
    """14: not-found, never an empty answer."""
    client = bench.client
    with pytest.raises(TopicNotFound):
        read(client, "nowhere")
    with pytest.raises(SubscriptionNotFound):
        read(client, "t", Range(kind="unacked", subscription="s"))
    with pytest.raises(MessageNotFound):
        read(client, "t", Range(Bound("id", MessageId(99, 0))))
    with pytest.raises(TopicNotFound):
        read(client, "t", partitions=[1])


def test_partitions_are_read_one_after_another(bench: Bench) -> None:
    """Each partition keeps its order, and a reader gets exactly the chosen partitions."""
    client = bench.client
    client.create_topic("many", 3)
    for number in range(3):
        send(client, *(b"%d.%d" % (number, n) for n in range(4)), topic="many", partition=number)
    for chosen in ([0, 1, 2], [2], [1, 0]):
        for size in (1, 3, 100):
            got = values(client, "many", partitions=chosen, batch_messages=size)
            assert len(got) == 4 * len(chosen)
            for number in chosen:
                own_values = [text for text in got if text.startswith(b"%d." % number)]
                assert own_values == [b"%d.%d" % (number, n) for n in range(4)]
    assert values(client, "many/1") == [b"1.%d" % n for n in range(4)]
