"""Owns transactions of clients: begin, registration, end; and their keys.

    TC_CLIENT_CONNECT   the coordinator is here; with a key: take it
    NEW_TXN             begins one; its time-out is told in milliseconds, whatever the field says
    ADD_*_TO_TXN        asks whether it is open: the first message and acknowledgement register it
    END_TXN             answered once it is durable

What many clients want at once is done together (`groups`): ends share a frame and a flush, begins a
frame, questions a look at the journal.

All of it is the store's, so a transaction outlives this server, and another goes on with it. The
two numbers of a TxnID are its two halves in the store. Clients use the high one as the number of
the coordinator to ask; it is that of coordinator 0 only (0, where others have theirs in its upper
16 bits). So clients are told of one coordinator, and begin there.

A transaction key has a coordinator of its own. Stock clients know nothing of keys: the fields are
extensions, numbered where the protocol has none.

    TC_CLIENT_CONNECT   transaction_key 1001, epoch 1002: the last one of this holder, or -1
    its response        epoch 1001: it is newer than all before it
    NEW_TXN             begins under the key that this connection has taken

Source: PIP-31; the proposal of transaction keys; spec/transactions 4, 5, 10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from txlog.errors import CoordinatorNotFound, InvalidArgument, TxlogError
from txlog.ids import TxnId
from txlog.serve.core.authority import CONSUME, PRODUCE
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.groups import COORDINATOR, End, Question
from txlog.serve.pulsar.messages import Proto
from txlog.serve.pulsar.topics import COORDINATORS, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMIT: Final = 0  # of TxnAction
_ROOM: Final = "transactions"


def txn_of(body: Proto) -> TxnId | None:
    """The transaction that a command is in; None: in none."""
    if not body.HasField("txnid_most_bits") and not body.HasField("txnid_least_bits"):
        return None
    return TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)


async def _answered(
    connection: Connection, name: str, body: Proto, act: Callable[[], Awaitable[dict[str, Any]]]
) -> None:
    """Answer a command with what an act says, or with its error."""
    fields: dict[str, Any] = {}
    if "txnid_most_bits" in body.DESCRIPTOR.fields_by_name:
        fields = {
            "txnid_most_bits": body.txnid_most_bits,
            "txnid_least_bits": body.txnid_least_bits,
        }
    try:
        fields |= await act()
    except TxlogError as error:
        fields |= {"error": error_of(error), "message": text_of(error)}
    connection.send(name, request_id=body.request_id, **fields)


async def connect(connection: Connection, body: Proto, rest: memoryview) -> None:
    """TC_CLIENT_CONNECT: there is a coordinator here; or take a key."""

    async def act() -> dict[str, Any]:
        _check(body.tc_id)
        if not body.HasField("transaction_key"):
            return {}
        key = body.transaction_key
        taken = await connection.client.run(lambda client: client.connect(key, body.epoch))
        connection.rooms[_ROOM] = (key, taken["epoch"])
        return {"epoch": taken["epoch"]}

    await _answered(connection, "tcClientConnectResponse", body, act)


async def new(connection: Connection, body: Proto, rest: memoryview) -> None:
    """NEW_TXN: begin one, under the key of this connection if it has taken one."""

    async def act() -> dict[str, Any]:
        _check(body.tc_id)
        timeout_ms = body.txn_ttl_seconds or None
        if _ROOM in connection.rooms:
            key, epoch = connection.rooms[_ROOM]
            begun = await connection.client.run(
                lambda client: client.begin(timeout_ms, key=key, epoch=epoch)
            )
            txn_id = begun["txn"]
        else:
            made = connection.service.store._new(timeout_ms, COORDINATOR)
            txn_id = await connection.listener.wanted.begins.do(made)
        return {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least}

    await _answered(connection, "newTxnResponse", body, act)


async def add_partitions(connection: Connection, body: Proto, rest: memoryview) -> None:
    """ADD_PARTITION_TO_TXN: may it send there?"""

    async def act() -> dict[str, Any]:
        names = [name_of(text) for text in body.partitions]
        for name in names:
            connection.may(PRODUCE, name.topic)
        await connection.listener.wanted.questions.do(
            Question(_named(body), _uid(connection), names)
        )
        return {}

    await _answered(connection, "addPartitionToTxnResponse", body, act)


async def add_subscriptions(connection: Connection, body: Proto, rest: memoryview) -> None:
    """ADD_SUBSCRIPTION_TO_TXN: may it acknowledge there?"""

    async def act() -> dict[str, Any]:
        names = [name_of(each.topic) for each in body.subscription]
        for name in names:
            connection.may(CONSUME, name.topic)
        await connection.listener.wanted.questions.do(
            Question(_named(body), _uid(connection), names)
        )
        return {}

    await _answered(connection, "addSubscriptionToTxnResponse", body, act)


async def end(connection: Connection, body: Proto, rest: memoryview) -> None:
    """END_TXN: commit or abort. The answer says that it is decided, and durable."""

    async def act() -> dict[str, Any]:
        commits = body.txn_action == _COMMIT
        await connection.listener.wanted.ends.do(End(_named(body), commits, _uid(connection)))
        return {}

    await _answered(connection, "endTxnResponse", body, act)


def _named(body: Proto) -> TxnId:
    txn_id = txn_of(body)
    if txn_id is None:
        raise InvalidArgument("the command names no transaction")
    return txn_id


def _check(number: int) -> None:
    if number >= COORDINATORS:
        raise CoordinatorNotFound(
            f"there is no coordinator {number} for clients, only {COORDINATOR}"
        )


def _uid(connection: Connection) -> int:
    """Who the client of this task is to the store."""
    return connection.service.store._store.disk.owner()[0]


HANDLERS: Final[Mapping[str, Handler]] = {
    "TC_CLIENT_CONNECT_REQUEST": connect,
    "NEW_TXN": new,
    "ADD_PARTITION_TO_TXN": add_partitions,
    "ADD_SUBSCRIPTION_TO_TXN": add_subscriptions,
    "END_TXN": end,
}
