"""The table view against a dict, moment by moment, through compactions and trims."""

from __future__ import annotations

import random
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, begin
from tests.reading.test_reading_interrupted import Alarm, Injection
from tests.tiers import graded
from txlog import Client, TableView, TxnId
from txlog.base.ranges import END
from txlog.engine.plan.route import partition_of_key
from txlog.errors import AlreadyClosed, PartitionUnavailable, TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


def bench_of(folder: Path, partitions: int = 1) -> Bench:
    """A store with a topic, and ledgers of five entries."""
    bench = Bench(folder / "store", coordinators=1, reader_grace_ms=0, ledger_entries_max=5)
    bench.client.create_topic("t", partitions)
    return bench


def put(client: Client, *pairs: tuple[bytes | str | None, bytes | None], **options: Any) -> None:
    """Send (key, value) one by one."""
    for key, value in pairs:
        client.producer("t").send(value, key=key, **options)


def trim_all(client: Client) -> None:
    """Trim everything there is."""
    client.checkpoint(roll_all=True)
    client.admin.trim("t", END, force_unacked=True)


def test_a_view_is_a_table_that_refresh_moves(tmp_path: Path) -> None:
    client = bench_of(tmp_path, 2).client
    put(client, ("ada", b"1"), ("bob", b"2"), (None, b"no key"), ("eve", b""))
    with client.table_view("t") as view:
        assert (view["ada"], view.get(b"bob"), view["eve"]) == (b"1", b"2", b"")
        assert "ada" in view
        assert b"nobody" not in view
        assert 7 not in view
        assert view.get("nobody", b"default") == b"default"
        with pytest.raises(KeyError):
            view["nobody"]
        put(client, ("ada", b"3"), ("bob", None), ("eve", b""), ("new", b"4"), ("new", b"5"))
        assert len(view) == 3
        lsn_before = view.lsn
        assert view.refresh() == 3  # eve still has the same value
        assert view.lsn > lsn_before
        assert dict(view.items()) == {b"ada": b"3", b"eve": b"", b"new": b"5"}
        assert sorted(view) == sorted(view.keys()) == [b"ada", b"eve", b"new"]
        assert sorted(view.values()) == [b"", b"3", b"5"]
        assert view.refresh() == 0
    with pytest.raises(AlreadyClosed):
        view.refresh()


def test_actions_get_the_changes_of_a_refresh(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    put(client, ("a", b"1"), ("b", b"2"))
    view, reports, listed = client.table_view("t"), list[Any](), list[Any]()
    view.for_each(lambda key, value: listed.append((key, value)))
    view.listen(lambda key, value: reports.append((key, value)))
    put(client, ("a", None), ("c", b"3"), ("c", b"4"), ("d", b"5"), ("d", None))
    assert view.refresh() == 2
    assert sorted(listed) == [(b"a", b"1"), (b"b", b"2")]
    assert sorted(reports, key=repr) == [(b"a", None), (b"c", b"4")]


def test_a_refresh_that_ends_in_the_middle_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    """At each place where a signal may raise, and by an action that raises."""
    client = bench_of(tmp_path).client
    put(client, ("a", b"1"), ("b", b"2"), ("c", b"3"))
    views, reports = [client.table_view("t")], list[Any]()
    put(client, ("a", None), ("b", b"4"), ("d", b"5"))
    expected = {b"b": b"4", b"c": b"3", b"d": b"5"}
    changes = {(b"a", None), (b"b", b"4"), (b"d", b"5")}
    for nth in range(1, 10_000):
        reports.clear()
        view = copied(views[0])
        view.listen(lambda key, value: reports.append((key, value)))
        with Injection(nth) as injection, suppress(Alarm):
            view.refresh()
        if injection.where is None:
            break
        view.refresh()
        assert dict(view.items()) == expected, (nth, injection.where)
        assert set(reports) == changes, (nth, injection.where)
        assert len(reports) <= len(changes) + 1, (nth, injection.where)
    assert nth > 100

    def fails_once(key: bytes, value: bytes | None) -> None:
        reports.append((key, value))
        assert len(reports) != 2

    view = copied(views[0])
    reports.clear()
    view.listen(fails_once)
    with pytest.raises(AssertionError):
        view.refresh()
    assert view.refresh() == 0
    assert len(reports) == 4
    assert set(reports) == changes


def copied(view: TableView) -> TableView:
    """A view with the same content."""
    new_view = copy(view)
    new_view._held, new_view._actions = dict(view._held), []
    return new_view


def test_an_action_may_refresh(tmp_path: Path) -> None:
    """Guards against an action that is called for its own key again from within, without end."""
    client = bench_of(tmp_path).client
    view, reports = client.table_view("t"), list[Any]()

    def act(key: bytes, value: bytes | None) -> None:
        reports.append((key, value))
        if key == b"a":
            put(client, ("b", b"3"))
            view.refresh()

    view.listen(act)
    put(client, ("a", b"1"), ("b", b"2"))
    view.refresh()
    assert reports == [(b"a", b"1"), (b"b", b"3")]


def test_wait_returns_once_a_key_has_another_value(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    view = bench.client.table_view("t")
    assert view.wait(0) == 0
    put(bench.another(), ("a", b"1"))
    assert view.wait(60_000) == 1
    assert view["a"] == b"1"


def test_a_transaction_is_visible_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client, other = bench.client, bench.another()
    view = client.table_view("t")
    for number in range(5):
        txn = begin(other)
        value = b"%d" % number
        put(other, ("x", value), partition=0, txn=txn)
        assert view.refresh() == 0
        put(other, ("y", value), partition=1, txn=txn)
        if number % 2:
            client.admin.compact_topic("t")
        assert view.refresh() == 0
        other.commit(txn)
        assert view.refresh() == 2
        assert view["x"] == view["y"] == value
        assert dict(client.table_view("t").items()) == dict(view.items())


def test_a_view_that_messages_were_trimmed_under_reads_all_again(tmp_path: Path) -> None:
    """A key that was deleted meanwhile disappears, though no message of its deletion is left."""
    client = bench_of(tmp_path).client
    put(client, ("a", b"1"), ("b", b"2"), ("c", b"3"))
    view, reports = client.table_view("t"), list[Any]()
    view.listen(lambda key, value: reports.append((key, value)))
    put(client, ("a", None), ("b", b"4"))
    client.admin.compact_topic("t")
    trim_all(client)
    put(client, ("d", b"5"))
    assert view.refresh() == 3
    assert dict(view.items()) == {b"b": b"4", b"c": b"3", b"d": b"5"}
    assert sorted(reports, key=repr) == [(b"a", None), (b"b", b"4"), (b"d", b"5")]


def test_a_key_that_moved_has_the_newest_value(tmp_path: Path) -> None:
    """Guards against merging partitions by number, and losing the null of a key that moved."""
    client = bench_of(tmp_path, 2).client
    view = client.table_view("t")
    put(client, ("k", b"old"), partition=1)
    client.admin.update_topic("t", 3)
    put(client, ("k", b"new"), partition=2)
    put(client, ("l", b"old"), partition=2)
    put(client, ("l", b"new"), partition=0)
    for compacts in (False, True):
        if compacts:
            client.admin.compact_topic("t")
            trim_all(client)
        assert dict(client.table_view("t").items()) == {b"k": b"new", b"l": b"new"}
    view.refresh()
    put(client, ("k", None), partition=2)
    put(client, ("l", None), partition=0)
    view.refresh()
    assert len(view) == 0
    for _ in range(2):
        client.admin.compact_topic("t")
        trim_all(client)
        assert len(client.table_view("t")) == 0
    assert dict(client.table_view("t/1").items()) == {b"k": b"old"}  # only this one partition


def test_what_cannot_be_read_leaves_a_view_as_it_was(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    put(client, ("a", b"1"))
    view = client.table_view("t")
    put(client, ("a", b"2"))
    client.admin.set_offline("t", 0)
    with pytest.raises(PartitionUnavailable):
        view.refresh()
    assert view["a"] == b"1"
    client.admin.set_online("t", 0)
    assert view.refresh() == 1
    client.admin.delete_topic("t")
    client.create_topic("t")
    with pytest.raises(TopicNotFound):
        view.refresh()
    with pytest.raises(TopicNotFound):
        client.table_view("missing")


@pytest.mark.parametrize("seed", graded(range(8), 1))
def test_any_history_is_what_a_dict_says(tmp_path: Path, seed: int) -> None:
    """A view that follows, and one that is opened now, both against a dict."""
    chance = random.Random(seed)
    bench = bench_of(tmp_path, 3)
    client = bench.client
    view, expected = client.table_view("t"), dict[bytes, bytes | None]()
    waiting: dict[TxnId, list[Any]] = {}
    number = 0
    for step in range(60):
        act = chance.randrange(9)
        if act <= 4:
            txn = chance.choice([None, *waiting])
            for _ in range(chance.randint(1, 5)):
                number += 1
                key = b"%d" % chance.randrange(12)
                value = chance.choice((None, b"", b"%d" % number))
                where = chance.choice((None, 0, 1))
                client.producer("t").send(value, key=key, partition=where, txn=txn)
                if txn is None:
                    expected[key] = value
                else:
                    waiting[txn].append((key, value, where))
        elif act == 5:
            waiting[begin(client, 1_000_000)] = []
        elif act == 6 and waiting:
            txn = chance.choice([*waiting])
            sent = waiting.pop(txn)
            if chance.random() < 0.3:
                client.abort(txn)
            else:
                client.commit(txn)
                commit(expected, sent)
        elif act == 7:
            client.admin.compact_topic("t")
            if chance.random() < 0.4:
                trim_all(client)
        elif act == 8:
            client.checkpoint(roll_all=chance.random() < 0.5)
        if chance.random() < 0.5:
            there = {key: value for key, value in expected.items() if value is not None}
            view.refresh()
            assert dict(view.items()) == there, f"seed {seed}, step {step}"
            if chance.random() < 0.3:
                assert dict(client.table_view("t").items()) == there, f"seed {seed}, step {step}"


def commit(expected: dict[bytes, bytes | None], sent: list[Any]) -> None:
    """Apply a transaction to the newest values: its partitions one after another."""
    rows = [
        (partition_of_key(key, 3) if where is None else where, at, key, value)
        for at, (key, value, where) in enumerate(sent)
    ]
    for _, _, key, value in sorted(rows, key=lambda event: event[:2]):
        expected[key] = value
