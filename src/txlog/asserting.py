"""Owns WatermarkBuilder: how a producer says that nothing older than a time is to come.

Source: apache/pulsar#12267 (Producer.newWatermark); spec/watermarks 2, 10, 11.
"""

from __future__ import annotations

import warnings

import pyarrow as pa
import pyarrow.compute as pc

from txlog.clock import Instant
from txlog.engine.flow import watermark
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.enter import Use
from txlog.engine.flow.lookup import live_topic
from txlog.engine.flow.producers import Named
from txlog.engine.flow.sweep import Uses
from txlog.engine.flow.watermark import UNNAMED, Assertion, WatermarkPlaced, check_event_time
from txlog.engine.flow.watermark_policy import policy
from txlog.engine.folds.catalog import Topic
from txlog.engine.folds.coordinator import OPEN
from txlog.engine.store import Store
from txlog.engine.view import View
from txlog.errors import InvalidArgument, NotAllowed
from txlog.ids import TopicName, TxnId
from txlog.transaction import Transaction, in_transaction

COUNT, REFUSE, OFF = 0, 1, 2  # the policy watermark_open_transaction_check


class WatermarkAheadWarning(UserWarning):
    """A watermark is ahead of messages of its own producer that are still to become visible."""


class Asserting:
    """What a producer needs for its watermarks: who it is, and what it has in open transactions.

    ahead: watermarks that were ahead of a message in an open transaction of this producer
    """

    __slots__ = ("_least", "_named", "_number", "_store", "_topic", "_warned", "ahead", "name")

    def __init__(
        self, store: Store, topic: TopicName, number: int, name: str | None, named: Named | None
    ) -> None:
        self._store, self._topic, self._number, self._named = store, topic, number, named
        self.name = name or UNNAMED
        self._least: dict[int, tuple[Transaction | TxnId, int]] = {}
        self._warned = False
        self.ahead = 0

    def note(self, txn: Transaction | TxnId, data: pa.Table | pa.RecordBatch) -> None:
        """Remember the least event time of what is sent in a transaction."""
        at = data.schema.get_field_index("event_time")
        if at < 0:
            return
        least = pc.min(data.column(at).cast(pa.int64())).as_py()
        if least is not None:
            known = self._least.get(id(txn))
            self._least[id(txn)] = (txn, least if known is None else min(known[1], least))

    def check(self, event_time: int, within: Transaction | TxnId | None) -> None:
        """Look at the messages that will become visible behind this watermark (section 2, rule 2).

        raises: NotAllowed with the policy `refuse`
        """
        for key, (txn, least) in list(self._least.items()):
            if not self._is_open(txn):
                del self._least[key]
            elif txn is not within and _id_of(txn) != _id_of(within) and event_time > least:
                self._found_ahead(event_time, txn, least)

    def _found_ahead(self, event_time: int, txn: Transaction | TxnId, least: int) -> None:
        rule = self._store.read(
            lambda view: policy(
                view, self._store.settings, self._live(view), "watermark_open_transaction_check"
            ),
            fresh=False,
        )
        if rule == OFF:
            return
        text = (
            f"watermark {event_time} of {self.name} in {self._topic.short}: transaction "
            f"{_id_of(txn)} is open and has a message of {least}"
        )
        if rule == REFUSE:
            raise NotAllowed(
                text, hint="end the transaction first, or send the watermark in it",
                topic=self._topic.short,
            )  # fmt: skip
        self.ahead += 1
        if not self._warned:
            self._warned = True
            warnings.warn(f"{text}: it will be late", WatermarkAheadWarning, stacklevel=4)

    def _is_open(self, txn: Transaction | TxnId) -> bool:
        wanted = _id_of(txn)
        if wanted is None:
            return isinstance(txn, Transaction) and txn.state == "OPEN"  # nothing of it is written

        def look(view: View) -> bool:
            known = view.coordinator(wanted.coordinator).unfinished.get(wanted.sequence)
            return known is not None and known.status == OPEN

        return self._store.read(look, fresh=False)

    def _live(self, view: View) -> Topic:
        return live_topic(view, self._number, self._topic.short)

    def send(self, event_time: int | None, txn: Transaction | TxnId | None) -> WatermarkPlaced:
        """Assert a time, or with None that the producer is idle."""
        if event_time is not None:
            check_event_time(event_time)
            self.check(event_time, txn)
        store, what, named = self._store, Assertion(self.name, event_time), self._named
        if txn is None:
            answer = store.write(
                lambda view, now: watermark.assert_watermark(
                    view, store.settings, now, self._live(view), what, named
                )
            )
        else:
            uid = store.disk.owner()[0]

            def decide(view: View, now: Instant, use: Use) -> Decision:
                return watermark.assert_in_txn(
                    view, store.settings, now, uid, self._live(view), what, named, use
                )

            answer = in_transaction(store, txn, decide, Uses())
        assert isinstance(answer, WatermarkPlaced)
        return answer


def _id_of(txn: Transaction | TxnId | None) -> TxnId | None:
    """The id of a transaction; None before its first operation has given it one."""
    use = txn.use if isinstance(txn, Transaction) else txn
    return use if isinstance(use, TxnId) else None


class WatermarkBuilder:
    """A watermark in the making: `producer.new_watermark().event_time(t).send()`, or mark_idle."""

    __slots__ = ("_asserting", "_event_time", "_idle", "_txn")

    def __init__(self, asserting: Asserting, txn: Transaction | TxnId | None) -> None:
        self._asserting = asserting
        self._txn = txn
        self._event_time: int | None = None
        self._idle = False

    def event_time(self, event_time: int) -> WatermarkBuilder:
        """From here on nothing of this producer is older than so many ms since 1970 UTC."""
        self._event_time = event_time
        return self

    def mark_idle(self) -> WatermarkBuilder:
        """This producer is not waited for until it asserts a time again."""
        self._idle = True
        return self

    def send(self) -> WatermarkPlaced:
        """Append it to every partition of the topic, in one frame; durable, or with the commit.

        returns: where it stands: partition -> (ledger, entry); in a transaction its id
        raises:  InvalidArgument (neither a time nor idle, or both), PartitionUnavailable, what a
                 send raises
        """
        if self._idle == (self._event_time is not None):
            raise InvalidArgument(
                "a watermark is either an event_time or mark_idle", code=203,
                hint="call one of event_time(ms) and mark_idle()",
            )  # fmt: skip
        return self._asserting.send(self._event_time, self._txn)
