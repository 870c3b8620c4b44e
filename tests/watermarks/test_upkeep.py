"""The state below watermarks: snapshots, markers, checkpoints, deletions, damage.

Source: spec/watermarks 4 (invariants 7, 8), 7, 12.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, read, say, send
from tests.tiers import graded
from tests.watermarks.test_examples import drain, post, times, values
from tests.watermarks.test_history import end_of, positions
from txlog import Bound, Client
from txlog.base.ids import TxnId
from txlog.engine.folds import watermark as fold
from txlog.engine.folds.watermark import Position, Snapshot, Watermark, net_effect, read_snapshot
from txlog.engine.model.ops import Effect, read_effects
from txlog.engine.model.schema import TXN_COMMIT, W_IDLE, W_SET
from txlog.engine.plan.reading.watermarks import WatermarkGenerator
from txlog.engine.view import View
from txlog.errors import Corruption

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2})]
PRODUCERS = ("A", "B", "C")


def history(client: Client, chance: random.Random, steps: int, open_: list[TxnId]) -> None:
    """Producers, plain and in transactions; the transactions in `open_` stay open."""
    for _ in range(steps):
        act = chance.random()
        txn = chance.choice(open_) if open_ and chance.random() < 0.6 else None
        if act < 0.5:
            time = None if chance.random() < 0.25 else chance.randrange(1, 30)
            say(client, chance.choice(PRODUCERS), time, txn=txn)
        elif act < 0.7:
            post(client, chance.randrange(1, 30), txn=txn, partition=chance.randrange(2))
        elif act < 0.8 or not open_:
            open_.append(begin(client, 600_000))
        else:
            (client.commit if chance.random() < 0.7 else client.abort)(
                open_.pop(chance.randrange(len(open_)))
            )


# --- invariant 8 -----------------------------------------------------------------------------


def check_markers(view: View, partition: int) -> int:
    """Each marker's watermarks are the net effect of its transaction's rows in the sidecar.

    returns: how many markers have watermarks
    """
    held_times: dict[TxnId, dict[str, tuple[bool, int | None]]] = {}
    for side in view.buffer(partition).ledgers:
        for row in view.ledger_table(side.ledger, 0, side.entries).to_pylist():
            if row["kind"] in (W_SET, W_IDLE):
                entries = held_times.setdefault(_txn(row), {})
                time = row["event_time"] and round(row["event_time"].timestamp() * 1000)
                entries[row["producer"]] = net_effect(entries.get(row["producer"]), time)
    count = 0
    for end in view.topic(partition).ledgers:
        for row in view.ledger_table(end.ledger, 0, end.entries).to_pylist():
            if row["kind"] == TXN_COMMIT:
                effects: list[Effect] = read_effects(row["value"]) if row["value"] else []
                expected = [(name, *one) for name, one in held_times.pop(_txn(row), {}).items()]
                assert sorted(effects) == sorted(expected), row
                count += bool(effects)
    state = view.watermark(partition)
    for txn, entries in state.pending.items():
        assert held_times.pop(TxnId(*txn)) == entries
    return count


def _txn(row: dict[str, int]) -> TxnId:
    return TxnId.from_halves(row["txn_most"], row["txn_least"])


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_marker_and_sidecar_agree(tmp_path: Path, seed: int) -> None:
    """Invariant 8, in any order of rows and ends, over checkpoints and restarts."""
    print("seed", seed)
    chance = random.Random(seed)
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t", 2)
    open_: list[TxnId] = []
    found_number = 0
    for _ in range(4):
        history(bench.client, chance, 40, open_)
        found_number = sum(
            bench.client.store.read(lambda view, n=number: check_markers(view, n))  # type: ignore[misc]
            for number in (1, 2)
        )
        if chance.random() < 0.5:
            bench.client.checkpoint()
        bench.reopen()
    assert found_number
    bench.close()


def test_a_marker_that_contradicts_the_sidecar_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of invariant 8 detects an error."""
    txn = begin(bench.client)
    say(bench.client, "A", 10, txn=txn)
    bench.client.commit(txn)
    store = bench.client.store
    assert store.read(lambda view: check_markers(view, 1)) == 1
    for lie in ([("A", False, 11)], [], [("A", True, 10)]):
        monkeypatch.setattr("tests.watermarks.test_upkeep.read_effects", lambda _, lie=lie: lie)
        with pytest.raises(AssertionError):
            store.read(lambda view: check_markers(view, 1))


# --- snapshots -------------------------------------------------------------------------------


def states(client: Client) -> dict[Position, dict[str, int]]:
    """The active producers at every position, each from its own generator."""
    out: dict[Position, dict[str, int]] = {}
    for where in positions(client):
        generator = WatermarkGenerator(1)
        client.store.read(lambda view, g=generator, w=where: g.seek(view, w))  # type: ignore[misc]
        out[where] = {
            name: producer_state.event_time
            for name, producer_state in generator.state.active.items()
        }
    return out


def spoil(way: str, chance: random.Random, payload: bytes) -> bytes:
    """A payload that this program cannot read."""
    if way == "version":
        snapshot = read_snapshot(payload)
        assert snapshot is not None
        return fold.encode_snapshot(Snapshot(2, snapshot.as_of, snapshot.state, snapshot.pending))
    if way == "cut":
        return payload[: chance.randrange(len(payload))]
    return b"\xc1" + payload[1:]


@pytest.mark.parametrize("way", graded(["version", "cut", "bytes"], 1))
@pytest.mark.parametrize("share", graded([1.0, 0.5], 1))
def test_of_a_snapshot_that_cannot_be_read_the_one_before_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, share: float
) -> None:
    """7, 12: the value is the same, also when no snapshot can be read."""
    rows: list[dict[Position, dict[str, int]]] = []
    true_payload = Watermark.payload
    spoiled = 0

    def payload(state: Watermark, as_of: Position) -> bytes:
        nonlocal spoiled
        whole = true_payload(state, as_of)
        if luck.random() >= share:
            return whole
        spoiled += 1
        return spoil(way, luck, whole)

    for name in ("good", "bad"):
        luck = random.Random(f"{way} {share}")
        if name == "bad":
            monkeypatch.setattr(Watermark, "payload", payload)
        bench = Bench(tmp_path / name, ledger_entries_max=25, watermark_snapshot_markers_max=3)
        bench.client.create_topic("t", 2)
        history(bench.client, random.Random(7), 150, [])
        rows.append(states(bench.client))
        bench.client.checkpoint(roll_all=True)
        bench.reopen()
        states_again = states(bench.client)
        assert {where: states_again[where] for where in rows[-1]} == rows[-1]
        bench.close()
    assert spoiled > 2
    # a spoiled snapshot may have another size, so the next one may come at another row
    assert dedupe(rows[0]) == dedupe(rows[1])


def dedupe(states: dict[Position, dict[str, int]]) -> list[dict[str, int]]:
    """The states in order, without repetitions."""
    out: list[dict[str, int]] = []
    for state in states.values():
        if not out or out[-1] != state:
            out.append(state)
    return out


@pytest.mark.parametrize(("spoiled", "rows"), [((), 1 + 7), ((3,), 2 + 17), ((2, 3), 3 + 27)])
def test_no_more_is_read_than_behind_the_last_good_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, spoiled: tuple[int, ...], rows: int
) -> None:
    """7. Guards against a fold from the very beginning, which would cost the whole history."""
    true_payload, written = Watermark.payload, 0

    def payload(state: Watermark, as_of: Position) -> bytes:
        nonlocal written
        written += as_of[0] == 1  # the first partition
        return b"" if written in spoiled else true_payload(state, as_of)

    monkeypatch.setattr(Watermark, "payload", payload)
    for time in range(1, 40):
        say(bench.client, "A", time)
        if time % 10 == 0:
            bench.client.topic("t").watermarks.snapshot()
    last = bench.client.store.read(lambda view: view.topic(1).ledgers[-1])
    generator = WatermarkGenerator(1)
    bench.client.store.read(lambda view: generator.seek(view, (last.ledger, last.entries - 3)))
    assert (generator.get_watermark(), generator.rows_folded) == (37, rows)


# --- checkpoints, restarts, deletions --------------------------------------------------------


def test_a_restart_keeps_everything(bench: Bench) -> None:
    """4: active, pending, delivered and counted values, from dump and frames alike."""
    client = bench.client
    say(client, "A", 20)
    say(client, "A", 10)
    say(client, "B", 30)
    txn = begin(client)
    say(client, "A", None, txn=txn)
    say(client, "C", 40, txn=txn)
    with client.consumer("t", "s", create=True, enable_watermarking=True) as consumer:
        assert values(consumer) == [20]

    def dumps(client: Client) -> list[bytes]:
        client.flush()
        return client.store.read(
            lambda view: [fold.FOLD.dump(view.watermark(number)) for number in (1, 2)]
        )

    encoded_before = dumps(client)
    assert dumps(bench.reopen()) == encoded_before
    bench.client.checkpoint()
    assert dumps(bench.reopen()) == encoded_before
    bench.client.checkpoint(roll_all=True)
    state_after = bench.reopen().store.read(lambda view: view.watermark(1))
    assert state_after.pending == {
        (txn.coordinator, txn.sequence): {"A": (True, None), "C": (False, 40)}
    }
    assert (state_after.clamps[1].event_time, state_after.clamps[1].emitted) == (20, 1)
    assert state_after.figures.regressions == 1
    bench.client.commit(txn)
    with bench.client.consumer("t", "s", enable_watermarking=True) as consumer:
        assert values(consumer) == [30]


def test_the_clamps_of_a_deleted_subscription_go(bench: Bench) -> None:
    """No partition keeps them; clamps of other subscriptions stay, and a new one starts anew."""
    client = bench.client
    say(client, "A", 20)
    for name in ("s", "other"):
        with client.consumer("t", name, create=True, enable_watermarking=True) as consumer:
            assert values(consumer) == [20]
    client.create_subscription("t", "unused")
    client.subscription("t", "unused").delete()
    client.subscription("t", "s").delete()

    def clamps(client: Client) -> list[list[int]]:
        return client.store.read(lambda view: [sorted(view.watermark(n).clamps) for n in (1, 2)])

    assert clamps(client) == [[2]] * 2
    client.checkpoint()
    assert clamps(bench.reopen()) == [[2]] * 2
    say(bench.client, "A", None)
    say(bench.client, "A", 5)
    bench.client.create_subscription("t", "s")
    with bench.client.consumer("t", "s", enable_watermarking=True) as consumer:
        assert values(consumer) == [5]
    bench.client.admin.delete_topic("t", force=True)
    bench.reopen().checkpoint()
    assert not bench.client.store.read(lambda view: view.exists(("watermark", 1, 0)))


def test_a_topic_without_watermarks_has_no_state(bench: Bench) -> None:
    """13: no dump, after any change of its subscriptions and ledgers."""
    client = bench.client
    send(client, b"x")
    client.create_subscription("t", "s")
    client.acknowledge(
        "t", "s", [message.message_id for message in read(client) if message.message_id]
    )
    client.subscription("t", "s").delete()
    client.checkpoint(roll_all=True)
    assert client.admin.trim("t", Bound("end"))["messages"] == 1
    client.checkpoint()
    kinds = bench.client.store.read(lambda view: {key[0] for key in view.dumped()})
    assert "watermark" not in kinds


# --- damage ----------------------------------------------------------------------------------


def spoil_file(bench: Bench, partition: int) -> None:
    """Damage the sealed file of a partition's first ledger outside of its footer."""
    folder = Path(bench.path) / f"topics/public/default/t/partition={partition}"
    [file] = sorted(folder.glob("ledger-*.parquet"))[:1]
    data = bytearray(file.read_bytes())
    for at in range(8, min(len(data) - 8, 200)):
        data[at] ^= 0x55
    file.chmod(0o600)
    file.write_bytes(bytes(data))


def test_rows_that_are_damaged_hold_their_partition_alone(bench: Bench) -> None:
    """12: the value stays, with the status unavailable; other partitions go on."""
    client = bench.client
    consumers = {
        name: client.consumer("t", name, create=True, enable_watermarking=True, type="shared")
        for name in ("both", "one")
    }
    for time in (10, 20, 30):
        say(client, "A", time)
        post(client, time + 1)
    held_values = {}
    for name, consumer in consumers.items():
        found_values, got = drain(consumer)
        assert (found_values, times(got)) == ([10], [11, 21, 31])
        held_values[name] = got
        consumer.close()
    client.checkpoint(roll_all=True)
    client = bench.reopen()
    client.acknowledge("t", "both", [m.message_id for m in held_values["both"][:1] if m.message_id])
    third = bench.another().consumer("t", "third", create=True, enable_watermarking=True)
    assert drain(third)[0] == [10]
    spoil_file(bench, 0)
    watermark = client.topic("t").watermarks.show("both")
    assert (watermark["status"], watermark["watermark"], watermark["emitted"]) == (
        "unavailable",
        None,
        10,
    )
    assert [partition["status"] for partition in watermark["partition_list"]] == [
        "unavailable",
        "active",
    ]
    assert watermark["partition_list"][1]["watermark"] == 30
    generator = WatermarkGenerator(1)
    location = client.store.read(lambda view: (view.topic(1).ledgers[0].ledger, 3))
    with pytest.raises(Corruption):
        client.store.read(lambda view: generator.seek(view, location))
    end = end_of(client)
    client.store.read(lambda view: generator.seek(view, end))  # the end needs no read
    assert generator.get_watermark() == 30
    with client.consumer("t", "one", enable_watermarking=True, partitions=[1]) as consumer:
        assert values(consumer) == [30]
    with client.consumer("t", "both", enable_watermarking=True) as consumer:
        with pytest.raises(Corruption):  # its messages are in the same file
            consumer.receive()
        assert values(consumer) == []
        assert (consumer.get_last_watermark(), consumer.watermark_status) == (None, "unavailable")
    post(client, 41, partition=1)
    found_values, got = drain(third)
    assert (found_values, times(got)) == ([], [41])
    third.acknowledge(got)
    assert values(third) == []
    assert (third.get_last_watermark(), third.watermark_status) == ((10, 1), "unavailable")
    third.close()


def test_a_damaged_dump_fails_only_calls_that_use_it(bench: Bench) -> None:
    """A sweep for silent producers skips it; a call that needs it gets an error."""
    client = bench.client
    client.admin.set_watermark_policies(producer_idle_timeout_ms=1000)
    client.create_topic("other")
    say(client, "A", 10)
    client.checkpoint()
    ref = client.store.read(lambda view: view.dumped()[("watermark", 1, 0)])
    file = Path(bench.path) / ref.path
    data = bytearray(file.read_bytes())
    data[ref.offset] ^= 0x55
    bench.close()
    file.chmod(0o600)
    file.write_bytes(bytes(data))
    bench.clock.advance(2000)
    client = bench.client = bench.another()
    send(client, b"x", topic="other")
    assert client.store.read(lambda view: view.watermark(2)).state.status == "idle"
    with pytest.raises(Corruption):
        client.topic("t").watermarks.show()
