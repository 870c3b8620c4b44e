"""Named producers, and exclusive ones: the newest producer of a name fences the earlier ones.

The first partition of a topic keeps the epoch of a name; each partition keeps the last sequence
that the name sent there. A name is forgotten after being idle for dedup_idle_ms; a partition with
more than dedup_producers_max names forgets the name idle for longest. After a wall clock that was
set back, names count as used until then: their stamps look too old when it is right again.

At most one exclusive producer writes to a topic. The seat of a topic has an epoch that only rises,
odd while it is taken and even while it is free. It is stored as the epoch of a named producer,
under a name that users cannot choose, in the first partition of the topic, and is never forgotten.
The holder keeps a flock (store/liveness) for as long as it lives, so a seat whose holder is dead is
free, whatever the epoch says.

    free 0 ──take──> 1 held ──leave──> 2 free ──take──> 3 held ──killed──> 3 dead ──take──> 5 held
                     1 held ──take, fencing──> 3 held: the holder of 1 gets ProducerFenced

1. Only the holder of the newest epoch stores anything (`check`), under the lock that orders frames.
2. An epoch is taken once, by the process that locked its lock file before the frame that takes it.
3. A dead epoch stays dead: it is never taken again.
Source: PIP-6, PIP-68 (exclusive producer), spec/transactions 7.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from typing import Final, NamedTuple, TypeAlias

from txlog.base.ids import TopicName
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.folds.topic import ProducerState
from txlog.engine.model.ops import Appended, ProducerOpened, ProducersForgotten
from txlog.engine.plan.clock_trust import seen_ms, trusted
from txlog.engine.view import View
from txlog.errors import InvalidArgument, ProducerBusy, ProducerFenced

# --- exclusive producers --------------------------------------------------------------------------

SEAT: Final = "__exclusive"  # names of users begin otherwise
SHARED: Final = "shared"
EXCLUSIVE: Final = "exclusive"
FENCING: Final = "exclusive-with-fencing"
WAITING: Final = "wait-for-exclusive"
ACCESS_MODES: Final = (SHARED, EXCLUSIVE, FENCING, WAITING)
Lives: TypeAlias = Callable[[int], bool]
"""Whether the holder of an epoch of the topic lives; asked under the write lock only."""


def check_mode(mode: str) -> str:
    """The access mode, if there is one of this name; raises InvalidArgument."""
    if mode not in ACCESS_MODES:
        raise InvalidArgument(
            f"access_mode is {mode!r}, it must be one of {', '.join(ACCESS_MODES)}"
        )
    return mode


def epoch_of(view: View, topic: Topic) -> int:
    """The newest epoch of the topic's seat; 0: it has never been taken."""
    seat = view.topic(number_of(topic, 0)).producers.get(SEAT)
    return 0 if seat is None else seat.epoch


def is_taken(epoch: int) -> bool:
    """True for an epoch that was taken and not left; its holder may be dead."""
    return epoch % 2 == 1


def after(epoch: int) -> int:
    """The epoch that the next holder takes."""
    return epoch + 1 + epoch % 2


def look(view: View, topic: Topic, mode: str, lives: Lives) -> Decision[int]:
    """Answer the seat's epoch, if a producer of this mode may be opened; else ProducerBusy."""
    epoch = epoch_of(view, topic)
    if mode != FENCING and is_taken(epoch) and lives(epoch):
        raise busy(topic, epoch)
    return Decision([], answer=epoch)


def take(view: View, topic: Topic, mode: str, epoch: int, lives: Lives) -> Decision[int | None]:
    """Decide to take the seat after this epoch; durable. Raises ProducerBusy.

    Answers the new epoch; None: another producer took it first, so look again.
    """
    if epoch_of(view, topic) != epoch:
        return Decision([])
    look(view, topic, mode, lives)
    new_epoch = after(epoch)
    return Decision([ProducerOpened(number_of(topic, 0), SEAT, new_epoch)], None, True, new_epoch)


def leave(view: View, topic: Topic, epoch: int) -> Decision[None]:
    """Decide to free the seat, unless its holder was fenced; durable, so that waiters see it."""
    if epoch_of(view, topic) != epoch:
        return Decision([])
    return Decision([ProducerOpened(number_of(topic, 0), SEAT, epoch + 1)], None, True)


def check(view: View, topic: Topic, own_epoch: int, lives: Lives) -> None:
    """Check that a producer may store now; own_epoch: its epoch, 0 for a shared producer.

    raises: ProducerFenced (another producer has taken the seat), ProducerBusy (another producer
        holds it)
    """
    epoch = epoch_of(view, topic)
    if not own_epoch:
        if epoch and is_taken(epoch) and lives(epoch):
            raise busy(topic, epoch)
        return
    if epoch != own_epoch:
        short = TopicName.parse(topic.name).short
        raise ProducerFenced(
            f"the exclusive producer of {short} is fenced: epoch {own_epoch} was "
            f"followed by {epoch}",
            hint="stop this producer",
            topic=short,
            epoch=own_epoch,
        )


def busy(topic: Topic, epoch: int) -> ProducerBusy:
    """The error while another producer holds the seat."""
    short = TopicName.parse(topic.name).short
    return ProducerBusy(
        f"topic {short} has an exclusive producer",
        hint="wait for it to end (wait-for-exclusive), or take over (exclusive-with-fencing)",
        topic=short,
        epoch=epoch,
    )


# --- names ----------------------------------------------------------------------------------------


class NamedProducer(NamedTuple):
    """A producer with a name, and the epoch it was opened with."""

    name: str
    epoch: int


def open_producer(
    view: View, settings: Settings, now: Instant, topic: Topic, name: str
) -> Decision[NamedProducer]:
    """Decide that a new producer has the name, and fence the earlier; written, not flushed."""
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
    """The sequences of a name in a partition; None: none, or too long idle: it forgets them."""
    sent = draft.view.topic(number).producers.get(name)
    if sent is None or (number, name) in draft.forgotten:
        return None
    since_ms = seen_ms(draft.view, sent.time_ms) + draft.settings.dedup_idle_ms
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
        oldest = nsmallest(surplus, others, key=lambda other: _last_use(draft, producers[other]))
        _forget(draft, number, oldest)


def _last_use(draft: Draft, sent: ProducerState) -> tuple[int, int, int]:
    """Orders names by their last use; by place where a slow clock stamped them."""
    return seen_ms(draft.view, sent.time_ms), sent.ledger, sent.entry


def _forget(draft: Draft, number: int, names: list[str]) -> None:
    if names:
        draft.ops.append(ProducersForgotten(number, names))
        draft.forgotten.update((number, name) for name in names)
