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
from txlog.client.transactions.end import unknown_end
from txlog.engine.decide.transactions import end as end_txn
from txlog.engine.decide.transactions.register import Place, register
from txlog.engine.decide.transactions.sweep import Uses
from txlog.engine.store.appender import Call
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.errors import InternalError, OutcomeUnknown, TryAgain, TxlogError
from txlog.serve.core.shares import OpenTransactions
from txlog.serve.pulsar.sends import FrameSends, SendQueues, SendResult, store_group

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.engine.decide.transactions.enter import NewTxn
    from txlog.engine.store.store import Store
    from txlog.serve.core.service import BrokerService

COMMANDS_MAX: Final = 1000  # of each kind
COORDINATOR: Final = 0  # the one that clients are told of

# What became of it: the transaction that was begun or asked for, or why it was refused.
TxnAnswer: TypeAlias = TxnId | Exception
OnTxnAnswer: TypeAlias = Callable[[TxnAnswer], None]
T = TypeVar("T")


class BeginTxn(NamedTuple):
    """A transaction to be begun."""

    new: NewTxn

    def call(self, store: Store) -> Call:
        """What does it."""
        new, settings = self.new, store.settings
        return Call(lambda view, now: end_txn.begin(view, settings, now, new), (COORDINATOR,))

    def answer(self, call: Call) -> TxnAnswer:
        """What became of it."""
        if isinstance(call.error, Exception):
            return call.error
        txn: TxnId = call.answer
        return txn


class EndTxn(NamedTuple):
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

    def answer(self, call: Call) -> TxnAnswer:
        """What became of it."""
        if isinstance(call.error, OutcomeUnknown):
            return unknown_end(self.txn_id, call.error)
        return call.error if isinstance(call.error, Exception) else self.txn_id


class RegisterInTxn(NamedTuple):
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

    def answer(self, call: Call) -> TxnAnswer:
        """What became of it."""
        return call.error if isinstance(call.error, Exception) else self.txn_id


class _Group(NamedTuple):
    """What is done at once."""

    begins: list[tuple[BeginTxn, OnTxnAnswer]]
    frames: list[FrameSends]
    ends: list[tuple[EndTxn, OnTxnAnswer]]
    registrations: list[tuple[RegisterInTxn, OnTxnAnswer]]


class _Outcome(NamedTuple):
    """What became of it; sends: or what they failed with."""

    begins: list[TxnAnswer]
    sends: list[SendResult] | Exception
    ends: list[TxnAnswer]
    registrations: list[TxnAnswer]


class GroupCommit:
    """What clients want, and the task that has it done.

    sends: what they send
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.sends = SendQueues(self._wake)
        self._begins: list[tuple[BeginTxn, OnTxnAnswer]] = []
        self._ends: list[tuple[EndTxn, OnTxnAnswer]] = []
        self._registrations: list[tuple[RegisterInTxn, OnTxnAnswer]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, command: BeginTxn, on_answer: OnTxnAnswer) -> None:
        """Have a transaction begun."""
        self._begins.append((command, on_answer))
        self._wake()

    def end(self, command: EndTxn, on_answer: OnTxnAnswer) -> None:
        """Have a transaction ended; told once that is durable."""
        self._ends.append((command, on_answer))
        self._wake()

    def register(self, command: RegisterInTxn, on_answer: OnTxnAnswer) -> None:
        """Have places registered in a transaction."""
        self._registrations.append((command, on_answer))
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
                    _take_batch(self._begins),
                    self.sends.next_group(),
                    _take_batch(self._ends),
                    _take_batch(self._registrations),
                )
                self._tell(group, await self._outcome(group))
        finally:
            self._task = None

    def _fail(self) -> None:
        """The task has failed: what waits is refused, and what comes begins another one."""
        error = InternalError("a group of commands failed")
        waiting = [*self._begins, *self._ends, *self._registrations]
        for commands in (self._begins, self._ends, self._registrations):
            commands.clear()
        for _, on_answer in waiting:
            self._service.tasks.call(partial(on_answer, error))
        if self.sends.is_waiting:
            self._wake()

    async def _outcome(self, group: _Group) -> _Outcome:
        try:
            # a thread beside that of the client, in which nothing else of the server runs
            return await self._service.client.run(partial(_run_group, group), blocking=True)
        except Exception as error:  # the client is closed, or there is a bug
            return _Outcome(
                [error for _ in group.begins],
                error,
                [error for _ in group.ends],
                [error for _ in group.registrations],
            )

    def _tell(self, group: _Group, outcome: _Outcome) -> None:
        if group.frames:
            sends = outcome.sends
            if isinstance(sends, Exception):
                self._service.failed(sends)
            else:
                for bug in (
                    error for *_, error in sends if error and not isinstance(error, TxlogError)
                ):
                    self._service.failed(bug)
            self.sends.tell(group.frames, sends, self._service.tasks.call)
        for commands, answers in (
            (group.begins, outcome.begins),
            (group.ends, outcome.ends),
            (group.registrations, outcome.registrations),
        ):
            for (_, on_answer), answer in zip(commands, answers, strict=True):
                self._service.tasks.call(partial(on_answer, answer))


def _take_batch(waiting: list[T]) -> list[T]:
    """Take from those that wait what a group has of them."""
    batch = waiting[:COMMANDS_MAX]
    del waiting[:COMMANDS_MAX]
    return batch


def _run_group(group: _Group, client: Client) -> _Outcome:
    """Do a group; what is not in an open transaction is durable when it returns."""
    store = client._store
    begins = _allowed(store, [command for command, _ in group.begins])
    registrations = [(command, command.call(store)) for command, _ in group.registrations]
    ends = [(command, command.call(store)) for command, _ in group.ends]
    in_order = sorted(ends, key=_id_of)
    sends: list[SendResult] | Exception
    try:
        first = [call for _, call in begins if not call.done]
        first += [call for _, call in registrations]
        last = [call for _, call in in_order]
        sends = store_group(store, group.frames, first, last)
        tend_due(store)
    except Exception as error:  # a bug, too: each client of the group waits for its answer
        sends = error
        for _, call in [*begins, *registrations, *ends]:
            if not call.done:
                call.end(error)
    return _Outcome(
        [command.answer(call) for command, call in begins],
        sends,
        [command.answer(call) for command, call in ends],
        [command.answer(call) for command, call in registrations],
    )


def _allowed(store: Store, begins: list[BeginTxn]) -> list[tuple[BeginTxn, Call]]:
    """The calls of begins; those beyond the share of their role have ended with the refusal."""
    calls = [(begin, begin.call(store)) for begin in begins]
    open_txns = OpenTransactions(store, COORDINATOR, len(begins)) if begins else None
    for begin, call in calls:
        assert open_txns is not None
        try:
            open_txns.take(begin.new.owner)
        except TryAgain as error:
            call.end(error)
    return calls


def _id_of(end: tuple[EndTxn, Call]) -> TxnId:
    return end[0].txn_id


def _uses(txn_id: TxnId) -> Uses:
    return Uses(txn=(txn_id.coordinator, txn_id.sequence))
