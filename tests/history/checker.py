"""Owns `check`: the findings of a history, each promise that it breaks by name.

A finding is certain: whatever a call without a definite outcome may have done is allowed for.

    lost-message              answered, and missing from a later read, or skipped by one
    phantom-message           never sent, or seen before it was sent
    duplicate-message         in the log more often than it was sent
    duplicate-sequence        a named producer's repetition was stored
    changed-message           one id with two values
    aborted-read              seen, and its transaction never committed
    torn-transaction          a part of a transaction is visible, or it is mixed with others
    torn-snapshot             a read shows what no single moment had
    stale-read                a read misses what had been answered before it began
    non-monotonic-read        a later read of the same reader shows less, or something again
    order-violation           messages in another order than they were sent
    commit-order              two partitions have two transactions in different orders
    wrong-outcome             a definite answer was not true
    duplicate-delivery        delivered again, although nothing gave it back
    uncounted-redelivery      its process ended with it, and it came again with the same count
    delivery-order            Exclusive or Failover delivered out of order
    key-order                 Key_Shared delivered messages of a key out of order
    returned-acknowledgement  delivered again, although durably acknowledged
    double-acknowledgement    two committed transactions acknowledged one message
    unreachable-message       neither acknowledged nor delivered to anybody any more
    two-active-consumers      of an Exclusive subscription, or a partition of a Failover one
    two-exclusive-producers   an exclusive one was opened while another lived
    fenced-holder             a call of a fenced holder succeeded
    epoch-reused              an epoch or an id was given out twice, or an epoch fell
    early-delivery            a delayed message came before its time
    late-delivery             a delayed message is due, and is never delivered
    wrong-watermark           a watermark fell, or a message below it was not late
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.history.delivery import check_deliveries
from tests.history.events import Event
from tests.history.fencing import check_fencing
from tests.history.log import check_log
from tests.history.model import Finding, History
from tests.history.moments import check_moments
from tests.history.watermarks import check_watermarks

NAMES = frozenset(
    line.split()[0]
    for line in (__doc__ or "").splitlines()
    if line.startswith("    ") and line[4] != " "
)


def check(events: Iterable[Event]) -> list[Finding]:
    """The promises that a history breaks; none if it is correct."""
    history = History(events)
    findings = list(check_log(history))
    # what is torn or lost also has no place in an order; the simpler name wins
    named = {finding.name for finding in findings}
    for finding in check_moments(history):
        if finding.name not in named & {"torn-transaction", "lost-message", "phantom-message"}:
            findings.append(finding)
    findings += check_deliveries(history)
    findings += check_fencing(history)
    findings += check_watermarks(history)
    return findings


__all__ = ["NAMES", "Finding", "check"]
