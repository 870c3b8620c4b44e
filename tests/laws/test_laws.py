"""The laws of spec/reliability 8, over every fold.

A random history runs through the real client. Then the live state of the folds is compared,
component by component and byte by byte, with the state that replay and checkpoints give.
"""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import get_args

import msgspec
import pyarrow as pa
import pytest

from tests import source_tree
from tests.engine_kit import Bench, begin, ids, read, send, values
from tests.laws.history import (
    dumps,
    fresh,
    live_dumps,
    plain,
    random_history,
)
from tests.tiers import graded
from txlog import Client, Range, TxnId
from txlog.base.ranges import END
from txlog.engine.folds.buffer import Buffer, bytes_in, transactions
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model import ops as op_types
from txlog.engine.model.idset import covers, each, size
from txlog.engine.model.ops import Op, Run, decode_ops, encode_ops
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.frame import RawFrame
from txlog.engine.storage.journal import Flight
from txlog.engine.storage.manifest import generations
from txlog.engine.view import FOLDS, HOMES, View
from txlog.errors import Corruption, TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")
SEEDS = range(4)
QUICK = (0,)
TAKEN_BY = {
    op_types.OfCatalog: ("catalog",), op_types.OfCoordinator: ("coordinator",),
    op_types.OfKey: ("key",), op_types.OfTopic: ("topic",), op_types.OfBuffer: ("buffer",),
    op_types.OfDelayed: ("delayed",), op_types.OfCursor: ("cursor",),
    op_types.OfTopicAndWatermark: ("topic", "watermark"), op_types.OfFilesAndDelayed: ("delayed",),
    op_types.OfFiles: (), op_types.OfMembers: ("catalog",), op_types.OfReturns: ("cursor",),
}  # fmt: skip
# Ops that a history has seldom or never; separate tests make them. A step in a history is better
# than an entry here.
SELDOM = {
    "BucketDeleted", "BucketSealed", "BucketsMerged", "Compacted", "CounterRaised",
    "DeadLettered", "Deduplicated", "IsolationSet", "KeyDeleted", "LedgerSealed", "LossAccepted",
    "Offloaded", "PartitionAvailable", "PartitionOffline", "PendingCommitted", "PlaceAdded",
    "ProducersForgotten", "Promoted", "SchemaAdded", "SchemaMismatched", "SchemasDeleted",
    "StatusUpdated", "SubscriptionTypeSet", "TopicDeleted", "TxnsForgotten",
}  # fmt: skip


def bench_of(folder: Path) -> Bench:
    return Bench(
        folder / "store",
        ledger_entries_max=7,
        coordinators=2,
        txn_ids_reserved=2,
        txn_ended_retention_count=5,
        max_message_bytes=64,
    )


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Bench]:
    """The store of a seed's random history without checkpoints, made once: no test changes it."""

    @cache
    def store(seed: int) -> Bench:
        bench = bench_of(tmp_path_factory.mktemp("history"))
        random_history(bench, seed, checkpoints=False)
        bench.client.producer("t").flush()
        return bench

    return store


# --- Law 1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", graded(SEEDS, QUICK))
def test_replay_equals_live(history: Callable[[int], Bench], seed: int) -> None:
    """Law 1: a replay of the journal alone gives the same folds as the history."""
    bench = history(seed)
    live = live_dumps(bench.client)
    assert {key[0] for key in live} == set(FOLDS)
    with fresh(bench) as view:
        view.take(view.journal.read_durable())
        assert dumps(view) == live


@pytest.mark.parametrize("seed", graded(SEEDS, QUICK))
def test_replay_from_any_checkpoint_equals_live(tmp_path: Path, seed: int) -> None:
    """Law 1, I-23: every kept manifest, with the frames after it, gives the live state."""
    bench = bench_of(tmp_path)
    random_history(bench, seed, checkpoints=True)
    bench.client.checkpoint()
    begin(bench.client)
    send(bench.client, b"behind the checkpoint")
    live = live_dumps(bench.client)
    with contextlib.closing(PosixDisk(bench.path)) as disk:
        kept_generations = generations(disk)
    assert len(kept_generations) == 2
    check_totals(bench.client)
    for generation in kept_generations:
        with fresh(bench, generation) as view:
            view.take(view.journal.read_durable())
            assert dumps(view) == live
            reopened = View.open(view.disk, view.salt, bench.clock.now().boot_id)
            reopened.take(reopened.journal.read_durable())
            assert dumps(reopened) == live  # I-23: a second time changes nothing
            reopened.close()


@pytest.mark.parametrize("seed", graded(SEEDS[:3], QUICK))
def test_checkpoint_changes_no_state(tmp_path: Path, seed: int) -> None:
    """Law 1: a checkpoint changes no fold, no message and no id."""
    bench = bench_of(tmp_path)
    random_history(bench, seed, checkpoints=True)
    bench.client.checkpoint()  # seals and compacts due ledgers, which changes the place of rows
    send(bench.client, b"one more")
    dumps_before, seen = live_dumps(bench.client), read(bench.client)
    other = bench.another()
    assert not bench.client.checkpoint()["skipped"]
    assert bench.client.checkpoint()["skipped"]
    for client in (bench.client, other, bench.another()):
        assert live_dumps(client) == dumps_before
        assert read(client) == seen


@pytest.mark.parametrize("seed", graded(SEEDS, QUICK))
def test_loaded_dump_equals_the_state(history: Callable[[int], Bench], seed: int) -> None:
    """Law 1: dump(load(dump(s))) equals dump(s), and the loaded state folds later ops in the same
    way.
    """
    bench = history(seed)
    with fresh(bench) as view:
        frames = view.journal.read_durable()
        for at, raw in enumerate(frames):
            view.take([raw])
            if at % 10 == 0:  # continue with the state that was loaded from the dump
                for key, state in list(view._loaded.items()):
                    blob = FOLDS[key[0]].dump(state)
                    assert plain(key, FOLDS[key[0]].dump(FOLDS[key[0]].load(blob))) == plain(
                        key, blob
                    )
                    view._loaded[key] = FOLDS[key[0]].load(blob)
            for key in view.known():
                view.component(key)
        assert dumps(view) == live_dumps(bench.client)


# --- Law 2 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", graded(SEEDS, QUICK))
def test_every_prefix_replays(history: Callable[[int], Bench], seed: int) -> None:
    """Law 2: after each frame the folds agree with one another (I-3, 4, 9, 17)."""
    bench = history(seed)
    with fresh(bench) as view:
        for raw in view.journal.read_durable():
            view.take([raw])
            check_agreement(view)


def check_agreement(view: View) -> None:
    """Check the invariants between folds that hold after any frame."""
    components = view.known()
    unfinished = {
        (key[1], sequence): txn
        for key in components
        if key[0] == "coordinator"
        for sequence, txn in view.coordinator(key[1]).unfinished.items()
    }
    for kind, a, b in components:
        if kind == "buffer":
            state = view.buffer(a)
            for coordinator, by_sequence in state.held.items():
                for sequence in by_sequence:
                    assert a in unfinished[coordinator, sequence].partitions  # I-17
            check_dead_bytes(state)
            entries = {end.ledger: end.entries for end in view.topic(a).ledgers}
            assert state.markers.keys() <= entries.keys()  # I-21: a trimmed marker removes its rows
            for ledger, markers in state.markers.items():
                assert [m.entry for m in markers] == sorted({m.entry for m in markers})
                # a commit is one frame, Law 4
                assert all(m.entry < entries[ledger] for m in markers)
                assert all(m.count == sum(r[2] for r in m.ranges) for m in markers)  # I-3
            pairs = [(m.coordinator, m.sequence) for ms in state.markers.values() for m in ms]
            assert len(pairs) == len(set(pairs))  # I-3
            order = [m.lsn for number in sorted(state.markers) for m in state.markers[number]]
            assert order == sorted(order)  # I-7
        elif kind == "cursor":
            cursor = view.cursor(a, b)
            seen: set[tuple[int, int, int]] = set()
            for pair, pending in cursor.pending.items():
                assert (a, b) in unfinished[pair].subscriptions  # I-17
                for ledger, first, last, low, high in pending.runs:
                    own_rows = {
                        (ledger, e, i) for e in range(first, last + 1) for i in range(low, high + 1)
                    }
                    assert not own_rows & seen  # I-9: exactly one holder
                    seen |= own_rows
            assert all(ledger >= cursor.mark_delete[0] for ledger in cursor.acked.entries)
            check_hands(view, cursor)
            assert [round for round, _ in cursor.rewinds] == sorted(
                {round for round, _ in cursor.rewinds}
            )
        elif kind == "key":
            for uid, of_owner in view.keys(a).of.items():
                for name, key_state in of_owner.items():
                    remaining_rows = {
                        s: txn
                        for (c, s), txn in unfinished.items()
                        if (c, txn.owner_uid, txn.key) == (a, uid, name)
                    }
                    open_ones = [s for s, txn in remaining_rows.items() if txn.status == "OPEN"]
                    assert open_ones in ([], [key_state.sequence])  # I-16
                    assert key_state.sequence < 0 or key_state.sequence in remaining_rows
                    assert not (open_ones and key_state.deleted)
                    assert all(remaining_rows[s].epoch == key_state.epoch for s in open_ones)
    # I-17: nothing is unavailable
    assert {txn.status for txn in unfinished.values()} <= {"OPEN", "PREPARED"}


def check_hands(view: View, cursor: Cursor) -> None:
    """I-9, I-12: each message is held once, by an attached consumer; no acknowledged message is
    held.
    """
    leases = cursor.leases
    in_hand: list[Run] = []
    for number, lease in leases.by_consumer.items():
        in_hand += lease.ids.runs()
        assert number in view.catalog.consumers or not lease.ids
        for _, messages in lease.handouts:
            assert all(lease.ids.common(run) == [run] for run in messages.runs())
    assert sum(map(size, in_hand)) == sum(map(size, leases.leased.runs()))
    for run in [*in_hand, *leases.waiting_ids.runs()]:
        for message in each(run):
            assert message not in cursor.acked
            assert message not in cursor.held
            assert not covers(cursor.mark_delete, message)
    assert not any(message in leases.leased for message in leases.waiting)


def check_dead_bytes(state: Buffer) -> None:
    """I-21: the bytes of a sidecar ledger belong to living transactions or are counted as dead."""
    live: dict[int, int] = {}
    for txn_row in transactions(state):
        ledgers = {part[0] for part in txn_row.ranges}
        assert sum(bytes_in(txn_row, ledger) for ledger in ledgers) == txn_row.payload_bytes
        for ledger in ledgers:
            live[ledger] = live.get(ledger, 0) + bytes_in(txn_row, ledger)
    ends = {end.ledger: end for end in state.ledgers}
    assert state.trimmed.keys() <= ends.keys()
    assert live.keys() <= ends.keys()
    for ledger, end in ends.items():
        assert end.payload_bytes - end.dead_bytes == live.get(ledger, 0)
        holders = [
            1
            for of in state.held.values()
            for holding in of.values()
            if any(part[0] == ledger for part in holding.ranges)
        ]
        assert end.open_txns == len(holders)
    assert state.dead_bytes == sum(end.dead_bytes for end in state.ledgers)


def check_totals(client: Client) -> None:
    """I-22: the counts are equal to a scan, also after trims."""
    (row,) = [row for row in client.topics() if row["topic"] == "t"]
    assert row["messages"] == len(read(client))
    for subscription_row in client.subscriptions("t"):
        unacked_range = Range(kind="unacked", subscription=subscription_row["subscription"])
        assert subscription_row["backlog"] == len(read(client, range=unacked_range))


# --- Law 3 ------------------------------------------------------------------------------------


def test_nothing_is_visible_before_it_is_durable(tmp_path: Path) -> None:
    """Law 3, I-4: a reader never passes the witness, even if the journal has more frames."""
    bench = Bench(tmp_path / "store")
    # this process can make no frame durable
    client, other = bench.client, bench.another(read_only=True)
    client.create_topic("t")
    client.create_subscription("t", "s")
    send(client, b"a")
    (first,) = ids(client)
    txn = begin(client)
    client.producer("t").send(b"b", txn=txn)  # makes the sidecar, durably
    durable = client.wait_for_change(0)
    client.acknowledge("t", "s", [first])  # written, not flushed
    client.producer("t").send(b"c", txn=txn)
    for looker in (other, bench.another(read_only=True)):
        assert looker.wait_for_change(0) == durable
        assert looker.subscriptions()[0]["backlog"] == 1
        assert [row["messages"] for row in looker.transactions()] == [1]
    client.producer("t").flush()
    assert other.wait_for_change(0) > durable
    assert other.subscriptions()[0]["backlog"] == 0
    assert [row["messages"] for row in other.transactions()] == [2]
    assert values(other) == [b"a"]


def test_a_frame_behind_the_witness_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 3: if a flush dies half way, no other process reads its frame before the next call."""
    bench = Bench(tmp_path / "store", durability="sync")
    client, other = bench.client, bench.another(read_only=True)
    client.create_topic("t")

    class PowerCut(BaseException):
        pass

    def die(flight: object) -> None:
        raise PowerCut

    monkeypatch.setattr(Flight, "_fly", die)
    with pytest.raises(PowerCut):
        client.producer("t").send(b"a")
    assert values(other) == []
    assert values(bench.another(read_only=True)) == []
    monkeypatch.undo()
    assert values(bench.another()) == [b"a"]  # K2: a process that may write rolls it forward
    assert values(other) == [b"a"]


def test_group_commit_is_sequential(tmp_path: Path) -> None:
    """R12: concurrent writes by threads give the same result as some order of their calls."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            producer = client.producer("t", f"p{number}")
            for turn in range(15):
                with client.transaction() as txn:
                    producer.send(b"%d:%d:x" % (number, turn), partition=0, txn=txn)
                    producer.send(b"%d:%d:y" % (number, turn), partition=1, txn=txn)
                    producer.send(b"%d:%d:z" % (number, turn), partition=0, txn=txn)
                producer.send(b"%d:%d" % (number, turn), partition=turn % 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    messages = read(client)
    assert len(messages) == 6 * 15 * 4
    assert len({m.message_id for m in messages}) == len(messages)
    zero = [m for m in messages if m.partition == 0]
    for first, second in pairwise(zero):
        if first.txn is not None and (first.value or b"").endswith(b"x"):
            assert second.txn == first.txn and (second.value or b"").endswith(b"z")
    for number in range(6):
        own_numbers = [
            int((m.value or b"").split(b":")[1])
            for m in zero
            if m.txn and (m.value or b"").startswith(b"%d:" % number)
        ]
        assert own_numbers == sorted(own_numbers)
    live = live_dumps(client)
    with fresh(bench) as view:
        view.take(view.journal.read_durable())
        assert dumps(view) == live


def test_a_refused_call_of_a_group_fails_alone(tmp_path: Path) -> None:
    """R12, I-15: the other calls of the group get their answers; the refused call changed
    no state.
    """
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    barrier = threading.Barrier(8)
    results: dict[int, object] = {}

    def work(number: int) -> None:
        producer = client.producer("t")
        barrier.wait()
        try:
            results[number] = producer.send(b"%d" % number, txn=TxnId(0, 9) if number % 2 else None)
        except TxlogError as error:
            results[number] = type(error).__name__

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[n] for n in (1, 3, 5, 7)] == ["TransactionNotFound"] * 4
    assert sorted(values(client)) == [b"0", b"2", b"4", b"6"]


# --- Law 7, and what is not an op -------------------------------------------------------------

OUTSIDE = {
    "time",
    "random",
    "os",
    "secrets",
    "uuid",
    "datetime",
    "threading",
    "txlog.clock",
    "socket",
}


def test_folds_see_no_clock_and_no_chance() -> None:
    """Law 7: neither folds nor ops import modules whose results differ between two replays, and
    folds do not import each other.
    """
    folds = [m for m in source_tree.modules() if m.path.startswith("engine/folds/")]
    modules = {kind: "transaction_key" if kind == "key" else kind for kind in FOLDS}
    assert {m.path.rpartition("/")[2] for m in folds} >= set(modules.values())
    for module in folds + [
        m
        for m in source_tree.modules()
        if m.path.startswith("engine/model/") and m.path.endswith("ops")
    ]:
        for item in module.imports:
            assert not any(
                item.target == name or item.target.startswith(f"{name}.") for name in OUTSIDE
            ), (module.path, item.target)
            if module in folds:
                assert "engine.folds" not in item.target, (module.path, item.target)
                assert "engine.storage.disk" not in item.target, (module.path, item.target)
        names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
        assert not names & {"open", "hash", "id", "input", "globals"}, module.path


def test_an_unknown_tag_is_corruption() -> None:
    """The set of ops is closed: a reader never skips the tag of a later version."""
    unknown: list[object] = [[["zzz", 1]], [["ack", "not a number"]], [[]], {"a": 1}]
    for wrong in unknown:
        with pytest.raises(Corruption) as caught:
            decode_ops(msgspec.msgpack.encode(wrong), lsn=7)
        assert caught.value.fields["lsn"] == 7
    with pytest.raises(Corruption):
        decode_ops(b"\xc1", lsn=7)


def test_every_op_has_its_own_tag_and_a_fold() -> None:
    """Every op is routed to folds that accept it."""
    tags = [kind.__struct_config__.tag for kind in get_args(Op)]
    assert len(set(tags)) == len(tags)
    all_ops = {
        kind
        for kind in vars(op_types).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__struct_config__.tag is not None
        and kind.__module__.startswith("txlog.engine.model")
    }
    assert set(get_args(Op)) == all_ops


def test_every_op_is_known_to_the_folds_of_its_base() -> None:
    """Guards against an op with a base, a tag and a decision that no fold ever applies."""
    kinds = {kind for kind in vars(op_types).values() if isinstance(kind, type)}
    bases = {kind for kind in kinds if issubclass(kind, op_types.Routed)} - {*get_args(Op)}
    assert TAKEN_BY.keys() == bases - {op_types.Routed}
    for kind in get_args(Op):
        named = [base for base in TAKEN_BY if issubclass(kind, base)]
        for fold in TAKEN_BY[named[0]] if named else ():
            assert hasattr(HOMES[fold], kind.__name__), f"the fold {fold} ignores {kind.__name__}"


def test_history_has_every_op_that_is_not_listed_as_rare(history: Callable[[int], Bench]) -> None:
    """Guards against an op for which no law of this file was ever tested."""
    missing = {kind.__name__ for kind in get_args(Op)} - SELDOM
    for seed in (0, 2, 1, 3, 4, 5, 6, 7):  # the ids and keys do not depend on the seed alone
        with fresh(history(seed)) as view:
            for raw in view.journal.read_durable():
                missing -= {type(op).__name__ for op in decode_ops(raw.ops, lsn=raw.lsn)}
        if not missing:
            break
    assert not missing


def test_deletion_leaves_no_state(tmp_path: Path) -> None:
    """Law 1. Guards against a fold that outlives its topic in memory and in every later
    checkpoint.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    random_history(bench, 0, checkpoints=True)
    for row in client.topics():
        client.admin.delete_topic(str(row["topic"]), force=True)
    of_the_store = {"catalog", "coordinator", "key"}
    assert {key[0] for key in client.store.read(View.known)} <= of_the_store
    client.checkpoint()
    with fresh(bench) as view:
        view.take(view.journal.read_durable())
        assert {key[0] for key in view.known()} <= of_the_store


def test_every_fold_is_one_of_a_view() -> None:
    """Guards against a module in engine/folds that no store uses."""
    files = (source_tree.SOURCE / "txlog" / "engine" / "folds").glob("[!_]*.py")
    assert {module.__name__.split(".")[-1] for module in HOMES.values()} == {
        file.stem for file in files
    }


def test_fold_refuses_ops_of_other_folds(history: Callable[[int], Bench]) -> None:
    """An op in a wrong fold is Corruption, and is never ignored."""
    bench = history(0)
    refused: set[str] = set()
    with fresh(bench) as view:
        for raw in view.journal.read_durable():
            for op in decode_ops(raw.ops, lsn=raw.lsn):
                assert decode_ops(encode_ops([op]), lsn=1) == [op]
                taken_by = {key[0] for key in op.components()}
                if taken_by & {"topic", "buffer"}:
                    taken_by |= {"topic", "buffer"} & ROLES.get(type(op).__name__, set())
                for kind in FOLDS.keys() - taken_by:
                    fold = FOLDS[kind]
                    with pytest.raises(Corruption):
                        fold.apply(fold.new(), raw.lsn, raw.time_ms, op)
                    refused.add(kind)
    assert refused == FOLDS.keys()


def test_a_frame_applied_twice_is_corruption(tmp_path: Path) -> None:
    """Law 6: entries, markers and ids that are given out again break an invariant, and are not
    ignored.
    """
    bench = bench_of(tmp_path)
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s")
    (message_id,) = send(client, b"a")
    with client.transaction() as txn:
        client.producer("t").send(b"b", txn=txn)
        client.acknowledge("t", "s", [message_id], txn=txn)
    client.connect("k")
    batch = client.bulk("t", key="k", batch=1)
    batch.commit(batch.stage([pa.table({"value": [b"c"]})]))
    client.admin.trim("t", END, force_unacked=True)
    with fresh(bench) as view:
        frames = view.journal.read_durable()
        view.take(frames)
        for key in view.known():
            view.component(key)
        for raw in frames:
            for op in decode_ops(raw.ops, lsn=raw.lsn):
                if type(op).__name__ in TWICE:
                    for key in op.components():
                        if TWICE[type(op).__name__] in ("", key[0]):
                            with pytest.raises(Corruption):
                                FOLDS[key[0]].apply(view.component(key), 99, 0, op)


ROLES = {name: {"topic", "buffer"} for name in ("LedgerRolled", "LedgerSealed", "LedgerTrimmed")}
TWICE = {
    "Appended": "", "CommitMarker": "", "BufferAppended": "", "BufferCommitted": "",
    "TxnEnded": "coordinator", "TxnOpened": "coordinator", "StatusUpdated": "",
    "PendingCommitted": "", "LedgerRolled": "topic", "LedgerTrimmed": "topic", "KeyConnected": "",
    "Adopted": "topic", "BatchRecorded": "",
}  # fmt: skip


def test_a_gap_between_frames_is_refused(tmp_path: Path) -> None:
    """Law 2: a view accepts frames only without a gap."""
    bench = bench_of(tmp_path)
    bench.client.create_topic("t")
    send(bench.client, b"a", b"b")
    with fresh(bench) as view:
        frames: list[RawFrame] = view.journal.read_durable()
        with pytest.raises(AssertionError):
            view.take([frames[0], frames[2]])
