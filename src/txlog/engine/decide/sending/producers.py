"""Named producers: the newest producer of a name fences the others; idle names are forgotten.

The first partition of a topic keeps the epoch of a name; each partition keeps the last sequence
that the name sent there. A name is forgotten after being idle for dedup_idle_ms; a partition with
more than dedup_producers_max names forgets the name idle for longest.
Source: PIP-6, spec/transactions 7.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import NamedTuple

from txlog.base.ids import TopicName
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.exclusive import SEAT
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.folds.topic import ProducerState
from txlog.engine.model.ops import Appended, ProducerOpened, ProducersForgotten
from txlog.engine.plan.clock_trust import trusted
from txlog.engine.view import View
from txlog.errors import ProducerFenced


class NamedProducer(NamedTuple):
    """A producer with a name, and the epoch it was opened with."""

    name: str
    epoch: int


def open_producer(
    view: View, settings: Settings, now: Instant, topic: Topic, name: str
) -> Decision[NamedProducer]:
    """Decide that a producer takes the name over; written, not flushed. Returns NamedProducer."""
    draft = Draft(view, settings, now.wall_ms)
    number = number_of(topic, 0)
    sent = last_sent(draft, now, number, name)
    epoch = 1 if sent is None else sent.epoch + 1
    if sent is None:
        make_room(draft, number, name)
    draft.ops.append(ProducerOpened(number, name, epoch))
    return draft.decision(NamedProducer(name, epoch))


def check_producer(view: View, topic: Topic, producer: NamedProducer) -> None:
    """Raises ProducerFenced when another producer of this name was opened later."""
    newest = view.topic(number_of(topic, 0)).producers.get(producer.name)
    if newest is not None and newest.epoch > producer.epoch:
        short = TopicName.parse(topic.name).short
        raise ProducerFenced(
            f"producer {producer.name} of {short} was opened again elsewhere: epoch "
            f"{producer.epoch} is fenced by {newest.epoch}",
            hint="stop this producer, or give each its own name",
            topic=short,
            producer=producer.name,
            epoch=producer.epoch,
        )


def last_sent(draft: Draft, now: Instant, number: int, name: str) -> ProducerState | None:
    """The last message of the name in a partition.

    Forgets the name first if it was idle too long.
    """
    sent = draft.view.topic(number).producers.get(name)
    if sent is None or (number, name) in draft.forgotten:
        return None
    since_ms = sent.time_ms + draft.settings.dedup_idle_ms
    if since_ms < now.wall_ms and since_ms < trusted(draft.view, draft.settings, now).wall_ms:
        _forget(draft, number, [name])
        return None
    return sent


def make_room(draft: Draft, number: int, name: str) -> None:
    """Forget the names idle longest in a partition, if a new one would be too many.

    Names with messages in the same frame stay.
    """
    producers = draft.view.topic(number).producers
    if name in producers:
        return
    surplus = len(producers) + 1 - draft.settings.dedup_producers_max
    if surplus > 0:
        busy = {op.producer for op in draft.ops if isinstance(op, Appended)}
        others = (other for other in producers if other != SEAT and other not in busy)
        oldest = nsmallest(surplus, others, key=lambda other: producers[other].time_ms)
        _forget(draft, number, oldest)


def _forget(draft: Draft, number: int, names: list[str]) -> None:
    if names:
        draft.ops.append(ProducersForgotten(number, names))
        draft.forgotten.update((number, name) for name in names)
