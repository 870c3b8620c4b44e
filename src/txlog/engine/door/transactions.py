"""Transactions: handles on open ones, their states and participants, and how they end."""

from txlog.engine.decide.transactions.transaction import (
    EndAnswer,
    NewTxn,
    TxnPlace,
    Use,
    begin,
    check_timeout,
    end,
    register,
    unrecorded_markers,
)
from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    DURATION_BOUNDS_MS,
    OPEN,
    Coordinator,
    Txn,
)
from txlog.engine.plan.participants import (
    HangingTxn,
    check_available,
    hanging,
    participant_name,
    participants,
    skipped_by,
    unavailable_error,
)
from txlog.engine.session.transactions.commits import CommitFuture, Pipeline
from txlog.engine.session.transactions.end import await_end, connect, has_ended, unknown_end
from txlog.engine.session.transactions.end import begin as begin_with_key
from txlog.engine.session.transactions.end import end as end_by_id
from txlog.engine.session.transactions.transaction import (
    Commits,
    Later,
    Transaction,
    TransactionBuilder,
    in_transaction,
)
