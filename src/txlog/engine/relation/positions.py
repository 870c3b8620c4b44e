"""Positions in the form of the API, with Pulsar's `earliest` and `latest`; last messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, TypeAlias

from txlog.base.choices import Start
from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import END, START, Bound
from txlog.base.times import instant_ms
from txlog.engine.decide.consuming import position
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.plan.lookup import check_partition
from txlog.engine.plan.reading import ranges
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import InvalidArgument, NotAllowed

if TYPE_CHECKING:
    from txlog.engine.decide.consuming.acknowledge import Find

Where: TypeAlias = Bound | MessageId | int | datetime | date | Start
_WORDS = {"earliest": START, "latest": END}


def bound_of(position: Where | None) -> Bound:
    """A position as a bound: an id, an instant in ms, a date, a word; None: the start.

    raises: InvalidArgument
    """
    if position is None:
        return START
    if isinstance(position, Bound):
        return position
    if isinstance(position, MessageId):
        return Bound("id", position)
    if isinstance(position, int) and not isinstance(position, bool):
        return Bound("time", position)
    if isinstance(position, date):
        return Bound("time", instant_ms(position))
    bound = _WORDS.get(position) if isinstance(position, str) else None
    if bound is None:
        raise InvalidArgument(
            f"{position!r} is not a position",
            code=203,
            hint="a Bound, a MessageId, an instant in ms, a datetime, 'earliest' or 'latest'",
        )
    return bound


def seek_to(store: Store, find: Find, to: Where, partitions: Sequence[int] | None) -> None:
    """Move a subscription to a position, in these partitions (by index) or in all (None).

    raises: NotAllowed (acknowledgements held by transactions), MessageNotFound, InvalidArgument
    """
    bound, uid = bound_of(to), store.disk.owner()[0]
    store.write(
        lambda view, now: position.seek(
            view, store.settings, now, uid, *find(view), bound, partitions, force=False
        )
    )


def chosen_partitions(
    topic: Topic, name: TopicName, indexes: Sequence[int] | None
) -> list[int] | None:
    """The chosen partitions of a topic, by index; None: all, including partitions added later.

    raises: TopicNotFound for a missing one; InvalidArgument if both ways name some
    """
    if name.partition is not None:
        if indexes is not None:
            raise InvalidArgument(f"{name} already names a partition")
        return [name.partition]
    for index in indexes or ():
        check_partition(name.short, topic, index)
    return None if indexes is None else sorted(set(indexes))


def last_ids(
    view: View, topic: Topic, indexes: Iterable[int] | None
) -> dict[int, MessageId | None]:
    """The last visible message by partition; None: it is empty. indexes: None: all partitions."""
    chosen = range(topic.partitions) if indexes is None else indexes
    return {index: ranges.last_message(view, number_of(topic, index)) for index in chosen}


def only_one(topic: str, last_by_partition: Mapping[int, MessageId | None]) -> MessageId | None:
    """The last id of a topic with one partition; raises NotAllowed when it has more."""
    if len(last_by_partition) != 1:
        raise NotAllowed(
            f"{topic} has {len(last_by_partition)} partitions, each with its own last message",
            hint="get_last_message_ids returns all of them",
            topic=topic,
        )
    return next(iter(last_by_partition.values()))
