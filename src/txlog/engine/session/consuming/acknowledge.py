"""Acknowledging: messages, ids and received rows as runs, and the calls that acknowledge runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.clock import Instant
from txlog.engine.decide.consuming import acknowledge
from txlog.engine.decide.consuming.acknowledge import AckAnswer, Find
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import Use
from txlog.engine.model.ops import Op, Run
from txlog.engine.plan import ack_sets as message_runs
from txlog.engine.plan.standing import OUTSIDE, ConsumerState
from txlog.engine.session.reading.message import Message
from txlog.engine.session.transactions.buffer import DecideIn
from txlog.engine.session.transactions.transaction import (
    Later,
    Transaction,
    in_transaction,
)
from txlog.engine.store.appender import Call
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import InvalidArgument

Acknowledgeable: TypeAlias = Message | MessageId | pa.Table | Sequence[Message | MessageId]


class Through(NamedTuple):
    """The subscription that an acknowledgement goes to, and the state of its consumer."""

    find: acknowledge.Find
    standing: ConsumerState


def runs_of(what: Acknowledgeable) -> list[Run]:
    """The ids of messages, as runs. Raises InvalidArgument."""
    if isinstance(what, pa.Table):
        check_received(what, "ledger", "entry", "index")
        return message_runs.runs_of_table(what)
    if isinstance(what, Message | MessageId):
        what = [what]
    return message_runs.runs_of_ids(ids_of(what))


def check_received(table: pa.Table, *names: str) -> None:
    """Raises InvalidArgument unless a table has these columns with the types of received rows."""
    for name in names:
        place = table.schema.get_field_index(name)
        has_type = pa.types.is_string if name == "topic" else pa.types.is_integer
        kind = None if place < 0 else table.schema.field(place).type
        if kind is not None and pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind is None or not has_type(kind):
            raise InvalidArgument(
                f"the table has no column {name} as received rows have it",
                hint="pass rows of receive_batch, or message ids",
            )


def ids_of(what: Sequence[Message | MessageId]) -> list[MessageId]:
    """The ids of messages. Raises InvalidArgument for a message of an open transaction."""
    ids = [item.message_id if isinstance(item, Message) else item for item in what]
    if any(message_id is None for message_id in ids):
        raise InvalidArgument("a message of an open transaction has no id to acknowledge")
    return [message_id for message_id in ids if message_id is not None]


def acknowledge_runs(
    store: Store,
    find: Find,
    runs: list[Run],
    txn: Transaction | TxnId | None,
    *,
    cumulative: bool,
    standing: ConsumerState = OUTSIDE,
) -> AckAnswer:
    """Acknowledge runs on a subscription, in a transaction if one is given.

    standing: the consumer's state; by default the caller is no consumer but, say, a command
    """
    if not runs:
        return AckAnswer(0, 0, 0)
    if txn is not None:
        decide_in, uses = _in_txn(store, find, runs, standing, cumulative=cumulative)
        return in_transaction(store, txn, decide_in, uses, is_ordered=False)

    answer: AckAnswer | None = None
    while answer is None:  # again after a sweep that ends an overdue holder
        call = acknowledging(store, find, runs, standing, cumulative=cumulative)
        answer = store.write(call.decide, uses=call.uses)
    return answer


def acknowledging(
    store: Store, find: Find, runs: list[Run], standing: ConsumerState, *, cumulative: bool
) -> Call:
    """The call that acknowledges runs outside of a transaction; it has to be repeated after the
    answer None.
    """

    def decide(view: View, now: Instant) -> Decision[AckAnswer | None]:
        return acknowledge.acknowledge(
            view, store.settings, now, find, runs, cumulative=cumulative, standing=standing
        )

    return Call(decide, uses=_uses(find, runs))


def acknowledge_later(
    store: Store, find: Find, runs: list[Run], txn: Transaction, standing: ConsumerState = OUTSIDE
) -> Later[AckAnswer]:
    """Acknowledge runs in a transaction, together with its next call that waits for an answer."""
    decide, uses = _in_txn(store, find, runs, standing, cumulative=False)
    return txn.defer(decide, uses, lambda answer: answer, is_ordered=False)


def _in_txn(
    store: Store, find: Find, runs: list[Run], standing: ConsumerState, *, cumulative: bool
) -> tuple[DecideIn[AckAnswer], CallScope]:
    """The decision that acknowledges in a transaction, and its scope for the sweep."""
    uid = store.disk.owner()[0]

    def decide(view: View, now: Instant, use: Use) -> Decision[tuple[TxnId, AckAnswer] | None]:
        return acknowledge.acknowledge_in_txn(
            view,
            store.settings,
            now,
            uid,
            find,
            runs,
            use,
            cumulative=cumulative,
            standing=standing,
        )

    return decide, _uses(find, runs)


def _uses(find: Find, runs: list[Run]) -> CallScope:
    return CallScope(acks=(find, tuple({run[0] for run in runs})))


def acknowledge_together(
    store: Store, parts: list[tuple[Through, list[Run]]], txn: Transaction | TxnId | None
) -> AckAnswer:
    """Acknowledge on several subscriptions; returns the sum of their answers.

    Without a transaction this is one frame: all, or nothing if one subscription refuses. In a
    transaction each subscription gets its own frame, and all of them take effect at the commit.
    """
    if txn is not None or len(parts) == 1:
        return _summed(
            [
                acknowledge_runs(
                    store, through.find, runs, txn, cumulative=False, standing=through.standing
                )
                for through, runs in parts
            ]
        )

    def decide(view: View, now: Instant) -> Decision[AckAnswer | None]:
        ops: list[Op] = []
        answers: list[AckAnswer] = []
        sync = False
        for through, runs in parts:
            decision = acknowledge.acknowledge(
                view,
                store.settings,
                now,
                through.find,
                runs,
                cumulative=False,
                standing=through.standing,
            )
            if decision.answer is None:  # the sweep before the next try aborts an overdue holder
                return Decision([], answer=None)
            answers.append(decision.answer)
            ops += decision.ops
            sync = sync or decision.sync
        return Decision(ops, None, sync, _summed(answers))

    answer = None
    while answer is None:
        answer = store.write(decide)
    return answer


def acknowledge_together_later(
    store: Store, parts: list[tuple[Through, list[Run]]], txn: Transaction
) -> Later[AckAnswer]:
    """acknowledge_later on several subscriptions; its answer is the sum of their answers."""
    *first, (last, runs) = parts
    earlier = [
        acknowledge_later(store, through.find, part, txn, through.standing)
        for through, part in first
    ]

    def finish(answer: AckAnswer) -> AckAnswer:
        return _summed([*(deferred.result() for deferred in earlier), answer])

    decide, uses = _in_txn(store, last.find, runs, last.standing, cumulative=False)
    return txn.defer(decide, uses, finish, is_ordered=False)


def _summed(answers: list[AckAnswer]) -> AckAnswer:
    fields = AckAnswer.__struct_fields__
    return AckAnswer(*(sum(getattr(answer, name) for answer in answers) for name in fields))
