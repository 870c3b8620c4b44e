"""Owns OneRow: the row of a single message, which becomes the bytes of a frame without Arrow.

Arrow takes 25 us to make and serialize a record batch of one row, with properties 90: a third of a
send. All rows with the same columns have the same bytes, except for lengths and contents. So Arrow
serializes one row of each shape, and this module uses its bytes as a form for all others (`_Form`),
after comparing a second row made with the form.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import pyarrow as pa

from txlog.engine.model.schema import EVENT_TIME, KEY, PROPERTIES, encode_rows, frame_schema

_TWO: Final = struct.Struct("<2i")
_LONG: Final = struct.Struct("<q")
_PADDING: Final = [bytes(-size % 8) for size in range(8)]


class OneRow:
    """A message that is stored unchanged: value and key are bytes, other columns have their types.

    It has the attributes of a batch that most callers need; other callers use `batch`.
    """

    __slots__ = (
        "_batch",
        "_texts",
        "event_time",
        "key",
        "payload_bytes",
        "property_bytes",
        "value",
    )

    num_rows = 1

    def __init__(
        self,
        value: bytes,
        key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time: int | None,
    ) -> None:
        """raises: TypeError, AttributeError, UnicodeEncodeError for properties that are no text"""
        self._batch: pa.RecordBatch | None = None
        self.value, self.key, self.event_time = value, key, event_time
        self.payload_bytes = len(value) if key is None else len(value) + len(key)
        self._texts: tuple[list[bytes], list[bytes]] | None = None
        self.property_bytes = 0
        if properties:
            names, texts = map(str.encode, properties), map(str.encode, properties.values())
            self._texts = [*names], [*texts]
            self.property_bytes = sum([len(text) for half in self._texts for text in half])

    def batch(self) -> pa.RecordBatch:
        """The same row as a batch; built once."""
        if self._batch is None:
            self._batch = _batch(self.value, self.key, self._texts, self.event_time)
        return self._batch

    def encoded(self) -> tuple[int, bytes]:
        """The mask and bytes, as `encode_rows` of the batch."""
        texts, key, time = self._texts, self.key, self.event_time
        shape = (key is not None, 0 if texts is None else len(texts[0]), time is not None)
        form = None
        if shape in _SEEN:
            form = _form(shape)
        else:  # a form costs as much as ten rows, and a program may send one
            _SEEN.add(shape)
        if form is None:
            mask, rows = encode_rows(self.batch())
            return mask, rows.to_pybytes()
        return form.mask, form.filled(_buffers(self.value, key, texts, time))


_Texts = tuple[list[bytes], list[bytes]]
_Shape = tuple[bool, int, bool]  # has a key, number of properties, has an event time
_SEEN: Final[set[_Shape]] = set()


def _batch(
    value: bytes, key: bytes | None, texts: _Texts | None, event_time: int | None
) -> pa.RecordBatch:
    """The row, built by Arrow."""
    mask, columns = 0, [pa.array([value], pa.binary())]
    if key is not None:
        mask |= KEY
        columns.append(pa.array([key], pa.binary()))
    if texts is not None:
        mask |= PROPERTIES
        pairs = [(name.decode(), text.decode()) for name, text in zip(*texts, strict=True)]
        columns.append(pa.array([pairs], frame_schema(PROPERTIES).field("properties").type))
    if event_time is not None:
        mask |= EVENT_TIME
        columns.append(pa.array([event_time], frame_schema(EVENT_TIME).field("event_time").type))
    return pa.RecordBatch.from_arrays(columns, schema=frame_schema(mask))


def _buffers(
    value: bytes, key: bytes | None, texts: _Texts | None, event_time: int | None
) -> list[bytes]:
    """The buffers of the row in Arrow's order; without bitmaps, as no column has nulls."""
    out = [b"", _TWO.pack(0, len(value)), value]
    if key is not None:
        out += (b"", _TWO.pack(0, len(key)), key)
    if texts is not None:
        out += (b"", _TWO.pack(0, len(texts[0])), b"")
        for half in texts:
            out += (b"", _ends(half), b"".join(half))
    if event_time is not None:
        out += (b"", _LONG.pack(event_time))
    return out


def _ends(texts: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(texts) + 1}i", 0, *accumulate(map(len, texts)))


class _Form:
    """The leading bytes of all rows of one shape, and the offsets of lengths in them."""

    __slots__ = ("_body_at", "_head", "_places", "_places_at", "mask")

    def __init__(self, shape: _Shape) -> None:
        self.mask, batch, buffers = _sample(shape, 1000)
        whole = batch.serialize().to_pybytes()
        self._places = struct.Struct(f"<{2 * len(buffers)}q")
        places, body = self._laid_out(buffers)
        self._head = bytearray(whole[: len(whole) - len(body)])
        self._places_at = _only_place(self._head, self._places.pack(*places))
        self._places.pack_into(self._head, self._places_at, *[0] * len(places))
        self._body_at = _only_place(self._head, _LONG.pack(len(body)))

    def filled(self, buffers: list[bytes]) -> bytes:
        """The row with these buffers."""
        places, body = self._laid_out(buffers)
        head = self._head.copy()
        self._places.pack_into(head, self._places_at, *places)
        _LONG.pack_into(head, self._body_at, len(body))
        return bytes(head) + body

    @staticmethod
    def _laid_out(buffers: list[bytes]) -> tuple[list[int], bytes]:
        """(offset and length of each buffer, the buffers padded to multiples of eight bytes)."""
        places: list[int] = []
        parts: list[bytes] = []
        at = 0
        for buffer in buffers:
            size = len(buffer)
            places += (at, size)
            if size:
                parts += (buffer, _PADDING[size % 8])
                at += (size + 7) & ~7
        return places, b"".join(parts)


@lru_cache(maxsize=4096)  # all that there are
def _form(shape: _Shape) -> _Form | None:
    """The form of a shape; None if this version of Arrow uses an unknown layout.

    Then Arrow goes on serializing each row, and a test that counts fails.
    """
    try:
        form = _Form(shape)
    except LookupError:
        return None
    _, other, buffers = _sample(shape, 0)
    return form if form.filled(buffers) == other.serialize().to_pybytes() else None


def _sample(shape: _Shape, size: int) -> tuple[int, pa.RecordBatch, list[bytes]]:
    """The mask of a shape, and a row with a value of this size."""
    has_key, properties, has_time = shape
    key = b"k" * (size + 101) if has_key else None
    names = [b"%d" % at for at in range(properties)]
    texts = (names, [b"t" * (size + at) for at in range(properties)]) if properties else None
    time = size if has_time else None
    batch = _batch(b"v" * size, key, texts, time)
    mask = (KEY if has_key else 0) | (PROPERTIES if properties else 0)
    mask |= EVENT_TIME if has_time else 0
    return mask, batch, _buffers(b"v" * size, key, texts, time)


def _only_place(data: bytearray, pattern: bytes) -> int:
    offsets = [at for at in range(0, len(data), 8) if data.startswith(pattern, at)]
    if len(offsets) != 1:
        raise LookupError(pattern)
    return offsets[0]
