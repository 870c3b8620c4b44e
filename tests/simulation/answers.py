"""Owns how answers of txlog become facts of a history."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from txlog import Message, MessageId


def text_id(message_id: MessageId | None) -> str | None:
    """A message id as histories write it."""
    return None if message_id is None else str(message_id)


def rows_of(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Received messages as histories write them."""
    return [
        {
            "topic": message.topic,
            "partition": message.partition,
            "id": text_id(message.message_id),
            "value": value_of(message.value),
            "key": None if message.key is None else message.key.decode(),
            "redelivered": message.redelivery_count or 0,
        }
        for message in messages
    ]


def value_of(value: bytes | None) -> str:
    """The unique name of a message; large ones are padded, typed ones are records."""
    text = (value or b"").decode()
    if text.startswith("{"):
        name: str = json.loads(text)["name"]
        return name
    return text.rstrip("-")


def by_partition(messages: Iterable[Message]) -> dict[str, list[list[str | None]]]:
    """Values and ids of messages, by partition."""
    rows: dict[str, list[list[str | None]]] = {}
    for message in messages:
        rows.setdefault(str(message.partition), []).append(
            [text_id(message.message_id), value_of(message.value)]
        )
    return rows


def sent(receipt: Any) -> dict[str, Any]:
    """The facts of a receipt for a history."""
    answer: dict[str, Any] = {"partition": receipt.partition}
    if receipt.message_id is not None:
        answer["id"] = text_id(receipt.message_id)
    if receipt.duplicate:
        answer["duplicate"] = True
    return answer


def acked(answer: Any) -> dict[str, Any]:
    """The facts of an acknowledgement's answer for a history."""
    counts = {name: getattr(answer, name) for name in ("dropped", "stale")}
    return {name: count for name, count in counts.items() if count}


def nothing(answer: Any) -> dict[str, Any]:
    """No facts: the history needs none of this answer."""
    return {}
