"""The model of the states of files and directories after a power cut; spec/reliability 1, 5.1.

A `Node` is a file or a directory as a running kernel shows it. It also keeps, for every unit that
changed since its last flush, the platter's version, and each later version as an `Item`. A unit is
a sector of 512 bytes, the size of a file, or one name in a directory.

A power cut keeps any subset of the items; an `Image` says which, and where a write was torn. A
flush makes the visible state of its units durable and removes their items. After a failed flush the
platter may or may not have its items, and no later flush covers them unless the unit is written
again, because the kernel takes the pages for clean (R13).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol, TypeVar, Union

SECTOR = 512  # bytes a disk writes whole
# versions that a unit keeps between two flushes, the newest; more would cost much and find little
VERSIONS_MAX = 4
SUBSETS_MAX = 8  # up to this many items every subset is tried
RANDOM_IMAGES = 32

T = TypeVar("T")
Value = Union[bytes, int, "Node", None]
Key = int | str | None
"""Sector number, name, or None for the size."""


class Chance(Protocol):
    """The methods of a seeded random source that the model needs; `random.Random` has them."""

    def randrange(self, start: int, /) -> int:
        """Return a number from 0 up to, not including, start."""

    def randbytes(self, n: int, /) -> bytes:
        """Return n bytes."""

    def sample(self, population: Sequence[T], /, k: int) -> list[T]:
        """Return k different elements."""


@dataclass(slots=True, eq=False)
class Write:
    """One call that wrote bytes; the sectors it touched share it."""

    offset: int
    length: int


@dataclass(slots=True, eq=False)
class Item:
    """A version of one unit that the platter may or may not have."""

    order: int
    node: Node
    key: Key
    value: Value
    write: Write | None = None
    is_lost: bool = False


@dataclass(slots=True)
class Image:
    """The items that a power cut kept, by index; torn: the bytes that it kept of a sector item.

    garbage: the content of sectors that were allocated and never written; empty: zeros
    """

    kept: set[int]
    torn: dict[int, int] = field(default_factory=dict)
    garbage: bytes = b""


class Node:
    """A file (entries is None) or a directory; links counts the names that lead to it."""

    __slots__ = ("_thin_at", "data", "entries", "errors", "is_shared", "links", "old", "pending")

    def __init__(self, is_directory: bool = False) -> None:
        self.data = bytearray()
        self.entries: dict[str, Node] | None = {} if is_directory else None
        self.is_shared = False  # data is shared with a copy: copy before the next write
        self.old: dict[Key, Value] = {}  # the platter's content of the units in pending
        self.pending: list[Item] = []
        self.errors = 0  # failed flushes; a descriptor reports a failed flush once
        self.links = 0
        self._thin_at = 256

    def write(self, offset: int, data: bytes, order: int) -> None:
        """Put data at offset, growing the file with zeros where needed."""
        if not data:
            return
        if self.is_shared:
            self.data, self.is_shared = bytearray(self.data), False
        size, stop = len(self.data), offset + len(data)
        sectors = range(offset // SECTOR, (stop - 1) // SECTOR + 1)
        for sector in sectors:
            if sector not in self.old:
                self.old[sector] = self._sector(sector)
        if stop > size:
            self.old.setdefault(None, size)
            self.data.extend(bytes(stop - size))
            self.pending.append(Item(order, self, None, stop))
        self.data[offset:stop] = data
        write = Write(offset, len(data))
        self.pending += [Item(order, self, n, self._sector(n), write) for n in sectors]
        if len(self.pending) > self._thin_at:
            self._thin()

    def name(self, name: str, node: Node | None, order: int) -> None:
        """Make a name in this directory lead to node, or to nothing."""
        assert self.entries is not None
        previous = self.entries.get(name)
        self.old.setdefault(name, previous)
        if previous is not None:
            previous.links -= 1
        if node is None:
            del self.entries[name]
        else:
            node.links += 1
            self.entries[name] = node
        self.pending.append(Item(order, self, name, node))

    def flush(self) -> None:
        """Make durable every unit written since the last flush, failed or not."""
        done = {item.key for item in self.pending if not item.is_lost}
        self.pending = [item for item in self.pending if item.key not in done]
        for key in done:
            del self.old[key]

    def fail_flush(self) -> None:
        """Mark the pending items as lost: no later flush covers them."""
        self.errors += 1
        for item in self.pending:
            item.is_lost = True

    def _sector(self, number: int) -> bytes:
        return bytes(self.data[number * SECTOR : (number + 1) * SECTOR]).ljust(SECTOR, b"\0")

    def _thin(self) -> None:
        seen: dict[Key, int] = {}
        kept_items: list[Item] = []
        for item in reversed(self.pending):
            seen[item.key] = seen.get(item.key, 0) + 1
            if seen[item.key] <= VERSIONS_MAX:
                kept_items.append(item)
        self.pending = kept_items[::-1]
        self._thin_at = 2 * len(kept_items) + 256


def pending_items(root: Node) -> list[Item]:
    """Return the items of everything that a power cut could leave reachable, in time order."""
    items: list[Item] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        items += node.pending
        reachable: list[Value] = [*(node.entries or {}).values(), *node.old.values()]
        reachable += [item.value for item in node.pending]
        todo += [value for value in reachable if isinstance(value, Node)]
    return sorted(items, key=lambda item: item.order)


def copy_tree(root: Node) -> Node:
    """Return a copy with the same visible state and the same pending items."""
    copies: dict[int, Node] = {}

    def copy(node: Node) -> Node:
        if id(node) in copies:
            return copies[id(node)]
        twin = copies[id(node)] = Node()
        node.is_shared = twin.is_shared = True
        twin.data, twin.links, twin.errors = node.data, node.links, node.errors
        if node.entries is not None:
            twin.entries = {name: copy(child) for name, child in node.entries.items()}
        twin.old = {key: value_copy(value) for key, value in node.old.items()}
        twin.pending = [
            Item(i.order, twin, i.key, value_copy(i.value), i.write, i.is_lost)
            for i in node.pending
        ]
        return twin

    def value_copy(value: Value) -> Value:
        return copy(value) if isinstance(value, Node) else value

    return copy(root)


def cut_power(root: Node, items: Sequence[Item], image: Image) -> Node:
    """Return the content of the platter after a power cut that kept `image` of `items` (all items,
    in order).
    """
    kept_items: dict[int, list[tuple[Item, int]]] = {}
    for index, item in enumerate(items):
        if index in image.kept or index in image.torn:
            part = image.torn.get(index, SECTOR)
            kept_items.setdefault(id(item.node), []).append((item, part))
    copies: dict[int, Node] = {}

    def durable(node: Node) -> Node:
        if id(node) not in copies:
            twin = copies[id(node)] = Node()
            if node.entries is None:
                _durable_file(node, twin, kept_items.get(id(node), []), image.garbage)
            else:
                names: dict[str, Node] = dict(node.entries)
                changes: list[tuple[Key, Value]] = list(node.old.items())
                changes += [(item.key, item.value) for item, _ in kept_items.get(id(node), [])]
                for name, value in changes:
                    assert isinstance(name, str)
                    names.pop(name, None)
                    if isinstance(value, Node):
                        names[name] = value
                twin.entries = {name: durable(child) for name, child in names.items()}
                for child in twin.entries.values():
                    child.links += 1
        return copies[id(node)]

    return durable(root)


def _durable_file(
    node: Node, twin: Node, kept_items: Iterable[tuple[Item, int]], garbage: bytes
) -> None:
    if not node.old:
        node.is_shared = twin.is_shared = True
        twin.data = node.data
        return
    units = dict(node.old)
    size_before = units.pop(None, len(node.data))
    size = size_before
    assert isinstance(size_before, int)
    if garbage:  # blocks allocated to the file that were never written
        for key in units:
            assert isinstance(key, int)
            if key * SECTOR >= size_before:
                units[key] = garbage
    for item, part in kept_items:
        if item.key is None:
            size = item.value
        else:
            old_value, new_value = units[item.key], item.value
            assert isinstance(old_value, bytes)
            assert isinstance(new_value, bytes)
            units[item.key] = new_value[:part] + old_value[part:]
    assert isinstance(size, int)
    data = bytearray(node.data)
    data.extend(bytes(-len(data) % SECTOR))
    for key, value in units.items():
        assert isinstance(key, int)
        assert isinstance(value, bytes)
        data[key * SECTOR : (key + 1) * SECTOR] = value
    twin.data = data[:size]


def choose_images(items: Sequence[Item], rng: Chance, limit: int) -> Iterator[Image]:
    """Yield at most `limit` images: nothing kept, everything kept, then others, as in 5.1.

    Up to SUBSETS_MAX items: all subsets; else prefixes, each missing, each alone, random ones.
    Always: every write torn at 1, 511, 512, half and all but one byte, with all before it kept;
    sizes and names without their bytes, which are then zeros or garbage.
    """
    count = len(items)
    everything = set(range(count))
    first = [Image(set()), Image(everything)] if count else [Image(set())]
    yield from first[:limit]
    plans: list[tuple[str, int, int]] = [("meta", 0, 0), ("meta", 1, 0)]
    if count <= SUBSETS_MAX:
        plans += [
            ("subset", size, nth) for size in range(1, count) for nth in range(_choose(count, size))
        ]
    else:
        plans += [(kind, n, 0) for n in range(count) for kind in ("prefix", "missing", "alone")]
        plans += [("random", n, 0) for n in range(RANDOM_IMAGES)]
    starts = [
        n
        for n, item in enumerate(items)
        if item.write is not None and (n == 0 or items[n - 1].write is not item.write)
    ]
    for start in starts:
        write = items[start].write
        assert write is not None
        cuts = {1, 511, 512, write.length // 2, write.length - 1}
        plans += [("torn", start, cut) for cut in sorted(cuts) if 0 < cut < write.length]
    room = max(limit - len(first), 0)
    if count == 0:
        return
    for plan in plans if len(plans) <= room else rng.sample(plans, room):
        yield _make_image(plan, items, rng)


def _make_image(plan: tuple[str, int, int], items: Sequence[Item], rng: Chance) -> Image:
    kind, n, cut = plan
    everything = range(len(items))
    if kind == "meta":
        kept_indexes = {m for m in everything if not isinstance(items[m].key, int)}
        return Image(kept_indexes, garbage=rng.randbytes(SECTOR) if n else b"")
    if kind == "subset":
        return Image(set(list(combinations(everything, n))[cut]))
    if kind == "prefix":
        return Image(set(range(n)))
    if kind == "missing":
        return Image(set(everything) - {n})
    if kind == "alone":
        return Image({n})
    if kind == "random":
        return Image({m for m in everything if rng.randrange(2)})
    return _torn_image(items, n, cut)


def _torn_image(items: Sequence[Item], start: int, cut: int) -> Image:
    """Keep what was before a write, its size, and its first cut bytes."""
    write = items[start].write
    assert write is not None
    image = Image(set(range(start)))
    for index in range(start, len(items)):
        item = items[index]
        if item.write is not write:
            break
        assert isinstance(item.key, int)
        part = write.offset + cut - item.key * SECTOR
        if part >= SECTOR:
            image.kept.add(index)
        elif part > 0:
            image.torn[index] = part
    return image


def _choose(n: int, k: int) -> int:
    total = 1
    for i in range(k):
        total = total * (n - i) // (i + 1)
    return total
