"""Owns Waits: the waiting calls of one asynchronous client, which cost nothing while they wait.

A call that waits looks in the worker's thread, rests in the event loop, and looks again. What ends
a rest is what ends it for threads (store/wakeups): the kernel makes one descriptor readable when
something has become durable, and the loop watches that descriptor for all waiting tasks together,
as long as there are any; or a timer of the loop, when the next message falls due. No thread waits.

Most rests say which components concern them (`Concern`). When something has become durable, one
call in the worker asks what changed, and only the tasks that are concerned look: a commit costs the
same whether one or a thousand tasks wait for other topics. When consumers have left, it also asks
what these have written, flushed or not, and whose those are that wrote nothing: they died.

Where the kernel tells nothing, or the loop cannot watch descriptors, tasks look again after short
pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from txlog.client.aio.worker import Undo, Worker
from txlog.engine.door.facts import Component, peers
from txlog.engine.door.liveness import consumer_of
from txlog.engine.door.reading import BY_TIME, POLL_SECONDS_MAX, Concern, Rest, Waiting
from txlog.engine.door.store import STALL_SECONDS, UNKNOWN, Decision, Store, Tally, View
from txlog.errors import AlreadyClosed

T = TypeVar("T")
NEVER: Final = 1 << 62


class Found(NamedTuple):
    """What is to be passed on: as of an LSN and so many departures.

    changed: the components that changed; None: any may have
    bereft:  `peers` of the subscriptions of which a consumer may have died
    """

    lsn: int
    departures: int
    changed: set[Component] | None
    bereft: frozenset[Component]


class Waits:
    """The rests of the tasks of one client."""

    __slots__ = (
        "_asked",
        "_bereft",
        "_concerned",
        "_descriptor",
        "_followed",
        "_following",
        "_heard",
        "_is_behind",
        "_is_closed",
        "_loop",
        "_resting",
        "_stall",
        "_store",
        "worker",
    )

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store, self.worker = store, worker
        self._resting: dict[asyncio.Future[None], tuple[Concern | None, Rest]] = {}
        self._concerned: dict[Component, set[asyncio.Future[None]]] = {}
        self._bereft = set[asyncio.Future[None]]()  # who rested while a peer died
        self._heard = Tally()  # what was passed on
        self._followed = (
            BY_TIME.lsn
        )  # what changed up to this LSN was passed on to whom it concerns
        self._asked = NEVER  # so were so many departures
        self._following: asyncio.Task[None] | None = None
        self._is_behind = False  # there was more while it followed
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
    ) -> T | None:
        """What `look` returns once it is not None; None when time runs out (None: wait for ever).

        look:   given whether to be thorough; see api/reading/pause
        undo:   as of Worker.run
        raises: StoreNotFound if the store was removed meanwhile; AlreadyClosed once the client is
                closed; what look raises
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        waiting = Waiting(self._store, rest, is_asked_for=True)

        def give_back(made: tuple[T | None, float]) -> None:
            if undo is not None and made[0] is not None:
                undo(made[0])

        while True:
            is_over = deadline is not None and time.monotonic() >= deadline

            def turn(is_over: bool = is_over) -> tuple[T | None, float]:
                found = look(waiting.look() or is_over)
                over = found is not None or is_over
                return found, 0.0 if over else waiting.rest(deadline)

            found, seconds = await self.worker.run(turn, give_back)
            if found is not None or is_over:
                return found
            while seconds > 0:
                await self._rest(waiting, seconds, rest)
                seconds = waiting.rest_on()

    async def _rest(self, waiting: Waiting, seconds: float, rest: Rest) -> None:
        """Rest until something is told after what was seen, at most so many seconds.

        rest: of the handle that waits, which `end_of` knows it by
        """
        if self._is_closed:
            raise AlreadyClosed("the client is closed")
        wakeups, loop = self._store.wakeups, asyncio.get_running_loop()
        seen, concern = waiting.seen, waiting.concern
        if self._is_news(seen, concern):
            return
        if not self._listen(loop):
            await asyncio.sleep(min(seconds, POLL_SECONDS_MAX))
            left, departures = wakeups.tally.departures, waiting.departures
            if departures.asked < left:  # a thread was told of them
                departures.asked = left
                departures.mourn()
            return
        resting = loop.create_future()
        timer = loop.call_later(seconds, _end, resting)
        self._begin(resting, concern, waiting.departures.asked, rest)
        self._mind_flush()  # it may have begun before, when nobody rested
        try:
            if not self._is_news(seen, concern):  # else a thread was told before it could pass on
                left = wakeups.tally.departures
                if wakeups.count != seen.count or (
                    concern is not None and waiting.departures.asked < left
                ):
                    self._follow(loop)
                await resting
        finally:
            timer.cancel()
            self._forget(resting, waiting)
            if not self._resting:
                self.stop()

    def _is_news(self, seen: Tally, concern: Concern | None) -> bool:
        """Whether a rest has to end at once because of what was told since."""
        tally = self._store.wakeups.tally
        if concern is None:
            return tally.count != seen.count
        return tally.others != seen.others

    def _begin(
        self, resting: asyncio.Future[None], concern: Concern | None, asked: int, rest: Rest
    ) -> None:
        if not self._resting:
            self._heard, self._followed = self._store.wakeups.tally.copy(), BY_TIME.lsn
            self._asked = NEVER
        self._resting[resting] = concern, rest
        if concern is not None:
            self._followed = min(self._followed, concern.lsn)
            self._asked = min(self._asked, asked)
            for key in concern.keys:
                self._concerned.setdefault(key, set()).add(resting)

    def _forget(self, resting: asyncio.Future[None], waiting: Waiting) -> None:
        concern, _ = self._resting.pop(resting)
        if concern is None:
            return
        for key in concern.keys:
            self._concerned[key].discard(resting)
            if not self._concerned[key]:
                del self._concerned[key]
        waiting.departures.asked = max(waiting.departures.asked, self._asked)
        if resting in self._bereft:
            self._bereft.discard(resting)
            waiting.departures.mourn()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have the loop watch the descriptor; False if it cannot, or nobody tells."""
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
        """The descriptor can be read: if it is news, the resting tasks that it concerns look."""
        wakeups, before = self._store.wakeups, self._heard
        wakeups.drain(has_waited=has_waited)
        heard = self._heard = wakeups.tally.copy()
        if heard.others != before.others:
            self.end_all()
        elif heard.count != before.count:
            for resting in [one for one, (concern, _) in self._resting.items() if concern is None]:
                _end(resting)
            if heard.news != before.news and self._concerned and self._loop is not None:
                self._follow(self._loop)
        self._mind_flush()

    def end_all(self) -> None:
        """Have all tasks that rest look again."""
        for resting in self._resting:
            _end(resting)

    def end_of(self, handle: object) -> None:
        """Have the tasks that wait in a handle look again."""
        for resting, (_, rest) in self._resting.items():
            if getattr(rest, "__self__", None) is handle:
                _end(resting)

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the worker ask what changed, and pass that on."""
        if self._following is None:
            self._following = loop.create_task(self._pass_on())
        else:
            self._is_behind = True

    async def _pass_on(self) -> None:
        try:
            while True:
                self._is_behind, since, asked = False, self._followed, self._asked
                found = await self.worker.run(partial(self._changed_since, since, asked))
                # who began to rest meanwhile may have looked at less
                lsn, left = found.lsn, found.departures
                self._followed = lsn if self._followed == since else min(self._followed, lsn)
                self._asked = left if self._asked == asked else min(self._asked, left)
                if found.changed is None:
                    self.end_all()
                for key in found.changed or ():
                    for resting in self._concerned.get(key, ()):
                        _end(resting)
                self._pass_on_deaths(found.bereft)
                if not self._is_behind:
                    return
        except Exception:  # whoever looks hears of it
            self.end_all()
        finally:
            self._following = None

    def _pass_on_deaths(self, bereft: Iterable[Component]) -> None:
        for key in bereft:
            for resting in self._concerned.get(key, ()):
                self._bereft.add(resting)
                _end(resting)

    def _changed_since(self, lsn: int, departures: int) -> Found:
        """In the worker: what changed since an LSN, and whose consumers died since a departure."""
        store = self._store
        tally = store.wakeups.tally.copy()
        gone = tally.gone_since(departures)
        if gone and not store.disk.read_only:
            store.refresh()
            if store.has_unflushed(unseen=True):  # what was given back: who has the lock sees it
                store.write(lambda view, now: Decision([]))

        def look(view: View) -> Found:
            changed = view.changed_since(lsn)
            if UNKNOWN in gone:
                subscriptions = set(view.catalog.subscriptions)
            else:
                known, numbers = view.catalog.consumers, map(consumer_of, gone)
                subscriptions = {known[one].subscription for one in numbers if one in known}
            bereft = map(peers, subscriptions)
            return Found(view.lsn, tally.departures, changed, frozenset(bereft))

        return store.read(look)

    def _mind_flush(self) -> None:
        """Look after a flush that is under way: if its process dies in it, nothing more is told."""
        flushing = self._store.wakeups.flushing
        if flushing and self._stall is None and self._loop is not None:
            self._stall = self._loop.call_later(STALL_SECONDS, self._look_after, flushing)

    def _look_after(self, flushing: int) -> None:
        self._stall = None
        if self._loop is not None:
            self._told(has_waited=flushing == self._store.wakeups.flushing)

    def close(self) -> None:
        """End every wait, now and later, with AlreadyClosed; the worker takes no more calls."""
        self._is_closed = True
        self.end_all()
        self.stop()

    def stop(self) -> None:
        """Have the loop watch nothing any more."""
        loop, self._loop = self._loop, None
        self._store.wakeups.pass_on = None
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._descriptor)
        self._descriptor = -1


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # it has ended meanwhile
        loop.call_soon_threadsafe(act)


def _end(resting: asyncio.Future[None]) -> None:
    if not resting.done():
        resting.set_result(None)
