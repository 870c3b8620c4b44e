"""@value and @record against the dataclasses that they stand for: the same from outside."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from txlog.startup.values import as_dict, changed, names_of, record, value


@value(order=True)
class Point:
    """Two numbers."""

    x: int
    y: int = 7

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Twin:
    """What Point is to be like."""

    x: int
    y: int = 7


@value(kw_only=True)
class Named:
    """Fields by name only."""

    name: str
    size: int = 0


@record
class Counter:
    """One that changes."""

    hits: int = 0
    note: str | None = None


def test_they_are_made_as_dataclasses_are() -> None:
    """Rule 1: by place and by name, defaults, and what is wrong is a TypeError."""
    for made in (Point(1), Point(1, 7), Point(x=1), Point(y=7, x=1)):
        assert (made.x, made.y, made.sum) == (1, 7, 8)
    assert (Named(name="a").size, Counter().hits, Counter(3, note="b").note) == (0, 0, "b")
    point: Any = Point
    named: Any = Named
    wrong: list[tuple[Any, tuple[object, ...], dict[str, object]]] = [
        (point, (), {}),
        (point, (1, 2, 3), {}),
        (point, (1,), {"z": 2}),
        (point, (1,), {"x": 1}),
        (named, ("a",), {}),
        (named, (), {}),
    ]
    for made, given, by_name in wrong:
        with pytest.raises(TypeError):
            made(*given, **by_name)


def test_they_compare_hash_and_print_as_dataclasses_do() -> None:
    """Rule 1: within the class only."""
    values = [(1, 2), (1, 3), (2, 1)]
    for a in values:
        for b in values:
            ours, theirs = (Point(*a), Point(*b)), (Twin(*a), Twin(*b))
            assert (ours[0] == ours[1]) == (theirs[0] == theirs[1])
            assert (ours[0] < ours[1], ours[0] <= ours[1]) == (a < b, a <= b)
            assert (ours[0] > ours[1], ours[0] >= ours[1]) == (a > b, a >= b)
            assert (hash(ours[0]) == hash(ours[1])) == (a == b)
    others: list[object] = [Twin(1, 2), (1, 2), None]
    assert all(Point(1, 2) != other for other in others)
    with pytest.raises(TypeError):
        _ = Point(1) < (1, 7)  # type: ignore[operator]
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
    assert repr(Counter(note="a")) == "Counter(hits=0, note='a')"
    with pytest.raises(TypeError):
        hash(Counter())


def test_a_value_does_not_change_and_a_record_does() -> None:
    point: Any = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    counter: Any = Counter()
    counter.hits += 1
    assert (counter.hits, counter == Counter(1)) == (1, True)
    with pytest.raises(AttributeError):
        counter.other = 1  # slots


def test_they_are_copied_and_pickled() -> None:
    """Spark's workers and forks of the demonstration get them so."""
    for item in (Point(1, 2), Named(name="a"), Counter(3)):
        assert pickle.loads(pickle.dumps(item)) == item
        assert copy.copy(item) == copy.deepcopy(item) == item


def test_dataclasses_know_them() -> None:
    """Rule 1: fields, replace and asdict, and matching by place."""
    item: Any = Point(1, 2)
    assert [field.name for field in dataclasses.fields(item)] == ["x", "y"]
    assert dataclasses.replace(item, y=9) == Point(1, 9) == changed(Point(1, 2), y=9)
    assert dataclasses.asdict(item) == as_dict(item) == {"x": 1, "y": 2}
    assert names_of(Named) == ("name", "size")
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)
