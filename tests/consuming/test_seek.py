"""Seek: the new position, redeliveries, conflicts with transactions, and voided state."""

from __future__ import annotations

import os
import random
import shlex
from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, ids, pending, read, send, send_txn, values
from tests.tiers import graded
from txlog import Bound, Client, MessageId, Range, TxnId, verify
from txlog.base.ids import TopicName
from txlog.base.ranges import END, START
from txlog.cli.main import main
from txlog.client.topics.subscription import lost_by
from txlog.engine.decide.consuming.position import UNDO_RUNS_MAX
from txlog.engine.door.catalog import numbers
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.model.ops import Run
from txlog.engine.view import View
from txlog.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidArgument,
    InvalidTxnStatus,
    MessageNotFound,
    NotAllowed,
    PartitionUnavailable,
    TxlogError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


def bench_of(folder: Path, partitions: int = 1, **settings: int) -> Bench:
    """A store with a topic and a subscription; ledgers of four entries."""
    bench = Bench(folder / "store", ledger_entries_max=4, coordinators=1, **settings)
    bench.client.create_topic("t", partitions)
    bench.client.create_subscription("t", "s")
    return bench


def fill(client: Client) -> list[MessageId]:
    """Nine messages: plain 0 to 2, a transaction of 3, plain 6 to 8; their ids."""
    send(client, b"0", b"1", b"2")
    send_txn(client, b"3", b"4", b"5")
    send(client, b"6", b"7", b"8")
    return ids(client)


def left(client: Client, subscription: str = "s") -> list[bytes]:
    """The unacknowledged messages; the backlog is the same number (I-22)."""
    found_values = values(client, range=Range(kind="unacked", subscription=subscription))
    (row,) = [r for r in client.subscriptions("t") if r["subscription"] == subscription]
    assert row["backlog"] == len(found_values)
    return found_values


def digits(start: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, 9)]


@pytest.mark.parametrize("acked", ["nothing", "all", "some", "first"])
@pytest.mark.parametrize("to", graded(range(9), (0, 4, 8)))
def test_a_message_sought_comes_next(tmp_path: Path, to: int, acked: str) -> None:
    """Spec 9.1: every message before it is acknowledged, none from it on, whatever was before."""
    bench = bench_of(tmp_path)
    client, message_ids = bench.client, fill(bench.client)
    done = {"nothing": [], "all": list(range(9)), "some": [0, 4, 6, 8], "first": [0, 1]}[acked]
    client.acknowledge("t", "s", [message_ids[at] for at in done])
    handle = client.subscription("t", "s")
    plan = handle.seek(message_ids[to], dry_run=True)
    assert left(client) == [value for value in digits(0) if int(value) not in done]
    answer = handle.seek(message_ids[to])
    assert answer == plan
    assert answer["redeliver"] == len([at for at in done if at >= to])
    assert answer["skip"] == len([at for at in range(to) if at not in done])
    (row,) = answer["partition_list"]
    assert row["to"] in (message_ids[to], MessageId(message_ids[to].ledger, message_ids[to].entry))
    assert left(client) == digits(to)
    assert [m.value for m in pending(bench.another())] == digits(to)
    client.checkpoint(roll_all=True)
    assert left(bench.reopen()) == digits(to)


def state(client: Client, subscription: str = "s") -> list[tuple[object, list[Run]]]:
    """Mark-delete and single acknowledgements of each partition."""

    def look(view: View) -> list[tuple[object, list[Run]]]:
        topic = find_topic(view, TopicName.parse("t"))
        number = find_subscription(view, topic, subscription).number
        cursors = [view.cursor(number, partition) for partition in numbers(topic)]
        return [(cursor.mark_delete, cursor.acked.runs()) for cursor in cursors]

    return client.store.ask(look)


@pytest.mark.parametrize("seed", graded(range(40), 8))
def test_undo_lines_restore_every_acknowledgement(
    tmp_path: Path, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """spec/cli 8.4: run as printed, with single messages of transactions, over 2 partitions."""
    chance = random.Random(seed)
    bench = bench_of(tmp_path, partitions=2)
    client = bench.client
    for partition in (0, 1, 0):
        send(client, *(b"%d" % n for n in range(5)), partition=partition)
        send_txn(client, *(b"%d" % n for n in range(6)), partition=partition)
    client.acknowledge("t", "s", chance.sample(ids(client), chance.randrange(33)))
    before, in_backlog = state(client), sorted(left(client))
    to = chance.choice(["start", "end", "+3", "-2", str(chance.choice(ids(client)))])
    assert main(["-S", bench.path, "sub", "seek", "s", "--to", to, "--yes"]) == 0
    said = capfd.readouterr().err.splitlines()
    assert not any("does not bring back" in line for line in said)
    for line in said:
        if line.startswith("undo: "):
            assert main(shlex.split(line)[2:]) == 0
    assert (state(client), sorted(left(client))) == (before, in_backlog)
    client.checkpoint(roll_all=True)
    bench.reopen()
    assert state(bench.client) == before
    assert verify(bench.path)["errors"] == 0


def test_undo_says_what_it_does_not_bring_back(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    client.create_subscription("t", "many", type="shared")
    message_ids = send(client, *(b"%d" % n for n in range(2 * UNDO_RUNS_MAX + 10)))
    client.acknowledge("t", "many", message_ids[2::2])
    txn = begin(client)
    client.acknowledge("t", "many", [message_ids[1]], txn=txn)
    with client.consumer("t", "many") as consumer:
        first = consumer.receive()
        assert first is not None
        consumer.negative_acknowledge(first)
        handle = client.subscription("t", "many")
        answer = handle.seek(END, force=True)
    assert lost_by(answer) == [
        f"the aborted transactions {txn}",
        "4 single acknowledgements: too many ranges",
        "redelivery counts, leases and delays of 2 messages",
    ]
    (row,) = answer["partition_list"]
    answer = handle.seek(row["from"], acked=row["acked"])
    assert (answer["redeliver"], len(left(client, "many"))) == (
        2 * UNDO_RUNS_MAX + 10 - UNDO_RUNS_MAX,
        2 * UNDO_RUNS_MAX + 10 - UNDO_RUNS_MAX,
    )


def test_acknowledgements_of_a_seek_are_checked(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, partitions=2)
    client = bench.client
    first, second = send(client, b"0", b"1")
    [elsewhere] = send(client, b"2", partition=1)
    handle = client.subscription("t", "s")
    for wrong in ("1", "1:5-3", "1:1:0", "1:1:3-2", "x"):
        with pytest.raises(InvalidArgument):
            handle.seek(first, acked=[wrong])
    for missing in (str(elsewhere), "99:0", f"{second.ledger}:99", f"{second}:1"):
        with pytest.raises(MessageNotFound):
            handle.seek(first, acked=[missing])
    handle.seek(second, acked=[str(first), str(second)])
    assert left(client) == [b"2"]
    assert handle.seek(START, acked=[f"{first}-{second.entry}"])["redeliver"] == 0


def test_a_seek_warns_of_consumers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bench = bench_of(tmp_path)
    fill(bench.client)
    seek = ["-S", bench.path, "sub", "seek", "s", "--yes", "--to"]
    assert main([*seek, "+2"]) == 0
    assert "warning" not in capfd.readouterr().err
    with bench.client.consumer("t", "s"):
        assert main([*seek, "start"]) == 0
    warnings = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1 and f"process {os.getpid()} on " in warnings[0]


def test_bounds_of_every_kind(tmp_path: Path) -> None:
    """spec/cli 6: start, end, counts for each partition, times, the position of another
    subscription.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    send(client, b"0", b"1", b"2")
    bench.clock.advance(1000)
    at_ms = bench.clock.now().wall_ms
    send_txn(client, b"3", b"4", b"5")
    bench.clock.advance(1000)
    send(client, b"6", b"7", b"8")
    handle = client.subscription("t", "s")
    client.create_subscription("t", "other", position=Bound("skip", 5))
    for bound, first in (
        (END, 9),
        (START, 0),
        (Bound("skip", 4), 4),
        (Bound("last", 4), 5),
        (Bound("skip", 99), 9),
        (Bound("last", 99), 0),
        (Bound("time", at_ms), 3),
        (Bound("time", at_ms + 1), 6),
        (Bound("time", 0), 0),
        (Bound("time", at_ms + 5000), 9),
        (Bound("sub", "other"), 5),
    ):
        handle.seek(bound)
        assert left(client) == digits(first), bound
    handle.seek(at_ms)
    assert left(client) == digits(3)
    for word, first in (("earliest", 0), ("latest", 9)):  # these words work everywhere in the API
        handle.seek(word)  # type: ignore[arg-type]
        assert left(client) == digits(first)
    for wrong in ("start", True, 1.5, None):
        with pytest.raises(InvalidArgument):
            handle.seek(wrong)  # type: ignore[arg-type]


def test_an_id_behind_the_end_moves_to_it(tmp_path: Path) -> None:
    """spec/cli 12.9: later messages are not skipped.

    Guards against a position above the last entry.
    """
    bench = bench_of(tmp_path)
    client, message_ids = bench.client, fill(bench.client)
    last = message_ids[-1]
    handle = client.subscription("t", "s")
    handle.seek(MessageId(last.ledger, last.entry + 50))
    client.create_subscription("t", "late", position=Bound("id", MessageId(last.ledger, 99)))
    assert left(client) == left(client, "late") == []
    send(client, b"new", b"newer")
    assert left(client) == left(client, "late") == [b"new", b"newer"]


def test_ids_that_do_not_exist(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client, message_ids = bench.client, fill(bench.client)
    inner = message_ids[4]
    for wrong in (
        MessageId(99, 0),
        MessageId(inner.ledger, inner.entry, 4),
        MessageId(message_ids[0].ledger, 0, 2),
    ):
        with pytest.raises(MessageNotFound):
            client.subscription("t", "s").seek(wrong)
    client.create_topic("u")
    (other,) = send(client, b"x", topic="u")
    with pytest.raises(MessageNotFound):
        client.subscription("t", "s").seek(other)


def test_an_id_moves_its_own_partition(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    first = send(client, b"0", b"1", partition=0)
    second = send(client, b"2", b"3", partition=1)
    handle = client.subscription("t", "s")
    assert [row["partition"] for row in handle.seek(second[1])["partition_list"]] == [1]
    assert sorted(left(client)) == [b"0", b"1", b"3"]
    subscription = client.subscription("t/0", "s")
    assert subscription.seek(END)["skip"] == 2
    assert left(client) == [b"3"]
    assert subscription.seek(second[0])["partition_list"] == []
    handle.seek(first[1])
    assert sorted(left(client)) == [b"1", b"3"]


def test_pending_acknowledgements_are_in_the_way(tmp_path: Path) -> None:
    """Spec 9.1: NotAllowed names the transactions; with force, the same frame aborts them."""
    bench = bench_of(tmp_path)
    client, message_ids = bench.client, fill(bench.client)
    first, second, third = begin(client), begin(client), begin(client)
    client.acknowledge("t", "s", [message_ids[1]], txn=first)
    client.acknowledge("t", "s", [message_ids[4]], txn=second)
    client.producer("t").send(b"never", txn=first)
    handle = client.subscription("t", "s")
    for dry_run in (True, False):
        with pytest.raises(NotAllowed, match=f"{first}, {second}") as caught:
            handle.seek(message_ids[3], dry_run=dry_run)
        assert caught.value.code == 406
    lsn = client.wait_for_change(0)
    answer = handle.seek(message_ids[3], force=True)
    assert client.wait_for_change(0) == lsn + 1  # Law 4: one frame
    assert answer["aborted_list"] == [first, second]
    assert left(client) == digits(3)
    assert read(client)[4].redelivery_count is None
    for txn in (first, second):
        assert client.show_transaction(txn)["state"] == "aborted"
        with pytest.raises(InvalidTxnStatus):
            client.commit(txn)
    assert [m.redelivery_count for m in pending(client)] == [0] * 6  # counts are void, too
    client.acknowledge("t", "s", message_ids[3:], txn=third)
    client.commit(third)
    assert left(client) == []


def test_only_the_partitions_that_move_count(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    message_ids = send(client, b"0", partition=0) + send(client, b"1", partition=1)
    txn = begin(client)
    client.acknowledge("t", "s", [message_ids[0]], txn=txn)
    client.subscription("t", "s").seek(message_ids[1])
    client.subscription("t/1", "s").seek(END)
    with pytest.raises(NotAllowed):
        client.subscription("t", "s").seek(END)
    client.commit(txn)


def test_an_overdue_holder_is_not_in_the_way(tmp_path: Path) -> None:
    """I-18: the sweep ends it before the seek, from a process that never loaded its coordinator."""
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    txn = begin(bench.client, 1000)
    bench.client.acknowledge("t", "s", [message_ids[0]], txn=txn)
    bench.client.flush()
    bench.clock.advance(1001)
    client = bench.another()
    assert client.subscription("t", "s").seek(END)["aborted_list"] == []
    assert client.show_transaction(txn)["reason"] == "timeout"


def test_another_users_transaction_is_not_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(tmp_path)
    client, message_ids = bench.client, fill(bench.client)
    txn = begin(client)
    client.acknowledge("t", "s", [message_ids[0]], txn=txn)
    me = client.store.disk.owner()
    monkeypatch.setattr(type(client.store.disk), "owner", lambda disk: (me[0] + 4321, "other"))
    with pytest.raises(NotAllowed, match="belongs to"):
        client.subscription("t", "s").seek(END, force=True)
    assert client.show_transaction(txn)["state"] == "open"


def test_a_consumer_goes_where_the_seek_went(tmp_path: Path) -> None:
    """Messages received before do not come back by themselves; buffered ones are dropped."""
    bench = bench_of(tmp_path)
    client, message_ids = bench.client, fill(bench.client)
    with client.consumer("t", "s") as consumer:
        first = consumer.receive()
        assert first is not None and first.value == b"0"
        bench.another().subscription("t", "s").seek(message_ids[4])
        assert [m.value for m in iter(consumer.receive, None)] == digits(4)
        client.subscription("t", "s").seek(START)
        assert [m.value for m in iter(consumer.receive, None)] == digits(0)
        consumer.acknowledge(first)
        assert left(client) == digits(1)


def test_seek_over_offline_or_trimmed_messages(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    message_ids = send(client, *(b"%d" % n for n in range(9)))
    client.acknowledge("t", "s", message_ids)
    client.admin.trim("t", Bound("id", message_ids[4]))
    handle = client.subscription("t", "s")
    handle.seek(message_ids[1])  # an id below the first message moves to the first
    assert left(client) == [b"4", b"5", b"6", b"7", b"8"]
    client.admin.set_offline("t/1")
    with pytest.raises(PartitionUnavailable):
        handle.seek(START)
    handle.seek(message_ids[7])
    client.admin.set_online("t/1")
    assert left(client) == [b"7", b"8"]


@pytest.mark.parametrize("seed", graded(range(3), 1))
def test_random_seeks_against_a_set(tmp_path: Path, seed: int) -> None:
    """I-8, I-9, I-12, I-22: seeks, acknowledgements and transactions against a set of values."""
    chance = random.Random(seed)
    bench = bench_of(tmp_path)
    client, handle = bench.client, bench.client.subscription("t", "s")
    message_ids: list[MessageId] = []
    unacked: set[int] = set()
    held_numbers: dict[TxnId, set[int]] = {}
    for step in range(80):
        act = chance.randrange(8)
        try:
            if act <= 1:
                count_before = len(message_ids)
                if chance.random() < 0.5:
                    send(client, *(b"%d" % n for n in range(count_before, count_before + 2)))
                else:
                    send_txn(client, *(b"%d" % n for n in range(count_before, count_before + 3)))
                message_ids = ids(client)
                unacked |= set(range(count_before, len(message_ids)))
            elif act == 2 and message_ids:
                chosen = chance.sample(range(len(message_ids)), min(len(message_ids), 3))
                client.acknowledge("t", "s", [message_ids[at] for at in chosen])
                unacked -= {
                    at for at in chosen if not any(at in of for of in held_numbers.values())
                }
            elif act == 3 and unacked:
                at = chance.choice(sorted(unacked))
                txn = begin(client)
                client.acknowledge("t", "s", [message_ids[at]], txn=txn)
                held_numbers[txn] = {at}
            elif act == 4 and held_numbers:
                ending = chance.choice(list(held_numbers))
                client.commit(ending)
                unacked -= held_numbers.pop(ending)
            elif act == 5 and message_ids:
                to, force = chance.randrange(len(message_ids)), chance.random() < 0.5
                answer = handle.seek(message_ids[to], force=force)
                expected = set(range(to, len(message_ids)))
                assert (answer["redeliver"], answer["skip"]) == (
                    len(expected - unacked),
                    len(unacked - expected),
                )
                held_numbers.clear()
                unacked = expected
            elif act == 6:
                client.checkpoint(roll_all=chance.random() < 0.3)
            elif act == 7 and chance.random() < 0.3:
                client = bench.reopen()
                handle = client.subscription("t", "s")
        except TxlogError:
            continue
        assert {int(v) for v in left(client)} == unacked, f"seed {seed}, step {step}"
        free = unacked.difference(*held_numbers.values())
        assert {int(m.value or b"") for m in pending(client)} == free, f"seed {seed}, step {step}"


def test_a_consumer_seeks_itself(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    places = fill(bench.client)
    with bench.client.consumer("t", "s") as consumer:
        first = consumer.receive()
        assert first is not None
        consumer.acknowledge_cumulative(first)
        consumer.receive()  # the messages in its queue are void after the seek
        consumer.seek(places[7])
        messages = [consumer.receive(), consumer.receive(), consumer.receive()]
        assert [message and message.value for message in messages] == [b"7", b"8", None]
        consumer.seek("earliest")
        message_again = consumer.receive()
        assert message_again is not None
        assert (message_again.value, message_again.redelivery_count) == (b"0", 0)


def test_unsubscribing_deletes_unless_peers_are_attached(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench.client)
    client = bench.client
    client.create_subscription("t", "many", type="shared")
    with client.consumer("t", "many") as other, client.consumer("t", "many") as consumer:
        assert consumer.receive() is not None
        with pytest.raises(ConsumerBusy):
            consumer.unsubscribe()
        other.close()
        consumer.unsubscribe()
        with pytest.raises(AlreadyClosed):
            consumer.receive()
    assert [row["subscription"] for row in client.subscriptions("t")] == ["s"]
    assert client.store.disk.listdir("consumers") == []
