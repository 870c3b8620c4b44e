"""Moving the messages of a dead-letter topic back, for `TopicHandle.retry_dead_letters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txlog.base.ids import MessageId, TopicName
from txlog.client.consuming.open import create_subscription
from txlog.engine.door import sending
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import RETRIED, RetryAnswer, RetryOptions, Selection, retry
from txlog.engine.door.store import Store
from txlog.errors import InvalidArgument

if TYPE_CHECKING:
    from txlog.base.rows.consuming import DeadLettersRetried


def retried(
    store: Store,
    topic: TopicName,
    ids: Sequence[MessageId] | None,
    *,
    every: bool,
    count: int | None,
    key: bytes | str | None,
    options: RetryOptions,
) -> DeadLettersRetried:
    """The answer of `TopicHandle.retry_dead_letters`, after the move."""
    if (ids is not None) == (every or count is not None or key is not None):
        raise InvalidArgument("retry either ids, or a count, a key or all dead letters")
    if count is not None and count < 1:
        raise InvalidArgument(f"{count} messages to retry, at least 1", code=203)
    store.ask(lambda view: find_topic(view, topic))
    chosen = Selection(None if ids is None else list(ids), count, sending.as_bytes(key))
    if not options.dry_run:
        rehearsal = RetryOptions(options.for_all, dry_run=True)
        if not retry(store, topic, chosen._replace(limit=1), rehearsal).moved:
            # an ordinary topic must not get a subscription: its backlog would only grow
            return _answer(topic, retry(store, topic, chosen, rehearsal))
        create_subscription(
            store,
            topic.short,
            RETRIED,
            type="shared",
            isolation="committed",
            position=None,
            if_not_exists=True,
        )
    return _answer(topic, retry(store, topic, chosen, options))


def _answer(topic: TopicName, answer: RetryAnswer) -> DeadLettersRetried:
    return {
        "topic": topic.short,
        "retried": answer.moved,
        "left": sum(map(len, answer.left.values())),
        "left_list": [
            {"reason": reason, "messages": len(ids), "first": ids[0]}
            for reason, ids in answer.left.items()
        ],
    }
