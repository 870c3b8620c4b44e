"""Owns the commands that show coordinators, sidecars, pending acknowledgements and locks."""

from __future__ import annotations

from typing import Annotated

from txlog.base.ids import MessageId, TxnId
from txlog.cli.call.call import Call
from txlog.cli.line.command import Argument, Duration, Option, command

_Coordinator = Annotated[int | None, Option("--coordinator", "-c", metavar="ID")]
_Partition = Annotated[int | None, Option("--partition", "-p", metavar="N")]
_Txn = Annotated[str | None, Option("--txn", metavar="ID", help="only its part")]
_Internal = Annotated[bool, Option("--internal", help="include its ledger")]


@command(
    "admin coordinators",
    "list the coordinators",
    examples=("txlog admin coordinators", "txlog admin coordinators -f names"),
    rows="transactions.CoordinatorRow",
)
def coordinators(call: Call) -> None:
    """List the transaction coordinators."""
    call.output.rows(call.client().admin.coordinators())


@command(
    "admin coordinator-stats",
    "figures of coordinators",
    examples=("txlog admin coordinator-stats -c 3", "txlog admin coordinator-stats --json"),
    rows="transactions.CoordinatorStats",
    until="ended_size",
)
def coordinator_stats(
    call: Call, coordinator: _Coordinator = None, internal: _Internal = False
) -> None:
    """Show the figures of one coordinator, or of all."""
    call.output.rows(call.client().admin.coordinator_stats(coordinator, internal=internal))


@command(
    "admin transaction-metadata",
    "all details of a transaction",
    examples=(
        "txlog admin transaction-metadata 0:42 --json",
        "txlog admin transaction-metadata 0:42",
    ),
    rows="transactions.TransactionMetadata",
)
def transaction_metadata(
    call: Call, txn: Annotated[str, Argument(metavar="ID", show_default=False)]
) -> None:
    """Show all details of a transaction."""
    call.output.single(call.client().admin.transaction_metadata(TxnId.parse(txn)))


@command(
    "admin slow-transactions",
    "unfinished transactions older than a time",
    examples=(
        "txlog admin slow-transactions --time 10m",
        "txlog admin slow-transactions --time 1h -c 3 --json",
    ),
    rows="transactions.TransactionRow",
    until="owner",
)
def slow_transactions(
    call: Call,
    time: Annotated[int, Duration("--time", show_default=False, help="older than")],
    coordinator: _Coordinator = None,
) -> None:
    """List unfinished transactions older than a time, oldest first."""
    rows = call.client().admin.slow_transactions(time, coordinator)
    call.output.rows(rows)


@command(
    "admin transaction-buffer-stats",
    "the sidecars of a topic",
    examples=(
        "txlog admin transaction-buffer-stats orders",
        "txlog admin transaction-buffer-stats orders --txn 0:42",
    ),
    rows="transactions.BufferStats",
    until="sidecar_garbage_bytes",
)
def transaction_buffer_stats(
    call: Call,
    topic: Annotated[str, Argument(metavar="T", show_default=False)],
    partition: _Partition = None,
    txn: _Txn = None,
) -> None:
    """Show the sidecars of a topic; with --txn only one transaction's messages in them."""
    txn_id = _only_with(call, txn, 4)
    call.output.rows(call.client().admin.transaction_buffer_stats(topic, partition, txn=txn_id))


@command(
    "admin pending-ack-stats",
    "acknowledgements that open transactions hold",
    examples=(
        "txlog admin pending-ack-stats orders billing",
        "txlog admin pending-ack-stats orders billing -p 0 --json",
    ),
    rows="transactions.PendingAckStats",
    until="pending_messages",
)
def pending_ack_stats(
    call: Call,
    topic: Annotated[str, Argument(metavar="T", show_default=False)],
    subscription: Annotated[str, Argument(metavar="SUB", show_default=False)],
    partition: _Partition = None,
    txn: _Txn = None,
    internal: _Internal = False,
) -> None:
    """Show the acknowledgements that open transactions hold, or only transaction --txn."""
    txn_id = _only_with(call, txn, 2)
    call.output.rows(
        call.client().admin.pending_ack_stats(
            topic, subscription, partition, txn=txn_id, internal=internal
        )
    )


@command(
    "admin position-in-pending-ack",
    "the state of a message on a subscription",
    examples=(
        "txlog admin position-in-pending-ack orders billing 17:4",
        "txlog admin position-in-pending-ack orders billing 17:4 --json",
    ),
    rows="transactions.PendingPosition",
)
def position_in_pending_ack(
    call: Call,
    topic: Annotated[str, Argument(metavar="T", show_default=False)],
    subscription: Annotated[str, Argument(metavar="SUB", show_default=False)],
    message: Annotated[str, Argument(metavar="ID", show_default=False)],
) -> None:
    """Show the state of a message on a subscription.

    PendingAck, MarkDelete (acknowledged), NotInPendingAck, PendingAckNotReady or InvalidPosition.
    """
    position = MessageId.parse(message)
    call.output.single(call.client().admin.position_in_pending_ack(topic, subscription, position))


@command(
    "admin locks",
    "processes that hold locks",
    examples=("txlog admin locks", "txlog admin locks --json"),
    rows="store.LockRow",
)
def locks(call: Call) -> None:
    """Show locks and the processes that hold them; a lock ends with its process."""
    call.output.rows(call.client().admin.locks())


def _only_with(call: Call, txn: str | None, last: int) -> TxnId | None:
    """Return the transaction; without one, hide the last fields of the command."""
    if txn is not None:
        return TxnId.parse(txn)
    if call.flags.columns is None:
        call.output.fields = call.output.fields[:-last]
    return None
