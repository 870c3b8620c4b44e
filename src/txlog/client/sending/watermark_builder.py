"""Owns WatermarkBuilder and WatermarkId: a producer says that nothing older than a time will come.

Source: apache/pulsar#12267 (Producer.newWatermark); spec/watermarks 2, 10, 11.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import Position, TopicName, TxnId
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.door import transactions as coordinator
from txlog.engine.door import transactions as transaction
from txlog.engine.door import watermarks as watermark
from txlog.engine.door.catalog import Topic, live_topic
from txlog.engine.door.facts import UNNAMED, OneRow
from txlog.engine.door.sending import Target
from txlog.engine.door.store import Decision, Store, Uses, View
from txlog.engine.door.topics import policy
from txlog.errors import InvalidArgument, NotAllowed

if TYPE_CHECKING:
    from txlog.engine.door.sending import Named
    from txlog.engine.door.transactions import Transaction, Use
    from txlog.engine.door.watermarks import WatermarkPlaced

COUNT, REFUSE, OFF = 0, 1, 2  # the policy watermark_open_transaction_check
NOTED_MIN = 64  # how many transactions are noted before ended ones are looked for


class WatermarkAheadWarning(UserWarning):
    """A watermark is ahead of messages of its own producer that are yet to become visible."""


class WatermarkId:
    """Where a watermark is: in every partition, or in a transaction until that commits.

    partitions: their numbers in the topic
    txn:        the transaction it was sent in, None for a plain one
    """

    __slots__ = ("_handle", "_placed", "txn")

    def __init__(self, placed: WatermarkPlaced, handle: Transaction | None = None) -> None:
        self._placed, self._handle = placed, handle
        self.txn = placed.txn

    @property
    def partitions(self) -> list[int]:
        """The partitions that have it, or will have it with the commit."""
        return list(self._placed.numbers)

    @property
    def positions(self) -> dict[int, Position]:
        """By partition where it takes effect; of an open transaction nothing.

        After the commit it is the marker, as far as the transaction's own handle knows.
        """
        if self.txn is None:
            return {at: Position(*where) for at, where in self._placed.positions.items()}
        ended = None if self._handle is None else self._handle.outcome
        markers = {} if ended is None else {one[0]: Position(*one[1:3]) for one in ended.markers}
        return {
            at: markers[number] for at, number in self._placed.numbers.items() if number in markers
        }

    def __repr__(self) -> str:
        where = self.positions or f"txn={self.txn}"
        return f"WatermarkId({where})"


class Asserting:
    """What a producer needs for its watermarks: who it is, and what it has in open transactions.

    ahead: watermarks that were ahead of a message in an open transaction of this producer
    """

    __slots__ = (
        "_find",
        "_least",
        "_named",
        "_number",
        "_short",
        "_store",
        "_sweep_at",
        "_warned",
        "ahead",
        "name",
    )

    def __init__(
        self,
        store: Store,
        topic: TopicName,
        target: Target,
        name: str | None,
        named: Named | None,
    ) -> None:
        self._store, self._named = store, named
        self._number, self._find = target
        self._short = topic.topic.short
        self.name = name or UNNAMED
        self._least: dict[Transaction | TxnId, int] = {}
        self._sweep_at = NOTED_MIN
        self._warned = False
        self.ahead = 0

    def note_batch(self, txn: Transaction | TxnId, batch: pa.RecordBatch | OneRow) -> None:
        """Remember the least event time of what is sent in a transaction."""
        if isinstance(batch, OneRow):
            self.note(txn, batch.event_time)
            return
        at = batch.schema.get_field_index("event_time")
        if at >= 0:
            self.note(txn, pc.min(batch.column(at).cast(pa.int64())).as_py())

    def note(self, txn: Transaction | TxnId, event_time: int | None) -> None:
        """Remember an event time of a message in a transaction, if it is the least so far."""
        if event_time is None:
            return
        if txn not in self._least and len(self._least) >= self._sweep_at:
            self._forget()
        self._least[txn] = min(event_time, self._least.get(txn, event_time))

    def _forget(self) -> None:
        """Forget ended transactions, rarely enough to cost little for each."""
        self._least = {txn: least for txn, least in self._least.items() if self._is_ahead(txn)}
        self._sweep_at = max(NOTED_MIN, 2 * len(self._least))

    def check(self, event_time: int, within: Transaction | TxnId | None) -> None:
        """Look at the messages that will become visible after this watermark (section 2, rule 2).

        raises: NotAllowed with the policy `refuse`
        """
        if not self._least:
            return
        self._forget()
        mine = None if within is None else _id_of(within)
        for txn, least in self._least.items():
            known = _id_of(txn)
            is_mine = txn is within or (known is not None and known == mine)
            if not is_mine and event_time > least:
                self._found_ahead(event_time, txn, least)
                return

    def _found_ahead(self, event_time: int, txn: Transaction | TxnId, least: int) -> None:
        rule = self._store.read(
            lambda view: policy(
                view, self._store.settings, self._live(view), "watermark_open_transaction_check"
            ),
            fresh=False,
        )
        if rule == OFF:
            return
        named = _id_of(txn)
        text = (
            f"watermark {event_time} of {self.name} in {self._short}: transaction "
            f"{'' if named is None else f'{named} '}is open and has a message of {least}"
        )
        if rule == REFUSE:
            raise NotAllowed(
                text,
                hint="end the transaction first, or send the watermark in it",
                topic=self._short,
                txn=named,
                least_event_time=least,
                event_time=event_time,
            )
        self.ahead += 1
        self._store.tally.ahead[self._number] += 1
        if not self._warned:
            self._warned = True
            warnings.warn(f"{text}: it will be late", WatermarkAheadWarning, stacklevel=6)

    def _is_ahead(self, txn: Transaction | TxnId) -> bool:
        """True while messages of the transaction may still become visible."""
        if isinstance(txn, transaction.Transaction) and txn.state in (
            "COMMITTED",
            "ABORTING",
            "ABORTED",
        ):
            return False
        wanted = _id_of(txn)
        if wanted is None:
            return True  # all of it is left for later

        def look(view: View) -> bool:
            known = view.coordinator(wanted.coordinator).unfinished.get(wanted.sequence)
            return known is not None and known.status in (coordinator.OPEN, coordinator.COMMITTING)

        return self._store.read(look)

    def _live(self, view: View) -> Topic:
        return live_topic(view, self._number, self._short)

    def send(self, event_time: int | None, txn: Transaction | TxnId | None) -> WatermarkId:
        """Assert a time, or with None that the producer is idle."""
        if event_time is not None:
            watermark.check_event_time(event_time)
            self.check(event_time, txn)
        store, what, named = self._store, watermark.Assertion(self.name, event_time), self._named
        if txn is None:
            answer = store.write(
                lambda view, now: watermark.assert_watermark(
                    view, store.settings, now, self._find(view), what, named
                )
            )
        else:
            uid = store.disk.owner()[0]

            def decide(
                view: View, now: Instant, use: Use
            ) -> Decision[tuple[TxnId, WatermarkPlaced]]:
                return watermark.assert_in_txn(
                    view, store.settings, now, uid, self._find(view), what, named, use
                )

            answer = transaction.in_transaction(store, txn, decide, Uses())
        return WatermarkId(answer, txn if isinstance(txn, transaction.Transaction) else None)


def _id_of(txn: Transaction | TxnId) -> TxnId | None:
    """The id of a transaction; None before its first operation has given it one."""
    use = txn.use if isinstance(txn, transaction.Transaction) else txn
    return use if isinstance(use, TxnId) else None


@checked
class WatermarkBuilder:
    """A watermark to send: `producer.new_watermark().event_time(t).send()`, or mark_idle.

    It promises that every message of the producer that becomes visible after it is not older than
    t. In a transaction it takes effect with the commit, and the transaction's own messages may be
    older. A plain one is ahead of what the producer has in open transactions: see that t is not
    above the least event time there (the policy watermark_open_transaction_check).

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders", partitions=2)
    ...         producer = client.producer("orders", name="till-7")
    ...         plain = producer.new_watermark().event_time(1_700_000_000_000).send()
    ...         with client.transaction() as txn:
    ...             _ = producer.send(b"one", event_time=1_700_000_000_500, txn=txn)
    ...             inside = producer.new_watermark(txn).event_time(1_700_000_001_000).send()
    ...             before = inside.positions
    ...         plain.partitions, before, sorted(inside.positions)
    ([0, 1], {}, [0, 1])
    """

    __slots__ = ("_asserting", "_before", "_event_time", "_idle", "_txn")

    def __init__(
        self, asserting: Asserting, txn: Transaction | TxnId | None, before: Callable[[], None]
    ) -> None:
        self._asserting = asserting
        self._before = before
        self._txn = txn
        self._event_time: int | None = None
        self._idle = False

    def event_time(self, event_time: int) -> WatermarkBuilder:
        """From here on nothing of this producer is older than this, in ms since 1970 UTC.

        A time below its last one changes nothing. 2^63 - 1 is the end of its stream.
        """
        self._event_time = event_time
        return self

    def mark_idle(self) -> WatermarkBuilder:
        """Nobody waits for this producer until it asserts a time again."""
        self._idle = True
        return self

    def send(self) -> WatermarkId:
        """Append it to every partition of the topic, in one frame; durable, or with the commit.

        Sending again is harmless. The producer of one partition asserts for all of them, too.
        returns: where it stands
        raises:  InvalidArgument (neither a time nor idle, or both; a time that is none), NotAllowed
                 (ahead of an open transaction, where that is refused), LimitExceeded (producers),
                 PartitionUnavailable, and what a send raises; nothing is appended then
        """
        if self._idle == (self._event_time is not None):
            raise InvalidArgument(
                "a watermark is either an event_time or mark_idle",
                code=203,
                hint="call one of event_time(ms) and mark_idle()",
            )
        self._before()  # what was sent without waiting is before it
        return self._asserting.send(self._event_time, self._txn)
