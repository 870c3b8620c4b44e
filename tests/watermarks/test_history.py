"""Random histories of watermarks against a list that is folded from its start.

Three producers, overlapping transactions, small ledgers and snapshots, checkpoints, reopenings.
Then the state at every position, the tracking position and backlog of a subscription, and the
messages of a read must agree with the list. Source: spec/watermarks 2 to 7.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, ids, say, values
from tests.tiers import graded
from txlog import Client, TxnId
from txlog.engine.folds.watermark import Position
from txlog.engine.plan.reading.watermarks import WatermarkGenerator, tracking_position
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
PRODUCERS = ("A", "B", "C")
Row = tuple[
    str, object
]  # ("set", producer, time), ("idle", producer), ("data", n), ("marker", ...)


class Oracle:
    """The content of the partition, as a list of events in visible order, folded from its start."""

    def __init__(self) -> None:
        self.events: list[tuple[Position, list[tuple[str, int | None]], int]] = []
        self.open: dict[TxnId, tuple[list[tuple[str, int | None]], int]] = {}

    def state(self, position: Position) -> tuple[bool, dict[str, int]]:
        """(seen, active) at a position."""
        seen, active = False, dict[str, int]()
        for where, rows, _ in self.events:
            if where > position:
                break
            for producer, time in rows:
                seen = True
                if time is None:
                    active.pop(producer, None)
                else:
                    active[producer] = max(time, active.get(producer, time))
        return seen, active

    def net(self, rows: list[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
        """The net effect of rows of a transaction, as rows: idle first, then the time."""
        out: list[tuple[str, int | None]] = []
        for producer in dict(rows):
            own_rows = [time for name, time in rows if name == producer]
            if None in own_rows:
                out.append((producer, None))
                own_rows = own_rows[len(own_rows) - own_rows[::-1].index(None) :]
            if own_rows:
                out.append((producer, max(time for time in own_rows if time is not None)))
        return out


def end_of(client: Client) -> Position:
    def look(view: View) -> Position:
        last = view.topic(1).ledgers[-1]
        return (last.ledger, last.entries - 1)

    client.flush()
    return client.store.read(look)


def positions(client: Client) -> Iterator[Position]:
    for end in client.store.read(lambda view: list(view.topic(1).ledgers)):
        for entry in range(-1, end.entries):
            yield (end.ledger, entry)


@pytest.mark.parametrize("seed", graded(range(8), 1))
def test_states_and_positions_equal_a_full_fold(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    bench = Bench(
        tmp_path / "store",
        ledger_entries_max=chance.choice((7, 20, 1000)),
        watermark_snapshot_markers_max=chance.choice((1, 3, 50)),
    )
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s", type="shared")
    oracle = Oracle()
    sent = 0
    generator = WatermarkGenerator(1)
    for _ in range(150):
        act = chance.random()
        if act < 0.25:
            client.producer("t").send(b"%d" % sent)
            oracle.events.append((end_of(client), [], 1))
            sent += 1
        elif act < 0.45:
            time = None if chance.random() < 0.3 else chance.randrange(1, 30)
            row = (chance.choice(PRODUCERS), time)
            if chance.random() < 0.5 and oracle.open:
                txn = chance.choice(list(oracle.open))
                say(client, *row, txn=txn)
                oracle.open[txn][0].append(row)
            else:
                say(client, *row)
                oracle.events.append((end_of(client), [row], 0))
        elif act < 0.55:
            oracle.open[begin(client, 600_000)] = ([], 0)
        elif act < 0.65 and oracle.open:
            txn = chance.choice(list(oracle.open))
            client.producer("t").send(b"%d" % sent, txn=txn)
            rows, count = oracle.open[txn]
            oracle.open[txn] = (rows, count + 1)
            sent += 1
        elif act < 0.8 and oracle.open:
            txn = chance.choice(list(oracle.open))
            rows, count = oracle.open.pop(txn)
            if chance.random() < 0.6:
                client.commit(txn)
                if rows or count:
                    oracle.events.append((end_of(client), oracle.net(rows), count))
            else:
                client.abort(txn)
        elif act < 0.9:
            message_ids = ids(client)
            if message_ids:
                sample = chance.sample(message_ids, min(len(message_ids), chance.randint(1, 5)))
                client.acknowledge("t", "s", sample)
        elif act < 0.95:
            client.checkpoint(roll_all=chance.random() < 0.5)
        else:
            client = bench.reopen()
        where = chance.choice(list(positions(client)))
        check(client, generator, oracle, where)
        check_tracking(client, oracle)
    for where in positions(client):
        check(client, generator, oracle, where)
    assert len(values(client)) == sum(count for _, _, count in oracle.events)
    state = client.store.read(lambda view: view.watermark(1))
    assert state.state.seen
    assert state.figures.snapshots
    bench.close()


def check(client: Client, generator: WatermarkGenerator, oracle: Oracle, where: Position) -> None:
    seen, active = oracle.state(where)
    for txn_state in (
        generator,
        WatermarkGenerator(1),
    ):  # from a nearby position, and from the start
        client.store.read(lambda view, txn_state=txn_state: txn_state.seek(view, where))  # type: ignore[misc]
        assert {
            name: known_items.event_time for name, known_items in txn_state.state.active.items()
        } == active, where
        assert txn_state.state.seen == seen or not seen, where
        assert txn_state.get_watermark() == min(active.values(), default=None)


def check_tracking(client: Client, oracle: Oracle) -> None:
    """The greatest position up to which every message is acknowledged, and the backlog."""
    client.flush()
    acked = client.store.read(lambda view: view.cursor(1, 1))

    def is_acked(where: Position, count: int) -> bool:
        mark = acked.mark_delete
        for index in range(1, count + 1):
            position = (*where, index)
            if where > mark[:2] or (where == mark[:2] and mark[2] and index > mark[2]):
                whole = where[1] in acked.acked.entries.get(where[0], ())
                if not whole and position not in acked.acked:
                    return False
        return True

    first = next((where for where, _, count in oracle.events if not is_acked(where, count)), None)
    results = client.store.read(lambda view: tracking_position(view, 1, 1))
    end = end_of(client)
    if first is None:
        assert results == end or (results[1] == -1 and end == (results[0], -1)), (results, end)
    else:
        assert results < first
        between = [where for where, _, count in oracle.events if count and results < where < first]
        assert not between, (results, first)
        assert first[0] > results[0] or first[1] - results[1] == 1, (results, first)
    messages = sum(count for _, _, count in oracle.events)
    row = client.subscriptions("t")[0]
    assert row["backlog"] == messages - acked.acked_count
