"""Owns the newest messages of a topic as HTML, for a notebook; nothing is consumed or flushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from txlog.base.ranges import END, Bound, Range
from txlog.base.text.html import ROWS_SHOWN, html_table
from txlog.base.times import format_time
from txlog.engine.door.reading import messages
from txlog.engine.door.store import Store, View
from txlog.errors import TxlogError

_COLUMNS = ("message_id", "key", "value", "publish_time", "event_time")


class Newest(Protocol):
    """A reader that has not begun its first round."""

    def start(self, view: View) -> None:
        """Begin."""

    def receive_batch(self, max_messages: int) -> pa.Table:
        """The next messages."""


def newest_html(store: Store, caption: str, open_reader: Callable[[Range], Newest]) -> str:
    """The last messages of a topic, at most ROWS_SHOWN; without any if they cannot be read.

    open_reader: returns a reader of a range, which reads what is durable now: it waits for nothing
    """
    last = Range(Bound("last", ROWS_SHOWN), END)
    try:
        reader = open_reader(last)
        store.read(reader.start, up_to_damage=True)
        newest = list(messages(reader.receive_batch(ROWS_SHOWN)))
    except TxlogError as error:
        return html_table(f"{caption}: {error.message}")
    rows = [
        (
            f"{message.partition}/{message.message_id}",
            message.key,
            message.value,
            format_time(message.publish_time),
            None if message.event_time is None else format_time(message.event_time),
        )
        for message in newest
    ]
    return html_table(caption, _COLUMNS, rows)
