"""Compaction: no visible message changes, dead rows go, and a racing call is correct afterwards.

`seen` is everything that a user can see; each test compares it before and after a compaction.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, begin, ids, pending, read, rows, send, send_txn, values
from tests.tiers import graded
from txlog import Bound, Client, TxnId
from txlog.base.ranges import END
from txlog.engine.decide.topics import ledgers
from txlog.engine.folds.buffer import Buffer
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.checkpoint import seal as sealing
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.upkeep.space import compact as compaction
from txlog.engine.view import View
from txlog.errors import (
    Corruption,
    PartitionUnavailable,
    StoreLocked,
    TopicNotFound,
    TxlogError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


def bench_of(folder: Path, **settings: int | float) -> Bench:
    """A store with a topic of one partition and a subscription."""
    options: dict[str, Any] = {"coordinators": 1, "reader_grace_ms": 0, **settings}
    bench = Bench(folder / "store", **options)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    return bench


def put(client: Client, txn: TxnId, *given_values: bytes) -> None:
    """Send values in a transaction."""
    for value in given_values:
        client.producer("t").send(value, txn=txn)


def aborted(client: Client, *given_values: bytes) -> None:
    """A transaction that is aborted."""
    txn = begin(client)
    put(client, txn, *given_values)
    client.abort(txn)


def seen(client: Client) -> dict[str, Any]:
    """Everything that a user can see, with ids, order and pending acknowledgements."""
    topics = [{**row, "sidecar": None} for row in client.topics()]
    # a look raises the count
    waiting = [replace(message, redelivery_count=0) for message in pending(client)]
    return {
        "read": read(client),
        "pending": waiting,
        "topics": topics,
        "subs": [{**row, "consumers": 0} for row in client.subscriptions()],
        "txns": client.transactions(all=True),
        "shown": [client.show_transaction(row["txn"]) for row in client.transactions(all=True)],
    }


def buffer_of(client: Client) -> Buffer:
    """The sidecar of the first partition."""
    return client.store.read(lambda view: view.buffer(1))


def sidecar_files(bench: Bench) -> int:
    """Bytes below _txnlog."""
    return sum(p.stat().st_size for p in Path(bench.path).rglob("_txnlog/*") if p.is_file())


def mixed(bench: Bench) -> TxnId:
    """Committed, aborted and open transactions, interleaved; returns the open one."""
    client = bench.client
    first, second, open_one = (begin(client, 10**7) for _ in range(3))
    send(client, b"plain")
    put(client, open_one, b"o1")
    put(client, first, b"f1", b"f2")
    put(client, second, b"s1")
    put(client, open_one, b"o2")
    put(client, first, b"f3")
    client.commit(second)
    aborted(client, *(b"x" * 500 for _ in range(30)))
    put(client, open_one, b"o3")
    client.acknowledge("t", "s", [ids(client)[0]], txn=open_one)
    client.commit(first)
    send_txn(client, b"last")
    return open_one


def test_nothing_visible_changes_and_bytes_are_given_back(tmp_path: Path) -> None:
    """I-20, I-21: an open ledger of mostly aborted rows is closed and rewritten."""
    bench = bench_of(tmp_path)
    open_one = mixed(bench)
    state_before, other = seen(bench.client), bench.another()
    bench.client.checkpoint()
    size = sidecar_files(bench)
    assert buffer_of(bench.client).dead_bytes == 15_000
    answer = bench.client.admin.compact("t")
    assert buffer_of(bench.client).dead_bytes == 0
    assert answer["aborted_dropped"] == 30
    assert (answer["transactions"], answer["messages"]) == (3, 5)
    assert answer["size_after_bytes"] < answer["size_before_bytes"] == size
    for client in (bench.client, other, bench.another()):
        assert seen(client) == state_before
    put(bench.client, open_one, b"o4")
    bench.client.commit(open_one)
    bench.client.checkpoint()  # the manifest before no longer needs the old files
    assert sidecar_files(bench) < size / 2
    assert values(bench.client)[-4:] == [b"o1", b"o2", b"o3", b"o4"]
    assert values(bench.reopen())[-4:] == [b"o1", b"o2", b"o3", b"o4"]


def test_a_dry_run_gives_the_answer_of_the_run(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    mixed(bench)
    bench.client.checkpoint()
    files = {path: path.stat().st_size for path in Path(bench.path).rglob("*")}
    plan = bench.client.admin.compact("t", dry_run=True)
    assert {path: path.stat().st_size for path in Path(bench.path).rglob("*")} == files
    assert plan["dry_run"]
    assert {**bench.client.admin.compact("t"), "dry_run": True} == plan


def test_running_twice_does_nothing(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    mixed(bench)
    bench.client.admin.compact("t")
    state_before, state = seen(bench.client), buffer_of(bench.client).ledgers[:]
    answer = bench.client.admin.compact("t")
    assert (answer["messages"], answer["aborted_dropped"]) == (0, 0)
    assert answer["size_before_bytes"] == answer["size_after_bytes"]
    assert buffer_of(bench.client).ledgers == state
    assert seen(bench.client) == state_before


def test_compacted_rows_are_in_commit_order(tmp_path: Path) -> None:
    """Spec 12: rows by (marker, index) first, then unfinished ones in their old order; no other
    rows.
    """
    bench = bench_of(tmp_path)
    mixed(bench)
    bench.client.admin.compact("t")
    (first, _) = buffer_of(bench.client).ledgers
    table = bench.client.store.read(lambda view: view.ledger_table(first.ledger, 0, first.entries))
    assert [v.decode() for v in table.column("value").to_pylist()] == [
        "s1",
        "f1",
        "f2",
        "f3",
        "last",
        "o1",
        "o2",
        "o3",
    ]
    keys = list(
        zip(
            *(table.column(n).to_pylist() for n in ("marker_ledger", "marker_entry", "txn_index")),
            strict=True,
        )
    )
    assert keys[:5] == sorted(keys[:5])
    assert keys[5:] == [(None, None, 1), (None, None, 2), (None, None, 3)]
    (file,) = bench.client.store.read(lambda view: view.files.of(first.ledger))
    assert not file.clean


def test_a_transaction_over_several_ledgers(tmp_path: Path) -> None:
    """Its rows move ledger by ledger and are read in the order of the index."""
    bench = bench_of(tmp_path, ledger_entries_max=4)
    client = bench.client
    first, second = begin(client), begin(client)
    for number in range(12):
        put(client, first, b"a%d" % number)
        put(client, second, b"b%d" % number)
        aborted(client, b"gone")
    client.commit(second)
    state_before = seen(client)
    client.admin.compact("t")
    assert seen(client) == state_before
    client.commit(first)
    state_after = seen(client)
    client.admin.compact("t")
    assert seen(client) == state_after
    expected = [b"b%d" % n for n in range(12)] + [b"a%d" % n for n in range(12)]
    assert values(bench.reopen()) == expected
    assert all(len(marker.ranges) <= 2 for marker in buffer_of(bench.client).markers[1])


def switching(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> list[object]:
    """Run a function between the publication of a compacted file and its frame; returns the
    answers.
    """
    answers: list[object] = []
    real = compare_rows

    def then(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        monkeypatch.setattr(compaction, "compare_rows", real)
        meanwhile()

    decide = ledgers.switch_sidecar

    def noted(view: View, switch: ledgers.SidecarReplacement) -> Any:
        decision = decide(view, switch)
        answers.append(decision.answer)
        return decision

    monkeypatch.setattr(compaction, "compare_rows", then)
    monkeypatch.setattr(ledgers, "switch_sidecar", noted)
    return answers


@pytest.mark.parametrize("ends", ["commit", "abort", "send", "trim"])
def test_a_call_between_build_and_frame_is_correct_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A transaction that ends meanwhile is correct in the old and the new file; no call waits."""
    bench = bench_of(tmp_path)
    open_one = mixed(bench)
    other = bench.another()

    def meanwhile() -> None:
        if ends == "send":
            put(other, open_one, b"o4")
        elif ends == "trim":
            other.admin.trim("t", END, force_unacked=True)
        else:
            getattr(other, ends)(open_one)

    answers = switching(monkeypatch, meanwhile)
    bench.client.admin.compact("t")
    assert answers == [True]
    expected = {"commit": [b"o1", b"o2", b"o3"], "trim": []}.get(ends, [b"last"])
    for client in (bench.client, other, bench.another()):
        assert values(client)[-3:][-len(expected) :] == expected if expected else not values(client)
    if ends == "send":
        other.commit(open_one)
        assert values(bench.client)[-4:] == [b"o1", b"o2", b"o3", b"o4"]
    if ends in ("abort", "trim"):
        assert buffer_of(bench.client).dead_bytes > 0
    state_before = seen(bench.client)
    bench.client.admin.compact("t")
    assert buffer_of(bench.client).dead_bytes == 0
    assert seen(bench.client) == state_before == seen(bench.reopen())


def test_an_offline_partition_is_not_compacted(tmp_path: Path) -> None:
    """11: partition and sidecar are one unit; transactions that wait for them keep their rows."""
    bench = bench_of(tmp_path)
    client = bench.client
    txn = begin(client)
    put(client, txn, b"1")
    aborted(client, b"x")
    client.admin.set_offline("t", 0)
    client.commit(txn)
    assert client.show_transaction(txn)["state"] == "committing"
    with pytest.raises(PartitionUnavailable):
        client.admin.compact("t")
    with pytest.raises(PartitionUnavailable):
        client.admin.trim("t", END)
    client.checkpoint(roll_all=True)
    assert client.admin.set_online("t", 0)["finished_list"] == [txn]
    assert client.admin.compact("t")["aborted_dropped"] <= 1
    for other in (client, bench.another()):
        assert values(other) == [b"1"]
    assert values(bench.reopen()) == [b"1"]


def test_a_ledger_that_was_dropped_meanwhile_refuses_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No manifest will name the file, so it is removed at once."""
    bench = bench_of(tmp_path)
    send_txn(bench.client, b"a")
    aborted(bench.client, b"x")
    other = bench.another()
    answers = switching(monkeypatch, lambda: void(other.admin.trim("t", END, force_unacked=True)))
    bench.client.admin.compact("t")
    assert answers == [False]
    assert values(bench.client) == values(other) == []
    assert not list(Path(bench.path).rglob("_txnlog/*.parquet"))


def test_a_trim_between_build_and_frame_of_a_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealed sidecar counts ranges by a rule; rows that lost their marker would shift them."""
    bench = bench_of(tmp_path, ledger_entries_max=3)
    for number in range(6):
        send_txn(bench.client, b"%d" % number)
    bench.client.checkpoint()
    other = bench.another()
    done: list[bool] = []

    real = SegmentReader.rows

    def late(reader: SegmentReader, start: int, stop: int) -> Any:
        if reader.ref.form == "sealed" and "_txnlog" in reader.ref.path and not done:
            done.append(True)
            other.admin.trim("t", Bound("skip", 4), force_unacked=True)
        return real(reader, start, stop)

    monkeypatch.setattr(SegmentReader, "rows", late)
    bench.client.checkpoint(roll_all=True)
    assert done
    for client in (bench.client, other, bench.another()):
        assert values(client) == [b"3", b"4", b"5"]
    bench.client.checkpoint()
    assert values(bench.reopen()) == [b"3", b"4", b"5"]


def test_a_trim_of_a_part_of_the_rows_refuses_the_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has rows that are dead by then, so the next checkpoint seals the ledger anew."""
    bench = bench_of(tmp_path, ledger_entries_max=3)
    send(bench.client, b"plain")
    send(bench.client, b"plain")
    for number in range(4):  # the first is the last of its ledger, and the second in the next one
        send_txn(bench.client, b"%d" % number)
    other, trimmed = bench.another(), list[str]()
    real = compare_rows

    def late(store: Any, ref: FileRef, *arguments: Any) -> None:
        real(store, ref, *arguments)
        if "_txnlog" in ref.path and not trimmed:
            trimmed.append(ref.path)
            other.admin.trim("t", Bound("skip", 3), force_unacked=True)

    monkeypatch.setattr(sealing, "compare_rows", late)
    bench.client.checkpoint(roll_all=True)
    assert trimmed and not Path(bench.path, trimmed[0]).exists()
    for client in (bench.client, other, bench.another()):
        assert values(client) == [b"1", b"2", b"3"]
    bench.client.checkpoint()
    assert values(bench.reopen()) == [b"1", b"2", b"3"]


def test_compaction_after_a_trim(tmp_path: Path) -> None:
    """A sealed file loses the rows of trimmed markers; the other rows keep their position."""
    bench = bench_of(tmp_path, ledger_entries_max=1000)
    for number in range(4):
        send_txn(bench.client, *(b"%d" % number for _ in range(5)))
        bench.client.checkpoint(roll_all=True)
    txn = begin(bench.client)
    for number in range(4, 7):
        put(bench.client, txn, b"%d" % number * 100)
    bench.client.checkpoint(roll_all=True)
    bench.client.commit(txn)
    bench.client.admin.trim("t", Bound("skip", 10), force_unacked=True)
    state_before = seen(bench.client)
    bench.client.admin.compact("t")
    assert seen(bench.client) == state_before
    assert seen(bench.reopen()) == state_before
    assert buffer_of(bench.client).dead_bytes == 0


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_a_checkpoint_compacts_past_the_ratio(tmp_path: Path, ratio: float) -> None:
    """A closed ledger that an open transaction keeps from being sealed is rewritten in time."""
    bench = bench_of(tmp_path, sidecar_garbage_ratio=ratio)
    client = bench.client
    txn = begin(client, 10**7)
    put(client, txn, b"h" * 300)
    aborted(client, b"x" * 700)
    state_before = seen(client)
    client.checkpoint(roll_all=True)
    client.checkpoint(roll_all=True)
    assert seen(client) == state_before
    assert buffer_of(client).dead_bytes == (0 if ratio < 0.7 else 700)
    client.commit(txn)
    assert values(bench.another()) == [b"h" * 300]


def test_a_ledger_of_aborted_rows_only_needs_no_file(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    aborted(bench.client, b"x")
    bench.client.checkpoint(roll_all=True)
    assert len(buffer_of(bench.client).ledgers) == 1
    bench.client.checkpoint()
    assert not list(Path(bench.path).rglob("_txnlog/*"))


def test_a_damaged_compacted_file_is_found(tmp_path: Path) -> None:
    """R5: the program checks every byte before it uses it."""
    bench = bench_of(tmp_path)
    mixed(bench)
    bench.client.admin.compact("t")
    bench.close()
    (path,) = Path(bench.path).rglob("_txnlog/ledger-*.parquet")
    whole = path.read_bytes()
    path.chmod(0o600)
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        client = bench.another(read_only=True)
        with pytest.raises(Corruption) as caught:
            read(client)
        assert str(caught.value.fields["path"]) in str(path)
        bench.close()
    path.write_bytes(whole[:-1])
    with pytest.raises(Corruption):
        read(bench.another(read_only=True))
    bench.close()
    path.write_bytes(whole)
    assert len(values(bench.another())) == 6


def test_rows_in_a_wrong_order_are_never_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17: each row is exactly the message that it replaces, or the switch is refused."""
    bench = bench_of(tmp_path)
    mixed(bench)
    state_before, real = seen(bench.client), compaction._stored

    def reversed_rows(*arguments: Any) -> Any:
        table = real(*arguments)
        return table.take(list(range(table.num_rows))[::-1])

    monkeypatch.setattr(compaction, "_stored", reversed_rows)
    with pytest.raises(Corruption):
        bench.client.admin.compact("t")
    monkeypatch.undo()
    assert seen(bench.client) == state_before
    bench.client.admin.compact("t")
    assert seen(bench.reopen()) == state_before


def test_a_reader_of_an_older_snapshot_finds_the_new_file(tmp_path: Path) -> None:
    """R21: without a grace, the old file may vanish before the reader opens it; the reader looks
    again.
    """
    bench = bench_of(tmp_path)
    mixed(bench)
    bench.client.checkpoint()
    other = bench.another()
    messages_before = read(other)
    other.close()
    other = bench.another()
    store, real = other.store, type(other.store)._refresh
    calls: list[int] = []

    def once() -> None:
        real(store)
        calls.append(1)
        if len(calls) == 1:  # the file is removed after the view was built
            bench.client.admin.compact("t")

    reader = other.reader("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "_refresh", lambda self: once() if self is store else real(self))
        assert reader.receive_batch().num_rows == len(messages_before)
    assert len(calls) == 2


def dirty(client: Client) -> list[tuple[bytes | None, str | None]]:
    """The uncommitted messages that a reader with isolation `uncommitted` gets."""
    found_rows = rows(client.read("t", isolation="uncommitted"))
    return [(m.value, m.txn_state) for m in found_rows if m.message_id is None]


def test_previews_go_on_over_a_compaction(tmp_path: Path) -> None:
    """Spec 8: open rows in the order of their sends, once each; aborted ones until they are
    removed.
    """
    bench = bench_of(tmp_path, ledger_entries_max=3)
    client = bench.client
    txn = begin(client, 10**7)
    put(client, txn, b"1", b"2")
    aborted(client, b"x", b"y")
    put(client, txn, b"3", b"4")
    assert dirty(client) == [
        (b"1", "open"),
        (b"2", "open"),
        (b"x", "aborted"),
        (b"y", "aborted"),
        (b"3", "open"),
        (b"4", "open"),
    ]
    readers = [client.reader("t", isolation="uncommitted") for _ in range(3)]
    for count, reader in enumerate(readers, 2):
        assert reader.receive_batch(count).num_rows == count
    client.admin.compact("t")
    open_ones = [(value, "open") for value in (b"1", b"2", b"3", b"4")]
    assert dirty(client) == dirty(bench.another()) == open_ones
    put(client, txn, b"5")
    aborted(client, b"z")
    client.admin.compact("t")
    put(client, txn, b"6")
    assert dirty(client) == [*open_ones, (b"5", "open"), (b"6", "open")]
    for reader in readers:
        assert reader.receive_batch().column("value").to_pylist() == [b"3", b"4", b"5", b"6"]
    client.commit(txn)
    client.admin.compact("t")
    assert dirty(client) == []


@pytest.mark.parametrize("when", ["loose", "sealed", "compacted"])
def test_trimmed_rows_are_no_preview(tmp_path: Path, when: str) -> None:
    """The store may still have the rows, but no reader gets them."""
    bench = bench_of(tmp_path, ledger_entries_max=3)
    client = bench.client
    txn = begin(client, 10**7)
    if when != "sealed":
        put(client, txn, b"held")
    for number in range(6):
        send_txn(client, b"%d" % number)
    if when != "loose":
        client.checkpoint(roll_all=True)
    if when == "compacted":
        aborted(client, b"gone")
        client.admin.compact("t")
    client.admin.trim("t", Bound("skip", 4), force_unacked=True)
    remaining = [] if when == "sealed" else [(b"held", "open")]
    assert dirty(client) == dirty(bench.another()) == remaining
    client.admin.compact("t")
    assert dirty(client) == remaining
    assert values(client) == [b"3", b"4", b"5"]


def test_maintenance_of_another_process_is_waited_for(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    other = bench.another(lock_timeout_ms=0)
    lock = compaction_lock(bench)
    with contextlib.closing(lock), pytest.raises(StoreLocked):
        other.admin.compact("t")
    other.admin.compact("t")


def compaction_lock(bench: Bench) -> Any:
    """The maintenance lock, held."""
    lock = bench.client.store.disk.lock_file("maintenance.lock")
    assert lock.try_acquire()
    return lock


def test_compacting_a_missing_topic_is_refused(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    for name, partition in (("no", None), ("t", 1), ("t-partition-1", None)):
        with pytest.raises(TopicNotFound):
            bench.client.admin.compact(name, partition)
    assert bench.client.admin.compact("t", 0)["messages"] == 0


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    """Any history: a compaction changes no visible message in any process, and the store
    goes on.
    """
    print("seed", seed)
    chance = random.Random(seed)
    bench = bench_of(tmp_path, ledger_entries_max=chance.choice((3, 9, 1000)))
    client, other = bench.client, bench.another()
    open_ones: list[TxnId] = []
    for step in range(120):
        act = chance.randrange(10)
        with contextlib.suppress(TxlogError):
            if act < 2:
                open_ones.append(begin(client, 10**7))
            elif act < 6 and open_ones:
                put(client, chance.choice(open_ones), b"%d" % step * chance.randint(1, 50))
            elif act == 6 and open_ones:
                chance.choice((client.commit, client.abort))(
                    open_ones.pop(chance.randrange(len(open_ones)))
                )
            elif act == 7:
                send(client, b"%d" % step)
                if (message_ids := ids(client)) and open_ones:
                    client.acknowledge("t", "s", [chance.choice(message_ids)], txn=open_ones[-1])
            elif act == 8 and chance.random() < 0.4:
                client.admin.trim("t", Bound("skip", chance.randint(1, 9)), force_unacked=True)
            elif act == 9:
                state_before = seen(client)
                if chance.random() < 0.5:
                    client.checkpoint(roll_all=chance.random() < 0.5)
                else:
                    client.admin.compact("t")
                assert seen(client) == state_before
                assert seen(other) == state_before
    state_before = seen(client)
    client.admin.compact("t")
    assert buffer_of(client).dead_bytes == 0
    assert seen(bench.another()) == state_before


def void(answer: object) -> None:
    """Drop an answer."""
