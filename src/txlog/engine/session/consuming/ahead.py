"""Owns Ahead: the messages that a consumer leases before its application asks for them.

`receive` hands out one message at a time, and a frame for each would be expensive. So the consumer
leases several at once: first one, then twice as many if the application finished the last batch
within WINDOW_MS, else as many as it finishes in that time. Messages in this queue have not reached
the application, so they go back without counting as delivered, and no acknowledgement time-out runs
for them. The consumer notes each message in its lock file before it hands it out. So after a
SIGKILL its peers can tell which messages the application received.

    queue empty ──lease──> ahead ──note──> handed out
                             └──Returned, uncounted: closing, or something comes before it

Source: spec/transactions 9.1.
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

WINDOW_MS = 50  # it takes ahead as many messages as the application processes in this time
BATCHES = 1 << 20  # how many batch numbers one turn may use: one per partition
DUE_PARTS = 8  # time-outs within an eighth of the time-out are written as one: the latest of them


class Ahead:
    """The queue of messages taken ahead. The caller holds the mutex of the consumer's turns.

    seen: how far the application has got, as noted in the lock file
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
        self._taken = (0, 0)  # size of the last fill, and when it came (ms since boot)
        self._is_torn = False  # an interrupt came during a fill
        self._is_drained = True  # the application has asked for more than the last fill
        self._fills = 0
        self._batches: dict[int, int] = {}  # of the last fill: partition -> batch number
        self._can_note: bool | None = None
        self._handed: list[tuple[Due, int, Id]] = []  # hand-outs with a time-out, in no frame yet
        self._due_ms = 0  # when the first time-out ends (ms since boot); 0: none runs
        self._back: list[
            tuple[int, int]
        ] = []  # heap of (due, partition): returned by this consumer
        self.seen = NOTHING_SEEN

    def __bool__(self) -> bool:
        return bool(self._queue)

    def next(self, guard: Guard | None = None) -> Message | None:
        """The next message for the application; None: there is none.

        guard: checked under the lock before messages are leased
        """
        self.look()
        while True:
            if not self._queue:
                self._fill(guard)
            if not self._queue:
                return None
            if self._hand_over(self._queue[0]):
                return self._queue.popleft()
            self.give_back()  # the lock file cannot be written: from now on lease one at a time

    # --- taking ------------------------------------------------------------------------------

    def _fill(self, guard: Guard | None) -> None:
        clock = self._store.clock
        if self._is_torn:  # an interrupt cut the last fill short: its messages are in no queue
            self._return_unseen()
        self._is_torn = True
        if not self._is_drained:  # measure once: later, the application only waits for messages
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
            # the clock starts here, as the time of this turn is not the application's
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
        """Note that the hand-outs which `spoken` returned are in a frame now."""
        self._handed.clear()

    def spoken(self) -> list[tuple[int, list[Run], Due]]:
        """Hand-outs since the last frame: (partition, messages, end of their time-out)."""
        out: list[tuple[int, list[Run], Due]] = []
        groups: dict[tuple[int, int], tuple[IdSet, Due]] = {}
        if not self._handed:
            return out
        first = self._handed[0][0][2]
        grain = max(1, self._receiving.timeout_ms // DUE_PARTS)
        for due, number, message_id in self._handed:
            ids = groups.get((number, (due[2] - first) // grain), (IdSet(), due))[0]
            add(ids, message_id)
            groups[number, (due[2] - first) // grain] = ids, due
        return [(number, ids.runs(), due) for (number, _), (ids, due) in groups.items()]

    # --- handing out -------------------------------------------------------------------------

    def _hand_over(self, message: Message) -> bool:
        """Note that the application receives a message; False if the note cannot be written."""
        message_id = id_of(message)
        if message_id is None:
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
            seen = Seen(batch, message_id, due_ms)
            try:
                self._member.note(seen)
            except TxlogError:
                self._can_note = False
                return False
            self.seen = seen
            if now is not None:
                due = (now.wall_ms + timeout_ms, now.boot_id, due_ms)
                self._handed.append((due, number, message_id))
        if due_ms and not self._due_ms:
            self._due_ms = due_ms
        receiving.handed_over(number, message_id)
        return True

    # --- giving back -------------------------------------------------------------------------

    def give_back(self) -> None:
        """Return all messages in the queue to the subscription, uncounted."""
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
        """Empty the queue: its messages were returned, or the subscription was moved."""
        self._queue.clear()
        self._handed.clear()
        self._due_ms = 0

    def returned(self, ops: Iterable[object]) -> None:
        """Note that this consumer returned messages: once due, they come before the queue.

        ops: of the frame that returned them
        """
        now_ms = self._store.clock.now().boot_ms
        for op in ops:
            if isinstance(op, Returned):
                heappush(self._back, (now_ms if op.due is None else op.due[2], op.partition))

    def _return_overdue(self) -> None:
        """Return messages of this consumer whose acknowledgement time-out is over."""
        member = self._member
        ops: list[Op] = []

        def decide(view: View, now: Instant) -> Decision[int]:
            nonlocal ops
            ops = []
            subscription = view.catalog.subscriptions.get(member.subscription)
            if subscription is None:
                return Decision([], answer=0)
            ops = reap_ops(view, subscription, {}, now)
            dues: list[int] = []
            over: dict[int, IdSet] = {}
            for due, number, message_id in self._handed:
                lease = view.cursor(subscription.number, number).leases.by_consumer.get(
                    member.number
                )
                if lease is None or message_id not in lease.ids:
                    continue
                if is_due(due, now):
                    add(over.setdefault(number, IdSet()), message_id)
                else:
                    dues.append(due[2])
            for number in self._receiving.numbers():
                lease = view.cursor(subscription.number, number).leases.by_consumer.get(
                    member.number
                )
                if lease is not None:
                    dues += (due[2] for due, _ in lease.handouts if not is_due(due, now))
            ops += (
                Returned(subscription.number, number, member.number, ids.runs())
                for number, ids in over.items()
            )
            return Decision(ops, answer=min(dues, default=0))

        next_due_ms = self._store.write(decide, tells=True)
        self._due_ms = next_due_ms
        now = self._store.clock.now()
        self._handed = [handout for handout in self._handed if not is_due(handout[0], now)]
        self.returned(ops)

    # --- checking the queue ------------------------------------------------------------------

    def look(self) -> None:
        """Drop messages no longer leased to it; give the queue back if others come before it.

        It checks the head of the queue; later messages are checked when they have become the head.
        """
        if self._due_ms and self._due_ms <= self._store.clock.now().boot_ms:
            self._return_overdue()
        has_back = bool(self._back) and self._has_back()
        if not self._queue:
            return
        lost, is_preceded = self._store.read(self._look, waits=False)
        for _ in range(lost):
            self._queue.popleft()
        if has_back or is_preceded:
            self.give_back()

    def rest(self) -> float:
        """The seconds until the next acknowledgement time-out of this consumer ends."""
        if not self._due_ms:
            return REST_SECONDS_MAX
        return max(self._due_ms - self._store.clock.now().boot_ms, 1) / 1000

    def _has_back(self) -> bool:
        """True if a message that this consumer returned is due; its partition then goes first."""
        now_ms = self._store.clock.now().boot_ms
        is_any_due = False
        while self._back and self._back[0][0] <= now_ms:
            self._receiving.first.add(heappop(self._back)[1])
            is_any_due = True
        return is_any_due

    def _look(self, view: View) -> tuple[int, bool]:
        """(how many messages at the head are no longer leased, whether others come before them)."""
        receiving, member = self._receiving, self._member
        for at, message in enumerate(self._queue):
            message_id = id_of(message)
            if message_id is None:
                return at, False
            number = receiving.number_of(message)
            cursor = view.cursor(member.subscription, number)
            lease = cursor.leases.by_consumer.get(member.number)
            if lease is None or message_id not in lease.ids:
                continue
            place = receiving.place(number)
            if place is None or member.kind in SHARED_TYPES:
                return at, False  # these types keep no order between messages
            return at, not covers(cursor.rewound(place.round, place.mark), message_id)
        return len(self._queue), False


def add(ids: IdSet, message_id: Id) -> None:
    """Add one message to a set."""
    ids.add((message_id[0], message_id[1], message_id[1], message_id[2], message_id[2]))


def id_of(message: Message) -> Id | None:
    """The id of a message; None for a preview."""
    message_id = message.message_id
    return None if message_id is None else (message_id.ledger, message_id.entry, message_id.index)
