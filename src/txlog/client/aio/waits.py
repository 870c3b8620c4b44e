"""Owns Waits: the waiting calls of one asynchronous client, which cost nothing while they wait.

A waiting call looks in the worker thread, rests in the event loop, and looks again. A rest ends at
the same events as for threads (store/wakeups): the kernel makes one descriptor readable, and the
loop watches that descriptor while any task waits. A timer of the loop ends the rest when the next
message is due. No thread waits.

Most rests name the components that matter to them (`Concern`). After a flush, one call in the
worker reads which components changed, and only the tasks that named one of them look. So a commit
costs the same whether one or a thousand tasks wait for other topics. Of tasks in one queue, such as
the consumers of a Shared subscription, only one looks. It holds the baton, and hands it to the next
task, unless its look showed that there is nothing left. After a departure, that call
also reads what the consumer wrote last, flushed or not. If it wrote nothing, it died, and the tasks
of its peers look.

Where the kernel does not report changes, or the loop cannot watch descriptors, tasks poll.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from txlog.client.aio.worker import Prepare, Together, Undo, Worker
from txlog.engine.door.facts import CATALOG, Component, members, peers
from txlog.engine.door.liveness import consumer_of
from txlog.engine.door.reading import BY_TIME, POLL_SECONDS_MAX, Concern, Rest, Waiting
from txlog.engine.door.store import STALL_SECONDS, UNKNOWN, Decision, EventCounts, Store, View
from txlog.errors import AlreadyClosed, TxlogError

T = TypeVar("T")
Resting: TypeAlias = "asyncio.Future[Concern | None]"  # its result is the baton, if it gets one
NEVER: Final = 1 << 62
OWN_SECONDS: Final = 0.005  # an event that an own call may have caused waits so long for its end
# Each task must learn of changes of these; of other changes one of a queue is enough.
FOR_ALL: Final = frozenset([CATALOG[0], peers(0)[0], members(0)[0]])


class Found(NamedTuple):
    """The changes of the store since the tasks began to rest.

    lsn, departures: it covers all frames up to this LSN, and this many departures of consumers
    since:   the LSN that it begins after
    changed: the components that changed; None: any component may have changed
    bereft:  the component `peers` of each subscription that may have lost a consumer
    """

    lsn: int
    departures: int
    changed: set[Component] | None
    bereft: frozenset[Component]
    since: int


class TaskWait(Waiting):
    """The state of the waits of one task.

    seconds: what is left of its rest; 0: it looks next
    baton:   what its queue was woken for
    is_stopped: `stop` was called; the caller of `until` sets it back
    """

    __slots__ = ("baton", "is_stopped", "resting", "seconds")

    def __init__(self, store: Store, rest: Rest) -> None:
        super().__init__(store, rest, is_asked_for=True)
        self.seconds = 0.0
        self.baton: Concern | None = None
        self.is_stopped = False
        self.resting: Resting | None = None

    def stop(self) -> None:
        """Have `until` return None instead of resting; a look that has begun ends first."""
        self.is_stopped = True
        if self.resting is not None:
            _end(self.resting)


class Following:
    """The changes that the resting tasks know, and the task that reads the next ones.

    lsn:   they have been woken for all changes up to this LSN
    asked: and for this many departures of consumers
    task:  has the worker read what changed; None: there is none
    is_behind: another event came while that task was reading
    own:   calls of this process that store messages now
    later: an event waits for the end of such a call
    """

    __slots__ = ("asked", "is_behind", "later", "lsn", "own", "task")

    def __init__(self) -> None:
        self.lsn, self.asked = BY_TIME.lsn, NEVER
        self.task: asyncio.Task[None] | None = None
        self.is_behind = False
        self.own = 0
        self.later: asyncio.TimerHandle | None = None


class Turn(Generic[T]):
    """One turn of a wait after another, in the worker: a look, and the rest after it.

    is_over: it is the last turn, as time is up
    """

    __slots__ = (
        "_deadline",
        "_is_last",
        "_is_thorough",
        "_look",
        "_prepare",
        "_waiting",
        "is_over",
    )

    def __init__(
        self,
        waiting: TaskWait,
        look: Callable[[bool], T | None],
        is_last: Callable[[T], bool],
        prepare: Prepare | None,
        deadline: float | None,
    ) -> None:
        """Take the arguments of `Waits.until`."""
        self._waiting, self._look, self._is_last = waiting, look, is_last
        self._prepare, self._deadline = prepare, deadline
        self.is_over = self._is_thorough = False

    def begin(self) -> Prepare | None:
        """Note the events so far: from here on an event ends the rest."""
        self._is_thorough = self._waiting.look() or self.is_over
        return None if self._is_thorough else self._prepare

    def act(self) -> tuple[T | None, float]:
        """Look; returns the answer, and the seconds to rest."""
        answer = self._look(self._is_thorough)
        over = self.is_over if answer is None else not self._is_last(answer)
        return answer, 0.0 if over else self._waiting.rest(self._deadline)

    def alone(self) -> tuple[T | None, float]:
        """Begin and act, in one call."""
        self.begin()
        return self.act()


class Waits:
    """The rests of the tasks of one client."""

    __slots__ = (
        "_bereft",
        "_concerned",
        "_descriptor",
        "_heard",
        "_is_closed",
        "_loop",
        "_news",
        "_resting",
        "_stall",
        "_store",
        "together",
        "worker",
    )

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store, self.worker = store, worker
        self.together = Together(store, worker)
        self._resting: dict[Resting, tuple[Concern | None, Rest]] = {}
        # by component, in the order in which they began to rest
        self._concerned: dict[Component, dict[Resting, None]] = {}
        self._bereft = set[Resting]()  # rests during which a peer may have died
        self._heard = EventCounts()  # the events handled so far
        self._news = Following()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._stall: asyncio.TimerHandle | None = None

    async def until(
        self,
        look: Callable[[bool], T | None],
        timeout_ms: int | None,
        rest: Rest,
        undo: Undo[T] | None = None,
        waiting: TaskWait | None = None,
        is_last: Callable[[T], bool] = lambda answer: False,
        prepare: Prepare | None = None,
    ) -> T | None:
        """Call `look` until it returns something else than None, and return that.

        look:   its argument says whether to be thorough (engine/session/reading/pause)
        timeout_ms: after this time, return None; None: no time-out
        undo:   as in Worker.run
        waiting: the state of the last call, of `rest`; after an answer that was the last one, this
                call rests before it looks
        is_last: whether a look after this answer would return None
        prepare: the call of the store that a look which is not thorough needs first. The looks that
                begin in one turn of the loop then share a call of the worker, and a frame
        raises: StoreNotFound if the store was removed meanwhile; AlreadyClosed once the client is
                closed; the errors of `look`
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        waiting = waiting or self.begin(rest)

        def give_back(outcome: tuple[T | None, float]) -> None:
            if undo is not None and outcome[0] is not None:
                undo(outcome[0])

        waiting.seconds = min(waiting.seconds, waiting.left())
        turn = Turn(waiting, look, is_last, prepare, deadline)
        try:
            while True:
                while waiting.seconds > 0 and not waiting.is_stopped:
                    is_called = await self._rest(waiting, rest)
                    waiting.seconds = 0.0 if is_called else waiting.rest_on()
                if waiting.is_stopped:
                    waiting.seconds = 0.0
                    return None
                turn.is_over = deadline is not None and time.monotonic() >= deadline
                if prepare is None:
                    outcome = await self.worker.run(turn.alone, give_back)
                else:
                    outcome = await self.together.run(turn.act, give_back, turn.begin)
                answer, waiting.seconds = outcome
                if answer is not None or turn.is_over:
                    return answer
        except BaseException:  # also if it was cancelled: the next call looks
            waiting.seconds = 0.0
            raise
        finally:
            self._hand_on(waiting)

    def begin(self, rest: Rest) -> TaskWait:
        """The state of a wait, for several calls of `until`."""
        return TaskWait(self._store, rest)

    async def _rest(self, waiting: TaskWait, rest: Rest) -> bool:
        """Sleep in the loop until an event that the task has not seen; True if it has to look.

        rest: a method of the waiting handle, by which `end_of` finds the tasks of a handle
        """
        self._hand_on(waiting)
        seconds = waiting.seconds
        if self._is_closed:
            raise AlreadyClosed("the client is closed")
        wakeups, loop = self._store.wakeups, asyncio.get_running_loop()
        seen, concern = waiting.seen, waiting.concern
        if self._is_news(seen, concern):
            return False
        if not self._listen(loop):
            await asyncio.sleep(min(seconds, POLL_SECONDS_MAX))
            count, departures = wakeups.tally.departures, waiting.departures
            if departures.asked < count:  # a thread got the events of these departures
                departures.asked = count
                departures.mourn()
            return False
        resting = loop.create_future()
        timer = loop.call_later(seconds, _end, resting)
        waiting.resting = resting
        self._begin(resting, concern, waiting.departures.asked, rest)
        self._mind_flush()  # a flush may have begun before any task rested
        try:
            if not self._is_news(seen, concern):  # else a thread got an event before we listened
                if concern is not None and self._is_behind_events():
                    self._follow(loop)
                await resting
        finally:
            timer.cancel()
            self._forget(resting, waiting)
            if not self._resting:
                self.stop()
        return waiting.baton is not None

    def _is_news(self, seen: EventCounts, concern: Concern | None) -> bool:
        """True if an event since then ends a rest at once, without reading what changed."""
        tally = self._store.wakeups.tally
        if concern is None:
            return tally.count != seen.count
        return tally.others != seen.others

    def _begin(self, resting: Resting, concern: Concern | None, asked: int, rest: Rest) -> None:
        if not self._resting:
            self._heard, self._news.lsn = self._store.wakeups.tally.copy(), BY_TIME.lsn
            self._news.asked = NEVER
        self._resting[resting] = concern, rest
        if concern is not None:
            self._news.lsn = min(self._news.lsn, concern.lsn)
            self._news.asked = min(self._news.asked, asked)
            for key in concern.keys:
                self._concerned.setdefault(key, {})[resting] = None

    def _forget(self, resting: Resting, waiting: TaskWait) -> None:
        concern, _ = self._resting.pop(resting)
        waiting.resting = None
        if concern is None:
            return
        waiting.baton = resting.result() if resting.done() and not resting.cancelled() else None
        for key in concern.keys:
            del self._concerned[key][resting]
            if not self._concerned[key]:
                del self._concerned[key]
        waiting.departures.asked = max(waiting.departures.asked, self._news.asked)
        if resting in self._bereft:
            self._bereft.discard(resting)
            waiting.departures.mourn()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have the loop watch the descriptor; False if there is none, or the loop cannot do it."""
        descriptor = self._store.wakeups.fileno()
        if descriptor is None:
            return False
        if (descriptor, loop) == (self._descriptor, self._loop):
            return True
        self.stop()
        try:
            loop.add_reader(descriptor, self._told)
        except NotImplementedError:  # a loop that cannot watch descriptors
            return False
        self._descriptor, self._loop = descriptor, loop
        self._store.wakeups.pass_on = partial(_call_soon, loop, self._told)
        return True

    def _told(self, has_waited: bool = False) -> None:
        """The descriptor is readable: wake the resting tasks that the event may concern."""
        wakeups, before = self._store.wakeups, self._heard
        wakeups.drain(has_waited=has_waited)
        heard = self._heard = wakeups.tally.copy()
        if heard.others != before.others:
            self.end_all()
        elif heard.count != before.count:
            for resting in [
                rest for rest, (concern, _) in self._resting.items() if concern is None
            ]:
                _end(resting)
            if heard.news != before.news and self._concerned and self._is_behind_events():
                self._follow_later()
        self._mind_flush()

    def _is_behind_events(self) -> bool:
        """Whether the last event may stand for a flush or a departure that no task knows."""
        wakeups = self._store.wakeups
        return wakeups.durable_lsn > self._news.lsn or wakeups.tally.departures > self._news.asked

    def end_all(self) -> None:
        """Wake all resting tasks."""
        for resting in self._resting:
            _end(resting)

    def end_of(self, handle: object) -> None:
        """Wake the tasks that wait in this handle."""
        for resting, (_, rest) in self._resting.items():
            if getattr(rest, "__self__", None) is handle:
                _end(resting)

    # --- what this process stores ------------------------------------------------------------

    async def run_own(self, act: Callable[[], T]) -> T:
        """Run a call aside that stores messages; then wake the tasks that its changes concern."""
        news: Found | None = None

        def run() -> T:
            nonlocal news
            answer = act()
            with suppress(TxlogError):  # then the event of the flush wakes the tasks
                news = self._changes()
            return answer

        self._news.own += 1
        try:
            return await self.worker.run(run, aside=True)
        finally:
            self._end_own(news)

    def _changes(self) -> Found | None:
        """In the thread of an own call, at its end: what tasks have to learn of the changes so far.

        None: nothing is known to be new.
        """
        since = self._news.lsn

        def look(view: View) -> Found | None:
            lsn = min(view.lsn, view.journal.durable_lsn)
            if lsn <= since:
                return None
            return Found(lsn, 0, view.changed_since(since), frozenset(), since)

        return self._store.read(look, fresh=False, waits=False)

    def _end_own(self, news: Found | None) -> None:
        self._news.own -= 1
        if news is not None:
            self._learn(news)
        if self._news.later is not None:
            self._follow_now()

    def _follow_later(self) -> None:
        """Follow, but give an own call that may have caused the event a moment to end first."""
        loop = self._loop
        if loop is None or self._news.later is not None:
            return
        if self._news.own and self._news.task is None:
            self._news.later = loop.call_later(OWN_SECONDS, self._follow_now)
        else:
            self._follow(loop)

    def _follow_now(self) -> None:
        if self._news.later is not None:
            self._news.later.cancel()
            self._news.later = None
        if self._loop is not None and self._is_behind_events():
            self._follow(self._loop)

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the worker read what changed, and then wake the tasks that it concerns."""
        if self._news.task is None:
            self._news.task = loop.create_task(self._pass_on())
        else:
            self._news.is_behind = True

    async def _pass_on(self) -> None:
        try:
            while True:
                self._news.is_behind, since, asked = (
                    False,
                    self._news.lsn,
                    self._news.asked,
                )
                news = await self.worker.run(partial(self._changed_since, since, asked))
                count = news.departures
                self._news.asked = (
                    count if self._news.asked == asked else min(self._news.asked, count)
                )
                self._learn(news)
                self._pass_on_deaths(news.bereft)
                if not self._news.is_behind:
                    return
        except Exception:  # the tasks look again, and get the error from there
            self.end_all()
        finally:
            self._news.task = None

    def _learn(self, news: Found) -> None:
        """Wake the tasks that changes concern."""
        lsn = news.lsn
        # a task that began to rest in between may have looked at an older state
        self._news.lsn = lsn if self._news.lsn == news.since else min(self._news.lsn, lsn)
        if news.changed is None:
            self.end_all()
        self._call(news.changed or (), lsn)

    def _call(self, changed: Iterable[Component], lsn: int) -> None:
        """Wake the tasks that a change concerns; of a queue one, unless all must look."""
        queues = dict[Hashable, Concern]()
        for key in changed:
            for resting in self._concerned.get(key, {}):
                concern, _ = self._resting[resting]
                if concern is None or concern.queue is None or key[0] in FOR_ALL:
                    _end(resting)
                elif concern.queue not in queues:
                    queues[concern.queue] = Concern(lsn, frozenset([key]), concern.queue)
        for baton in queues.values():
            self._hand(baton)

    def _hand(self, baton: Concern) -> None:
        """Wake the task of a queue that has rested longest, if it has not seen the change."""
        for key in baton.keys:
            for resting in self._concerned.get(key, {}):
                concern, _ = self._resting[resting]
                if concern is None or concern.queue != baton.queue or resting.done():
                    continue
                if concern.lsn < baton.lsn and not resting.get_loop().is_closed():
                    resting.set_result(baton)
                    return

    def _hand_on(self, waiting: TaskWait) -> None:
        """Hand the baton to the next task, unless the look of this one was for its whole queue."""
        baton, waiting.baton = waiting.baton, None
        if baton is None:
            return
        concern = waiting.concern if waiting.seconds > 0 else None
        if concern is None or concern.queue != baton.queue or concern.lsn < baton.lsn:
            self._hand(baton)

    def _pass_on_deaths(self, bereft: Iterable[Component]) -> None:
        for key in bereft:
            for resting in self._concerned.get(key, ()):
                self._bereft.add(resting)
                _end(resting)

    def _changed_since(self, lsn: int, departures: int) -> Found:
        """The changes after an LSN and after this many departures; runs in the worker."""
        store = self._store
        tally = store.wakeups.tally.copy()
        closed_locks = tally.gone_since(departures)
        if closed_locks and not store.disk.read_only:
            store.refresh()
            if store.has_unflushed(unseen=True):  # the lock lets us read unflushed returns
                store.write(lambda view, now: Decision([]))

        def look(view: View) -> Found:
            changed = view.changed_since(lsn)
            if UNKNOWN in closed_locks:
                subscriptions = set(view.catalog.subscriptions)
            else:
                consumers, numbers = view.catalog.consumers, map(consumer_of, closed_locks)
                subscriptions = {
                    consumers[number].subscription for number in numbers if number in consumers
                }
            bereft = map(peers, subscriptions)
            return Found(view.lsn, tally.departures, changed, frozenset(bereft), lsn)

        return store.read(look)

    def _mind_flush(self) -> None:
        """Set a timer for a running flush: if its process dies, no event reports the frames."""
        flushing = self._store.wakeups.flushing
        if flushing and self._stall is None and self._loop is not None:
            self._stall = self._loop.call_later(STALL_SECONDS, self._look_after, flushing)

    def _look_after(self, flushing: int) -> None:
        self._stall = None
        if self._loop is not None:
            self._told(has_waited=flushing == self._store.wakeups.flushing)

    def close(self) -> None:
        """End all present and future waits with AlreadyClosed."""
        self._is_closed = True
        self.end_all()
        self.stop()

    def stop(self) -> None:
        """Stop watching the descriptor and the flush."""
        loop, self._loop = self._loop, None
        self._store.wakeups.pass_on = None
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._descriptor)
        self._descriptor = -1


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop may have been closed
        loop.call_soon_threadsafe(act)


def _end(resting: Resting) -> None:
    if not resting.done():
        resting.set_result(None)
