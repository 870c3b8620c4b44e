"""Owns transactions of clients: begin, registration, end; and their keys.

    TC_CLIENT_CONNECT   the coordinator is here; with a key: take it
    NEW_TXN             begins one; its time-out is told in milliseconds, whatever the field says
    ADD_*_TO_TXN        registers what its client wants to use, in the record of the transaction
    END_TXN             answered once it is durable

What clients want at once is done together (`groups`): one lock, one look at the journal, one flush.

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

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from txlog.base.ids import TxnId
from txlog.engine.door.transactions import Place
from txlog.errors import CoordinatorNotFound, InvalidArgument, TxlogError
from txlog.serve.core.authority import CONSUME, PRODUCE
from txlog.serve.core.shares import OpenTxns, check_key
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.groups import COORDINATOR, Answer, Begin, End, Registration, Told
from txlog.serve.pulsar.messages import Proto
from txlog.serve.pulsar.topics import COORDINATORS, name_of
from txlog.serve.pulsar.wire import txn_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txlog.base.rows.transactions import KeyConnected, TransactionBegun
    from txlog.client.client import Client

_COMMIT: Final = 0  # of TxnAction
_ROOM: Final = "transactions"


def txn_of(body: Proto) -> TxnId | None:
    """The transaction that a command is in; None: in none."""
    if not body.HasField("txnid_most_bits") and not body.HasField("txnid_least_bits"):
        return None
    return TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)


def _wanted(connection: Connection, name: str, body: Proto, want: Callable[[Told], None]) -> None:
    """Answer a command with what becomes of what it wants, once it is told.

    want: has it done; raises TxlogError
    """

    def told(answer: Answer) -> None:
        connection.settle()
        if isinstance(answer, TxnId):
            connection.write([txn_frame(name, body.request_id, answer)])
        else:
            _refused(connection, name, body, answer)

    connection.owe()
    try:
        want(told)
    except TxlogError as error:
        told(error)


def _refused(connection: Connection, name: str, body: Proto, error: Exception) -> None:
    """Answer a command with an error, and the transaction that it names."""
    named = {}
    if "txnid_most_bits" in body.DESCRIPTOR.fields_by_name:
        named = {one: getattr(body, one) for one in ("txnid_most_bits", "txnid_least_bits")}
    if not isinstance(error, TxlogError):
        connection.service.failed(error)
    said = {"error": error_of(error), "message": text_of(error)}
    connection.send(name, request_id=body.request_id, **named, **said)


async def connect(connection: Connection, body: Proto, rest: memoryview) -> None:
    """TC_CLIENT_CONNECT: there is a coordinator here; or take a key."""
    name, epoch = "tcClientConnectResponse", None
    try:
        _check(body.tc_id)
        if body.HasField("transaction_key"):
            connection.may_any()
            key = body.transaction_key

            def take(client: Client) -> KeyConnected:
                check_key(client, key)
                return client.connect(key, body.epoch)

            taken = await connection.client.run(take)
            epoch = taken["epoch"]
            connection.rooms[_ROOM] = (key, epoch)
    except TxlogError as error:
        _refused(connection, name, body, error)
    else:
        connection.has_coordinator = True
        connection.send(name, request_id=body.request_id, epoch=epoch)


def new(connection: Connection, body: Proto, rest: memoryview) -> Coroutine[Any, Any, None] | None:
    """NEW_TXN: begin one, under the key of this connection if it has taken one."""
    if _ROOM in connection.rooms:
        return _new_of_key(connection, body)

    def want(told: Told) -> None:
        _check(body.tc_id)
        connection.may_any()
        made = connection.service.store.unopened(body.txn_ttl_seconds or None, COORDINATOR)
        connection.listener.wanted.begin(Begin(made), told)

    _wanted(connection, "newTxnResponse", body, want)
    return None


async def _new_of_key(connection: Connection, body: Proto) -> None:
    name, (key, epoch) = "newTxnResponse", connection.rooms[_ROOM]
    try:
        _check(body.tc_id)
        connection.may_any()
        timeout_ms = body.txn_ttl_seconds or None

        def begin(client: Client) -> TransactionBegun:
            OpenTxns(client.store, check_key(client, key), 1).take(client.store.disk.owner())
            return client.begin(timeout_ms, key=key, epoch=epoch)

        begun = await connection.client.run(begin)
    except TxlogError as error:
        _refused(connection, name, body, error)
    else:
        connection.write([txn_frame(name, body.request_id, begun["txn"])])


def add_partitions(connection: Connection, body: Proto, rest: memoryview) -> None:
    """ADD_PARTITION_TO_TXN: it wants to send there."""
    places = ((name, None) for name in body.partitions)
    _register(connection, "addPartitionToTxnResponse", body, PRODUCE, places)


def add_subscriptions(connection: Connection, body: Proto, rest: memoryview) -> None:
    """ADD_SUBSCRIPTION_TO_TXN: it wants to acknowledge there."""
    places = ((each.topic, each.subscription) for each in body.subscription)
    _register(connection, "addSubscriptionToTxnResponse", body, CONSUME, places)


def _register(
    connection: Connection,
    name: str,
    body: Proto,
    action: str,
    named: Iterable[tuple[str, str | None]],
) -> None:
    def want(told: Told) -> None:
        places = [Place(name_of(topic), subscription) for topic, subscription in named]
        for place in places:
            connection.may(action, place.name.topic)
        registration = Registration(_named(body), connection.uid, places)
        connection.listener.wanted.register(registration, told)

    _wanted(connection, name, body, want)


def end(connection: Connection, body: Proto, rest: memoryview) -> None:
    """END_TXN: commit or abort. The answer says that it is decided, and durable."""

    def want(told: Told) -> None:
        wanted = End(_named(body), body.txn_action == _COMMIT, connection.uid)
        connection.listener.wanted.end(wanted, told)

    _wanted(connection, "endTxnResponse", body, want)


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


HANDLERS: Final[Mapping[str, Handler]] = {
    "TC_CLIENT_CONNECT_REQUEST": connect,
    "NEW_TXN": new,
    "ADD_PARTITION_TO_TXN": add_partitions,
    "ADD_SUBSCRIPTION_TO_TXN": add_subscriptions,
    "END_TXN": end,
}
