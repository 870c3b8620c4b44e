"""Clocks: the manual clock moves only on request, the system's reads wall and boot time, and a jump
of the wall clock destroys nothing (spec/reliability R32).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, say, send, send_txn, values
from txlog.client.answers.metrics import families
from txlog.clock import Clock, Instant, ManualClock, SystemClock
from txlog.engine.model.ops import ClockNoted, Op, encode_ops
from txlog.engine.plan import clock_trust
from txlog.engine.store import identity

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_manual_clock_moves_only_on_request() -> None:
    clock = ManualClock(1_000)
    assert clock.now() == clock.now() == Instant(1_000, "boot", 0)
    clock.advance(5)
    assert clock.now() == Instant(1_005, "boot", 5)
    clock.set_wall(10)
    assert clock.now() == Instant(10, "boot", 5)
    clock.reboot("second", 20)
    assert clock.now() == Instant(20, "second", 0)
    with pytest.raises(AssertionError):
        clock.advance(-1)


def test_system_clock_keeps_one_boot_and_never_runs_backwards() -> None:
    clock: Clock = SystemClock()
    first, second = clock.now(), clock.now()
    assert first.boot_id == second.boot_id == SystemClock().now().boot_id
    assert second.boot_ms >= first.boot_ms
    assert first.wall_ms > 1_700_000_000_000


# --- a clock that jumps ----------------------------------------------------------------------

DAY_MS = 86_400_000
YEARS_MS = 3650 * DAY_MS


def jumping(folder: Path, **settings: int) -> Bench:
    """A topic with ten messages, five acknowledged, in closed and in sealed ledgers."""
    bench = Bench(folder / "store", ledger_entries_max=3, coordinators=1, **settings)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    sent = send(bench.client, *(b"%d" % number for number in range(10)))
    bench.client.acknowledge("t", "s", sent[:5])
    bench.client.checkpoint(roll_all=True)
    return bench


def use(bench: Bench) -> None:
    """Use the store: a poll, a commit, a send, a checkpoint, a collection of garbage."""
    client = bench.client
    with client.consumer("t", "s") as consumer:
        consumer.receive_batch(1)
    send_txn(client, b"new")
    client.producer("t", "named").send(b"new", sequence_id=5)
    client.expire()
    client.subscription("t", "s").expire()
    client.admin.trim("t", by_policy=True)
    client.checkpoint(roll_all=True)
    client.admin.gc(apply=True)


def clock_problems(bench: Bench) -> list[str]:
    """The problems of the clock that status reports; check and the metrics must agree."""
    messages = [p["message"] for p in bench.client.status()["problem_list"] if p["code"] == "clock"]
    rows = [row for row in bench.client.admin.check()["check_list"] if row["name"] == "clock"]
    assert [(row["detail"], row["status"]) for row in rows] == [
        (message, "warning") for message in messages
    ]
    store = bench.client.store
    metrics = store.read(lambda view: families(view, store))
    [jump] = [family for family in metrics if family.name == "txlog_clock_jump_seconds"]
    assert (jump.samples[0][2] > 0) is bool(messages)
    return messages


KEPT = {"ttl_ms": DAY_MS, "retention_ms": DAY_MS, "txn_ended_retention_ms": 2 * DAY_MS,
        "dedup_idle_ms": 2 * DAY_MS, "reader_grace_ms": DAY_MS}  # fmt: skip


def test_a_clock_set_forward_destroys_nothing(tmp_path: Path) -> None:
    """Kills: a clock ten years ahead and one poll, which deleted a backlog and all messages."""
    bench = jumping(tmp_path, **KEPT)
    client = bench.client
    send_txn(client, b"before")
    client.producer("t", "named").send(b"before", sequence_id=5)
    files = set(Path(bench.path).rglob("*.parquet"))
    assert clock_problems(bench) == []
    bench.clock.set_wall(START_MS + YEARS_MS)
    use(bench)
    [problem] = clock_problems(bench)
    assert "it was set" in problem
    assert values(client) == [b"%d" % n for n in range(10)] + [b"before", b"before", b"new"]
    assert client.subscriptions()[0]["backlog"] == 5 + 3
    assert len(client.transactions(all=True)) == 2
    assert files <= set(Path(bench.path).rglob("*.parquet"))
    bench.clock.set_wall(START_MS)
    use(bench)
    assert clock_problems(bench) == []
    assert client.subscriptions()[0]["backlog"] == 5 + 4


def test_command_accepts_a_clock_set_forward(tmp_path: Path) -> None:
    bench = jumping(tmp_path, **KEPT)
    bench.clock.set_wall(START_MS + YEARS_MS)
    use(bench)
    answer = bench.client.admin.accept_clock()
    assert answer == {"ahead_ms": YEARS_MS, "was_believed": False}
    assert clock_problems(bench) == []
    use(bench)
    assert b"9" not in values(bench.client)
    assert bench.client.admin.accept_clock() == {"ahead_ms": 0, "was_believed": True}


def test_lifted_or_wide_bound_accepts_the_clock(tmp_path: Path) -> None:
    bench = jumping(tmp_path, **KEPT)
    bench.clock.set_wall(START_MS + 2 * DAY_MS)
    assert len(clock_problems(bench)) == 1
    bench.client.admin.set_setting("clock_jump_max_ms", 3 * DAY_MS)
    assert clock_problems(bench) == []
    bench.clock.set_wall(START_MS + YEARS_MS)
    assert len(clock_problems(bench)) == 1
    bench.client.admin.set_setting("clock_jump_max_ms", -1)
    assert clock_problems(bench) == []


def test_messages_old_by_the_boot_clock_expire(tmp_path: Path) -> None:
    """A wall clock that stays wrong does not keep messages for ever."""
    bench = jumping(tmp_path, **KEPT)
    bench.clock.set_wall(START_MS + YEARS_MS)
    bench.clock.advance(DAY_MS - 1)
    assert bench.client.subscription("t", "s").expire()["skipped"] == 0
    bench.clock.advance(2)
    assert bench.client.subscription("t", "s").expire()["skipped"] == 5
    assert len(clock_problems(bench)) == 1


def test_a_machine_that_was_suspended_or_idle_needs_no_command(tmp_path: Path) -> None:
    bench = jumping(tmp_path, **KEPT)
    bench.clock.advance(365 * DAY_MS)
    assert clock_problems(bench) == []
    assert bench.client.subscription("t", "s").expire()["skipped"] == 5


def test_a_machine_that_was_off_waits_an_hour_and_needs_no_command(tmp_path: Path) -> None:
    """The store cannot know how long the machine was off, so it waits an hour.

    In that time the network sets a clock that was wrong at boot.
    """
    bench = jumping(tmp_path, **KEPT)
    bench.clock.reboot("second", START_MS + 30 * DAY_MS)
    bench.reopen()
    use(bench)
    [problem] = clock_problems(bench)
    assert "since the reboot" in problem
    assert b"9" in values(bench.client)
    bench.clock.advance(3_600_000 - 1)
    assert bench.another().subscription("t", "s").expire()["skipped"] == 0
    bench.clock.advance(1)
    assert clock_problems(bench) == []
    assert bench.client.subscription("t", "s").expire()["skipped"] == 5
    use(bench)
    assert b"9" not in values(bench.client)


def test_short_power_off_needs_no_wait(tmp_path: Path) -> None:
    bench = jumping(tmp_path, ttl_ms=1000)
    bench.clock.reboot("second", START_MS + DAY_MS)
    bench.reopen()
    assert clock_problems(bench) == []
    assert bench.client.subscription("t", "s").expire()["skipped"] == 5


def test_a_clock_that_is_wrong_at_boot_and_then_set_right_destroys_nothing(tmp_path: Path) -> None:
    bench = jumping(tmp_path, **KEPT)
    bench.clock.reboot("second", START_MS + YEARS_MS)
    bench.reopen()
    use(bench)
    bench.clock.advance(3_000_000)
    bench.clock.set_wall(START_MS + 3_600_000)  # the network sets the clock
    use(bench)
    assert clock_problems(bench) == []
    bench.clock.advance(3_600_000)
    use(bench)
    assert b"9" in values(bench.client)


def test_a_clock_set_again_in_its_hour_waits_anew(tmp_path: Path) -> None:
    bench = jumping(tmp_path, **KEPT)
    bench.clock.reboot("second", START_MS + 30 * DAY_MS)
    bench.reopen()
    use(bench)
    bench.clock.advance(3_599_000)
    bench.clock.set_wall(START_MS + 60 * DAY_MS)
    use(bench)
    bench.clock.advance(3_599_000)
    assert bench.client.subscription("t", "s").expire()["skipped"] == 0
    bench.clock.advance(1_000)
    assert bench.client.subscription("t", "s").expire()["skipped"] > 0


def test_a_machine_without_a_clock_begins_in_1970_and_loses_nothing(tmp_path: Path) -> None:
    """The stored mark does not go back to 1970, so the network's correction counts as no jump."""
    bench = jumping(tmp_path, **KEPT)
    bench.clock.reboot("second", 5_000)
    bench.reopen()
    use(bench)
    assert clock_problems(bench) == []
    bench.clock.advance(60_000)
    bench.clock.set_wall(START_MS + 60_000)
    use(bench)
    assert clock_problems(bench) == []
    assert b"9" in values(bench.client)


@pytest.mark.parametrize("is_new_boot", [False, True])
def test_a_clock_set_back_forgets_no_producer(tmp_path: Path, is_new_boot: bool) -> None:
    """What the slow clock stamped looks two months old when the clock is right again."""
    bench = Bench(tmp_path / "store", dedup_idle_ms=2 * DAY_MS, dedup_producers_max=3)
    bench.client.create_topic("t")
    bench.client.producer("t", "longest-idle").send(b"x", sequence_id=5)
    bench.clock.advance(DAY_MS)

    def set_wall(wall_ms: int) -> None:
        if is_new_boot:
            bench.clock.reboot(f"boot at {wall_ms}", wall_ms)
            bench.reopen()
        else:
            bench.clock.set_wall(wall_ms)

    def is_duplicate(name: str) -> bool:
        return bench.client.producer("t", name).send(b"x", sequence_id=5).duplicate

    set_wall(START_MS - 60 * DAY_MS)
    assert not is_duplicate("named")
    bench.clock.advance(1_000)
    assert not is_duplicate("other")
    set_wall(START_MS + DAY_MS + 10_000)
    assert not is_duplicate("newest")  # the name idle for longest makes room for it
    assert is_duplicate("named") and is_duplicate("other")
    bench.clock.advance(2 * DAY_MS + 3_700_000)
    assert not is_duplicate("named")  # idle for longer than two days


def test_delayed_messages_do_not_come_early_by_a_clock_set_forward(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", ledger_step_per_bucket=1, min_index_count_per_bucket=1)
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s", type="shared")
    client.producer("t").send(b"late", deliver_after=5 * DAY_MS)
    client.checkpoint(roll_all=True)
    bench.clock.set_wall(START_MS + YEARS_MS)
    with client.consumer("t", "s") as consumer:
        assert consumer.receive_batch(9).num_rows == 0
        client.checkpoint(roll_all=True)
        assert client.topics()[0]["delayed"] == 1
        bench.clock.advance(5 * DAY_MS - 1)
        assert consumer.receive_batch(9).num_rows == 0
        bench.clock.advance(1)
        assert consumer.receive_batch(9).num_rows == 1


def test_a_silent_producer_is_not_idle_by_a_clock_set_forward(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", watermark_producer_idle_timeout_ms=DAY_MS)
    bench.client.create_topic("t")
    say(bench.client, "till", 5_000)
    bench.clock.set_wall(START_MS + YEARS_MS)
    bench.client.expire()
    assert bench.client.topic("t").watermarks.show()["status"] == "active"
    bench.clock.advance(DAY_MS)
    bench.client.expire()
    assert bench.client.topic("t").watermarks.show()["status"] == "idle"


def test_store_of_an_older_version_waits_as_after_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a store has no mark: the newest old frame's time replaces it, later frames do not."""

    def without(ops: list[Op]) -> bytes:
        return encode_ops([op for op in ops if not isinstance(op, ClockNoted)])

    with monkeypatch.context() as older:
        older.setattr(clock_trust, "note", lambda *arguments: None)
        older.setattr(identity, "encode_ops", without)
        bench = jumping(tmp_path, **KEPT)
        bench.close()
    bench.clock.set_wall(START_MS + YEARS_MS)
    bench.client = bench.another()
    use(bench)
    use(bench)
    assert b"9" in values(bench.client)
    assert len(clock_problems(bench)) == 1
    bench.clock.advance(3_600_000)
    assert bench.client.subscription("t", "s").expire()["skipped"] > 0


def test_remaining_time_follows_the_clock_of_the_timeout(tmp_path: Path) -> None:
    """Kills: `expires_in` by the wall clock: -10 years for a transaction that is still open."""
    bench = Bench(tmp_path / "store")
    txn = begin(bench.client, 60_000)
    bench.clock.set_wall(START_MS + YEARS_MS)
    bench.clock.advance(10_000)
    [row] = bench.client.transactions()
    assert (row["expires_in_ms"], row["overdue"]) == (50_000, False)
    bench.clock.advance(50_001)
    assert bench.client.show_transaction(txn)["state"] == "aborted"
