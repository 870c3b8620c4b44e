"""Named producers: the newest one of a name fences the others, and names are not kept for ever.

The epoch of a name is kept in the first partition of its topic, and what it sent last in each
partition. A name is forgotten after being idle for dedup_idle_ms; if a partition would know more
than dedup_producers_max names, the one idle for longest goes first.
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
from txlog.engine.folds.topic import LastSent
from txlog.engine.model.ops import Appended, ProducerOpened, ProducersForgotten
from txlog.engine.plan.clock_trust import trusted
from txlog.engine.view.view import View
from txlog.errors import ProducerFenced


class Named(NamedTuple):
    """A producer with a name, and the epoch it was opened with."""

    name: str
    epoch: int


def open_producer(
    view: View, settings: Settings, now: Instant, topic: Topic, name: str
) -> Decision[Named]:
    """Decide that a producer takes the name over; written, not flushed. Returns its Named."""
    draft = Draft(view, settings, now.wall_ms)
    number = number_of(topic, 0)
    known = last_sent(draft, now, number, name)
    epoch = 1 if known is None else known.epoch + 1
    if known is None:
        make_room(draft, number, name)
    draft.ops.append(ProducerOpened(number, name, epoch))
    return draft.decision(Named(name, epoch))


def check_producer(view: View, topic: Topic, producer: Named) -> None:
    """Raises ProducerFenced when another one of this name was opened later."""
    known = view.topic(number_of(topic, 0)).producers.get(producer.name)
    if known is not None and known.epoch > producer.epoch:
        short = TopicName.parse(topic.name).short
        raise ProducerFenced(
            f"producer {producer.name} of {short} was opened again elsewhere: epoch "
            f"{producer.epoch} is fenced by {known.epoch}",
            hint="stop this producer, or give each its own name",
            topic=short,
            producer=producer.name,
            epoch=producer.epoch,
        )


def last_sent(draft: Draft, now: Instant, number: int, name: str) -> LastSent | None:
    """What the name sent last to a partition; one that was idle too long is forgotten now."""
    known = draft.view.topic(number).producers.get(name)
    if known is None or (number, name) in draft.forgotten:
        return None
    since_ms = known.time_ms + draft.settings.dedup_idle_ms
    if since_ms < now.wall_ms and since_ms < trusted(draft.view, draft.settings, now).wall_ms:
        _forget(draft, number, [name])
        return None
    return known


def make_room(draft: Draft, number: int, name: str) -> None:
    """Forget the names idle longest in a partition, if a new one would be too many.

    Not those that have messages in the same frame.
    """
    producers = draft.view.topic(number).producers
    if name in producers:
        return
    surplus = len(producers) + 1 - draft.settings.dedup_producers_max
    if surplus > 0:
        busy = {op.producer for op in draft.ops if isinstance(op, Appended)}
        others = (one for one in producers if one != SEAT and one not in busy)
        oldest = nsmallest(surplus, others, key=lambda one: producers[one].time_ms)
        _forget(draft, number, oldest)


def _forget(draft: Draft, number: int, names: list[str]) -> None:
    if names:
        draft.ops.append(ProducersForgotten(number, names))
        draft.forgotten.update((number, name) for name in names)
