"""Owns Members: the members of JSON objects as columns, for messages of topics without a schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.errors import TryAgain
from txlog.lake.sql import duck

MEMBERS_MAX: Final = 500  # objects with more different names are maps, not rows
_OBJECTS: Final = (
    "(SELECT row_at, CASE WHEN json_valid(text) AND json_type(text) = 'OBJECT' THEN text END AS"
    " object FROM (SELECT row_at, TRY(decode(value)) AS text FROM received))"
)
# The names in the order in which they first appear.
_NAMES: Final = (
    "SELECT name FROM (SELECT unnest(json_keys(object)) AS name,"  # noqa: S608
    " generate_subscripts(json_keys(object), 1) AS place, row_at"
    f" FROM {_OBJECTS} WHERE object IS NOT NULL)"
    f" GROUP BY name ORDER BY min(row_at), min(place) LIMIT {MEMBERS_MAX + 1}"
)
_VALUES: Final = (
    f"SELECT json_extract_string(object, $paths) AS texts FROM {_OBJECTS} ORDER BY row_at"  # noqa: S608
)


class Members:
    """Turns values that are JSON objects into structs of texts; other values become null.

    A text is what `value->>'name'` gives: null for a missing member, JSON for a nested one.
    """

    def __init__(self, session: duck.Session, names: Sequence[str]) -> None:
        self._session, self._names = session, list(names)
        self.kind = pa.struct([pa.field(name, pa.string()) for name in names])
        # JSON pointers
        self._paths = ["/" + name.replace("~", "~0").replace("/", "~1") for name in names]

    def of(self, rows: pa.Table) -> pa.ChunkedArray:
        """The values of rows as structs.

        raises: TryAgain for a member that no message had when they were counted
        """
        later = [name for name in _names(self._session, rows) if name not in self._names]
        if later:
            raise TryAgain(f"a message has a new member: {later[0][:60]}", hint="export again")
        answer = self._session.stream(_VALUES, {"paths": self._paths}).read_all()
        texts = answer.column("texts").combine_chunks()
        columns = [pc.list_element(texts, at) for at in range(len(self._names))]
        structs = pa.StructArray.from_arrays(columns, fields=[*self.kind], mask=texts.is_null())
        return pa.chunked_array([structs], self.kind)


def members(tables: Iterable[pa.Table]) -> Members | None:
    """The members of all JSON objects in tables; None: none, or more than MEMBERS_MAX."""
    session = duck.Session()
    names: dict[str, None] = {}
    for rows in tables:
        names |= dict.fromkeys(_names(session, rows))
        if len(names) > MEMBERS_MAX:
            return None
    return Members(session, [*names]) if names else None


def _names(session: duck.Session, rows: pa.Table) -> list[str]:
    """The names of members, in the order in which they first appear."""
    values = rows.select(["value"]).append_column("row_at", pa.arange(0, rows.num_rows))
    session.register("received", values)
    names: list[str] = session.arrow(_NAMES).column("name").to_pylist()
    return names
