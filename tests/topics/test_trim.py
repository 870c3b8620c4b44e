"""Trimming: which ledgers a bound or a policy removes, and how reads, counts and acknowledgements
treat trimmed messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, ids, pending, read, send, send_txn, values
from txlog import Bound, Client, MessageId, Range
from txlog.base.ranges import END, START
from txlog.errors import (
    InvalidArgument,
    MessageNotFound,
    Refused,
    TransactionConflict,
    TxlogError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
DAY_MS = 86_400_000


def bench_of(folder: Path, **settings: int) -> Bench:
    """A store with a topic, a subscription, and ledgers of three entries."""
    bench = Bench(folder / "store", ledger_entries_max=3, coordinators=1, **settings)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    return bench


def fill(client: Client, count: int = 8) -> list[MessageId]:
    """Send the plain messages 0, 1, …, with three messages in each ledger."""
    return send(client, *(b"%d" % number for number in range(count)))


def totals(client: Client) -> tuple[int, int]:
    """(messages of the topic, backlog of the subscription); both must equal the result of a scan
    (I-22).
    """
    counted = (client.topics()[0]["messages"], client.subscriptions("t")[0]["backlog"])
    unacked = Range(kind="unacked", subscription="s")
    assert counted == (len(read(client)), len(read(client, range=unacked)))
    return counted


def test_a_bound_takes_whole_ledgers_only(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    bench.client.acknowledge("t", "s", [message_ids[5]], cumulative=True)
    answer = bench.client.admin.trim("t", Bound("id", message_ids[5]))
    assert (answer["ledgers"], answer["messages"], answer["size_bytes"]) == (1, 3, 3)
    (row,) = answer["partition_list"]
    assert (row["first_before"], row["first_after"]) == (message_ids[0], message_ids[3])
    assert ids(bench.client) == message_ids[3:]
    assert totals(bench.client) == (5, 2)
    assert bench.client.admin.trim("t", Bound("id", message_ids[5]))["ledgers"] == 0


def test_ids_seen_by_consumers_never_change(tmp_path: Path) -> None:
    """I-20: the remaining messages keep their ids, in every process and after a checkpoint."""
    bench = bench_of(tmp_path)
    fill(bench.client, 4)
    send_txn(bench.client, b"a", b"b")
    send_txn(bench.client, b"c")
    message_ids = ids(bench.client)
    other = bench.another()
    bench.client.admin.trim("t", Bound("skip", 3), force_unacked=True)
    for client in (bench.client, other, bench.another()):
        assert ids(client) == message_ids[3:]
        assert [m.message_id for m in pending(client)] == message_ids[3:]
    bench.client.checkpoint(roll_all=True)
    assert ids(bench.reopen()) == message_ids[3:]


def test_trimming_everything_empties_the_partition(tmp_path: Path) -> None:
    """The open ledger is closed first; new messages get new ids (Law 6)."""
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client, 4)
    marker, _ = send_txn(bench.client, b"a")
    bench.client.admin.trim("t", END, force_unacked=True)
    assert totals(bench.client) == (0, 0)
    assert bench.client.describe_topic("t")["partition_list"][0]["first"] is None
    assert bench.client.describe_topic("t")["partition_list"][0]["last"] is None
    (new,) = send(bench.client, b"new")
    assert new > marker and new not in message_ids
    assert values(bench.another()) == [b"new"]
    assert totals(bench.client) == (1, 1)


def test_unacknowledged_messages_are_refused_and_forced(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    bench.client.create_subscription("t", "other")
    bench.client.acknowledge("t", "s", message_ids[:4])
    bench.client.acknowledge("t", "other", message_ids[1:4])
    with pytest.raises(Refused) as caught:
        bench.client.admin.trim("t", Bound("id", message_ids[6]))
    assert (caught.value.exit, caught.value.code) == (9, 902)
    assert ids(bench.client) == message_ids
    plan = bench.client.admin.trim(
        "t", Bound("id", message_ids[6]), force_unacked=True, dry_run=True
    )
    # message 0 of `other`, messages 4 and 5 of `s`
    assert plan["dry_run"] and plan["partition_list"][0]["unacked"] == 3
    assert ids(bench.client) == message_ids
    done = bench.client.admin.trim("t", Bound("id", message_ids[6]), force_unacked=True)
    assert {**done, "dry_run": True} == plan
    assert totals(bench.client) == (2, 2)
    assert bench.client.subscriptions("t")[0]["backlog"] == 2


@pytest.mark.parametrize(
    ("policies", "left"),
    [
        ({"retention_ms": DAY_MS}, 5),  # the ledgers of two days ago, except one message
        ({"retention_ms": 3 * DAY_MS}, 11),
        ({"retention_bytes": 6}, 8),
        ({"retention_bytes": 100}, 11),
        ({"retention_acked": 1}, 5),
        ({"retention_bytes": 6, "retention_ms": DAY_MS}, 5),
        ({}, 11),
    ],
)
def test_policies_choose_ledgers(tmp_path: Path, policies: dict[str, int], left: int) -> None:
    """Policies by time, by size and by acknowledgement of all subscriptions; of several policies
    the strictest applies.
    """
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client, 6)
    bench.clock.advance(2 * DAY_MS)
    message_ids += send(bench.client, *(b"x" for _ in range(5)))
    bench.client.acknowledge("t", "s", message_ids[:7])
    assert bench.client.set_policies("t", **policies) == policies
    bench.client.admin.trim("t", by_policy=True)
    assert len(read(bench.client)) == left
    assert ids(bench.client) == message_ids[11 - left :]


def test_an_idle_ledger_goes_by_age(tmp_path: Path) -> None:
    """Without appends the open ledger would never be closed, so the trim closes it."""
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client, 2)
    bench.client.acknowledge("t", "s", message_ids)
    bench.client.set_policies("t", retention_ms=DAY_MS)
    bench.clock.advance(DAY_MS)
    assert bench.client.admin.trim("t", by_policy=True)["messages"] == 2
    assert totals(bench.client) == (0, 0)


def test_a_ledger_is_as_old_as_its_newest_message(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client, 1)
    bench.clock.advance(1_999)
    message_ids += send(bench.client, b"x", b"x", b"x")  # the last one is in another ledger
    bench.client.acknowledge("t", "s", message_ids)
    bench.client.set_policies("t", retention_ms=2_000)
    bench.clock.advance(1)
    assert bench.client.admin.trim("t", by_policy=True)["messages"] == 0


def test_a_checkpoint_trims_by_policy_and_never_what_is_not_acknowledged(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    bench.client.set_policies("t", retention_bytes=0)
    bench.client.acknowledge("t", "s", message_ids[:4])
    bench.client.checkpoint()
    assert ids(bench.client) == message_ids[3:]
    with pytest.raises(Refused):
        bench.client.admin.trim("t", by_policy=True)
    assert totals(bench.client) == (5, 4)
    bench.client.acknowledge("t", "s", message_ids)
    bench.client.checkpoint()
    assert ids(bench.client) == message_ids[6:]


def test_acknowledged_by_all_means_all(tmp_path: Path) -> None:
    """One slow subscription keeps the messages.

    A topic without subscriptions keeps all messages.
    """
    bench = bench_of(tmp_path)
    bench.client.create_subscription("t", "slow")
    message_ids = fill(bench.client)
    bench.client.set_policies("t", retention_acked=1)
    bench.client.acknowledge("t", "s", message_ids)
    bench.client.checkpoint()
    assert ids(bench.client) == message_ids
    bench.client.acknowledge("t", "slow", message_ids[:3])
    bench.client.checkpoint()
    assert ids(bench.client) == message_ids[3:]
    bench.client.create_topic("u", retention_acked=1)
    send(bench.client, *(b"x" for _ in range(7)), topic="u")
    bench.client.checkpoint()
    assert len(read(bench.client, "u")) == 7


def test_policies_are_checked_and_taken_away(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    for wrong in ({"retention": 1}, {"retention_ms": -1}):
        with pytest.raises(InvalidArgument):
            bench.client.set_policies("t", **wrong)
    bench.client.create_topic("u", retention_ms=5)
    assert bench.another().describe_topic("u")["policies"] == {"retention_ms": 5}
    assert bench.client.set_policies("u", retention_ms=None, retention_bytes=7) == {
        "retention_bytes": 7
    }
    with pytest.raises(InvalidArgument):
        bench.client.admin.trim("t")
    with pytest.raises(InvalidArgument):
        bench.client.admin.trim("t", END, by_policy=True)


def test_reader_at_a_trimmed_position_gets_an_error_with_the_range(tmp_path: Path) -> None:
    """R22: the reader gets an error with the trimmed range and never skips it silently.

    A reader that was past the range reads on.
    """
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    started, inside, past = (bench.client.reader("t") for _ in range(3))
    inside.receive_batch(2)
    past.receive_batch(6)
    bench.client.admin.trim("t", Bound("skip", 6), force_unacked=True)
    for reader in (started, inside):
        for look in (reader.receive_batch, reader.has_message_available):
            with pytest.raises(MessageNotFound) as caught:
                look()
            assert caught.value.exit == 3
            assert caught.value.fields["last"] == message_ids[5]
            assert caught.value.fields["partition"] == 0
            assert str(message_ids[5]) in caught.value.message
    with pytest.raises(MessageNotFound) as caught:
        inside.receive_batch()
    assert caught.value.fields["first"] == message_ids[1]
    assert past.receive_batch().num_rows == 2
    assert ids(bench.client) == message_ids[6:]


def test_bounds_count_only_the_remaining_messages(tmp_path: Path) -> None:
    """The bounds start, +N, -N, @time and a trimmed id all begin at the first remaining message."""
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client, 3)
    bench.clock.advance(1000)
    middle = bench.clock.now().wall_ms
    message_ids += send(bench.client, *(b"x" for _ in range(5)))
    bench.client.admin.trim("t", Bound("id", message_ids[3]), force_unacked=True)
    remaining = message_ids[3:]
    for bound, expected in (
        (START, remaining),
        (Bound("skip", 2), remaining[2:]),
        (Bound("last", 2), remaining[-2:]),
        (Bound("last", 99), remaining),
        (Bound("id", message_ids[0]), remaining),
        (Bound("id", message_ids[4]), remaining[1:]),
        (Bound("time", middle), remaining),
        (Bound("time", 0), remaining),
        (END, []),
        (Bound("sub", "s"), remaining),
    ):
        assert ids(bench.client, range=Range(start=bound, stop=END)) == expected, bound
        bench.client.create_subscription(
            "t", f"at-{bound.kind}", position=bound, if_not_exists=True
        )
    assert ids(bench.client, range=Range(start=START, stop=Bound("id", message_ids[1]))) == []
    assert [m.message_id for m in pending(bench.client, "t", "at-start")] == remaining


def test_acknowledging_trimmed_messages(tmp_path: Path) -> None:
    """A trimmed message counts as DELETED: a plain acknowledgement succeeds, one in a transaction
    is a conflict (9.3).
    """
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    bench.client.admin.trim("t", Bound("skip", 6), force_unacked=True)
    bench.client.create_subscription("t", "late")
    for name in ("s", "late"):
        for cumulative in (False, True):
            answer = bench.client.acknowledge("t", name, [message_ids[1]], cumulative=cumulative)
            assert answer["acked"] == 0
            txn = begin(bench.client)
            with pytest.raises(TransactionConflict) as caught:
                bench.client.acknowledge(
                    "t", name, [message_ids[1]], cumulative=cumulative, txn=txn
                )
            assert caught.value.fields["holder"] == "deleted"
    assert bench.client.acknowledge("t", "s", [message_ids[1], message_ids[6]]) == {
        "acked": 1,
        "already": 1,
        "dropped": 0,
        "txn": None,
    }
    with pytest.raises(MessageNotFound):
        bench.client.acknowledge("t", "s", [MessageId(999, 0)])
    assert [m.message_id for m in pending(bench.client)] == message_ids[7:]


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_transaction_that_holds_trimmed_messages(tmp_path: Path, ends: str) -> None:
    """Its pending acknowledgements of trimmed messages are dropped; the rest ends as usual, and the
    counts stay exact.
    """
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    txn = begin(bench.client)
    bench.client.acknowledge("t", "s", [message_ids[1], message_ids[2], message_ids[7]], txn=txn)
    with pytest.raises(Refused):
        bench.client.admin.trim("t", Bound("skip", 3))
    bench.client.admin.trim("t", Bound("skip", 3), force_unacked=True)
    assert bench.client.subscriptions("t")[0]["pending_acks"] == 1
    assert totals(bench.client)[1] == 5
    getattr(bench.client, ends)(txn)
    reopened = bench.reopen()
    assert totals(reopened) == (5, 4 if ends == "commit" else 5)
    expected = message_ids[3:7] if ends == "commit" else message_ids[3:]
    assert [m.message_id for m in pending(reopened)] == expected


def test_acknowledgements_beyond_the_trim_advance_mark_delete(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    bench.client.acknowledge("t", "s", message_ids[3:5])
    bench.client.admin.trim("t", Bound("skip", 3), force_unacked=True)
    assert bench.client.subscriptions("t")[0]["mark_delete"] == message_ids[4]
    assert totals(bench.client) == (5, 3)


def test_trimmed_markers_take_their_rows_along(tmp_path: Path) -> None:
    """I-21: rows are dead when their marker is trimmed; a ledger that has only such rows is removed
    at once.
    """
    bench = bench_of(tmp_path)
    for number in range(6):
        send_txn(bench.client, b"%d" % number)
    txn = begin(bench.client)
    bench.client.producer("t").send(b"held", txn=txn)
    messages = read(bench.client)
    sidecar_bytes_before = bench.client.describe_topic("t")["partition_list"][0]["sidecar_bytes"]
    bench.client.admin.trim("t", Bound("skip", 3), force_unacked=True)
    sidecar_bytes_after = bench.client.describe_topic("t")["partition_list"][0]["sidecar_bytes"]
    assert sidecar_bytes_after < sidecar_bytes_before
    assert read(bench.client) == messages[3:]
    bench.client.commit(txn)
    bench.client.checkpoint(roll_all=True)
    assert values(bench.reopen()) == [b"3", b"4", b"5", b"held"]
    bench.client.admin.trim("t", END, force_unacked=True)
    assert bench.client.describe_topic("t")["partition_list"][0]["sidecar_bytes"] == 0


def test_files_go_with_the_checkpoint_after_the_grace(tmp_path: Path) -> None:
    """R18: a file is first removed from the manifest, and unlinked after reader_grace_ms, even if
    nothing else is written.
    """
    bench = bench_of(tmp_path, reader_grace_ms=60_000)
    fill(bench.client)
    bench.client.checkpoint(roll_all=True)
    files = set(Path(bench.path).rglob("*.parquet"))
    assert len(files) == 3
    bench.client.admin.trim("t", END, force_unacked=True)
    bench.client.checkpoint()
    assert set(Path(bench.path).rglob("*.parquet")) == files
    assert bench.client.admin.gc()["files"] == 0
    bench.clock.advance(60_000)
    assert bench.client.admin.gc(keep_ms=1000)["files"] >= 3
    done = bench.client.checkpoint()
    assert done["skipped"] and done["freed_bytes"] > 0
    assert not set(Path(bench.path).rglob("*.parquet"))


def test_gc_unlinks_files_that_no_manifest_names(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    message_ids = fill(bench.client)
    bench.client.checkpoint(roll_all=True)
    orphan = next(Path(bench.path).rglob("*.parquet")).with_name("ledger-9.1.parquet")
    orphan.write_bytes(b"left by a dead pass")
    plan = bench.client.admin.gc()
    assert [row["reason"] for row in plan["file_list"]] == ["unnamed"]
    assert not plan["applied"] and orphan.exists()
    assert bench.client.admin.gc(apply=True)["size_bytes"] == 19
    assert not orphan.exists()
    bench.client.admin.gc(apply=True, keep_ms=0)
    assert ids(bench.another()) == message_ids


def test_an_id_bound_trims_its_partition_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", ledger_entries_max=2)
    bench.client.create_topic("t", 2)
    zero = send(bench.client, b"a", b"b", b"c", partition=0)
    send(bench.client, b"d", b"e", b"f", partition=1)
    answer = bench.client.admin.trim("t", Bound("id", zero[2]))
    assert [row["messages"] for row in answer["partition_list"]] == [2, 0]
    assert values(bench.client, partitions=[1]) == [b"d", b"e", b"f"]


def test_a_duplicate_of_a_trimmed_message_is_one(tmp_path: Path) -> None:
    """I-13: the sequence id of a producer stays known after its message was trimmed."""
    bench = bench_of(tmp_path)
    producer = bench.client.producer("t", "p")
    for number in range(5):
        producer.send(b"x", sequence_id=number)
    bench.client.admin.trim("t", END, force_unacked=True)
    assert producer.send(b"x", sequence_id=4).duplicate
    assert producer.send(b"x", sequence_id=2).duplicate
    assert values(bench.client) == []


def test_a_read_only_process_may_plan_and_not_trim(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench.client)
    reader = bench.another(read_only=True)
    assert reader.admin.trim("t", END, force_unacked=True, dry_run=True)["messages"] == 8
    assert reader.admin.compact("t", dry_run=True)["messages"] == 0
    assert reader.admin.gc()["files"] == 0
    calls: list[Callable[[], object]] = [
        lambda: reader.admin.trim("t", END, force_unacked=True),
        lambda: reader.admin.compact("t"),
        lambda: reader.admin.gc(apply=True),
    ]
    for call in calls:
        with pytest.raises(TxlogError) as caught:
            call()
        assert caught.value.exit == 4
    assert len(read(reader)) == 8


def test_a_clock_that_was_set_back_makes_nothing_old(tmp_path: Path) -> None:
    """The newest message of a ledger decides its age, at any position in the ledger."""
    bench = bench_of(tmp_path)
    send(bench.client, b"0", b"1")
    bench.clock.set_wall(5_000)  # as on a board without a battery, before the network is up
    send(bench.client, b"2", b"3")
    bench.clock.set_wall(START_MS + DAY_MS // 2)
    bench.client.admin.set_retention_policies("t", retention_ms=DAY_MS)
    bench.client.subscription("t", "s").clear_backlog()
    for _ in range(2):
        assert bench.client.admin.trim("t", by_policy=True)["messages"] == 0
        bench.client.checkpoint()
    bench.clock.set_wall(START_MS + 2 * DAY_MS)
    bench.client.admin.accept_clock()
    assert bench.client.admin.trim("t", by_policy=True)["messages"] == 4
