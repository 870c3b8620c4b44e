"""Random changes of an input. Everything follows from the random source that the caller passes."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

_NUMBERS = (0, 1, 2, 3, 7, 15, 16, 31, 63, 64, 127, 128, 255, 256, 1000, 4095, 65535, 1 << 20)
_EDGES = (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_TEXTS = (
    b"0",
    b"-1",
    b"1e999",
    b"9" * 25,
    b"9" * 5000,
    b"NaN",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
)
_NASTY = (
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\xbd",
    b"\\ud83d",
    b"\xe2\x80\xa8",
    b"'",
    b'"',
    b"\n",
    b"\r\n",
)
_DIGITS = re.compile(rb"-?\d+")
_STACKED_MAX = 6
_REPEATS = (2, 3, 8, 64, 512)

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(
    chance: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes], most: int
) -> bytes:
    """A copy of an input with one to a few changes, cut at `most` bytes.

    others: inputs whose pieces may be taken
    words:  pieces that mean something to the target
    """
    changed = bytearray(data)
    for _ in range(1 + min(int(chance.expovariate(0.7)), _STACKED_MAX)):
        pieces = words if words and chance.random() < 0.3 else others
        change = _put_word if pieces is words else chance.choice(_CHANGES)
        change(chance, changed, pieces)
        del changed[most:]  # else repetitions of repetitions take all memory
    return bytes(changed)


def _at(chance: random.Random, data: bytearray) -> int:
    return chance.randrange(len(data) + 1)


def _piece(chance: random.Random, data: bytes | bytearray) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    length = 1 << chance.randrange(max(len(data), 1).bit_length())
    return start, min(start + length, len(data))


def _flip_bit(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set_byte(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.randrange(256)


def _step_byte(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        at = chance.randrange(len(data))
        data[at] = (data[at] + chance.choice((-1, 1, -16, 16))) % 256


def _set_number(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    """Overwrite 2, 4 or 8 bytes by a number at the edge of some range, or near the length."""
    form = chance.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(form)
    number = chance.choice((*_NUMBERS, *_EDGES, len(data), len(data) - 4)) % (1 << 8 * size)
    if len(data) >= size:
        at = chance.randrange(len(data) - size + 1)
        data[at : at + size] = struct.pack(form, number)


def _set_digits(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    """Replace a number that is written in digits."""
    places = [match.span() for match in _DIGITS.finditer(data)]
    if places:
        start, stop = chance.choice(places)
        number = chance.choice((*_NUMBERS, *_EDGES))
        data[start:stop] = chance.choice((b"%d" % number, b"-%d" % number, *_TEXTS))


def _insert(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _at(chance, data)
    data[at:at] = chance.choice((chance.randbytes(chance.randrange(1, 9)), *_NASTY))


def _delete(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start, stop = _piece(chance, data)
    del data[start:stop]


def _cut(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    del data[_at(chance, data) :]


def _repeat(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start, stop = _piece(chance, data)
    data[start:start] = data[start:stop] * chance.choice(_REPEATS)


def _move(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start, stop = _piece(chance, data)
    piece = data[start:stop]
    del data[start:stop]
    at = _at(chance, data)
    data[at:at] = piece


def _splice(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    """Insert a piece of another input, or replace the end by the end of another input."""
    if others:
        other = chance.choice(others)
        start, stop = _piece(chance, other)
        at = _at(chance, data)
        if chance.random() < 0.3:
            data[at:] = other[start:]
        else:
            data[at : at + chance.choice((0, stop - start))] = other[start:stop]


def _put_word(chance: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    word, at = chance.choice(words), _at(chance, data)
    data[at : at + chance.choice((0, len(word)))] = word


_CHANGES: tuple[Change, ...] = (
    _flip_bit,
    _set_byte,
    _step_byte,
    _set_number,
    _set_digits,
    _insert,
    _delete,
    _cut,
    _repeat,
    _move,
    _splice,
)


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1),
    *(0.5, -0.0, 1e308, "", "a", "k", "é" * 3, "x" * 300, "1:2", [], {}, [[]]),
)


def changed_tree(chance: random.Random, tree: Any, more: Sequence[Any] = ()) -> Any:
    """A copy of lists, maps and values with one node changed; more: values to put there."""
    nodes: list[tuple[Any, Any]] = []  # (list or map, its key)
    root = [_copied(tree, nodes)]
    nodes.append((root, 0))
    parent, key = chance.choice(nodes)
    other_parent, other_key = chance.choice(nodes)
    kind = chance.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent[key:key] = [parent[key]] * chance.choice((1, 1, 2, 40))
    elif kind == 2:
        parent[key] = _copied(other_parent[other_key], [])
    elif kind == 3 and isinstance(parent[key], int):
        parent[key] += chance.choice((-1, 1, -2, 1 << 16, 1 << 32))
    else:
        parent[key] = chance.choice((*_VALUES, *more))
    return root[0] if root else None


def _copied(node: Any, nodes: list[tuple[Any, Any]]) -> Any:
    if isinstance(node, list | tuple):
        copy: Any = [_copied(item, nodes) for item in node]
        nodes += [(copy, at) for at in range(len(copy))]
        return copy
    if isinstance(node, dict):
        copy = {key: _copied(value, nodes) for key, value in node.items()}
        nodes += [(copy, key) for key in copy]
        return copy
    return node
