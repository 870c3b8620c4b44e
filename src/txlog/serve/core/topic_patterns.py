"""Owns TopicPattern: a client's regular expression for topics, and what a match may cost.

RE2 matches patterns, as in Pulsar: its time grows with the names, whatever the pattern is. The
factor is the pattern's size with its repetitions written out, up to 1 ms a name, so a match also
ends after a time.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.base.startup.crc32c import crc32c
from txlog.errors import InvalidArgument, NotAllowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PATTERN_MAX: Final = 1_000  # characters
MATCH_SECONDS: Final = 0.1  # of the store's thread, for one command
SLICE_NAMES: Final = 128  # matched between two looks at the clock; 0.1 s with the worst pattern
_SCHEME = re.compile(r"(?:non-)?persistent://")


class TopicPattern:
    """A regular expression that the whole of `tenant/namespace/name` has to match."""

    def __init__(self, text: str) -> None:
        """Raises InvalidArgument: RE2 cannot read the pattern; NotAllowed: it is too long."""
        if not isinstance(text, str):  # protobuf gives bytes that are not UTF-8 as they are
            raise InvalidArgument("the pattern of topics is not UTF-8")
        if len(text) > PATTERN_MAX:
            raise NotAllowed(f"a pattern of {len(text)} characters, the most is {PATTERN_MAX}")
        bare = _SCHEME.sub("", text, count=1)
        _matches([""], bare)  # `a)|(b` is no pattern, though it is one within brackets
        self._whole = f"^(?:{bare})$"
        _matches([""], self._whole)

    def matching(
        self, names: Sequence[str], limit_s: float = MATCH_SECONDS
    ) -> tuple[list[str], int]:
        """The names that match, and how many were tried; not all of them if the time ran out."""
        ends_at = time.monotonic() + limit_s
        found: list[str] = []
        tried = 0
        while tried < len(names):
            piece = names[tried : tried + SLICE_NAMES]
            flags = _matches(piece, self._whole)
            found += [name for name, fits in zip(piece, flags, strict=True) if fits]
            tried += len(piece)
            if time.monotonic() > ends_at:
                break
        return found, tried


def _matches(names: Sequence[str], pattern: str) -> list[bool]:
    try:
        fits = pc.match_substring_regex(pa.array(names, pa.string()), pattern)
    except pa.ArrowInvalid as error:
        raise InvalidArgument("the pattern of topics cannot be read") from error
    flags: list[bool] = fits.to_pylist()
    return flags


def hash_of(topics: Iterable[str]) -> str:
    """A hash of topics, as Pulsar makes it."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
