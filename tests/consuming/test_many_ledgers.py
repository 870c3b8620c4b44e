"""Acknowledging far before the end does not walk through the ledgers of the partition."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, ids
from tests.tiers import graded
from txlog import MessageId

pytestmark = pytest.mark.usefixtures("quick_disk")
SOURCE = str(Path(txlog.__file__).parent)
ENTRIES = 6


def bench_of(folder: Path, ledgers: int) -> Bench:
    """A topic whose only partition has this many ledgers."""
    bench = Bench(folder / f"store-{ledgers}", ledger_entries_max=ENTRIES)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s", type="shared")
    producer = bench.client.producer("t")
    for at in range(ledgers):
        producer.send_batch(pa.table({"value": [b"%d" % at] * ENTRIES}))
    return bench


def bytecodes_of(step: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    trace_before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(trace_before)
    return count


@pytest.mark.parametrize("way", ["batch", "behind", "cumulative"])
def test_the_number_of_ledgers_does_not_matter(tmp_path: Path, way: str) -> None:
    """Guards against a list of all ledgers at each acknowledgement outside of the last one."""
    took: list[int] = []
    for ledgers in (20, 200):
        client = bench_of(tmp_path, ledgers).client
        places = iter(ids(client))
        handle = client.subscription("t", "s")
        if way == "cumulative":
            client.create_subscription("t", "e")
            handle = client.subscription("t", "e")

        def step(handle: Any = handle, places: Any = places) -> None:
            first_id, two, three = (next(places) for _ in range(3))
            if way == "batch":
                handle.acknowledge([first_id, two, three])
            elif way == "behind":
                handle.acknowledge([two])
            else:
                handle.acknowledge([three], cumulative=True)

        for _ in range(4):
            step()
        took.append(min(bytecodes_of(step) for _ in range(9)))
    assert took[1] <= took[0] * 1.03


@pytest.mark.parametrize("seed", graded(range(4), 1))
def test_mark_delete_is_before_the_first_that_is_left(tmp_path: Path, seed: int) -> None:
    """Over small ledgers, with plain acknowledgements, cumulative ones and transactions."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    client = bench_of(tmp_path, 8).client
    client.create_subscription("t", "e")
    remaining_ids = ids(client)
    handle = client.subscription("t", "e")
    ledgers = sorted({remaining_id.ledger for remaining_id in remaining_ids})
    while remaining_ids:
        at = chance.choice((0, 0, 0, chance.randrange(len(remaining_ids))))
        acked_ids = remaining_ids[at : at + chance.randrange(1, 9)]
        how = chance.random()
        if how < 0.2:
            handle.acknowledge([acked_ids[-1]], cumulative=True)
            acked_ids = remaining_ids[: remaining_ids.index(acked_ids[-1]) + 1]
        elif how < 0.6:
            handle.acknowledge(acked_ids)
        else:
            with client.transaction() as txn:
                client.acknowledge("t", "e", acked_ids, txn=txn)
        remaining_ids = [
            remaining_id for remaining_id in remaining_ids if remaining_id not in acked_ids
        ]
        mark = client.store.read(lambda view: view.cursor(2, 1).mark_delete)
        after = remaining_ids[0] if remaining_ids else MessageId(ledgers[-1], ENTRIES)
        expected = (after.ledger, after.entry - 1, 0)
        assert mark == expected
        backlog = next(row for row in client.subscriptions("t") if row["subscription"] == "e")[
            "backlog"
        ]
        assert backlog == len(remaining_ids)


def test_mark_delete_goes_on_behind_a_ledger(tmp_path: Path) -> None:
    """Acknowledged in order up to the end of a ledger: one message, and a whole ledger."""
    client = bench_of(tmp_path, 3).client
    client.create_subscription("t", "e")
    handle, places = client.subscription("t", "e"), ids(client)
    ledgers = sorted({message_id.ledger for message_id in places})
    for done in (ENTRIES - 1, ENTRIES, 2 * ENTRIES):
        state_before = client.store.read(lambda view: view.cursor(2, 1).mark_delete)
        handle.acknowledge(
            [
                message_id
                for message_id in places[:done]
                if (message_id.ledger, message_id.entry) > state_before[:2]
            ]
        )
        mark = client.store.read(lambda view: view.cursor(2, 1).mark_delete)
        assert mark == (ledgers[done // ENTRIES], done % ENTRIES - 1, 0)
