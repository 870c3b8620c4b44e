"""Changing and deleting topics, as the API answers it: the keys are what the commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.deletion import DeletedTopic, delete_topic
from txlog.engine.decide.topics.update import UpdatedTopic, update_topic
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.store.ask import look
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.ids import TopicName

Answer = dict[str, Any]


def update(
    store: Store, name: str, partitions: int | None, policies: Mapping[str, int | None]
) -> Answer:
    """Change a topic; {topic, partitions, policies, changed}."""
    wanted = TopicName.parse(name)
    answer = store.write(
        lambda view, now: update_topic(
            view, store.settings, now, find_topic(view, wanted), partitions, policies
        )
    )
    assert isinstance(answer, UpdatedTopic)
    return {"topic": answer.topic, "partitions": answer.partitions, "policies": answer.policies,
            "changed": answer.changed}  # fmt: skip


def delete(store: Store, name: str, *, force: bool, dry_run: bool) -> Answer:
    """Delete a topic; {topic, partitions, messages, size_bytes, subscriptions, deleted}."""
    wanted = TopicName.parse(name)

    def decide(view: View, now: Instant) -> Decision:
        return delete_topic(view, store.settings, now, find_topic(view, wanted), force=force)

    if dry_run:
        answer = look(store, lambda view: decide(view, store.clock.now())).answer
    else:
        answer = store.write(decide)
    assert isinstance(answer, DeletedTopic)
    return {
        "topic": answer.topic, "partitions": answer.partitions, "messages": answer.messages,
        "size_bytes": answer.size_bytes, "subscriptions": answer.subscriptions, "deleted": True,
    }  # fmt: skip
