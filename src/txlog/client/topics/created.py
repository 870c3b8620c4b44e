"""Topics that a job creates for itself, and deletes if it fails and they are unused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from txlog.base.ids import TopicName
from txlog.clock import Instant
from txlog.engine.door import topics as deletion
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.store import Decision, Store, View
from txlog.engine.door.topics import DeletedTopic, create_topic
from txlog.errors import TxlogError

if TYPE_CHECKING:
    from txlog.base.schemas.schema import Schema


@contextmanager
def created(
    store: Store,
    topics: Sequence[str],
    schema: Schema | None = None,
    *,
    partitions: int = 1,
    schemas: int = 1,
) -> Iterator[None]:
    """Create missing topics; if the block raises, delete them again.

    schema:  of the first topic, if it is missing
    schemas: how many the block may add to a topic

    A topic stays if it has messages, a subscription, an open transaction or another schema: then
    others use it, too.
    raises: InvalidArgument, LimitExceeded, ReadOnlyStore; the error of the block
    """
    numbers: list[int] = []
    try:
        for at, name in enumerate(map(TopicName.parse, topics)):
            if _create(store, name, None if at else schema, partitions):
                numbers.append(_number_of(store, name))
        yield
    except BaseException:  # also on Ctrl-C
        for number in numbers:
            with suppress(TxlogError):  # the first error is the cause
                _delete_unused(store, number, schemas)
        raise


def _create(store: Store, name: TopicName, schema: Schema | None, partitions: int) -> bool:
    def decide(view: View, now: Instant) -> Decision[bool]:
        return create_topic(
            view, store.settings, now, name, partitions, if_not_exists=True, schema=schema
        )

    return bool(store.write(decide))


def _number_of(store: Store, name: TopicName) -> int:
    return store.read(lambda view: find_topic(view, name).number)


def _delete_unused(store: Store, number: int, schemas: int) -> None:
    def decide(view: View, now: Instant) -> Decision[DeletedTopic]:
        return deletion.delete_unused(view, store.settings, now, number, schemas)

    store.write(decide)
