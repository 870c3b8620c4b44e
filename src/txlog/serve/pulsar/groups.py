"""Owns Group and Groups: what many clients ask for at once, done together.

Ends of transactions share a frame and a flush, begins a frame, questions a look at the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from txlog.api.transactions.end import unknown_end
from txlog.engine.decide.transactions import end as end_txn
from txlog.engine.decide.transactions.sweep import Uses
from txlog.engine.plan.lookup import check_open, check_owner, transaction
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.store.appender import Call
from txlog.engine.store.sweeper import is_sweep_due
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.errors import OutcomeUnknown, TxlogError
from txlog.ids import TopicName, TxnId

if TYPE_CHECKING:
    from txlog.api.client import Client
    from txlog.engine.decide.transactions.enter import NewTxn
    from txlog.engine.view.view import View
    from txlog.serve.core.service import Service
    from txlog.settings import Settings

T = TypeVar("T")
R = TypeVar("R")
TOGETHER_MAX: Final = 1000
COORDINATOR: Final = 0  # the one that clients are told of


class Group(Generic[T, R]):
    """Requests of one kind, of all clients: those that come while others are done wait together.

    So they share a call of the store, with it a lock, a look at the journal, a frame and a flush.
    """

    def __init__(
        self, service: Service, act: Callable[[list[T], Client], Sequence[R | BaseException]]
    ) -> None:
        """act: what does them; returns for each its answer, or why that one alone is refused"""
        self._service, self._act = service, act
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def do(self, wanted: T) -> R:
        """Have it done with the others. Raises what it is refused for, or the store."""
        told: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, told))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await told

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = self._waiting[:TOGETHER_MAX]
                del self._waiting[:TOGETHER_MAX]
                answers: Sequence[R | BaseException]
                try:
                    act = partial(self._act, [one for one, _ in group])
                    answers = await self._service.client.run(act, blocking=True)
                except Exception as raised:
                    answers = [raised] * len(group)
                for (_, told), answer in zip(group, answers, strict=True):
                    if told.cancelled():
                        continue
                    if isinstance(answer, BaseException):
                        told.set_exception(answer)
                    else:
                        told.set_result(answer)
        finally:
            self._task = None


class Groups:
    """What clients want of transactions, together with the same of others."""

    def __init__(self, service: Service) -> None:
        self.begins: Group[NewTxn, TxnId] = Group(service, _begun)
        self.questions: Group[Question, None] = Group(service, _asked)
        self.ends: Group[End, None] = Group(service, _ended)


class Question(NamedTuple):
    """Whether a transaction is open and topics are there."""

    txn_id: TxnId
    uid: int
    names: list[TopicName]

    def answer(self, view: View, settings: Settings) -> BaseException | None:
        """None, or what an operation in the transaction would raise."""
        try:
            txn = transaction(view, self.txn_id, settings.coordinators)
            check_owner(txn, self.uid)
            check_open(txn)
            for name in self.names:
                find_topic(view, name.topic)
        except TxlogError as error:
            return error
        return None


class End(NamedTuple):
    """An end, and who wants it."""

    txn_id: TxnId
    commits: bool
    uid: int


def _begun(wanted: list[NewTxn], client: Client) -> list[TxnId | BaseException]:
    """Begin transactions."""
    store = client._store

    def call(new: NewTxn) -> Call:
        return Call(lambda view, now: end_txn.begin(view, store.settings, now, new), (COORDINATOR,))

    calls = [call(one) for one in wanted]
    store.submit(calls)
    return [one.error or _txn_id(one.answer) for one in calls]


def _txn_id(answer: object) -> TxnId:
    assert isinstance(answer, TxnId)
    return answer


def _asked(wanted: list[Question], client: Client) -> list[BaseException | None]:
    """Answer questions; what is overdue ends before."""
    store, now = client._store, client._store.clock.now()
    used = [_uses(txn_id) for txn_id in {one.txn_id for one in wanted}]
    due = store.read(lambda view: [is_sweep_due(view, store.settings, now, it) for it in used])
    for uses, is_due in zip(used, due, strict=True):
        if is_due:
            store.sweep_if_due(uses)
    return store.read(lambda view: [one.answer(view, store.settings) for one in wanted])


def _ended(wanted: list[End], client: Client) -> list[BaseException | None]:
    """End transactions; for each None, or why it was refused.

    Of transactions with one decision LSN the lower id is the first, wherever they are put in order
    (plan/participants), so that is their order in the frame.
    """
    store = client._store

    def call(txn_id: TxnId, commits: bool, uid: int) -> Call:
        return Call(
            lambda view, now: end_txn.end(view, store.settings, now, uid, txn_id, commit=commits),
            uses=_uses(txn_id),
        )

    calls = [call(*one) for one in wanted]
    in_order = sorted(range(len(calls)), key=lambda at: wanted[at].txn_id)
    try:
        store.submit([calls[at] for at in in_order])
    except OutcomeUnknown as error:
        return [unknown_end(one.txn_id, error) for one in wanted]
    tend_due(store)
    return [one.error for one in calls]


def _uses(txn_id: TxnId) -> Uses:
    return Uses(txn=(txn_id.coordinator, txn_id.sequence))
