"""Owns Call: a decision on its way through the write path."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.sweep import Uses
from txlog.engine.view.view import View
from txlog.errors import OutcomeUnknown

Decide = Callable[[View, Instant], Decision]
NOTHING = Uses()


# How far a call is on its way to the journal.
QUEUED, WRITING, WRITTEN, NO_FRAME = range(4)


class Call:
    """A decision in the queue, and what became of it.

    Those that are submitted together are of one transaction, and share a frame: what they do is
    worth nothing without its commit.

    coordinators: those it names; they are loaded, so that the sweep sees them
    uses:         what else it works with; the sweep ends what is overdue there
    thorough:     sweep every coordinator before it, without a bound
    then:         told of the decision once it is applied, before the next one decides
    stage:        QUEUED: its frame is not in the journal; WRITING: it may be; WRITTEN: it is, and
                  the folds have taken it; NO_FRAME: it was decided, and there is nothing to write
    done:         answer and error stand: it was flushed if it is to be
    """

    __slots__ = (
        "answer", "coordinators", "decide", "done", "error", "stage", "then", "thorough", "uses",
    )  # fmt: skip

    def __init__(
        self, decide: Decide, coordinators: tuple[int, ...] = (), uses: Uses = NOTHING,
        *, thorough: bool = False, then: Callable[[Decision], None] | None = None,
    ) -> None:  # fmt: skip
        self.decide = decide
        self.coordinators = coordinators
        self.uses = uses
        self.thorough = thorough
        self.then = then
        self.renew()

    def renew(self) -> None:
        """Make it a call that nobody has decided."""
        self.answer: object = None
        self.error: BaseException | None = None
        self.stage = QUEUED
        self.done = False

    def conclude(self, decision: Decision) -> None:
        """Take what was decided and applied as the outcome."""
        self.answer, self.error = decision.answer, decision.error
        if self.then is not None:
            self.then(decision)

    def refuse(self, error: BaseException) -> None:
        """Nothing was written, for this reason."""
        self.stage = QUEUED
        self.error = error

    def end(self, error: BaseException) -> None:
        """What goes on with it cannot be known or was not tried, unless it was refused before."""
        self.error = self.error or error
        self.done = True

    @property
    def is_in_doubt(self) -> bool:
        """True when its frame may be in the journal."""
        return self.stage in (WRITING, WRITTEN)


def in_doubt(calls: Iterable[Call]) -> bool:
    """True when what one of them does may be in the journal."""
    return any(call.is_in_doubt for call in calls)


def interrupted(error: BaseException) -> OutcomeUnknown:
    """What callers hear whose frames may be in the journal when something ended the writing."""
    unknown = OutcomeUnknown(
        f"{str(error) or type(error).__name__}, while the call was written: it may have been done",
        hint="ask by id, or repeat the call with the same producer and sequence",
    )
    unknown.__cause__ = error
    return unknown
