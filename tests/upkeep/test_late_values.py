"""Large collections of a dump are decoded on first use; only the timing shows it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine_kit import Bench, send
from tests.tiers import graded
from txlog.engine.folds import buffer, catalog
from txlog.engine.model.ops import ConsumerAttached, ConsumerDetached, SubscriptionCreated
from txlog.engine.storage.late_values import LazyDict
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
MANY = 20


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path / "store", coordinators=1)
    yield new_bench
    new_bench.close()


def late(plain: dict[int, list[int]]) -> LazyDict[list[int]]:
    """The same dict as a `LazyDict` over encoded values."""
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=dict[int, msgspec.Raw])
    return LazyDict(raw, msgspec.msgpack.Decoder(list[int]).decode)


def decoded(reference: Any) -> list[int]:
    """The keys whose values are decoded."""
    return [key for key in reference if type(dict.__getitem__(reference, key)) is not msgspec.Raw]


@pytest.mark.parametrize("seed", graded(range(5), 1))
def test_late_values_behave_like_a_dict(seed: int) -> None:
    """For every operation, in any order."""
    chance = random.Random(seed)
    plain = {number: [number] * (number % 3) for number in chance.sample(range(100), MANY)}
    other = late(plain)
    for _ in range(200):
        key, step = chance.randrange(100), chance.randrange(7)
        if step == 0:
            plain[key] = other[key] = [key]
        elif step == 1:
            assert plain.pop(key, None) == other.pop(key, None)
        elif step == 2:
            assert plain.get(key, 7) == other.get(key, 7)
        elif step == 3:
            plain.setdefault(key, []).append(1)
            other.setdefault(key, []).append(1)
        elif step == 4:
            assert (key in plain, len(plain)) == (key in other, len(other))
        elif step == 5 and plain:
            assert next(reversed(plain)) == next(reversed(other))
        else:
            assert msgspec.msgpack.encode(plain) == msgspec.msgpack.encode(other)
    assert plain == other.copy() == dict(other)
    assert plain == dict(late(plain)) == {**late(plain)}
    assert other == plain
    assert list(plain.items()) == list(other.items())
    assert list(plain.values()) == list(other.values())


def test_a_process_decodes_what_it_uses(bench: Bench) -> None:
    """First one topic and no file, later all."""
    client = bench.client
    for number in range(MANY):
        client.create_topic(f"t{number}")
        client.create_subscription(f"t{number}", "s")
        with client.transaction() as txn:
            client.producer(f"t{number}").send(b"m", txn=txn)
    client.checkpoint()
    other = bench.another()
    send(other, b"more", topic="t7")
    with other.transaction() as txn:
        other.producer("t7").send(b"m", txn=txn)

    def look(view: View) -> list[int]:
        known_catalog = view.catalog
        references: tuple[Any, ...] = (
            known_catalog.topics,
            known_catalog.subscriptions,
            view.manifest.files,
        )
        return [len(decoded(reference)) for reference in references]

    topics, subscriptions, files = other.store.read(look)
    assert topics == 1
    assert subscriptions <= 1
    assert files <= 1
    names = sorted(row["topic"] for row in other.topics())
    assert names == sorted(row["topic"] for row in client.topics())
    assert len(other.transactions(all=True)) == MANY + 1
    other.checkpoint()
    assert sorted(row["topic"] for row in bench.another().topics()) == names


def test_markers_are_dumped_as_any_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers that were encoded before, appended or replaced since, all give the same dump."""
    monkeypatch.setattr(buffer, "BLOCK", 4)
    chance = random.Random(1)
    state = buffer.Buffer()
    markers = state.markers[7] = buffer.Markers()
    for entry in range(70):
        markers.append(buffer.Marker(entry, 1, entry, 1, 0, entry, ((9, entry, 1, 1),)))
        if entry % 3 == 0:
            at = chance.randrange(len(markers))
            markers[at] = msgspec.structs.replace(markers[at], ranges=((8, entry, 1, 1),))
        dump = buffer.FOLD.dump(state)
        assert dump == msgspec.msgpack.encode(state)
        assert buffer.FOLD.load(dump) == state
    with pytest.raises(AttributeError):  # a marker changed in place would be missing from the dump
        markers[0].count = 2  # type: ignore[misc]


def test_the_consumers_of_a_dump_without_their_list_are_found() -> None:
    """Stores of the first versions: a subscription itself had its only consumer."""
    state = catalog.Catalog()
    state.topics[1] = catalog.Topic(1, "public/default/t", 1, 1, 0, [])
    catalog.apply(state, 1, 5, SubscriptionCreated(1, 1, "s", "exclusive", "committed"))
    subscription = state.subscriptions[1]
    subscription.consumer, subscription.consumer_name, subscription.consumer_since_ms = 4, "c", 9
    fields = msgspec.msgpack.decode(catalog.FOLD.dump(state))
    older_fields = fields[: catalog.Catalog.__struct_fields__.index("consumers")]
    old = catalog.FOLD.load(msgspec.msgpack.encode(older_fields))
    assert [entry.number for entry in catalog.consumers_of(old, 1)] == [4]
    assert old.subscriptions[1].consumer == 0


def test_the_consumers_of_a_subscription_follow_every_op() -> None:
    """By subscription, in order of number, at any time."""
    for asks in (False, True):
        state = catalog.Catalog()
        for number in range(1, 7):
            catalog.apply(state, number, 0, ConsumerAttached(number % 2, number, "c", "shared", 0))
            if asks:
                catalog.consumers_of(state, 0)
        catalog.apply(state, 7, 0, ConsumerDetached(1, 3))
        loaded_again = catalog.FOLD.load(catalog.FOLD.dump(state))
        for each_state in (state, loaded_again):
            assert [results.number for results in catalog.consumers_of(each_state, 1)] == [1, 5]
            assert [results.number for results in catalog.consumers_of(each_state, 0)] == [2, 4, 6]
            assert catalog.consumers_of(each_state, 9) == []
