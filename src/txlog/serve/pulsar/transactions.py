"""Owns transactions of clients: begin, registration, end; and their keys.

    TC_CLIENT_CONNECT   the coordinator is here; with a key: take the key
    NEW_TXN             begins one; its time-out is in milliseconds, in spite of the field's name
    ADD_*_TO_TXN        registers the resources that its client will use, in the transaction
    END_TXN             answered once it is durable

Commands of several clients run together (`group_commit`): one lock, one read of the journal, one
flush.

All of this state is in the store, so a transaction outlives this server, and another server can
continue it. The two numbers of a TxnID are the two halves of its id in the store. Clients take the
high half for the number of the coordinator, but the store has that number in its upper 16 bits.
Both agree only for coordinator 0. So clients see one coordinator, and begin there.

A transaction key has a coordinator of its own. Stock clients do not know keys: the fields are
extensions, with numbers that the protocol does not use.

    TC_CLIENT_CONNECT   transaction_key 1001, epoch 1002: the last one of this holder, or -1
    its response        epoch 1001: newer than all before it
    NEW_TXN             begins under the key that this connection has taken

Source: PIP-31; the proposal of transaction keys; spec/transactions 4, 5, 10.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from txlog.base.ids import TxnId
from txlog.engine.door.transactions import TxnPlace
from txlog.errors import CoordinatorNotFound, InvalidArgument, TxlogError
from txlog.serve.auth import CONSUME, PRODUCE
from txlog.serve.limits.shares import OpenTransactions, check_key_share
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.group_commit import (
    COORDINATOR,
    BeginTxn,
    EndTxn,
    OnTxnAnswer,
    RegisterInTxn,
    TxnAnswer,
)
from txlog.serve.pulsar.messages import Proto
from txlog.serve.pulsar.topics import COORDINATORS, name_of
from txlog.serve.pulsar.wire import txn_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txlog.base.rows.transactions import KeyConnected, TransactionBegun
    from txlog.client.client import Client

_COMMIT: Final = 0  # a value of TxnAction
_ROOM: Final = "transactions"


def txn_of(body: Proto) -> TxnId | None:
    """The transaction of a command; None: it has none."""
    if not body.HasField("txnid_most_bits") and not body.HasField("txnid_least_bits"):
        return None
    return TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)


def _queue(
    connection: Connection, name: str, body: Proto, want: Callable[[OnTxnAnswer], None]
) -> None:
    """Queue a command for the group commit, and answer with its outcome.

    want: queues it; raises TxlogError
    """

    def on_answer(answer: TxnAnswer) -> None:
        connection.remove_pending()
        if isinstance(answer, TxnId):
            connection.write([txn_frame(name, body.request_id, answer)])
        else:
            _answer_error(connection, name, body, answer)

    connection.add_pending()
    try:
        want(on_answer)
    except TxlogError as error:
        on_answer(error)


def _answer_error(connection: Connection, name: str, body: Proto, error: Exception) -> None:
    """Answer a command with an error, and the transaction that it names."""
    txn_fields = {}
    if "txnid_most_bits" in body.DESCRIPTOR.fields_by_name:
        txn_fields = {
            field: getattr(body, field) for field in ("txnid_most_bits", "txnid_least_bits")
        }
    if not isinstance(error, TxlogError):
        connection.service.failed(error)
    error_fields = {"error": error_of(error), "message": text_of(error)}
    connection.send(name, request_id=body.request_id, **txn_fields, **error_fields)


async def connect(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """TC_CLIENT_CONNECT: the coordinator is here; or take a key."""
    name, epoch = "tcClientConnectResponse", None
    try:
        _check(body.tc_id)
        if body.HasField("transaction_key"):
            connection.may_any()
            key = body.transaction_key

            def take(client: Client) -> KeyConnected:
                check_key_share(client, key)
                return client.connect(key, body.epoch)

            connected = await connection.client.run(take)
            epoch = connected["epoch"]
            connection.state[_ROOM] = (key, epoch)
    except TxlogError as error:
        _answer_error(connection, name, body, error)
    else:
        connection.has_coordinator = True
        connection.send(name, request_id=body.request_id, epoch=epoch)


def new(
    connection: Connection, body: Proto, trailer: memoryview
) -> Coroutine[Any, Any, None] | None:
    """NEW_TXN: begin one, under the key of this connection if it has taken one."""
    if _ROOM in connection.state:
        return _new_of_key(connection, body)

    def want(on_answer: OnTxnAnswer) -> None:
        _check(body.tc_id)
        connection.may_any()
        new_txn = connection.service.store.unopened(body.txn_ttl_seconds or None, COORDINATOR)
        connection.listener.group_commit.begin(BeginTxn(new_txn), on_answer)

    _queue(connection, "newTxnResponse", body, want)
    return None


async def _new_of_key(connection: Connection, body: Proto) -> None:
    name, (key, epoch) = "newTxnResponse", connection.state[_ROOM]
    try:
        _check(body.tc_id)
        connection.may_any()
        timeout_ms = body.txn_ttl_seconds or None

        def begin(client: Client) -> TransactionBegun:
            OpenTransactions(client.store, check_key_share(client, key), 1).take(
                client.store.disk.owner()
            )
            return client.begin(timeout_ms, key=key, epoch=epoch)

        begun = await connection.client.run(begin)
    except TxlogError as error:
        _answer_error(connection, name, body, error)
    else:
        connection.write([txn_frame(name, body.request_id, begun["txn"])])


def add_partitions(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """ADD_PARTITION_TO_TXN: register topics that the client will send to."""
    places = ((name, None) for name in body.partitions)
    _register(connection, "addPartitionToTxnResponse", body, PRODUCE, places)


def add_subscriptions(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """ADD_SUBSCRIPTION_TO_TXN: register subscriptions for its acknowledgements."""
    places = ((each.topic, each.subscription) for each in body.subscription)
    _register(connection, "addSubscriptionToTxnResponse", body, CONSUME, places)


def _register(
    connection: Connection,
    name: str,
    body: Proto,
    action: str,
    resources: Iterable[tuple[str, str | None]],
) -> None:
    def want(on_answer: OnTxnAnswer) -> None:
        places = [TxnPlace(name_of(topic), subscription) for topic, subscription in resources]
        for resource in places:
            connection.may(action, resource.name.topic)
        registration = RegisterInTxn(_txn_named(body), connection.uid, places)
        connection.listener.group_commit.register(registration, on_answer)

    _queue(connection, name, body, want)


def end(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """END_TXN: commit or abort. The answer means that the decision is durable."""

    def want(on_answer: OnTxnAnswer) -> None:
        command = EndTxn(_txn_named(body), body.txn_action == _COMMIT, connection.uid)
        connection.listener.group_commit.end(command, on_answer)

    _queue(connection, "endTxnResponse", body, want)


def _txn_named(body: Proto) -> TxnId:
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
