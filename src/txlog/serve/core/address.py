"""Owns Address: where a listener listens, as an option says it; and the places for offloads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from txlog.errors import InvalidArgument

OFF: Final = "off"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORM = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:/\s]+)):([0-9]{1,5})")


class Address(NamedTuple):
    """A host, by name or number, and a port; port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str) -> Address | None:
        """The address written HOST:PORT or [HOST]:PORT; None for `off`.

        raises: InvalidArgument (201)
        """
        if text == OFF:
            return None
        match = _FORM.fullmatch(text)
        if match is None or int(match[3]) > 65_535:
            raise InvalidArgument(
                f"{option} is HOST:PORT or off, not {text[:80]!r}", hint="such as 127.0.0.1:6650"
            )
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def places_of(option: str, given: Iterable[str]) -> dict[str, str]:
    """The places for offloads by their names, each written NAME=DIRECTORY or NAME=s3://…

    raises: InvalidArgument (201)
    """
    places = dict[str, str]()
    for text in given:
        name, mark, place = text.partition("=")
        if not mark or not _NAME.fullmatch(name) or name in places:
            raise InvalidArgument(
                f"{option} is NAME=PLACE, each name once, not {text[:80]!r}",
                hint="such as cold=/mnt/cold or cold=s3://bucket/prefix",
            )
        if "://" not in place and not Path(place).is_absolute():
            raise InvalidArgument(f"{option} {name}: {place[:80]!r} is no absolute path")
        places[name] = place
    return places
