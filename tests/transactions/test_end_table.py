"""The decision table of an end, cell by cell; spec/transactions 5, I-14.

A store is brought to the state of a row once. It is then asked from the same client, after a
reopening, and from files alone after a checkpoint: the answer depends only on record and action.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, begin, prepare, send, values
from txlog import Client, MessageId, TxnId
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.transaction import abort_ops
from txlog.engine.view import View
from txlog.errors import (
    ExpiredTransaction,
    InvalidTxnStatus,
    TransactionConflict,
    TransactionNotFound,
    TransactionTimedOut,
    TxlogError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")

NOT_FOUND, STATUS = TransactionNotFound, InvalidTxnStatus
TIMED_OUT, EXPIRED = TransactionTimedOut, ExpiredTransaction
WORKS = None
# row: (COMMIT, ABORT, send ack add); None is success
TABLE: dict[str, tuple[type[TxlogError] | None, ...]] = {
    "never issued": (NOT_FOUND, NOT_FOUND, NOT_FOUND),
    "forgotten": (NOT_FOUND, NOT_FOUND, NOT_FOUND),
    "open": (WORKS, WORKS, WORKS),
    "prepared": (STATUS, STATUS, STATUS),
    "committing": (WORKS, STATUS, STATUS),
    "committed": (WORKS, STATUS, STATUS),
    **{f"{state} {reason}": (STATUS, WORKS, STATUS) for state in ("aborting", "aborted")
       for reason in ("user", "admin", "conflict", "recovery")},
    **{f"{state} timeout": (TIMED_OUT, WORKS, TIMED_OUT) for state in ("aborting", "aborted")},
    **{f"{state} fenced": (EXPIRED, EXPIRED, EXPIRED) for state in ("aborting", "aborted")},
}  # fmt: skip
CODES = {"never issued": 304, "forgotten": 305}


class Row:
    """A store whose transaction is in the state of a row of the table."""

    def __init__(self, folder: Path, row: str) -> None:
        self.bench = Bench(folder / "store", coordinators=2, txn_ended_retention_ms=50_000)
        self.row = row
        client = self.bench.client
        client.create_topic("t", 2)
        client.create_subscription("t", "s")
        (self.message,) = send(client, b"in")
        (message_id,) = send(client, b"held", partition=1)
        self.txn = TxnId(1, 44) if row == "never issued" else begin(client, 1000)
        if row == "never issued":
            return
        client.producer("t").send(b"x", partition=1, txn=self.txn)
        client.acknowledge("t", "s", [message_id], txn=self.txn)
        state, _, reason = row.partition(" ")
        if state == "prepared":
            prepare(client, self.txn)
        if state in ("committing", "aborting"):
            client.admin.set_offline("t/1")
        if state in ("committing", "committed", "forgotten"):
            client.commit(self.txn)
        if reason:
            self.abort(client, reason)
        if row == "forgotten":
            self.bench.clock.advance(50_001)
        shown_state = "never issued" if state == "forgotten" else self.show()
        assert shown_state in (state, "never issued"), shown_state

    def show(self) -> str:
        txn_row = self.bench.client.show_transaction(self.txn)
        assert txn_row["reason"] == (self.row.partition(" ")[2] or None)
        return str(txn_row["state"])

    def abort(self, client: Client, reason: str) -> None:
        if reason == "user":
            client.abort(self.txn)
        elif reason == "timeout":
            self.bench.clock.advance(1001)
        elif reason == "recovery":
            self.bench.clock.reboot("another boot")
            self.bench.reopen().flush()
        elif reason == "conflict":
            client.acknowledge("t", "s", [self.message])
            with pytest.raises(TransactionConflict):
                client.acknowledge("t", "s", [self.message], txn=self.txn)
        else:  # another connect, or root: decided elsewhere, with the same ops
            client.store.write(self.abort_for(reason))

    def abort_for(self, reason: str) -> Callable[[View, Instant], Decision[Any]]:
        def decide(view: View, now: Instant) -> Decision[None]:
            draft = Draft(view, self.bench.client.settings, now.wall_ms)
            txn = view.coordinator(self.txn.coordinator).unfinished[self.txn.sequence]
            abort_ops(draft, txn, reason)
            return draft.decision(sync=True)

        return decide

    def ask(self, client: Client, action: str) -> object:
        if action == "commit":
            return client.commit(self.txn)
        if action == "abort":
            return client.abort(self.txn)
        if action == "send":
            return client.producer("t").send(b"y", partition=0, txn=self.txn)
        return client.acknowledge("t", "s", [self.message], txn=self.txn)


def check(row: Row, client: Client) -> list[object]:
    """Check every cell of a row, without the cells of OPEN; returns the answers."""
    answers: list[object] = []
    expected = TABLE[row.row]
    for action, error in zip(
        ("commit", "abort", "send", "ack"), (*expected[:2], expected[2], expected[2]), strict=True
    ):
        for _ in range(2):
            if error is None:
                answer = row.ask(client, action)
                assert isinstance(answer, dict)
                assert answer["already"]
                waiting = ["t/1", "t/1:s"] if answer["state"].endswith("ing") else []
                assert answer["waiting_list"] == waiting
                answers.append({**answer, "open_ms": 0})
                continue
            with pytest.raises(error) as caught:
                row.ask(client, action)
            assert type(caught.value) is error
            assert caught.value.code == CODES.get(row.row, caught.value.code)
            answers.append((type(caught.value), caught.value.message))
    return answers


@pytest.mark.parametrize("name", [name for name in TABLE if name != "open"])
def test_the_table_of_an_end(tmp_path: Path, name: str) -> None:
    """5: the same from every process, after a reopening and from a checkpoint."""
    row = Row(tmp_path, name)
    first = check(row, row.bench.client)
    other = row.bench.another()
    assert check(row, other) == first
    assert check(row, row.bench.reopen()) == first
    row.bench.client.checkpoint(roll_all=True)
    assert check(row, row.bench.reopen()) == first
    assert values(row.bench.client, partitions=[0]) == [b"in"]


@pytest.mark.parametrize("action", ["commit", "abort", "send", "ack"])
@pytest.mark.parametrize("reopened", [False, True])
def test_everything_is_allowed_while_open(tmp_path: Path, action: str, reopened: bool) -> None:
    """5: the row OPEN."""
    row = Row(tmp_path, "open")
    if reopened:
        row.bench.client.checkpoint(roll_all=True)
    client = row.bench.reopen() if reopened else row.bench.client
    answer = row.ask(client, action)
    if action in ("commit", "abort"):
        assert isinstance(answer, dict)
        assert not answer["already"]
        assert (answer["messages"], answer["acks"]) == (1, 1)


def test_an_abort_of_an_overdue_transaction_is_one_already(tmp_path: Path) -> None:
    """5: by the state after the sweep, which always covers the call's own transaction."""
    bench = Bench(tmp_path / "store", coordinators=1, sweep_max=1)
    client = bench.client
    client.create_topic("t")
    late = [begin(client, 1000) for _ in range(4)]
    bench.clock.advance(1001)
    assert client.abort(late[3])["already"]
    with pytest.raises(TransactionTimedOut):
        client.commit(late[2])
    assert client.abort(late[1])["reason"] == "timeout"
    assert client.show_transaction(late[1])["state"] == "aborted"


def test_an_unknown_message_leaves_the_transaction_open(tmp_path: Path) -> None:
    """5: failures 1 to 7 leave an OPEN transaction open."""
    row = Row(tmp_path, "open")
    client = row.bench.client
    client.admin.set_offline("t/0")
    with pytest.raises(TxlogError) as caught:
        client.acknowledge("t", "s", [MessageId(row.message.ledger, 99)], txn=row.txn)
    assert caught.value.code == 506  # 6 comes before 7
    assert client.show_transaction(row.txn)["state"] == "open"
