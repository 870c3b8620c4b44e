"""Acknowledgements in transactions, and which messages come again when one fails or aborts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serve.deliveries import filled, messages, subscribed
from tests.serve.served import Raw, served
from txlog.base.ids import TxnId
from txlog.serve.pulsar.ids import STEP
from txlog.serve.pulsar.messages import ERRORS, BaseCommand, MessageIdData

pytestmark = pytest.mark.usefixtures("quick_disk")
ABORT = 1
ENDED = BaseCommand.DESCRIPTOR.fields_by_name["endTxnResponse"].number


def begun(raw: Raw) -> dict[str, int]:
    """The two halves of a new transaction."""
    body = raw.ask("newTxn", "newTxnResponse", txn_ttl_seconds=60_000, tc_id=0)
    txn = TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)
    return {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}


def aborted(raw: Raw, txn: dict[str, int]) -> None:
    """End it; its messages may come before the answer, which waits until the end is durable."""
    raw.send("endTxn", request_id=7, txn_action=ABORT, **txn)
    early = []
    while (frame := raw.frame()).kind != ENDED:
        early.append(frame)
    assert not frame.body.HasField("error"), frame.body
    raw.came[:0] = early


def acknowledged(raw: Raw, txn: dict[str, int], ledger: int, entry: int, **beside: Any) -> str:
    """Nothing, or the name of the error."""
    message_id = MessageIdData(ledgerId=ledger, entryId=entry, **beside)
    fields = {"consumer_id": 1, "ack_type": 0, "message_id": [message_id]}
    body = raw.ask("ack", "ackResponse", **fields, **txn)
    return {number: name for name, number in ERRORS.items()}[body.error] if body.error else ""


def redelivered(raw: Raw, ledger: int, *entries: int) -> None:
    message_ids = [MessageIdData(ledgerId=ledger, entryId=entry) for entry in entries]
    raw.send("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=message_ids)


def test_message_is_redelivered_after_its_acknowledgement_was_refused(tmp_path: Path) -> None:
    """Kills: a message that its consumer cannot return, as the server has forgotten its lease."""
    with served(tmp_path / "s") as url:
        ledger = filled(url, "refused")
        with Raw(url) as raw:
            subscribed(raw, "refused")
            messages(raw, 3)
            txn = begun(raw)
            aborted(raw, txn)
            assert acknowledged(raw, txn, ledger, 0)
            assert acknowledged(raw, txn, ledger, STEP, ack_set=[0b110])
            redelivered(raw, ledger, 0)
            assert messages(raw, 1) == [(0, 1, 1)]
            redelivered(raw, ledger, STEP)
            assert messages(raw, 1) == [(STEP, 3, 1)]


def test_aborted_transaction_returns_its_acknowledged_messages(tmp_path: Path) -> None:
    with served(tmp_path / "s") as url:
        ledger = filled(url, "aborted")
        with Raw(url) as raw:
            subscribed(raw, "aborted")
            messages(raw, 3)
            txn = begun(raw)
            assert acknowledged(raw, txn, ledger, 0) == ""
            aborted(raw, txn)
            assert messages(raw, 1) == [(0, 1, 1)]


def test_a_transaction_acknowledges_no_message_that_another_took_and_aborted(
    tmp_path: Path,
) -> None:
    """Go acknowledges all messages of a batch again, even those that were redelivered since.

    Kills: a copy in transactions that lacks the messages of an aborted one, or has some twice.
    """
    with served(tmp_path / "s") as url:
        ledger = filled(url, "stale")
        with Raw(url) as raw:
            subscribed(raw, "stale")
            messages(raw, 3)
            first, second = begun(raw), begun(raw)
            assert acknowledged(raw, first, ledger, STEP, ack_set=[0b110]) == ""
            aborted(raw, first)
            assert messages(raw, 1) == [(STEP, 3, 1)]
            # with the first copy of the second message, Go names the first message, too
            assert acknowledged(raw, second, ledger, STEP, ack_set=[0b100]) == "NotAllowedError"
            assert acknowledged(raw, second, ledger, STEP, ack_set=[0b101]) == ""
            third = begun(raw)
            assert acknowledged(raw, third, ledger, STEP, ack_set=[0b000]) != ""
            for ack_set in (0b110, 0b011):
                assert acknowledged(raw, second, ledger, STEP, ack_set=[ack_set]) == ""
            for entry in (0, 4 * STEP):
                assert acknowledged(raw, second, ledger, entry) == ""


def test_whole_batch_is_redelivered_after_an_abort_of_one_of_its_messages(tmp_path: Path) -> None:
    """As in Pulsar, every message of the batch counts: Java dead-letters the batch, in order.

    Source: Apache Pulsar, TransactionEndToEndTest.testSendTxnAckBatchMessageToDLQ
    """
    with served(tmp_path / "s") as url:
        ledger = filled(url, "again")
        with Raw(url, version="Pulsar-Java-v4.0.4") as raw:
            subscribed(raw, "again")
            messages(raw, 3)
            for count, ack_set in enumerate((0b110, 0b101, 0b011), 1):
                txn = begun(raw)
                assert acknowledged(raw, txn, ledger, STEP, ack_set=[ack_set]) == ""
                aborted(raw, txn)
                assert messages(raw, 1) == [(STEP, 3, count)]


def test_message_delivered_alone_is_redelivered_alone(tmp_path: Path) -> None:
    """Go gets each message of a batch alone, so a redelivery does not touch its other messages."""
    with served(tmp_path / "s") as url:
        ledger = filled(url, "alone")
        with Raw(url, version="Pulsar-Go-0.19") as raw:
            raw.ask("tcClientConnectRequest", "tcClientConnectResponse", tc_id=0)
            subscribed(raw, "alone")
            messages(raw, 5)
            txn = begun(raw)
            assert acknowledged(raw, txn, ledger, STEP + 2) == ""
            aborted(raw, txn)
            assert messages(raw, 1) == [(STEP + 2, 1, 1)]
        with Raw(url) as raw:  # all that the consumer had comes again, and counts once more
            subscribed(raw, "alone")
            counts = {entry: count for entry, _, count in messages(raw, 5)}
            assert [counts[STEP + at] for at in (1, 2, 3)] == [1, 2, 1]


def test_refused_acknowledgement_is_not_covered_by_the_next(tmp_path: Path) -> None:
    """A later acknowledgement of Go names the refused message too.

    Kills: a message that the consumer loses, as no transaction has taken a copy of it.
    """
    with served(tmp_path / "s") as url:
        ledger = filled(url, "next")
        with Raw(url) as raw:
            subscribed(raw, "next")
            messages(raw, 3)
            first, second = begun(raw), begun(raw)
            aborted(raw, first)
            assert acknowledged(raw, first, ledger, STEP, ack_set=[0b110])
            assert acknowledged(raw, second, ledger, STEP, ack_set=[0b100]) == "NotAllowedError"
            redelivered(raw, ledger, STEP)
            assert messages(raw, 1) == [(STEP, 3, 1)]
            assert acknowledged(raw, second, ledger, STEP) == ""  # all of it at once
