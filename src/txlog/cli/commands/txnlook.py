"""Owns the commands that follow one transaction: wait, log."""

from __future__ import annotations

import time
from typing import Annotated, Final

from txlog.cli.call.call import Call
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.ids import TxnId

_WAIT_STEP_S: Final = 0.05
_UNMET: Final = 8
_ENDS: Final = {"committed": ("committed",), "aborted": ("aborted",),
                "ended": ("committed", "aborted")}  # fmt: skip


@command(
    "txn wait",
    examples=("txlog txn wait 0:42", "txlog txn wait 0:42 --for committed --timeout 30s"),
    fields="txn state",
)
def wait(
    call: Call,
    txn: Annotated[str, Argument(metavar="ID", show_default=False)],
    for_: Annotated[str, Option("--for", metavar="committed|aborted|ended")] = "ended",
    timeout: Annotated[str | None, Option("--timeout", metavar="DUR")] = None,
) -> None:
    """Wait until a transaction has ended; 8 when time ran out or it ended the other way."""
    call.check_choice("--for", for_, tuple(_ENDS))
    txn_id, limit_ms = TxnId.parse(txn), call.duration(timeout)
    client = call.client()
    while True:
        state = str(client.show_transaction(txn_id)["state"])
        over = limit_ms is not None and call.elapsed_ms() >= limit_ms
        if state in _ENDS["ended"] or over:
            break
        time.sleep(_WAIT_STEP_S)
    call.exit = 0 if state in _ENDS[for_] else _UNMET
    call.output.single({"txn": txn_id, "state": state})


@command(
    "txn log",
    examples=("txlog txn log 0:42", "txlog txn log 0:42 --json"),
    fields="lsn time op topic partition subscription count detail",
)
def log(
    call: Call,
    txn: Annotated[str, Argument(metavar="ID", show_default=False)],
) -> None:
    """Show what the coordinator was told of a transaction, in the order of the journal.

    It reaches back as far as ended transactions are remembered, and as the journal.
    """
    call.output.rows(call.client().admin.transaction_log(TxnId.parse(txn)))
