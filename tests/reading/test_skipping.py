"""The messages that a plan skips, against a walk over a list of ids; spec/delayed 7, step 6."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest
from pyroaring import BitMap64

from txlog.engine.folds.buffer import Marker
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.idset import Id, IdSet, before, covers
from txlog.engine.model.ops import Mark
from txlog.engine.plan.reading.dispatch import Plan, plan
from txlog.engine.plan.reading.skip_sets import Skip, Without
from txlog.engine.view.view import View

BEGIN: Mark = (0, -1, 0)


def view_of(ledgers: dict[int, dict[int, int]], sizes: dict[int, int]) -> View:
    """A view: for each ledger the message count of each marker by entry, and the number of
    entries.
    """
    ends = [LedgerEnd(ledger, size, size * 10, size) for ledger, size in sizes.items()]
    markers = {
        ledger: [
            Marker(entry, 1, entry, count, 0, 1, ((99, entry * 100, count, 1),))
            for entry, count in sorted(known.items())
        ]
        for ledger, known in ledgers.items()
    }
    topic, buffer = SimpleNamespace(ledgers=ends), SimpleNamespace(markers=markers, chunked={})
    watermark = SimpleNamespace(silent={})
    return cast(
        View,
        SimpleNamespace(
            topic=lambda _: topic, buffer=lambda _: buffer, watermark=lambda _: watermark
        ),
    )


def ids_of(ledgers: dict[int, dict[int, int]], sizes: dict[int, int]) -> list[Id]:
    """Every message, in order of position."""
    out: list[Id] = []
    for ledger, size in sizes.items():
        for entry in range(size):
            count = ledgers[ledger].get(entry)
            if count is None:
                out.append((ledger, entry, 0))
            else:
                out += [(ledger, entry, index + 1) for index in range(count)]
    return out


def planned(found: Plan) -> list[Id]:
    """The messages of a plan."""
    return [
        (one.ledger, one.entry, one.index + step)
        if one.marker
        else (one.ledger, one.entry + step, 0)
        for one in found.pieces
        for step in range(one.rows)
    ]


def some(chance: random.Random, ids: list[Id], ledgers: dict[int, dict[int, int]]) -> IdSet:
    """A random set of ids, with markers as a whole or message by message."""
    made = IdSet()
    share = chance.choice((0.0, 0.2, 0.5, 0.9, 1.0))
    for ledger, entry, index in ids:
        if chance.random() < share:
            whole = index and chance.random() < 0.4
            made.add((ledger, entry, entry, *((0, 0) if whole else (index, index))))
    return made


def is_in(one: Id, skip: Skip) -> bool:
    """True for a message that the sets skip."""
    return any(
        one in part if isinstance(part, IdSet) else one in part.ids and one not in part.but
        for part in skip
    )


@pytest.mark.parametrize("seed", range(150))
def test_a_plan_is_the_walk_over_all_ids(seed: int) -> None:
    """The same messages and end as a walk, for every set of skipped ids and every end."""
    print("seed", seed)
    chance = random.Random(seed)
    sizes = {3: chance.randrange(12), 4: chance.randrange(12), 8: chance.randrange(12)}
    share = chance.choice((0.0, 0.3, 1.0))
    ledgers = {
        ledger: {
            entry: chance.choice((1, 1, 2, 5)) for entry in range(size) if chance.random() < share
        }
        for ledger, size in sizes.items()
    }
    view, ids = view_of(ledgers, sizes), ids_of(ledgers, sizes)
    for _ in range(20):
        a, b, c = (some(chance, ids, ledgers) for _ in range(3))
        skip: Skip = chance.choice(
            ((), (a,), (a, b), (a, Without(b, c)), (Without(b, c), a, IdSet()))
        )
        after = chance.choice([BEGIN, *map(before, ids), *[(i[0], i[1], 0) for i in ids]])
        stop = chance.choice([None, None, *ids])
        limit = chance.choice((1, 2, 3, 1000))
        wanted = [
            one
            for one in ids
            if not covers(after, one) and (stop is None or one < stop) and not is_in(one, skip)
        ]
        found = plan(view, 1, after, limit, skip, stop)
        assert planned(found) == wanted[:limit]
        assert found.messages == len(wanted[:limit])
        left = [one for one in wanted if not covers(found.after, one)]
        # the plan passes all returned messages, and no other wanted one
        assert left == wanted[limit:]
        assert stop is None or not covers(found.after, stop) or covers(after, stop)


def test_a_million_left_out_are_not_walked() -> None:
    """Plain messages and whole markers: the steps follow the pieces that remain, not the
    messages.
    """
    rows = 1_000_000
    for markers in ({}, dict.fromkeys(range(rows), 1)):
        view = view_of({5: markers}, {5: rows})
        gone = IdSet()
        gone.entries[5] = BitMap64(range(rows)) - BitMap64([7, 500_000, rows - 1])
        looks = 0
        for _ in range(1000):  # a walk for each would take minutes
            found = plan(view, 1, BEGIN, 2, (gone,))
            looks += found.messages
            assert [one.entry for one in found.pieces] == [7, 500_000]
            assert plan(view, 1, found.after, 2, (gone,)).after == (5, rows - 1, 0)
        assert looks == 2000
