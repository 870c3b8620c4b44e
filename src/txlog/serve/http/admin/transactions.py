"""Owns the endpoints of transactions: coordinators, transactions, their sends and acknowledgements,
transaction keys.

Transaction keys have the paths of their proposal, below v2, and the same paths below v3.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from txlog.base.ids import TopicName, TxnId
from txlog.base.rows.transactions import CoordinatorStats
from txlog.client.client import Client
from txlog.errors import CoordinatorNotFound, TopicNotFound
from txlog.serve.http.admin.store import full
from txlog.serve.http.admin.topics import store_id
from txlog.serve.http.core.declared import ADMIN, LOOK, EndpointList, integer

V3: Final = "/admin/v3/transactions"
V2: Final = "/admin/v2/transactions"
OF_TOPIC: Final = "{tenant}/{namespace}/{topic}"
HALVES: Final = "{most}/{least}"
endpoint = EndpointList()


# --- coordinators ----------------------------------------------------------------------------


@endpoint("GET", f"{V3}/coordinators", LOOK)
def coordinators(client: Client) -> list[dict[str, object]]:
    """The coordinators of the store."""
    return [
        {"id": row["coordinator"], "brokerServiceUrl": ""} for row in client.admin.coordinators()
    ]


@endpoint("GET", f"{V3}/coordinatorStats", LOOK)
def coordinator_stats(client: Client, coordinatorId: int | None = None) -> dict[str, object]:
    """Figures of each coordinator, by its number, or of a single one."""
    if coordinatorId is not None:
        [row] = client.admin.coordinator_stats(coordinatorId)
        return _coordinator(row)
    return {str(row["coordinator"]): _coordinator(row) for row in client.admin.coordinator_stats()}


@endpoint("GET", f"{V3}/coordinatorInternalStats/{{number}}", LOOK)
def coordinator_internal_stats(client: Client, number: int) -> dict[str, object]:
    """The log behind a coordinator."""
    [row] = client.admin.coordinator_stats(number, internal=True)
    log = row["log_stats"]
    if log is None:
        raise CoordinatorNotFound(f"there is no log of coordinator {number}")
    return {
        "transactionLogStats": {
            "managedLedgerName": log["managed_ledger_name"],
            "managedLedgerInternalStats": camel(log["managed_ledger_internal_stats"]),
        }
    }


def _coordinator(row: CoordinatorStats) -> dict[str, object]:
    return {
        "state": row["state"].capitalize(),
        "leastSigBits": row["least_sig_bits"],
        "lowWaterMark": row["low_water_mark"],
        "ongoingTxnSize": row["ongoing_txn_size"],
        "recoverStartTime": row["recover_start_time"],
        "recoverEndTime": row["recover_end_time"],
    }


@endpoint("POST", f"{V3}/transactionCoordinator/replicas", ADMIN)
def scale_coordinators(client: Client, body: object) -> None:
    """Have at least this many coordinators; their number never falls."""
    client.admin.scale_coordinators(integer(body))


# --- transactions ----------------------------------------------------------------------------


@endpoint("GET", f"{V3}/transactionMetadata/{HALVES}", LOOK)
def transaction_metadata(client: Client, txn: TxnId) -> dict[str, object]:
    """All details of a transaction."""
    return _renamed(client, txn)


def _renamed(client: Client, txn: TxnId) -> dict[str, object]:
    metadata = client.admin.transaction_metadata(txn)
    return {
        "txnId": str(metadata["txn"]),
        "status": metadata["status"].upper(),
        "openTimestamp": metadata["open_time"],
        "timeoutAt": metadata["timeout_ms"],
        "owner": metadata["owner"],
        "producedPartitions": {
            _place(client, partition): camel(row)
            for partition, row in metadata["produced_partitions"].items()
        },
        "ackedPartitions": {
            _place(client, partition): {name: camel(row) for name, row in rows.items()}
            for partition, rows in metadata["acked_partitions"].items()
        },
        "transactionKey": metadata["transaction_key"],
        "epoch": metadata["epoch"],
        "waiting": metadata["waiting_list"],
    }


def _place(client: Client, partition: str) -> str:
    """Pulsar's name of a txlog partition, such as `orders/0`."""
    topic = TopicName.parse(partition, allow_partition=True)
    with suppress(TopicNotFound):
        if client.describe_topic(topic.full)["partitions"] == 1:
            return full(topic.topic)
    return full(topic)


@endpoint("GET", f"{V3}/slowTransactions/{{timeout}}", LOOK)
def slow_transactions(client: Client, timeout: int, coordinatorId: int | None = None) -> object:
    """Unfinished transactions that are older than this many ms, by id."""
    rows = client.admin.slow_transactions(timeout, coordinatorId)
    return {f"({row['txn'].most},{row['txn'].least})": _renamed(client, row["txn"]) for row in rows}


@endpoint("POST", f"{V3}/abortTransaction/{HALVES}", ADMIN)
def abort_transaction(client: Client, txn: TxnId) -> None:
    """Abort a transaction."""
    client.abort(txn)


@endpoint("GET", f"{V3}/transactionInBufferStats/{OF_TOPIC}/{HALVES}", LOOK)
def transaction_in_buffer(client: Client, topic: TopicName, txn: TxnId) -> object:
    """The messages that a transaction has sent to a topic."""
    return camel(client.admin.transaction_buffer_stats(str(topic), txn=txn)[0])


@endpoint("GET", f"{V3}/transactionInPendingAckStats/{OF_TOPIC}/{{subscription}}/{HALVES}", LOOK)
def transaction_in_pending_ack(
    client: Client, topic: TopicName, subscription: str, txn: TxnId
) -> object:
    """The acknowledgements of a transaction on a subscription."""
    return camel(client.admin.pending_ack_stats(str(topic), subscription, txn=txn)[0])


@endpoint("GET", f"{V3}/transactionBufferStats/{OF_TOPIC}", LOOK)
def transaction_buffer(client: Client, topic: TopicName) -> object:
    """The sidecar of a topic or partition: the messages of open transactions."""
    return camel(client.admin.transaction_buffer_stats(str(topic))[0])


@endpoint("GET", f"{V3}/pendingAckStats/{OF_TOPIC}/{{subscription}}", LOOK)
def pending_acks(client: Client, topic: TopicName, subscription: str) -> object:
    """The acknowledgements of open transactions on a subscription."""
    return camel(client.admin.pending_ack_stats(str(topic), subscription)[0])


@endpoint("GET", f"{V3}/pendingAckInternalStats/{OF_TOPIC}/{{subscription}}", LOOK)
def pending_acks_internal(client: Client, topic: TopicName, subscription: str) -> object:
    """The log of the acknowledgements of open transactions on a subscription."""
    [row, *_] = client.admin.pending_ack_stats(str(topic), subscription, internal=True)
    return {"pendingAckLogStats": camel(row["log_stats"])}


@endpoint(
    "GET", f"{V3}/positionStatsInPendingAck/{OF_TOPIC}/{{subscription}}/{{ledger}}/{{entry}}", LOOK
)
def position_in_pending_ack(
    client: Client, topic: TopicName, subscription: str, ledger: int, entry: int
) -> object:
    """Whether a transaction holds a message of a subscription."""
    message_id = store_id(client, {"ledgerId": ledger, "entryId": entry}, is_last=False)
    return camel(client.admin.position_in_pending_ack(str(topic), subscription, message_id))


def camel(row: object) -> object:
    """An answer with Pulsar's kind of names: `ongoing_txn_size` is `ongoingTxnSize`."""
    if isinstance(row, dict):
        return {_camel(name): camel(value) for name, value in row.items()}
    if isinstance(row, list):
        return [camel(item) for item in row]
    return row


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


# --- keys ------------------------------------------------------------------------------------


@endpoint("GET", f"{V2}/transaction-keys", LOOK)
@endpoint("GET", f"{V3}/transaction-keys", LOOK)
def transaction_keys(client: Client, deleted: bool = False, owner: str | None = None) -> object:
    """The transaction keys; deleted: also deleted keys, which have only an epoch."""
    return client.admin.transaction_keys(deleted, owner)


@endpoint("GET", f"{V2}/transaction-keys/{{key:path}}", LOOK)
@endpoint("GET", f"{V3}/transaction-keys/{{key:path}}", LOOK)
def transaction_key(client: Client, key: str, owner: str | None = None) -> object:
    """A transaction key: its epoch, and its transactions, newest first."""
    return client.admin.transaction_key(key, owner)


@endpoint("DELETE", f"{V2}/transaction-keys/{{key:path}}", ADMIN)
@endpoint("DELETE", f"{V3}/transaction-keys/{{key:path}}", ADMIN)
def delete_transaction_key(client: Client, key: str, owner: str | None = None) -> object:
    """Delete a transaction key; its open transaction is aborted."""
    return client.admin.delete_transaction_key(key, owner)
