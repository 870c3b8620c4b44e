"""Owns `txn run`: a foreign command inside a transaction, whose end decides the transaction's."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

from txlog.cli.call.call import Call, split_key
from txlog.cli.terminal.signals import Interrupted, shielded
from txlog.cli.terminal.tables import counted
from txlog.errors import CommandFailed, TxlogError

if TYPE_CHECKING:
    from txlog.api.client import Client
    from txlog.ids import TxnId

_GRACE_S = 10


def run_in_transaction(
    call: Call, client: Client, words: list[str], timeout_ms: int | None, key: str | None
) -> int:
    """Begin, run words with TXLOG_TXN and TXLOG_STORE set, commit after 0, else abort.

    returns: the exit code of the command, 128 + n when signal n ended it
    raises:  what the commit raises; CommandFailed (106) when the command cannot be started
    """
    owner, key = split_key(key)
    txn: TxnId = client.begin(timeout_ms, key=key, owner=owner)["txn"]
    environment = {
        **os.environ,
        "TXLOG_TXN": str(txn),
        "TXLOG_STORE": os.path.abspath(client.path),
    }
    child = None
    try:
        with shielded():  # a child that nobody knows yet could not be stopped
            child = subprocess.Popen(words, env=environment)
        code = child.wait()
    except (OSError, ValueError) as error:
        client.abort(txn)
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandFailed(
            f"{words[0]}: {reason}; transaction {txn} aborted", command=words[0], txn=txn
        ) from error
    except (Interrupted, KeyboardInterrupt):
        if child is not None:
            _stop(child)
        with shielded():
            client.abort(txn)
        raise
    code = 128 - code if code < 0 else code
    with shielded():
        if code:
            _abort(call, client, txn, f"exit code {code}")
        else:
            answer = client.commit(txn)
            call.summary(
                f"committed {txn}: {counted(answer['messages'], 'message')}, "
                f"{counted(answer['acks'], 'acknowledgement')}"
            )
    return code


def _abort(call: Call, client: Client, txn: TxnId, why: str) -> None:
    try:
        client.abort(txn)
    except TxlogError as error:  # it has ended already; the command's exit code goes first
        call.warn(f"transaction {txn}: {error.message}")
        return
    call.summary(f"aborted {txn}: {why}")


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the child as we were asked to end; wait for it."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
