"""Owns Receiving: what one consumer is handed, and where it stands in each partition.

A turn is one frame a batch (decide/consuming/lease), not flushed. A consumer that found nothing the
last time looks first, without the lock. The threads of a consumer take turns under their caller's
mutex. Rows are read after the frame that leased them; what turns out damaged is given back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from txlog.base.ids import TopicName
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
from txlog.engine.plan.damage import find_damage
from txlog.engine.plan.delayed.due import IndexMissing
from txlog.engine.plan.delayed.index import BucketLost
from txlog.engine.plan.lookup import live_subscription, live_topic
from txlog.engine.plan.reading.dispatch import NO_MESSAGES, Piece, received, requests_of
from txlog.engine.plan.reading.uncommitted import START, PreviewPosition, preview
from txlog.engine.plan.standing import ConsumerState, ReadPosition
from txlog.engine.session.consuming.dead_letters import DeadLetters
from txlog.engine.session.consuming.membership import Membership
from txlog.engine.session.reading.message import Message
from txlog.engine.session.reading.pause import APART_SECONDS_MAX, REST_SECONDS_MAX, Concern, Quiet
from txlog.engine.store.appender import is_sweep_due
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint import quarantine
from txlog.engine.upkeep.delayed.buckets import drop_lost, rebuild_if_free
from txlog.engine.upkeep.space.retention import expire_due, is_timed
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, Corruption

# --- the rows of what was leased -------------------------------------------------------------


def read_handed(
    store: Store, topic: Topic, member: Membership, handed: Delivery
) -> tuple[pa.Table, list[Run]]:
    """The rows of a lease as RECEIVED, in order, and their ids as runs.

    A damaged partition delivers nothing more: it is recorded, what was leased there goes back, and
    the error is raised unless rows of other partitions are to be delivered first.
    """
    tables: list[pa.Table] = []
    runs: list[Run] = []
    for at, part in enumerate(handed.parts):
        if not part.pieces:
            continue
        try:
            if part.error is not None:
                raise part.error
            look = partial(_rows, topic=topic, subscription=member.subscription, part=part)
            tables.append(store.read(look, fresh=False))
            runs += part.runs
        except BaseException as error:  # leased, and nobody has them: Ctrl-C too
            _give_back(store, member, handed.parts[at:])
            if not isinstance(error, Corruption):
                raise
            _record(store, part)
            if not tables:
                raise
            break
    found = NO_MESSAGES
    if tables:
        found = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    store.tally.handed_out += found.num_rows
    return found, runs


def _give_back(store: Store, member: Membership, parts: list[PartitionDelivery]) -> None:
    store.write(
        lambda view, now: give_back_parts(view, member.subscription, member.number, parts),
        tells=True,
    )


def _rows(view: View, *, topic: Topic, subscription: int, part: PartitionDelivery) -> pa.Table:
    number = part.partition
    counts = view.cursor(subscription, number).redelivered
    pieces = _current(view, number, part.pieces)
    table = received(
        view,
        TopicName.parse(topic.name).short,
        catalogs.index_of(topic, number),
        number,
        pieces,
        counts,
    )
    if part.takes is None or sum(map(len, part.takes)) == sum(one.rows for one in part.pieces):
        return table
    rows: list[int] = []
    start = 0
    gone = len(part.pieces) - len(pieces)  # trimmed ledgers go from the front
    for piece, offsets in zip(pieces, part.takes[gone:], strict=True):
        rows += [start + offset for offset in offsets]
        start += piece.rows
    return table.take(pa.array(rows, pa.int64()))


def _current(view: View, number: int, pieces: list[Piece]) -> list[Piece]:
    """The pieces as the view has them now: a marker's rows may lie elsewhere, or be trimmed."""
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

    found = store.read(look, fresh=False)
    if found is not None:
        quarantine.record_damage(store, part.partition, *found)


# --- receiving -------------------------------------------------------------------------------

WAIT_MS_MIN = 1
STILL_MS = 1000
Guard: TypeAlias = Callable[[View], bool]
Ahead: TypeAlias = tuple[int, int, Sequence[tuple[int, list[Run], Due]]]  # of ReceiveRequest
INDEX_TRIES_MAX = 3  # how often an index is asked for before rows are read instead


class Still:
    """A turn found nothing, which holds until the journal moves or something falls due.

    What else time alone decides (time-outs, a time to live) is checked once a second. With
    watermarks each turn looks, as a producer may fall silent at any moment.
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
        """Of a view in which nothing was found.

        until_ms: on the clock since boot, when a sweep has something to do; None: never
        departures: of so many it was asked whether a peer died
        keys:     the components that decide what there is
        partitions: where nothing was found, as of Receiving
        heeds_appends: what is not flushed decides, too: then a turn looks at all of it
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
        """What ends it, but for the clock and who leaves."""
        return Concern(self.lsn, frozenset(self._keys))

    def holds(self, store: Store) -> bool:
        """True while another turn would find nothing; follows the journal."""
        return (
            self.is_early(store.clock.now(), store.wakeups.tally.departures)
            and self.is_untouched(store)
            and not store.has_unflushed(unseen=True)
        )

    def is_untouched(self, store: Store) -> bool:
        """True while nothing that was written since concerns it, and nothing fell due.

        In any case it follows the journal, so that the turn need not.
        """
        lsn, stamps = store.read(lambda view: (view.lsn, view.stamps(self._keys)))
        now, due_ms = store.clock.now(), self.handed.due_ms
        if now.boot_id != self._boot_id or (due_ms is not None and now.wall_ms >= due_ms):
            return False
        if self.until_ms is not None and now.boot_ms >= self.until_ms:
            return False
        if stamps != self._stamps:
            return False
        self.lsn = lsn
        return True

    def is_early(self, now: Instant, departures: int) -> bool:
        """True before the time when a turn has to look, unless a consumer has gone since."""
        due_ms = self.handed.due_ms
        return (
            (now.boot_id, departures) == (self._boot_id, self._departures)
            and 0 <= now.boot_ms - self._boot_ms < STILL_MS
            and (due_ms is None or now.wall_ms < due_ms)
            and (self.until_ms is None or now.boot_ms < self.until_ms)
        )


class Receiving:
    """The turns of one consumer.

    partitions: of the topic, by index; None: all, including later ones
    blocked:    why the last turn returned nothing although there may be messages: unacked_max
    is_idle:    the last turn found nothing
    due_ms:     if it found nothing: when the next message is due
    is_refused: the last turn returned nothing because its guard said no
    batches:    of what the last turn took ahead: partition, number of its batch
    timeout_ms: the ack time-out at the last turn, 0 for none
    first:      partitions that go before the others at the next turn
    limits:     the most messages that a turn may take of a partition, by its index in the topic
    """

    __slots__ = (
        "__weakref__",
        "_ack_timeout_ms",
        "_dead",
        "_highest",
        "_last",
        "_member",
        "_places",
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
        self._reaped = -1  # of so many departures it has asked whether a peer died
        self.is_refused = False
        self.due_ms: int | None = None
        self._places: dict[int, ReadPosition] = {}
        self._highest: dict[int, Mark] = {}  # the last message it ever got, by partition
        self._seen: dict[int, Mark] = {}  # where its application is, if that is not its own place
        self.batches: dict[int, int] = {}
        self.first: set[int] = set()
        self.timeout_ms = 0
        self._previews: dict[int, PreviewPosition] = {}
        self._turn = 0
        self._last: tuple[Callable[[], pa.Table | None], list[Run]] = (lambda: None, [])
        self._dead = DeadLetters(store, self.target)
        store.bucket_ops.delivered.standers.add(self)

    def target(self, view: View) -> tuple[Topic, Subscription]:
        """The topic and subscription as they are now; raises when they were deleted."""
        held = self.subscription
        return (
            live_topic(view, self.topic.number, self._short),
            live_subscription(view, held.number, held.name, self._short),
        )

    def _begin(self, view: View) -> bool:
        """Know the topic and subscription as they are now; whether messages have a time to live."""
        self.topic, self.subscription = self.target(view)
        return is_timed(view, self._store.settings, self.topic.number)

    def numbers(self) -> list[int]:
        """The partitions it receives from, by store-wide number."""
        numbers = catalogs.numbers(self.topic)
        if self.partitions is None:
            return list(numbers)
        return [numbers[index] for index in self.partitions]

    def assigned(self, view: View) -> list[tuple[int, int]]:
        """(subscription, partition) of those it may receive from; raises when closed."""
        self.check_open()
        self.topic, self.subscription = self.target(view)
        number, numbers, me = self.subscription.number, self.numbers(), self._member
        if me.kind == "failover":
            numbers = [
                one
                for one in numbers
                if active_consumer(view, number, catalogs.index_of(self.topic, one)) == me.number
            ]
        return [(number, one) for one in numbers]

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
        """One turn: the next messages, at most limit, as RECEIVED.

        guard: asked under the lock before any is handed out
        ahead: None: the application gets the table; else `handed_over` says what it gets. ahead,
               most, seen: as in ReceiveRequest
        """
        self.check_open()
        self.is_refused = False
        handed = self._hand(limit, guard, (ahead or 0, most, seen))
        self.timeout_ms = handed.timeout_ms
        self.batches = {part.partition: part.ahead for part in handed.parts if part.runs}
        self.blocked, self.due_ms = handed.blocked, handed.due_ms
        table, runs = read_handed(self._store, self.topic, self._member, handed)
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
        left = limit - table.num_rows
        if ahead is not None:  # a preview is not leased: ahead of its caller it could be lost
            left = 0 if table.num_rows else min(left, 1)
        if left and self.subscription.isolation == "uncommitted":
            table = pa.concat_tables([table, *self._preview(left)])
        self._last = (weakref.ref(table), runs)
        return table

    def give_back(self, table: pa.Table) -> None:
        """Return rows of a turn, uncounted: nobody has seen them."""
        numbers, column = catalogs.numbers(self.topic), table["partition"]
        self.give_back_runs(
            [
                (numbers[index], runs_of_table(table.filter(pc.equal(column, index))))
                for index in pc.unique(column).to_pylist()
            ]
        )

    def give_back_runs(self, parts: Sequence[tuple[int, list[Run]]]) -> Sequence[Op]:
        """Return runs of messages by partition, uncounted; returns what was written of it."""
        member = self._member
        made: Decision[None] = Decision([])

        def decide(view: View, now: Instant) -> Decision[None]:
            nonlocal made
            made = give_back_runs(view, member.subscription, member.number, parts)
            return made

        self._store.write(decide, tells=True)
        self.is_idle = False
        return made.ops

    def number_of(self, message: Message) -> int:
        """The partition of a message that came from here."""
        return catalogs.numbers(self.topic)[message.partition]

    def handed_over(self, number: int, one: Id) -> None:
        """The application gets this message of what was taken ahead."""
        self._seen[number] = one
        if not covers(self._highest.get(number, BEFORE_ALL), one):
            self._highest[number] = one

    @property
    def still(self) -> Still | None:
        """After a turn that found nothing, with nothing leased: how long that holds."""
        still = self._still if self.is_idle else None
        # of other partitions it says nothing
        return still if still is not None and still.partitions == self.partitions else None

    @property
    def _quiet(self) -> Still | None:
        """After a turn that found nothing: what says whether another would find the same.

        Not for a turn with a guard: a watermark may be due for its own reasons.
        """
        still = self.still
        return None if still is None or still.heeds_appends else still

    def _hand(self, limit: int, guard: Guard | None, ahead: Ahead) -> Delivery:
        """Lease messages; if the last turn found nothing, look first, without the lock."""
        store = self._store
        has_followed = False  # in this turn: once is enough
        if guard is None and not ahead[2] and (still := self._quiet) is not None:
            if still.holds(store) if self.is_thorough else still.is_untouched(store):
                return still.handed
            has_followed = not self.is_thorough
        self._still = None
        if store.read(self._begin, fresh=self.is_idle and not has_followed):
            expire_due(store, [(self.topic.number, self.subscription.number)], fresh=False)
        numbers = self.numbers()
        order = [*numbers[self._turn :], *numbers[: self._turn]]
        if self.first:
            order.sort(key=lambda number: number not in self.first)
            self.first.clear()
        subscription = self.subscription.number
        uses = CallScope(cursors=tuple((subscription, number) for number in numbers))
        wants = self._wants(order, limit, ahead)

        looked = 0  # the LSN of the last look

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
            there = store.read(look, fresh=False)
            while there is not None and there.is_more:
                self._stand(there)
                there = store.read(look)
            if there is not None and not self.is_thorough:
                self._still = store.read(partial(self._stillness, there, looked), fresh=False)
                return there
            is_seen = self._reap()
            if there is not None and not is_seen and not store.has_unflushed(unseen=True):
                self._still = store.read(partial(self._stillness, there, looked), fresh=False)
                return there
        else:
            self._member.reap(now=False)
        return self._leased(wants, uses, guard)

    def _leased(self, wants: ReceiveRequest, uses: CallScope, guard: Guard | None) -> Delivery:
        """Lease messages, those of dead peers too; note where to begin next, or how long not to."""
        store, order = self._store, wants.partitions
        handed, looked = self._lease(wants, uses, guard)
        if not any(part.runs for part in handed.parts) and self._reap():
            handed, looked = self._lease(wants, uses, guard)  # a dead peer's come before nothing
        full = [at for at, part in enumerate(handed.parts) if part.runs]
        self.is_idle = not full
        if full:
            last = order.index(handed.parts[full[-1]].partition)
            # the next one first: a partition that never ends must not keep the others waiting
            self._turn = (self._turn + last + 1) % len(order)
        elif not self.is_refused:
            self._still = store.read(partial(self._stillness, handed, looked), fresh=False)
        return handed

    def _reap(self) -> bool:
        """Return what dead peers held; whether there was one."""
        departures = self._store.wakeups.tally.departures  # one told from now on is asked again
        is_seen = self._member.reap(now=True)
        self._reaped = departures
        return is_seen

    def _stillness(self, handed: Delivery, lsn: int, view: View) -> Still | None:
        """None if more decides than what is told and the clock."""
        number = self.subscription.number
        if view.lsn != lsn:  # another thread has followed since
            return None
        wakeups, now, me = self._store.wakeups, self._store.clock.now(), self._member
        if me.sees_one_go:  # nobody tells when its lock is free
            return None
        if not wakeups.is_told and len(catalogs.consumers_of(view.catalog, number)) > 1:
            return None  # a peer may die unnoticed
        if any(part.runs for part in handed.parts):
            return None
        heeds_appends = bool(handed.blocked) or self.subscription.isolation != "committed"
        dues_ms = [view.next_deadline_ms(now)]
        keys: list[Component] = [CATALOG, peers(number)]
        if me.kind != "shared" or not wakeups.is_told:
            keys.append(members(number))
        for one in self.numbers():
            keys += [("topic", one, 0), ("buffer", one, 0), ("delayed", one, 0)]
            leases = view.cursor(number, one).leases
            is_bound = self._is_bound(view, one, leases)
            keys.append(("cursor", number, one) if is_bound else returns(number, one))
            if not (leases.leased or leases.waiting):
                continue
            if not wakeups.is_told:
                return None
            dues_ms.append(leases.next_due_ms(now))
            if others := leases.others(me.number):
                heeds_appends |= is_bound  # what they acknowledge frees what comes next
                if self.timeout_ms:
                    ahead = [other for other in others if leases.by_consumer[other].ahead]
                    dues_ms += [me.late_at_ms(other, now, self.timeout_ms) for other in ahead]
        due_ms = min((at for at in dues_ms if at), default=None)
        nothing = Delivery([], due_ms=handed.due_ms, timeout_ms=handed.timeout_ms)
        return Still(
            view,
            now,
            nothing,
            due_ms,
            self._reaped,  # not those told by now: a look that is not thorough asks nobody
            keys,
            partitions=self.partitions,
            heeds_appends=heeds_appends,
        )

    def _is_bound(self, view: View, number: int, leases: Leases) -> bool:
        """Whether it also waits for what others acknowledge on a partition."""
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
        self, wants: ReceiveRequest, uses: CallScope, guard: Guard | None
    ) -> tuple[Delivery, int]:
        """What a turn under the lock hands out, and the LSN that it decided on."""
        store, tries, looked = self._store, 0, 0

        def decide(view: View, now: Instant) -> Decision[Delivery | ReceiveRequest | None]:
            nonlocal looked
            looked = view.lsn
            if self._dead.is_due(view, wants.partitions):  # under the lock: none slips through
                return Decision([], answer=wants)
            if guard is not None and not guard(view):
                self.is_refused = True
                return Decision([], answer=Delivery([]))
            return receive(view, store.settings, now, wants)

        while True:
            try:
                answer = store.write(decide, uses=uses)
            except AlreadyClosed:
                store.read(self.target, fresh=False)  # deleted: this says so
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
                return answer, looked
            self._stand(answer)

    def _mend(self, wanting: IndexMissing | BucketLost) -> bool:
        """Build a missing index; False: it must do without."""
        store = self._store
        if isinstance(wanting, IndexMissing):
            return rebuild_if_free(store, wanting.partition, wanting.first, wanting.last)
        drop_lost(store, wanting.partition, wanting.gen, wanting.error)
        return True  # it is dropped, or has been

    def _stand(self, handed: Delivery) -> None:
        """Note how far it has come."""
        for part in handed.parts:
            self._places[part.partition] = part.place

    def _preview(self, limit: int) -> list[pa.Table]:
        """READ_UNCOMMITTED: what comes after everything committed, at most limit rows."""

        def look(view: View) -> tuple[list[pa.Table], dict[int, PreviewPosition]]:
            left, places, out = limit, dict(self._previews), []
            for number in self.numbers():
                if left <= 0:
                    break
                if number in view.catalog.unavailable:
                    continue
                rows, places[number] = preview(
                    view,
                    self._short,
                    catalogs.index_of(self.topic, number),
                    number,
                    places.get(number, START),
                    left,
                )
                left -= rows.num_rows
                out.append(rows)
            return out, places

        tables, self._previews = self._store.read(look, fresh=False)
        return tables

    def has_next(self, view: View) -> bool:
        """True when a turn would give a message."""
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
            found = receive(view, self._store.settings, now, wants)
            if found.ops or not isinstance(found.answer, Delivery):
                return True
            if not found.answer.is_more:
                return False
            places |= {part.partition: part.place for part in found.answer.parts}

    def rest(self, pause: float) -> Quiet:
        """How long to wait for news: until time alone may bring a message.

        pause: after a turn that did not find out how long
        """
        now, still = self._store.clock.now(), self.still
        rest_s = min(pause, APART_SECONDS_MAX)
        if still is not None:
            rest_s = REST_SECONDS_MAX
            if still.until_ms is not None:
                left_ms = still.until_ms - now.boot_ms  # over: what was due is not done by a turn
                rest_s = min(rest_s, left_ms / 1000 if left_ms > 0 else pause)
        if self.due_ms is not None:
            rest_s = min(rest_s, max(self.due_ms - now.wall_ms, WAIT_MS_MIN) / 1000)
        if still is None:
            return Quiet(rest_s)
        return Quiet(rest_s, still.heeds_appends, still.concern)

    # --- where it stands ---------------------------------------------------------------------

    @property
    def standing(self) -> ConsumerState:
        """The consumer that an acknowledgement comes through, and where that is."""
        return ConsumerState(self._member.number, self._places, self._highest, self._seen)

    @property
    def strays(self) -> int:
        """Messages that it remembers as not due because the index lacks them."""
        places = [*self._places.values()] if self._member.is_open else ()
        return sum(len(place.strays) for place in places)

    def place(self, partition: int) -> ReadPosition | None:
        """Its place in a partition, by store-wide number; None: it was never there."""
        return self._places.get(partition)

    def begin_again(self) -> None:
        """Forget its place: the subscription was moved."""
        self._places.clear()
        self._highest.clear()
        self._seen.clear()

    def stands_for(self, table: pa.Table) -> None:
        """Another table now stands for the messages of the last batch."""
        self._last = (weakref.ref(table), self._last[1])

    def known_runs(self, what: object) -> list[Run] | None:
        """The ids of the last batch, if this is it: most acknowledge just that."""
        return self._last[1] if self._last[0]() is what else None
