"""Without delayed messages, the short path finds the same next messages as a whole scan."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from tests.tiers import graded
from txlog.engine.plan.consuming import choice
from txlog.engine.plan.delayed.due import DueScan, all_due, due_for_any
from txlog.engine.plan.standing import ReadPosition
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_the_short_path_equals_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Shared consumers of two processes, with acknowledgements, returns and aborts.

    Later, delayed messages become due; the clock is set back now and then.
    """
    print(f"seed {seed}")
    chance = random.Random(seed)
    bench = Bench(tmp_path / "store", ledger_entries_max=50)
    bench.client.create_topic("t", 2)
    bench.client.create_subscription("t", "s", type="shared")
    clients = [bench.client, bench.another()]
    consumers = [client.consumer("t", "s") for client in (*clients, clients[0])]
    counts: Counter[bool] = Counter()

    def compared(
        view: View, number: int, cursor: Any, location: ReadPosition | None, now: Any, cutoff: int,
        limit: int, most: int,
    ) -> Any:  # fmt: skip
        short = all_due(view, number, cursor, location, now, cutoff, limit, most)
        scan = DueScan(view, number, cursor, location, now, cutoff, strays_max=100, make_do=False)
        if short is not None:
            assert short == due_for_any(view, number, scan, limit, most)
            assert not scan.is_rewound
            key = (cutoff, 1, 0, 0)
            for other in ({"losses": 9}, {"honours": False}, {"strays": (key,)}, {"members": (1,)}):
                changed = msgspec.structs.replace(
                    location or ReadPosition(0, cursor.mark_delete), **other
                )
                assert all_due(view, number, cursor, changed, now, cutoff, limit, most) is None
        counts[short is not None] += 1
        return short

    monkeypatch.setattr(choice, "all_due", compared)
    producer = bench.client.producer("t")
    for step in range(300):
        draw = chance.random()
        if draw < 0.3:
            table = pa.table(
                {"value": [b"%d.%d" % (step, n) for n in range(chance.randrange(1, 9))]}
            )
            if chance.random() < 0.4:
                with bench.client.transaction() as txn:
                    producer.send_batch(table, txn=txn)
            else:
                producer.send_batch(table)
        elif draw < 0.4 and step > 100:
            wall_ms = bench.clock.now().wall_ms
            producer.send(b"later", deliver_at=wall_ms + chance.randrange(3_000))
        elif draw < 0.5:
            bench.clock.advance(chance.choice((1, 400, 2_000)))
        elif draw < 0.52:
            bench.clock.set_wall(bench.clock.now().wall_ms - chance.randrange(5_000))
        else:
            consumer = chance.choice(consumers)
            table = consumer.receive_batch(chance.randrange(1, 12))
            if not table.num_rows:
                continue
            turn = chance.random()
            if turn < 0.2:
                consumer.negative_acknowledge(table, delay_ms=chance.choice((0, 700)))
            elif turn < 0.5:
                consumer.acknowledge(table.slice(chance.randrange(table.num_rows)))
            elif turn < 0.9:
                consumer.acknowledge(table)
    assert counts[True] > 50
    assert counts[False] > 10
    bench.close()
