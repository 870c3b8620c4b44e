"""Exclusive producers: at most one writes to a topic, and the next one fences it.

The seat of a topic has an epoch that only rises, odd while it is taken and even while it is free.
It is stored as the epoch of a named producer, under a name that users cannot choose, in the first
partition of the topic, and is never forgotten. The holder keeps a flock (store/liveness) for as
long as it lives, so a seat whose holder is dead is free, whatever the epoch says.

    free 0 ──take──> 1 held ──leave──> 2 free ──take──> 3 held ──killed──> 3 dead ──take──> 5 held
                     1 held ──take, fencing──> 3 held: the holder of 1 gets ProducerFenced

1. Only the holder of the newest epoch stores anything (`check`), under the lock that orders frames.
2. An epoch is taken once, by the process that locked its lock file before the frame that takes it.
3. A dead epoch stays dead: it is never taken again.
Source: PIP-68 (exclusive producer).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from txlog.base.ids import TopicName
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.model.ops import ProducerOpened
from txlog.engine.view import View
from txlog.errors import InvalidArgument, ProducerBusy, ProducerFenced

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
    """Whether a producer of this mode may be opened; answers the epoch. Raises ProducerBusy."""
    epoch = epoch_of(view, topic)
    if mode != FENCING and is_taken(epoch) and lives(epoch):
        raise busy(topic, epoch)
    return Decision([], answer=epoch)


def take(view: View, topic: Topic, mode: str, epoch: int, lives: Lives) -> Decision[int | None]:
    """Decide to take the seat after an epoch; durable.

    None: another producer was faster, look again.
    """
    if epoch_of(view, topic) != epoch:
        return Decision([])
    look(view, topic, mode, lives)
    new_epoch = after(epoch)
    return Decision([ProducerOpened(number_of(topic, 0), SEAT, new_epoch)], None, True, new_epoch)


def leave(view: View, topic: Topic, epoch: int) -> Decision[None]:
    """Decide that the holder of an epoch leaves, unless it was fenced.

    Durable, so that waiters see it.
    """
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
