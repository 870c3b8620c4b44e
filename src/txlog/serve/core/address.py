"""Owns Address: where a listener listens, as an option says it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from txlog.errors import InvalidArgument

OFF: Final = "off"
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
