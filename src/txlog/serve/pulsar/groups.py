"""Owns Groups: what all clients want of the store in the moment, done together.

    NEW_TXN ─► begins                 ┐
    ADD_*   ─► registrations          │
    SEND    ─► queues of producers    ├─► a group: one lock, one look at the journal, one flush
    END_TXN ─► ends                   ┘

While one group is done, the next one gathers. The order in it is that of this drawing: of one
client's commands each is answered before the next one can depend on it.

1. Begins, registrations and ends share a frame; one that is refused is refused alone.
2. Ends are in the order of ids. Of transactions with one decision LSN the lower id is the first,
   wherever they are put in order (plan/participants), so that is their order in the frame.
3. SENDs and transaction commands in one group succeed or fail independently, and so does each of
   them. An exception that is no error of ours (a bug) fails the command that raised it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from txlog.base.ids import TxnId
from txlog.engine.door import transactions as end_txn
from txlog.engine.door.delayed import tend_due
from txlog.engine.door.store import Call, Uses
from txlog.engine.door.transactions import Place, register, unknown_end
from txlog.errors import InternalError, OutcomeUnknown, TryAgain, TxlogError
from txlog.serve.core.shares import OpenTxns
from txlog.serve.pulsar.sends import Sends, Stored, Turn, written

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.engine.door.store import Store
    from txlog.engine.door.transactions import NewTxn
    from txlog.serve.core.service import Service

TOGETHER_MAX: Final = 1000  # of each kind
COORDINATOR: Final = 0  # the one that clients are told of

# What became of it: the transaction that was begun or asked for, or why it was refused.
Answer: TypeAlias = TxnId | Exception
Told: TypeAlias = Callable[[Answer], None]
T = TypeVar("T")


class Begin(NamedTuple):
    """A transaction to be begun."""

    new: NewTxn

    def call(self, store: Store) -> Call:
        """What does it."""
        new, settings = self.new, store.settings
        return Call(lambda view, now: end_txn.begin(view, settings, now, new), (COORDINATOR,))

    def answer(self, call: Call) -> Answer:
        """What became of it."""
        if isinstance(call.error, Exception):
            return call.error
        txn: TxnId = call.answer
        return txn


class End(NamedTuple):
    """An end, and who wants it."""

    txn_id: TxnId
    commits: bool
    uid: int

    def call(self, store: Store) -> Call:
        """What does it."""
        (txn_id, commits, uid), settings = self, store.settings
        return Call(
            lambda view, now: end_txn.end(view, settings, now, uid, txn_id, commit=commits),
            uses=_uses(txn_id),
        )

    def answer(self, call: Call) -> Answer:
        """What became of it."""
        if isinstance(call.error, OutcomeUnknown):
            return unknown_end(self.txn_id, call.error)
        return call.error if isinstance(call.error, Exception) else self.txn_id


class Registration(NamedTuple):
    """What a client wants to use in a transaction, and who wants it."""

    txn_id: TxnId
    uid: int
    places: list[Place]

    def call(self, store: Store) -> Call:
        """What does it."""
        (txn_id, uid, places), settings = self, store.settings
        return Call(
            lambda view, now: register(view, settings, now, uid, txn_id, places),
            uses=_uses(txn_id),
        )

    def answer(self, call: Call) -> Answer:
        """What became of it."""
        return call.error if isinstance(call.error, Exception) else self.txn_id


class _Group(NamedTuple):
    """What is done at once."""

    begins: list[tuple[Begin, Told]]
    turns: list[Turn]
    ends: list[tuple[End, Told]]
    registrations: list[tuple[Registration, Told]]


class _Outcome(NamedTuple):
    """What became of it; sends: or what they failed with."""

    begins: list[Answer]
    sends: list[Stored] | Exception
    ends: list[Answer]
    registrations: list[Answer]


class Groups:
    """What clients want, and the task that has it done.

    sends: what they send
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.sends = Sends(self._wake)
        self._begins: list[tuple[Begin, Told]] = []
        self._ends: list[tuple[End, Told]] = []
        self._registrations: list[tuple[Registration, Told]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, wanted: Begin, told: Told) -> None:
        """Have a transaction begun."""
        self._begins.append((wanted, told))
        self._wake()

    def end(self, wanted: End, told: Told) -> None:
        """Have a transaction ended; told once that is durable."""
        self._ends.append((wanted, told))
        self._wake()

    def register(self, wanted: Registration, told: Told) -> None:
        """Have places registered in a transaction."""
        self._registrations.append((wanted, told))
        self._wake()

    async def settled(self) -> None:
        """Wait until all that was wanted is answered."""
        while self._task is not None:
            await asyncio.shield(self._task)

    def _wake(self) -> None:
        if self._task is None:
            self._task = self._service.tasks.begin(self._run(), self._fail)

    async def _run(self) -> None:
        try:
            while self._begins or self._ends or self._registrations or self.sends.is_waiting:
                group = _Group(
                    _taken(self._begins),
                    self.sends.turns(),
                    _taken(self._ends),
                    _taken(self._registrations),
                )
                self._tell(group, await self._outcome(group))
        finally:
            self._task = None

    def _fail(self) -> None:
        """The task has failed: what waits is refused, and what comes begins another one."""
        error = InternalError("a group of commands failed")
        waiting = [*self._begins, *self._ends, *self._registrations]
        for mine in (self._begins, self._ends, self._registrations):
            mine.clear()
        for _, told in waiting:
            self._service.tasks.call(partial(told, error))
        if self.sends.is_waiting:
            self._wake()

    async def _outcome(self, group: _Group) -> _Outcome:
        try:
            # a thread beside that of the client, in which nothing else of the server runs
            return await self._service.client.run(partial(_done, group), blocking=True)
        except Exception as error:  # the client is closed, or there is a bug
            return _Outcome(
                [error for _ in group.begins],
                error,
                [error for _ in group.ends],
                [error for _ in group.registrations],
            )

    def _tell(self, group: _Group, outcome: _Outcome) -> None:
        if group.turns:
            sends = outcome.sends
            if isinstance(sends, Exception):
                self._service.failed(sends)
            else:
                for bug in (one for *_, one in sends if one and not isinstance(one, TxlogError)):
                    self._service.failed(bug)
            self.sends.tell(group.turns, sends, self._service.tasks.call)
        for wanted, answers in (
            (group.begins, outcome.begins),
            (group.ends, outcome.ends),
            (group.registrations, outcome.registrations),
        ):
            for (_, told), answer in zip(wanted, answers, strict=True):
                self._service.tasks.call(partial(told, answer))


def _taken(waiting: list[T]) -> list[T]:
    """Take from those that wait what a group has of them."""
    taken = waiting[:TOGETHER_MAX]
    del waiting[:TOGETHER_MAX]
    return taken


def _done(group: _Group, client: Client) -> _Outcome:
    """Do a group; what is not in an open transaction is durable when it returns."""
    store = client.store
    begins = _allowed(store, [one for one, _ in group.begins])
    registrations = [(one, one.call(store)) for one, _ in group.registrations]
    ends = [(one, one.call(store)) for one, _ in group.ends]
    in_order = sorted(ends, key=_id_of)
    sends: list[Stored] | Exception
    try:
        first = [call for _, call in begins if not call.done]
        first += [call for _, call in registrations]
        last = [call for _, call in in_order]
        sends = written(store, group.turns, first, last)
        tend_due(store)
    except Exception as error:  # a bug, too: each client of the group waits for its answer
        sends = error
        for _, call in [*begins, *registrations, *ends]:
            if not call.done:
                call.end(error)
    return _Outcome(
        [one.answer(call) for one, call in begins],
        sends,
        [one.answer(call) for one, call in ends],
        [one.answer(call) for one, call in registrations],
    )


def _allowed(store: Store, begins: list[Begin]) -> list[tuple[Begin, Call]]:
    """The calls of begins; those beyond the share of their role have ended with the refusal."""
    calls = [(begin, begin.call(store)) for begin in begins]
    open_txns = OpenTxns(store, COORDINATOR, len(begins)) if begins else None
    for begin, call in calls:
        assert open_txns is not None
        try:
            open_txns.take(begin.new.owner)
        except TryAgain as error:
            call.end(error)
    return calls


def _id_of(end: tuple[End, Call]) -> TxnId:
    return end[0].txn_id


def _uses(txn_id: TxnId) -> Uses:
    return Uses(txn=(txn_id.coordinator, txn_id.sequence))
