"""Owns Call: a decision on its way through the write path."""

from __future__ import annotations

from collections.abc import Callable

from txlog.clock import Instant
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.sweep import Uses
from txlog.engine.view import View

Decide = Callable[[View, Instant], Decision]
NOTHING = Uses()


class Call:
    """A decision in the queue, and what became of it.

    coordinators: those it names; they are loaded, so that the sweep sees them
    uses:         what else it works with; the sweep ends what is overdue there
    thorough:     sweep every coordinator before it, without a bound
    then:         told of the decision once it is applied, before the next one decides
    joins:        it may ride in the frame of the call before it: both are of one transaction, and
                  what they do is worth nothing without its commit
    """

    __slots__ = (
        "answer", "coordinators", "decide", "done", "error", "joins", "then", "thorough", "uses",
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
        self.answer: object = None
        self.error: BaseException | None = None
        self.done = False
        self.joins = False

    def conclude(self, decision: Decision) -> None:
        """Take what was decided and applied as the outcome."""
        self.answer, self.error = decision.answer, decision.error
        if self.then is not None:
            self.then(decision)
