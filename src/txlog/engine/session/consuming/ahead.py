"""Owns Ahead: the messages that a consumer leases before its application asks for them.

`receive` hands out one message at a time, and a frame for each would be expensive. So several are
leased together: one at first, then twice as many if the application finished the last ones within
WINDOW_MS, or as many as it does in that time if it was slower. No application has seen what lies
here: it goes back without counting, and no acknowledgement time-out runs for it. Each message is
noted in the consumer's lock file before it is handed out, so that others can tell after a SIGKILL.

    queue empty ──lease──> ahead ──note──> handed out
                             └──Returned, uncounted: closing, or something comes before it

Source: spec/transactions 9.1 (what the application received).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from txlog.clock import Instant
from txlog.engine.decide.consuming.lease import give_back_unseen, reap_ops
from txlog.engine.decide.draft import Decision
from txlog.engine.model.idset import Id, IdSet, covers
from txlog.engine.model.leases import NOTHING_SEEN, Seen, is_due
from txlog.engine.model.ops import Due, Op, Returned, Run
from txlog.engine.plan.consuming.choice import SHARED_TYPES
from txlog.engine.session.consuming.membership import Membership
from txlog.engine.session.consuming.receive import Guard, Receiving
from txlog.engine.session.reading.message import Decoder, Message, messages
from txlog.engine.session.reading.pause import REST_SECONDS_MAX
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import TxlogError

WINDOW_MS = 50  # how much time's worth is taken ahead, at the application's pace
BATCHES = 1 << 20  # numbers of batches that one turn may use: one a partition
DUE_PARTS = 8  # a time-out is written with this part of it as its grain, never too early


class Ahead:
    """The messages that a consumer has but its application has not; its caller's mutex is held.

    seen: how far the application has come, as it is noted
    """

    __slots__ = (
        "_back",
        "_batches",
        "_can_note",
        "_decoder",
        "_due_ms",
        "_fills",
        "_handed",
        "_is_drained",
        "_is_torn",
        "_member",
        "_most",
        "_queue",
        "_receiving",
        "_size",
        "_store",
        "_taken",
        "seen",
    )

    def __init__(self, store: Store, member: Membership, receiving: Receiving, most: int) -> None:
        self._store = store
        self._decoder = Decoder(store, receiving.topic.number)
        self._member = member
        self._receiving = receiving
        self._most = max(1, most)
        self._queue: deque[Message] = deque()
        self._size = 1
        self._taken = (0, 0)  # how many messages came last, and when (clock since boot)
        self._is_torn = False
        self._is_drained = True  # the application has asked for more than those
        self._fills = 0
        self._batches: dict[int, int] = {}  # of what came last: partition, number of its batch
        self._can_note: bool | None = None
        self._handed: list[tuple[Due, int, Id]] = []  # with a time-out, since the last frame
        self._due_ms = 0  # when the first time-out is over, 0: none runs
        self._back: list[tuple[int, int]] = []  # what this consumer gave back: due, partition
        self.seen = NOTHING_SEEN

    def __bool__(self) -> bool:
        return bool(self._queue)

    def next(self, guard: Guard | None = None) -> Message | None:
        """The next message for the application, leased if need be; guard: asked before that."""
        self.look()
        while True:
            if not self._queue:
                self._fill(guard)
            if not self._queue:
                return None
            if self._hand_over(self._queue[0]):
                return self._queue.popleft()
            self.give_back()  # it cannot be recorded: from now on one by one

    # --- taking ------------------------------------------------------------------------------

    def _fill(self, guard: Guard | None) -> None:
        clock = self._store.clock
        if self._is_torn:  # an interrupt came between: it is leased, but nobody has it
            self._return_unseen()
        self._is_torn = True
        if not self._is_drained:  # once: what it waits for later is not the application's pace
            self._is_drained = True
            self._size = self._next_size(clock.now().boot_ms)
        size = self._size
        if size > 1 and self._can_note is None:
            self._can_note = self._member.open_note()
        if size == 1 or not self._can_note:
            table = self._receiving.take(1, guard, ahead=0, seen=self.spoken())
        else:
            self._fills += 1
            table = self._receiving.take(
                size, guard, ahead=self._fills * BATCHES, most=self._most, seen=self.spoken()
            )
        if table.num_rows:
            self.said()
            self._batches = self._receiving.batches
            self._queue.extend(messages(table, self._decoder))
            # from now on: how long a turn takes is not the application's pace either
            self._taken, self._is_drained = (table.num_rows, clock.now().boot_ms), False
        self._is_torn = False

    def _next_size(self, now_ms: int) -> int:
        count, since_ms = self._taken
        took_ms = now_ms - since_ms
        if not count:
            return 1
        if took_ms > WINDOW_MS:
            return max(1, count * WINDOW_MS // took_ms)
        return min(self._most, 2 * self._size) if count >= self._size else self._size

    def said(self) -> None:
        """A frame has the time-outs that were spoken of."""
        self._handed.clear()

    def spoken(self) -> list[tuple[int, list[Run], Due]]:
        """What was handed out since the last frame, by partition, with the end of its time-out."""
        out: list[tuple[int, list[Run], Due]] = []
        groups: dict[tuple[int, int], tuple[IdSet, Due]] = {}
        if not self._handed:
            return out
        first = self._handed[0][0][2]
        grain = max(1, self._receiving.timeout_ms // DUE_PARTS)
        for due, number, one in self._handed:
            ids = groups.get((number, (due[2] - first) // grain), (IdSet(), due))[0]
            add(ids, one)
            groups[number, (due[2] - first) // grain] = ids, due
        return [(number, ids.runs(), due) for (number, _), (ids, due) in groups.items()]

    # --- handing out -------------------------------------------------------------------------

    def _hand_over(self, message: Message) -> bool:
        """Note that the application gets a message; False when that cannot be written."""
        one = id_of(message)
        if one is None:
            return True  # a preview: no lease, no count
        receiving = self._receiving
        number = receiving.number_of(message)
        batch, timeout_ms = self._batches.get(number, 0), receiving.timeout_ms
        due_ms = 0
        now: Instant | None = None
        if timeout_ms:
            now = self._store.clock.now()
            due_ms = now.boot_ms + timeout_ms
        if batch:
            seen = Seen(batch, one, due_ms)
            try:
                self._member.note(seen)
            except TxlogError:
                self._can_note = False
                return False
            self.seen = seen
            if now is not None:
                due = (now.wall_ms + timeout_ms, now.boot_id, due_ms)
                self._handed.append((due, number, one))
        if due_ms and not self._due_ms:
            self._due_ms = due_ms
        receiving.handed_over(number, one)
        return True

    # --- giving back -------------------------------------------------------------------------

    def give_back(self) -> None:
        """Return everything that is ahead, uncounted."""
        if self._queue:
            self._return_unseen()
            self._queue.clear()

    def _return_unseen(self) -> None:
        member, seen = self._member, self.seen
        self._store.write(
            lambda view, now: give_back_unseen(view, member.subscription, member.number, seen),
            tells=True,
        )

    def clear(self) -> None:
        """Forget it: it was given back, or is void."""
        self._queue.clear()
        self._handed.clear()
        self._due_ms = 0

    def returned(self, ops: Iterable[object]) -> None:
        """This consumer gave messages back: they come before what is here, when they are due."""
        now_ms = self._store.clock.now().boot_ms
        for op in ops:
            if isinstance(op, Returned):
                heappush(self._back, (now_ms if op.due is None else op.due[2], op.partition))

    def _return_overdue(self) -> None:
        """Return those delivered by this consumer whose ack time-out is over."""
        member = self._member
        ops: list[Op] = []

        def decide(view: View, now: Instant) -> Decision[int]:
            nonlocal ops
            ops = []
            held = view.catalog.subscriptions.get(member.subscription)
            if held is None:
                return Decision([], answer=0)
            ops = reap_ops(view, held, {}, now)
            dues: list[int] = []
            over: dict[int, IdSet] = {}
            for due, number, one in self._handed:
                lease = view.cursor(held.number, number).leases.by_consumer.get(member.number)
                if lease is None or one not in lease.ids:
                    continue
                if is_due(due, now):
                    add(over.setdefault(number, IdSet()), one)
                else:
                    dues.append(due[2])
            for number in self._receiving.numbers():
                lease = view.cursor(held.number, number).leases.by_consumer.get(member.number)
                if lease is not None:
                    dues += (due[2] for due, _ in lease.handouts if not is_due(due, now))
            ops += (
                Returned(held.number, number, member.number, ids.runs())
                for number, ids in over.items()
            )
            return Decision(ops, answer=min(dues, default=0))

        left = self._store.write(decide, tells=True)
        self._due_ms = left
        now = self._store.clock.now()
        self._handed = [one for one in self._handed if not is_due(one[0], now)]
        self.returned(ops)

    # --- what comes first --------------------------------------------------------------------

    def look(self) -> None:
        """Drop what is no longer this consumer's, and return what something comes before.

        Only the first is always checked; the others when it is their turn.
        """
        if self._due_ms and self._due_ms <= self._store.clock.now().boot_ms:
            self._return_overdue()
        has_back = bool(self._back) and self._has_back()
        if not self._queue:
            return
        lost, is_preceded = self._store.read(self._look)
        for _ in range(lost):
            self._queue.popleft()
        if has_back or is_preceded:
            self.give_back()

    def rest(self) -> float:
        """In how many seconds the next time-out of what this consumer delivered is over."""
        if not self._due_ms:
            return REST_SECONDS_MAX
        return max(self._due_ms - self._store.clock.now().boot_ms, 1) / 1000

    def _has_back(self) -> bool:
        """True when something that this consumer gave back is due; that comes first."""
        now_ms = self._store.clock.now().boot_ms
        found = False
        while self._back and self._back[0][0] <= now_ms:
            self._receiving.first.add(heappop(self._back)[1])
            found = True
        return found

    def _look(self, view: View) -> tuple[int, bool]:
        """How many of the first are lost, and whether something comes before the next."""
        receiving, member = self._receiving, self._member
        for at, message in enumerate(self._queue):
            one = id_of(message)
            if one is None:
                return at, False
            number = receiving.number_of(message)
            cursor = view.cursor(member.subscription, number)
            lease = cursor.leases.by_consumer.get(member.number)
            if lease is None or one not in lease.ids:
                continue
            place = receiving.place(number)
            if place is None or member.kind in SHARED_TYPES:
                return at, False  # in hand is in hand
            return at, not covers(cursor.rewound(place.round, place.mark), one)
        return len(self._queue), False


def add(ids: IdSet, one: Id) -> None:
    """Add one message."""
    ids.add((one[0], one[1], one[1], one[2], one[2]))


def id_of(message: Message) -> Id | None:
    """The id of a message; None for a preview."""
    one = message.message_id
    return None if one is None else (one.ledger, one.entry, one.index)
