"""The messages that a plan skips, against a walk over a list of ids; spec/delayed 7, step 6."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest
from pyroaring import BitMap64

from tests.tiers import graded
from txlog.engine.folds.buffer import Marker
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.idset import Id, IdSet, before, covers
from txlog.engine.model.ops import Mark
from txlog.engine.plan.reading.dispatch import IdsExcept, Plan, Skip, plan
from txlog.engine.view import View

BEGIN: Mark = (0, -1, 0)


def view_of(ledgers: dict[int, dict[int, int]], sizes: dict[int, int]) -> View:
    """A view: for each ledger the message count of each marker by entry, and the number of
    entries.
    """
    ends = [LedgerEnd(ledger, size, size * 10, size) for ledger, size in sizes.items()]
    markers = {
        ledger: [
            Marker(entry, 1, entry, count, 0, 1, ((99, entry * 100, count, 1),))
            for entry, count in sorted(known_items.items())
        ]
        for ledger, known_items in ledgers.items()
    }
    topic, buffer = SimpleNamespace(ledgers=ends), SimpleNamespace(markers=markers, chunked={})
    watermark = SimpleNamespace(silent={})
    return cast(
        "View",
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


def planned(plan: Plan) -> list[Id]:
    """The messages of a plan."""
    return [
        (piece.ledger, piece.entry, piece.index + step)
        if piece.marker
        else (piece.ledger, piece.entry + step, 0)
        for piece in plan.pieces
        for step in range(piece.rows)
    ]


def some(chance: random.Random, ids: list[Id], ledgers: dict[int, dict[int, int]]) -> IdSet:
    """A random set of ids, with markers as a whole or message by message."""
    id_set = IdSet()
    share = chance.choice((0.0, 0.2, 0.5, 0.9, 1.0))
    for ledger, entry, index in ids:
        if chance.random() < share:
            whole = index and chance.random() < 0.4
            id_set.add((ledger, entry, entry, *((0, 0) if whole else (index, index))))
    return id_set


def is_in(message_id: Id, skip: Skip) -> bool:
    """True for a message that the sets skip."""
    return any(
        message_id in part
        if isinstance(part, IdSet)
        else message_id in part.ids and message_id not in part.but
        for part in skip
    )


@pytest.mark.parametrize("seed", graded(range(150), 15))
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
            ((), (a,), (a, b), (a, IdsExcept(b, c)), (IdsExcept(b, c), a, IdSet()))
        )
        choice_after = chance.choice([BEGIN, *map(before, ids), *[(i[0], i[1], 0) for i in ids]])
        stop = chance.choice([None, None, *ids])
        limit = chance.choice((1, 2, 3, 1000))
        expected = [
            each_id
            for each_id in ids
            if not covers(choice_after, each_id)
            and (stop is None or each_id < stop)
            and not is_in(each_id, skip)
        ]
        result = plan(view, 1, choice_after, limit, skip, stop)
        assert planned(result) == expected[:limit]
        assert result.messages == len(expected[:limit])
        remaining_ids = [each_id for each_id in expected if not covers(result.after, each_id)]
        # the plan passes all returned messages, and no other wanted one
        assert remaining_ids == expected[limit:]
        assert stop is None or not covers(result.after, stop) or covers(choice_after, stop)


def test_a_million_left_out_are_not_walked() -> None:
    """Plain messages and whole markers: the steps follow the pieces that remain, not the
    messages.
    """
    rows = 1_000_000
    for markers in ({}, dict.fromkeys(range(rows), 1)):
        view = view_of({5: markers}, {5: rows})
        id_set = IdSet()
        id_set.entries[5] = BitMap64(range(rows)) - BitMap64([7, 500_000, rows - 1])
        looks = 0
        for _ in range(1000):  # a walk for each would take minutes
            result = plan(view, 1, BEGIN, 2, (id_set,))
            looks += result.messages
            assert [piece.entry for piece in result.pieces] == [7, 500_000]
            assert plan(view, 1, result.after, 2, (id_set,)).after == (5, rows - 1, 0)
        assert looks == 2000
