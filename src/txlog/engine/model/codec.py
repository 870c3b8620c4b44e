"""The bytes of ops to be written: what cannot be read again is refused, and lists become one.

Dumps join what they have encoded before in the same way: each list and map has a head of msgpack.

An op takes what a caller gave, whatever its type. A float or a bool where a reader expects an
integer would be written like any other value, and nobody could open the store after that.
"""

from __future__ import annotations

import re

from txlog.engine.model.ops import (
    BufferAborted,
    BufferCommitted,
    CommitMarker,
    Op,
    PendingAborted,
    PendingCommitted,
    StatusUpdated,
    decode_ops,
    encode_ops,
)
from txlog.errors import Corruption, InvalidArgument

# They hold nothing but what folds have, which was read back when it came.
_OF_FOLDS = frozenset([
    StatusUpdated, CommitMarker, BufferCommitted, BufferAborted, PendingCommitted, PendingAborted,
])  # fmt: skip
_HEADS = {0xDC: 3, 0xDD: 5}  # bytes before the items of an array in msgpack, by its first; else 1
_PLACE = re.compile(r" - at `\$\[(\d+)\]\[(\d+)\](.*)`$")


def encode_readable(ops: list[Op]) -> bytes:
    """The bytes of a frame's ops, after checking that they can be read back.

    cost:   0.5 us for a small op, 6 us for a whole transaction
    raises: InvalidArgument, naming the field
    """
    try:
        data = encode_ops(ops)
        if not _OF_FOLDS.issuperset(map(type, ops)):
            decode_ops(data, lsn=0)
    except Corruption as error:
        raise _refused(ops, str(error.__cause__)) from error
    except (TypeError, ValueError, OverflowError) as error:  # a type msgpack does not know
        raise _refused(ops, str(error)) from error
    return data


def joined(parts: list[bytes], count: int) -> bytes:
    """Several encoded lists of ops as one, byte for byte as if it had been encoded at once.

    count: the ops of all
    """
    if len(parts) == 1:
        return parts[0]
    return b"".join([array_head(count), *(part[_HEADS.get(part[0], 1) :] for part in parts)])


def array_head(items: int) -> bytes:
    """What msgpack writes before the items of an array."""
    if items < 1 << 4:
        return bytes((0x90 | items,))
    if items < 1 << 16:
        return b"\xdc" + items.to_bytes(2, "big")
    return b"\xdd" + items.to_bytes(4, "big")


def map_head(items: int) -> bytes:
    """What msgpack writes before the items of a map."""
    if items < 1 << 4:
        return bytes((0x80 | items,))
    if items < 1 << 16:
        return b"\xde" + items.to_bytes(2, "big")
    return b"\xdf" + items.to_bytes(4, "big")


def _refused(ops: list[Op], why: str) -> InvalidArgument:
    place = _PLACE.search(why)
    if place is None:
        return InvalidArgument(f"an argument cannot be stored: {why}")
    op = ops[int(place[1])]
    name = op.__struct_fields__[int(place[2]) - 1]  # its tag is the first element
    shown = "holds a value of another type" if place[3] else f"is {getattr(op, name)!r}"
    return InvalidArgument(f"{name} {shown}: {why[:1].lower()}{why[1 : place.start()]}")
