"""Owns the comparison of two runs of a pipeline: their messages by topic, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from txlog.client.client import Client

Content = tuple[bytes | None, bytes | None]  # key and value of a message
Output = dict[str, Counter[Content]]  # by topic
SHOWN = 5  # messages named in a failure


class Difference(NamedTuple):
    """How a topic differs from the expected messages."""

    topic: str
    lost: Counter[Content]
    new: Counter[Content]  # doubled, or never written without the kill


def messages_of(client: Client, topics: Iterable[str]) -> Output:
    """The committed messages of topics."""
    return {
        topic: Counter((message.key, message.value) for message in client.reader(topic))
        for topic in topics
    }


def differences(written: Output, wanted: Output) -> list[Difference]:
    """The topics that do not have the expected messages."""
    rows = (
        Difference(topic, wanted[topic] - written[topic], written[topic] - wanted[topic])
        for topic in wanted
    )
    return [row for row in rows if row.lost or row.new]


def described(rows: Iterable[Difference]) -> str:
    """The differences in words."""
    parts = []
    for topic, lost, new in rows:
        for word, messages in (("lost", lost), ("doubled or new", new)):
            if messages:
                shown_messages = ", ".join(
                    repr(value if key is None else (key, value))
                    for key, value in [*messages.elements()][:SHOWN]
                )
                parts.append(f"{topic} {word} {messages.total()}: {shown_messages}")
    return "; ".join(parts)
