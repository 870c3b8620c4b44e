"""Owns Ends: the ends of transactions of all clients, decided together; one flush for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from txlog.api.transactions.end import unknown_end
from txlog.engine.decide.transactions import end as end_txn
from txlog.engine.decide.transactions.sweep import Uses
from txlog.engine.store.appender import Call
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.errors import OutcomeUnknown
from txlog.ids import TxnId

if TYPE_CHECKING:
    from txlog.api.client import Client
    from txlog.serve.core.service import Service

GROUP_MAX: Final = 1000  # ends that are decided together


class _Wanted(NamedTuple):
    """An end, and who wants it."""

    txn_id: TxnId
    commits: bool
    uid: int


class Ends:
    """Ends of all clients: those that come while others are flushed are decided together.

    They share a frame and a flush; one that is refused fails alone. Of transactions with one
    decision LSN the lower id is the first, wherever they are put in order (plan/participants), so
    that is their order in the frame.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: list[tuple[_Wanted, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def end(self, txn_id: TxnId, *, commits: bool) -> None:
        """Commit or abort; durable when it returns. Raises as Client.commit."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        uid = self._service.store._store.disk.owner()[0]  # of this client: the task is nobody's
        self._waiting.append((_Wanted(txn_id, commits, uid), told))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await told

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = sorted(self._waiting[:GROUP_MAX], key=lambda one: one[0])
                del self._waiting[:GROUP_MAX]
                wanted = [one for one, _ in group]
                errors: Sequence[BaseException | None]
                try:
                    act = partial(_ended, wanted)
                    errors = await self._service.client.run(act, blocking=True)
                except Exception as raised:
                    errors = [raised] * len(group)
                for (_, told), error in zip(group, errors, strict=True):
                    if told.cancelled():
                        continue
                    if error is not None:
                        told.set_exception(error)
                    else:
                        told.set_result(None)
        finally:
            self._task = None


def _ended(wanted: list[_Wanted], client: Client) -> list[BaseException | None]:
    """End transactions; for each why it was refused, or None."""
    store = client._store

    def call(txn_id: TxnId, commits: bool, uid: int) -> Call:
        return Call(
            lambda view, now: end_txn.end(view, store.settings, now, uid, txn_id, commit=commits),
            uses=Uses(txn=(txn_id.coordinator, txn_id.sequence)),
        )

    calls = [call(*one) for one in wanted]
    try:
        store.submit(calls)
    except OutcomeUnknown as error:
        return [unknown_end(txn_id, error) for txn_id, _, _ in wanted]
    tend_due(store)
    return [each.error for each in calls]
