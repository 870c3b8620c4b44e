"""Owns the first use of a topic: where a store allows it, a missing topic is made by who names it.

A producer does that, and a consumer that creates its subscription or has one in memory; readers
and everything that looks or administrates get TopicNotFound. The store says so, not the program,
because a misspelt name would make a topic, too.
Source: Pulsar's allowAutoTopicCreation and defaultNumPartitions.
"""

from __future__ import annotations

from txlog.base.ids import TopicName
from txlog.engine.decide.topics import catalog
from txlog.engine.folds.catalog import Topic
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.store.store import Store
from txlog.errors import TopicNotFound


def topic_in_use(store: Store, name: TopicName) -> Topic:
    """The topic, made if it is missing and may be; raises TopicNotFound."""
    try:
        return store.read(lambda view: find_topic(view, name))
    except TopicNotFound:
        if not store.settings.allow_auto_topic_creation or store.disk.read_only:
            raise
    store.write(lambda view, now: catalog.first_use(view, store.settings, now, name))
    return store.read(lambda view: find_topic(view, name))
