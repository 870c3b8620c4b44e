"""Owns LazyDict: a dict of many values, decoded at first use, as a call needs few.

Such values are the topics of a catalog, the ended transactions of a coordinator, the files of a
manifest. Loading only skips over the bytes of the values, which costs a tenth of decoding. The
encoding is the same.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any, TypeVar, overload

import msgspec

V = TypeVar("V")
D = TypeVar("D")


class LazyDict(dict[int, V]):
    """A dict of values that stay msgpack until they are used.

    Encoding it gives the same bytes, whether values are decoded or not. Do not share its values
    with another LazyDict.
    """

    __slots__ = ("_decode",)

    def __init__(self, raw: dict[int, msgspec.Raw], decode: Callable[[msgspec.Raw], V]) -> None:
        super().__init__(raw)  # type: ignore[arg-type]
        self._decode = decode

    def __getitem__(self, key: int) -> V:
        value: Any = super().__getitem__(key)
        if type(value) is msgspec.Raw:
            value = self[key] = self._decode(value)
        return value  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[int]:
        return super().__iter__()  # its own method, so that dict(late) decodes the values

    @overload  # type: ignore[override]
    def get(self, key: int) -> V | None: ...
    @overload
    def get(self, key: int, default: D) -> V | D: ...
    def get(self, key: int, default: object = None) -> object:
        if key not in self:
            return default
        return self[key]

    def pop(self, key: int, *default: D) -> V | D:
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def setdefault(self, key: int, default: V) -> V:
        if key not in self:
            self[key] = default
        return self[key]

    def values(self) -> ValuesView[V]:  # type: ignore[override]
        return _LateValues(self)

    def items(self) -> ItemsView[int, V]:  # type: ignore[override]
        return _LateItems(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and dict(self.items()) == dict(other.items())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(dict(self.items()))

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)

    def copy(self) -> dict[int, V]:
        return dict(self.items())


class _LateValues(ValuesView[V]):
    __slots__ = ()
    _mapping: LazyDict[V]

    def __iter__(self) -> Iterator[V]:
        return map(self._mapping.__getitem__, self._mapping)

    def __reversed__(self) -> Iterator[V]:
        return map(self._mapping.__getitem__, reversed(self._mapping))


class _LateItems(ItemsView[int, V]):
    __slots__ = ()
    _mapping: LazyDict[V]

    def __iter__(self) -> Iterator[tuple[int, V]]:
        return ((key, self._mapping[key]) for key in self._mapping)
