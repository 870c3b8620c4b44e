"""Owns Receiving: how one consumer leases messages, and its place in each partition.

One turn leases a batch, in one unflushed frame (decide/consuming/lease). After a turn that found
nothing, the next turn first looks without the lock. The caller holds the consumer's mutex, so its
threads take turns. The rows are read after the frame that leased them. If a file is damaged, the
consumer returns the messages it could not read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.consuming.lease import (
    Delivery,
    PartitionDelivery,
    ReceiveRequest,
    active_consumer,
    give_back_parts,
    give_back_runs,
    receive,
)
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.buffer import find_marker
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.folds.cursor import BEFORE_ALL
from txlog.engine.model.idset import Id, before, covers, each
from txlog.engine.model.leases import Leases
from txlog.engine.model.ops import CATALOG, Component, Due, Mark, Op, Run, members, peers, returns
from txlog.engine.plan.ack_sets import is_trimmed, runs_of_table
from txlog.engine.plan.consuming.choice import is_at_end
from txlog.engine.plan.damage import find_damage
from txlog.engine.plan.delayed.due import IndexMissing
from txlog.engine.plan.delayed.index import BucketLost
from txlog.engine.plan.lookup import live_subscription, live_topic
from txlog.engine.plan.reading.dispatch import (
    NO_MESSAGES,
    Piece,
    last_position,
    received,
    requests_of,
)
from txlog.engine.plan.reading.uncommitted import START, PreviewPosition, preview
from txlog.engine.plan.standing import ConsumerState, ReadPosition
from txlog.engine.session.consuming.dead_letters import DeadLetters
from txlog.engine.session.consuming.membership import Membership
from txlog.engine.session.reading.message import Message
from txlog.engine.session.reading.pause import APART_SECONDS_MAX, REST_SECONDS_MAX, Concern, Quiet
from txlog.engine.store.appender import QUEUED, Call, is_sweep_due
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint import quarantine
from txlog.engine.upkeep.delayed.buckets import drop_lost, rebuild_if_free
from txlog.engine.upkeep.space.retention import expire_due, is_timed
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, Corruption

# --- the rows of what was leased -------------------------------------------------------------


def read_handed(
    store: Store, short: str, topic: Topic, member: Membership, handed: Delivery
) -> tuple[pa.Table, list[Run]]:
    """The rows of a lease with the columns of RECEIVED, in order, and their ids as runs.

    short: the name of the topic as it was opened, which a rename does not change: callers find the
           consumer of a message by it

    If a partition is damaged, the damage is recorded, and its messages and those of the partitions
    after it go back. The rows of earlier partitions are delivered; if there are none, it raises.
    """
    tables: list[pa.Table] = []
    runs: list[Run] = []
    for at, part in enumerate(handed.parts):
        if not part.pieces:
            continue
        try:
            if part.error is not None:
                raise part.error
            look = partial(
                _rows, short=short, topic=topic, subscription=member.subscription, part=part
            )
            tables.append(store.read(look, fresh=False, waits=False))
            runs += part.runs
        except BaseException as error:  # also on Ctrl-C: the messages are leased, but not delivered
            _give_back(store, member, handed.parts[at:])
            if not isinstance(error, Corruption):
                raise
            _record(store, part)
            if not tables:
                raise
            break
    rows = NO_MESSAGES
    if tables:
        rows = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    store.tally.handed_out += rows.num_rows
    return rows, runs


def _give_back(store: Store, member: Membership, parts: list[PartitionDelivery]) -> None:
    store.write(
        lambda view, now: give_back_parts(view, member.subscription, member.number, parts),
        tells=True,
    )


def _rows(
    view: View, *, short: str, topic: Topic, subscription: int, part: PartitionDelivery
) -> pa.Table:
    number = part.partition
    counts = view.cursor(subscription, number).redelivered
    pieces = _current(view, number, part.pieces)
    table = received(
        view,
        short,
        catalogs.index_of(topic, number),
        number,
        pieces,
        counts,
    )
    if part.takes is None or sum(map(len, part.takes)) == sum(piece.rows for piece in part.pieces):
        return table
    rows: list[int] = []
    start = 0
    trimmed = len(part.pieces) - len(pieces)  # a trim removes the first ledgers
    for piece, offsets in zip(pieces, part.takes[trimmed:], strict=True):
        rows += [start + offset for offset in offsets]
        start += piece.rows
    return table.take(pa.array(rows, pa.int64()))


def _current(view: View, number: int, pieces: list[Piece]) -> list[Piece]:
    """The pieces as of this view, in which a marker's rows may have moved or been trimmed."""
    out: list[Piece] = []
    for piece in pieces:
        if is_trimmed(view, number, piece.ledger):
            continue
        if piece.marker is not None:
            marker = find_marker(view.buffer(number), piece.ledger, piece.entry)
            if marker is not piece.marker:
                piece = Piece(piece.ledger, piece.entry, piece.rows, piece.index, marker)
        out.append(piece)
    return out


def _record(store: Store, part: PartitionDelivery) -> None:
    def look(view: View) -> tuple[int, int] | None:
        return find_damage(view, requests_of(_current(view, part.partition, part.pieces)))

    damage = store.read(look, fresh=False)
    if damage is not None:
        quarantine.record_damage(store, part.partition, *damage)


# --- receiving -------------------------------------------------------------------------------

WAIT_MS_MIN = 1
STILL_MS = 1000
Guard: TypeAlias = Callable[[View], bool]
Ahead: TypeAlias = tuple[int, int, Sequence[tuple[int, list[Run], Due]]]  # of ReceiveRequest
INDEX_TRIES_MAX = 3  # how often a turn builds a missing index before it reads rows instead


class Still:
    """How long turns will find nothing, after one that found nothing or took the last messages.

    It holds until a frame changes certain components, a consumer leaves or a message is due. Other
    changes that time alone makes (a time to live, for example) are checked once a second. With
    watermarks it does not apply: a producer may fall silent, and move the watermark, at any moment.
    """

    __slots__ = (
        "_boot_id",
        "_boot_ms",
        "_departures",
        "_keys",
        "_stamps",
        "handed",
        "heeds_appends",
        "lsn",
        "partitions",
        "until_ms",
    )

    def __init__(
        self,
        view: View,
        now: Instant,
        handed: Delivery,
        until_ms: int | None,
        departures: int,
        keys: list[Component],
        *,
        partitions: Sequence[int] | None,
        heeds_appends: bool,
    ) -> None:
        """Note that a turn found nothing in a view.

        until_ms: when a sweep is next due, in ms since boot; None: never
        departures: how many departures of consumers the turn has taken into account
        keys:     the components whose changes may bring messages
        partitions: where the turn searched, as in Receiving
        heeds_appends: unflushed frames may bring messages, too, so the next turn has to search
        """
        self.lsn = view.lsn
        self._keys, self._stamps = keys, view.stamps(keys)
        self._boot_id, self._boot_ms = now.boot_id, now.boot_ms
        self.handed = handed
        self.until_ms = until_ms
        self.partitions = partitions
        self._departures = departures
        self.heeds_appends = heeds_appends

    @property
    def concern(self) -> Concern:
        """The flushes that end it; time and departures of consumers end it, too."""
        return Concern(self.lsn, frozenset(self._keys))

    def holds(self, store: Store) -> bool:
        """True while another turn would find nothing. Reads new frames of the journal."""
        return (
            self.is_early(store.clock.now(), store.wakeups.tally.departures)
            and self.is_untouched(store)
            and not store.has_unflushed(unseen=True)
        )

    def is_untouched(self, store: Store) -> bool:
        """True if no frame has changed its components since, and nothing has fallen due.

        It reads new frames of the journal in any case, so the turn after it need not.
        """
        lsn, is_current = store.read(lambda view: (view.lsn, self.is_current(view)), waits=False)
        now, due_ms = store.clock.now(), self.handed.due_ms
        if now.boot_id != self._boot_id or (due_ms is not None and now.wall_ms >= due_ms):
            return False
        if self.until_ms is not None and now.boot_ms >= self.until_ms:
            return False
        if not is_current:
            return False
        self.lsn = lsn
        return True

    def is_current(self, view: View) -> bool:
        """True if no frame that this view has read has changed its components since."""
        return view.stamps(self._keys) == self._stamps

    def is_early(self, now: Instant, departures: int) -> bool:
        """True while no turn is due by the clock, and no consumer has left or died since."""
        due_ms = self.handed.due_ms
        return (
            (now.boot_id, departures) == (self._boot_id, self._departures)
            and 0 <= now.boot_ms - self._boot_ms < STILL_MS
            and (due_ms is None or now.wall_ms < due_ms)
            and (self.until_ms is None or now.boot_ms < self.until_ms)
        )


class Receiving:
    """The turns of one consumer.

    partitions: indexes in the topic that it receives from; None: all, including later ones
    blocked:    `unacked_max` if that limit kept the last turn from leasing messages; else None
    is_idle:    the last turn left nothing for the next one
    is_thorough: the next turn also looks for dead peers and unflushed frames; set by the caller
    due_ms:     if the last turn found nothing: when the next message is due (ms since 1970 UTC)
    is_refused: the last turn returned nothing because its guard returned False
    batches:    partition -> number of the batch that the last turn took ahead there
    timeout_ms: the acknowledgement time-out at the last turn, 0 for none
    first:      partitions that the next turn tries before the others
    limits:     the most messages that a turn may lease, by index of the partition
    """

    __slots__ = (
        "__weakref__",
        "_ack_timeout_ms",
        "_dead",
        "_highest",
        "_last",
        "_looked",
        "_member",
        "_places",
        "_prepared",
        "_previews",
        "_reaped",
        "_seen",
        "_short",
        "_still",
        "_store",
        "_turn",
        "batches",
        "blocked",
        "due_ms",
        "first",
        "is_idle",
        "is_refused",
        "is_thorough",
        "limits",
        "partitions",
        "subscription",
        "timeout_ms",
        "topic",
    )

    def __init__(
        self,
        store: Store,
        short: str,
        found: tuple[Topic, Subscription],
        member: Membership,
        partitions: Sequence[int] | None,
        ack_timeout_ms: int | None,
    ) -> None:
        self._store = store
        self._short = short
        self._member = member
        self.topic, self.subscription = found
        self.partitions = partitions
        self.limits: Mapping[int, int] = {}
        self._ack_timeout_ms = ack_timeout_ms
        self.blocked: str | None = None
        self.is_idle = False
        self.is_thorough = True
        self._still: Still | None = None
        self._prepared: tuple[Call, ReceiveRequest] | None = None
        self._looked = 0  # LSN of the last decision of a lease
        self._reaped = -1  # departures of consumers before the last check for dead peers
        self.is_refused = False
        self.due_ms: int | None = None
        self._places: dict[int, ReadPosition] = {}
        self._highest: dict[int, Mark] = {}  # by partition: the furthest message it ever received
        self._seen: dict[int, Mark] = {}  # by partition: where its application is, if behind it
        self.batches: dict[int, int] = {}
        self.first: set[int] = set()
        self.timeout_ms = 0
        self._previews: dict[int, PreviewPosition] = {}
        self._turn = 0
        self._last: tuple[Callable[[], pa.Table | None], list[Run]] = (lambda: None, [])
        self._dead = DeadLetters(store, self.target)
        store.bucket_ops.delivered.standers.add(self)

    def target(self, view: View) -> tuple[Topic, Subscription]:
        """The topic and subscription in this view.

        raises: TopicNotFound, SubscriptionNotFound when they were deleted
        """
        held = self.subscription
        return (
            live_topic(view, self.topic.number, self._short),
            live_subscription(view, held.number, held.name, self._short),
        )

    def _begin(self, view: View) -> bool:
        """Update topic and subscription; True if messages of the topic have a time to live."""
        self.topic, self.subscription = self.target(view)
        return is_timed(view, self._store.settings, self.topic.number)

    def numbers(self) -> list[int]:
        """The store-wide numbers of the partitions it receives from."""
        numbers = catalogs.numbers(self.topic)
        if self.partitions is None:
            return list(numbers)
        return [numbers[index] for index in self.partitions]

    def assigned(self, view: View) -> list[tuple[int, int]]:
        """(subscription, partition) for each partition it may receive from now.

        raises: AlreadyClosed, TopicNotFound, SubscriptionNotFound
        """
        self.check_open()
        self.topic, self.subscription = self.target(view)
        number, numbers, me = self.subscription.number, self.numbers(), self._member
        if me.kind == "failover":
            numbers = [
                partition
                for partition in numbers
                if active_consumer(view, number, catalogs.index_of(self.topic, partition))
                == me.number
            ]
        return [(number, partition) for partition in numbers]

    def check_open(self) -> None:
        """Raises AlreadyClosed once the consumer has left."""
        if not self._member.is_open:
            raise AlreadyClosed("the consumer is closed")

    def take(
        self,
        limit: int,
        guard: Guard | None = None,
        *,
        ahead: int | None = None,
        most: int = 1,
        seen: Sequence[tuple[int, list[Run], Due]] = (),
    ) -> pa.Table:
        """One turn: lease at most `limit` messages; returns rows with the columns of RECEIVED.

        guard: checked under the lock before messages are leased; False: lease none
        ahead: None: the application gets the whole table; else the caller reports each message
               that the application gets (`handed_over`). Otherwise as in ReceiveRequest
        most, seen: as in ReceiveRequest
        """
        self.check_open()
        self.is_refused = False
        handed = None if self._prepared is None else self._hand_prepared()
        if handed is None:
            handed = self._hand(limit, guard, (ahead or 0, most, seen))
        self.timeout_ms = handed.timeout_ms
        self.batches = {part.partition: part.ahead for part in handed.parts if part.runs}
        self.blocked, self.due_ms = handed.blocked, handed.due_ms
        table, runs = read_handed(self._store, self._short, self.topic, self._member, handed)
        self._stand(handed)
        for part in handed.parts:
            if not part.runs:
                continue
            if ahead is not None:
                self._seen[part.partition] = before(next(each(part.runs[0])))
                continue
            self._seen.pop(part.partition, None)
            if not covers(self._highest.get(part.partition, BEFORE_ALL), part.place.mark):
                self._highest[part.partition] = part.place.mark
        tally = self._store.bucket_ops.delivered
        tally.note(table, self._store.clock.now().wall_ms)
        tally.rewinds += sum(part.is_rewound for part in handed.parts)
        room = limit - table.num_rows
        if ahead is not None:  # previews are not leased, so they must not wait in a queue
            room = 0 if table.num_rows else min(room, 1)
        if room and self.subscription.isolation == "uncommitted":
            table = pa.concat_tables([table, *self._preview(room)])
        self._last = (weakref.ref(table), runs)
        return table

    def prepare(self, view: View, limit: int) -> Call | None:
        """The call that leases messages for the next turn; None: that turn does it by itself.

        Only after a turn that found nothing, where a partition has got messages since. The caller
        submits the call, perhaps beside other consumers' calls, and makes no other turn meanwhile.
        raises: TopicNotFound, SubscriptionNotFound
        """
        still = self._quiet
        if (
            self._prepared is not None
            or still is None
            or not self._member.is_open
            or self._begin(view)
        ):
            return None
        numbers = self.numbers()
        if still.is_current(view) or not any(self._has_more(view, number) for number in numbers):
            return None
        order = [*numbers[self._turn :], *numbers[: self._turn]]
        wants = self._wants(order, limit, (0, 1, ()))
        call = Call(partial(self._decide, wants, None), uses=self._uses(numbers))
        self._prepared = call, wants
        return call

    @property
    def is_prepared(self) -> bool:
        """Whether the next turn has messages that `prepare` leased, or may have them."""
        return self._prepared is not None and self._prepared[0].stage != QUEUED

    def _has_more(self, view: View, number: int) -> bool:
        place = self._places.get(number)
        return place is None or not covers(place.mark, last_position(view, number))

    def _uses(self, numbers: Sequence[int]) -> CallScope:
        subscription = self.subscription.number
        return CallScope(cursors=tuple((subscription, number) for number in numbers))

    def give_back(self, table: pa.Table) -> None:
        """Return rows of a turn, uncounted: the application has not received them."""
        numbers, column = catalogs.numbers(self.topic), table["partition"]
        self.give_back_runs(
            [
                (numbers[index], runs_of_table(table.filter(pc.equal(column, index))))
                for index in pc.unique(column).to_pylist()
            ]
        )

    def give_back_runs(self, parts: Sequence[tuple[int, list[Run]]]) -> Sequence[Op]:
        """Return runs of messages to the subscription, uncounted; returns the written ops.

        parts: (store-wide number of a partition, runs)
        """
        member = self._member
        decision: Decision[None] = Decision([])

        def decide(view: View, now: Instant) -> Decision[None]:
            nonlocal decision
            decision = give_back_runs(view, member.subscription, member.number, parts)
            return decision

        self._store.write(decide, tells=True)
        self.is_idle = False
        return decision.ops

    def number_of(self, message: Message) -> int:
        """The store-wide number of the partition that a message came from."""
        return catalogs.numbers(self.topic)[message.partition]

    def handed_over(self, number: int, message_id: Id) -> None:
        """Note that the application gets this message, which was taken ahead."""
        self._seen[number] = message_id
        if not covers(self._highest.get(number, BEFORE_ALL), message_id):
            self._highest[number] = message_id

    @property
    def still(self) -> Still | None:
        """The Still of the last turn, if that found nothing; None: the next turn must search."""
        still = self._still if self.is_idle else None
        # it says nothing about partitions that the turn did not search
        return still if still is not None and still.partitions == self.partitions else None

    @property
    def _quiet(self) -> Still | None:
        """`still`, if a turn may trust it.

        A turn with a guard must not use it: the watermark may change without any event.
        """
        still = self.still
        return None if still is None or still.heeds_appends else still

    def _hand_prepared(self) -> Delivery | None:
        """What `prepare` leased; None: its call was refused or not submitted, and wrote nothing."""
        is_prepared, prepared = self.is_prepared, self._prepared
        self._prepared = None
        if prepared is None or not is_prepared:
            return None
        call, wants = prepared
        self._still = None
        return self._leased(wants, call.uses, None, call)

    def _hand(self, limit: int, guard: Guard | None, ahead: Ahead) -> Delivery:
        """Lease messages; if the last turn found nothing, look first, without the lock."""
        store = self._store
        has_followed = False  # this turn has read the new frames already
        if guard is None and not ahead[2] and (still := self._quiet) is not None:
            if still.holds(store) if self.is_thorough else still.is_untouched(store):
                return still.handed
            has_followed = not self.is_thorough
        self._still = None
        if store.read(self._begin, fresh=self.is_idle and not has_followed, waits=False):
            expire_due(store, [(self.topic.number, self.subscription.number)], fresh=False)
        numbers = self.numbers()
        order = [*numbers[self._turn :], *numbers[: self._turn]]
        if self.first:
            order.sort(key=lambda number: number not in self.first)
            self.first.clear()
        uses = self._uses(numbers)
        wants = self._wants(order, limit, ahead)

        looked = 0  # LSN of the last look

        def look(view: View) -> Delivery | None:
            nonlocal looked
            looked, now = view.lsn, store.clock.now()
            if is_sweep_due(view, store.settings, now, uses) or self._dead.is_due(view, order):
                return None
            decision = receive(view, store.settings, now, wants)
            assert decision.answer is None or isinstance(decision.answer, Delivery)
            if decision.ops or decision.answer is None or decision.answer.wanting is not None:
                return None
            return decision.answer

        is_seen = not self.is_idle
        if self.is_idle:
            empty = store.read(look, fresh=False, waits=False)
            while empty is not None and empty.is_more:
                self._stand(empty)
                empty = store.read(look, waits=False)
            if empty is not None and not self.is_thorough:
                self._still = self._still_of(empty, looked)
                return empty
            is_seen = self._reap()
            if empty is not None and not is_seen and not store.has_unflushed(unseen=True):
                self._still = self._still_of(empty, looked)
                return empty
        else:
            self._member.reap(now=False)
        return self._leased(wants, uses, guard)

    def _leased(
        self,
        wants: ReceiveRequest,
        uses: CallScope,
        guard: Guard | None,
        call: Call | None = None,
    ) -> Delivery:
        """Lease messages; if there are none, return those of dead peers and try again.

        call: the lease that `prepare` made, after the caller has submitted it
        Then note which partition the next turn begins with, or how long turns will find nothing.
        """
        order = wants.partitions
        handed, looked = self._lease(wants, uses, guard, call)
        if not any(part.runs for part in handed.parts) and self._reap():
            handed, looked = self._lease(wants, uses, guard)  # now with the messages of dead peers
        full = [at for at, part in enumerate(handed.parts) if part.runs]
        self.is_idle = not full
        if full:
            last = order.index(handed.parts[full[-1]].partition)
            # begin after it: a partition with many messages must not keep the others waiting
            self._turn = (self._turn + last + 1) % len(order)
            if handed.is_last and self.limits:  # of the server; others ask again in any case
                self._still = self._still_of(handed, looked)
                self.is_idle = self._still is not None
        elif not self.is_refused:
            self._still = self._still_of(handed, looked)
        return handed

    def _reap(self) -> bool:
        """Return the messages of dead peers; True if there was one."""
        departures = self._store.wakeups.tally.departures  # a later one makes the next turn check
        is_seen = self._member.reap(now=True)
        self._reaped = departures
        return is_seen

    def _still_of(self, handed: Delivery, lsn: int) -> Still | None:
        look = partial(self._stillness, handed, lsn)
        return self._store.read(look, fresh=False, waits=False)

    def _stillness(self, handed: Delivery, lsn: int, view: View) -> Still | None:
        """The Still of this turn; None if messages could appear without an event and a known time.

        lsn: of the view in which the turn found nothing, or took the last messages
        """
        number = self.subscription.number
        wakeups, now, me = self._store.wakeups, self._store.clock.now(), self._member
        if me.sees_one_go:  # no event will report that the kernel has freed its lock
            return None
        if not wakeups.is_told and len(catalogs.consumers_of(view.catalog, number)) > 1:
            return None  # no event would report the death of a peer
        is_full = any(part.runs for part in handed.parts)
        if is_full and not all(is_at_end(view, part) for part in handed.parts):
            return None
        heeds_appends = bool(handed.blocked) or self.subscription.isolation != "committed"
        dues_ms = [view.next_deadline_ms(now)]
        keys: list[Component] = [CATALOG, peers(number)]
        if me.kind != "shared" or not wakeups.is_told:
            keys.append(members(number))
        for partition in self.numbers():
            keys += [("topic", partition, 0), ("buffer", partition, 0), ("delayed", partition, 0)]
            leases = view.cursor(number, partition).leases
            is_bound = self._is_bound(view, partition, leases)
            keys.append(("cursor", number, partition) if is_bound else returns(number, partition))
            if not (leases.leased or leases.waiting):
                continue
            if not wakeups.is_told:
                return None
            dues_ms.append(leases.next_due_ms(now))
            if others := leases.others(me.number):
                heeds_appends |= is_bound  # their acknowledgements make later messages available
                if self.timeout_ms:
                    ahead = [other for other in others if leases.by_consumer[other].ahead]
                    dues_ms += [me.late_at_ms(other, now, self.timeout_ms) for other in ahead]
        if view.lsn != lsn:  # the lease of this turn, or frames that another thread has read
            changed = view.changed_since(lsn)
            if changed is None or not changed.isdisjoint(keys):
                return None
        due_ms = min((at for at in dues_ms if at), default=None)
        nothing = Delivery([], due_ms=handed.due_ms, timeout_ms=handed.timeout_ms)
        return Still(
            view,
            now,
            nothing,
            due_ms,
            self._reaped,  # not all until now: a look that is not thorough checks no peer
            keys,
            partitions=self.partitions,
            heeds_appends=heeds_appends,
        )

    def _is_bound(self, view: View, number: int, leases: Leases) -> bool:
        """True if an acknowledgement by a peer can make a message of the partition available to it.

        That holds for Key_Shared, where a key waits for its earlier messages, and for the active
        Failover consumer while the previous one still has leases.
        """
        me = self._member
        if me.kind == "failover" and leases.others(me.number):
            index = catalogs.index_of(self.topic, number)
            return active_consumer(view, me.subscription, index) == me.number
        return me.kind == "key-shared"

    def _wants(self, order: Sequence[int], limit: int, ahead: Ahead) -> ReceiveRequest:
        numbers = catalogs.numbers(self.topic)
        return ReceiveRequest(
            self.subscription.number,
            self._member.number,
            order,
            limit,
            self._places,
            self._ack_timeout_ms,
            False,
            *ahead,
            limits={numbers[index]: most for index, most in self.limits.items()},
        )

    def _lease(
        self,
        wants: ReceiveRequest,
        uses: CallScope,
        guard: Guard | None,
        call: Call | None = None,
    ) -> tuple[Delivery, int]:
        """(the delivery of one turn under the lock, the LSN that it was decided at)."""
        store, tries = self._store, 0
        answer: object
        while True:
            try:
                if call is None:
                    decide = partial(self._decide, wants, guard)
                    answer = store.write(decide, uses=uses)
                else:
                    answer, call = call.outcome(), None
            except AlreadyClosed:
                store.read(self.target, fresh=False)  # raises if topic or subscription are deleted
                raise
            if answer is None:
                self._member.take_back()
                continue
            if answer is wants:
                self._dead.sweep(wants.partitions)
                continue
            assert isinstance(answer, Delivery)
            if answer.wanting is not None:
                tries += 1
                if tries > INDEX_TRIES_MAX or not self._mend(answer.wanting):
                    wants = wants.making_do()
                continue
            if not answer.is_more:
                return answer, self._looked
            self._stand(answer)

    def _decide(
        self, wants: ReceiveRequest, guard: Guard | None, view: View, now: Instant
    ) -> Decision[Delivery | ReceiveRequest | None]:
        """Decide a lease under the lock; answers the request if dead letters are to be moved."""
        self._looked = view.lsn
        if self._dead.is_due(view, wants.partitions):  # under the lock, so none is delivered
            return Decision([], answer=wants)
        if guard is not None and not guard(view):
            self.is_refused = True
            return Decision([], answer=Delivery([]))
        return receive(view, self._store.settings, now, wants)

    def _mend(self, wanting: IndexMissing | BucketLost) -> bool:
        """Build a missing index, or drop a lost bucket; False: the turn has to do without it."""
        store = self._store
        if isinstance(wanting, IndexMissing):
            return rebuild_if_free(store, wanting.partition, wanting.first, wanting.last)
        drop_lost(store, wanting.partition, wanting.gen, wanting.error)
        return True  # another process may have dropped it before

    def _stand(self, handed: Delivery) -> None:
        """Note the consumer's new place in each partition."""
        for part in handed.parts:
            self._places[part.partition] = part.place

    def _preview(self, limit: int) -> list[pa.Table]:
        """Messages of open transactions, for isolation `uncommitted`; at most `limit` rows."""

        def look(view: View) -> tuple[list[pa.Table], dict[int, PreviewPosition]]:
            room, places, out = limit, dict(self._previews), []
            for number in self.numbers():
                if room <= 0:
                    break
                if number in view.catalog.unavailable:
                    continue
                rows, places[number] = preview(
                    view,
                    self._short,
                    catalogs.index_of(self.topic, number),
                    number,
                    places.get(number, START),
                    room,
                )
                room -= rows.num_rows
                out.append(rows)
            return out, places

        tables, self._previews = self._store.read(look, fresh=False)
        return tables

    def has_next(self, view: View) -> bool:
        """True when a turn would lease a message."""
        self.topic, self.subscription = self.target(view)
        places, now = dict(self._places), self._store.clock.now()
        while True:
            wants = ReceiveRequest(
                self.subscription.number,
                self._member.number,
                self.numbers(),
                1,
                places,
                self._ack_timeout_ms,
                make_do=True,
            )
            decision = receive(view, self._store.settings, now, wants)
            if decision.ops or not isinstance(decision.answer, Delivery):
                return True
            if not decision.answer.is_more:
                return False
            places |= {part.partition: part.place for part in decision.answer.parts}

    def rest(self, pause: float) -> Quiet:
        """How long a waiting call may sleep: until time alone may bring a message.

        pause: seconds, for a turn that could not find out how long
        """
        now, still = self._store.clock.now(), self.still
        rest_s = min(pause, APART_SECONDS_MAX)
        if still is not None:
            rest_s = REST_SECONDS_MAX
            if still.until_ms is not None:
                left_ms = still.until_ms - now.boot_ms  # negative: a turn does not do what was due
                rest_s = min(rest_s, left_ms / 1000 if left_ms > 0 else pause)
        if self.due_ms is not None:
            rest_s = min(rest_s, max(self.due_ms - now.wall_ms, WAIT_MS_MIN) / 1000)
        if still is None:
            return Quiet(rest_s)
        concern = still.concern
        # A queue is for consumers of the server, which have one task each, and for those that wait
        # for events alone: no event wakes the others when the time of a message has come.
        is_queued = self._member.kind == "shared" and bool(self.limits)
        if is_queued and rest_s >= REST_SECONDS_MAX:
            concern = concern._replace(queue=(self.subscription.number, *self.numbers()))
        return Quiet(rest_s, still.heeds_appends, concern)

    # --- its place ---------------------------------------------------------------------------

    @property
    def standing(self) -> ConsumerState:
        """The number and the places of the consumer, as an acknowledgement needs them."""
        return ConsumerState(self._member.number, self._places, self._highest, self._seen)

    @property
    def strays(self) -> int:
        """How many messages it has to remember as not yet due, since no index lists them."""
        places = [*self._places.values()] if self._member.is_open else ()
        return sum(len(place.strays) for place in places)

    def place(self, partition: int) -> ReadPosition | None:
        """Its place in a partition, by store-wide number; None: it has never received there."""
        return self._places.get(partition)

    def begin_again(self) -> None:
        """Forget all places, after a seek of the subscription."""
        self._places.clear()
        self._highest.clear()
        self._seen.clear()

    def stands_for(self, table: pa.Table) -> None:
        """Note that the caller got this table, instead of the table of the last turn."""
        self._last = (weakref.ref(table), self._last[1])

    def known_runs(self, what: object) -> list[Run] | None:
        """The runs of the last batch if `what` is that table, as in most calls; else None."""
        return self._last[1] if self._last[0]() is what else None
