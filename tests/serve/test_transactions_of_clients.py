"""Transactions by the binary protocol: their owners, the answers of an end, keys."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.serve.raw import Place, Raw, run_story
from txlog.base.ids import TxnId
from txlog.engine.decide.transactions.transaction import AHEAD_MAX
from txlog.engine.store.store import Store
from txlog.errors import DiskFailed
from txlog.serve.pulsar import group_commit
from txlog.serve.pulsar.messages import ERRORS, MessageMetadata, message_class
from txlog.serve.pulsar.wire import encode_command, make_command, message_frame

pytestmark = pytest.mark.usefixtures("quick_disk")
COMMIT, ABORT = 0, 1
Subscription = message_class("Subscription")


async def begin(raw: Raw, **fields: object) -> TxnId:
    name, body = await raw.ask(
        "newTxn", **{"request_id": 1, "txn_ttl_seconds": 60_000, "tc_id": 0, **fields}
    )
    assert name == "newTxnResponse" and not body.HasField("error"), body
    return TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)


async def end(raw: Raw, txn: TxnId, action: int) -> str:
    """Nothing, or the name of the error."""
    name, body = await raw.ask("endTxn", request_id=2, txn_action=action, **halves(txn))
    assert name == "endTxnResponse"
    assert (body.txnid_most_bits, body.txnid_least_bits) == (txn.most, txn.least)
    return error_in(body)


def halves(txn: TxnId) -> dict[str, int]:
    return {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}


def error_in(body: Any) -> str:
    names = {number: name for name, number in ERRORS.items()}
    return names[body.error] if body.HasField("error") else ""


def test_coordinator_topic_has_one_partition_and_does_not_exist(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        assign = "persistent://pulsar/system/transaction_coordinator_assign"
        _, body = await raw.ask("partitionMetadata", topic=assign, request_id=1)
        assert body.partitions == 1
        _, body = await raw.ask("lookupTopic", topic=f"{assign}-partition-0", request_id=2)
        assert body.response == 1
        name, body = await raw.ask("tcClientConnectRequest", request_id=3, tc_id=0)
        assert (name, error_in(body)) == ("tcClientConnectResponse", "")
        _, body = await raw.ask("tcClientConnectRequest", request_id=4, tc_id=1)
        assert error_in(body) == "TransactionCoordinatorNotFound"
        with txlog.open(place.store) as client:
            assert client.topics() == []

    run_story(tmp_path, story)


def test_high_half_of_an_id_names_the_coordinator_that_clients_know(tmp_path: Path) -> None:
    """Java and Go choose the coordinator by the high half; the store shows the same ids."""

    async def story(place: Place) -> None:
        raw = await place.client()
        ids = [await begin(raw) for _ in range(3)]
        assert [txn.most for txn in ids] == [0, 0, 0] and len(set(ids)) == 3
        with txlog.open(place.store) as client:
            assert {row["txn"] for row in client.transactions()} == set(ids)
            assert {client.show_transaction(txn)["timeout_ms"] for txn in ids} == {60_000}

    run_story(tmp_path, story)


def test_end_answers_by_id_action_and_record(tmp_path: Path) -> None:
    """spec/transactions 5: the answer depends on the id, the action and the record alone."""

    async def story(place: Place) -> None:
        raw = await place.client()
        txn = await begin(raw)
        assert await end(raw, txn, COMMIT) == ""
        assert await end(raw, txn, COMMIT) == ""
        assert await end(raw, txn, ABORT) == "InvalidTxnStatus"
        other = await begin(raw)
        assert await end(raw, other, ABORT) == ""
        assert await end(raw, other, COMMIT) == "InvalidTxnStatus"
        assert await end(raw, TxnId(0, 10**6), COMMIT) == "TransactionNotFound"

    run_story(tmp_path, story)


def test_registration_checks_the_topic_and_the_state(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        with txlog.open(place.store) as client:
            client.create_topic("orders")

        async def added(txn: TxnId, topic: str) -> str:
            _, body = await raw.ask(
                "addPartitionToTxn", request_id=5, partitions=[topic], **halves(txn)
            )
            return error_in(body)

        txn = await begin(raw)
        assert await added(txn, "persistent://public/default/orders") == ""
        assert await added(txn, "persistent://public/default/missing") == "TopicNotFound"
        assert await added(txn, "orders-partition-1") == "TopicNotFound"
        await end(raw, txn, COMMIT)
        assert await added(txn, "persistent://public/default/orders") == "InvalidTxnStatus"

    run_story(tmp_path, story)


async def add(raw: Raw, txn: TxnId, *topics: str, subscription: str = "") -> None:
    """Register topics, or a subscription on each topic, in a transaction."""
    command, fields = "addPartitionToTxn", {"partitions": [*topics]}
    if subscription:
        command = "addSubscriptionToTxn"
        subscriptions = [Subscription(topic=topic, subscription=subscription) for topic in topics]
        fields = {"subscription": subscriptions}
    _, body = await raw.ask(command, request_id=5, **fields, **halves(txn))
    assert error_in(body) == ""


@pytest.mark.parametrize("action", [COMMIT, ABORT])
def test_registered_topics_take_part_before_they_are_used(tmp_path: Path, action: int) -> None:
    """PIP-31, "Add partition". The store keeps it, so each server and command shows it."""

    async def story(place: Place) -> None:
        raw = await place.client()
        with txlog.open(place.store) as client:
            client.create_topic("orders")
            client.create_topic("wide", 3)
            for topic in ("orders", "wide"):
                client.create_subscription(topic, "s")
            txn = await begin(raw)
            for _ in range(2):
                await add(raw, txn, "persistent://public/default/orders", "wide-partition-1")
                await add(raw, txn, "wide", "orders", subscription="s")
            await add(raw, txn, "orders", subscription="in-memory")
            metadata = client.admin.transaction_metadata(txn)
            assert list(metadata["produced_partitions"]) == ["orders/0", "wide/1"]
            acked = {name: list(of) for name, of in metadata["acked_partitions"].items()}
            assert acked == {name: ["s"] for name in ("orders/0", "wide/0", "wide/1", "wide/2")}
            assert metadata["produced_partitions"]["orders/0"]["messages"] == 0
            assert txlog.verify(place.store, deep=True)["errors"] == 0
            assert await end(raw, txn, action) == ""
            assert txlog.verify(place.store, deep=True)["errors"] == 0
            ended = client.admin.transaction_metadata(txn)
            assert ended["skipped_list"] == [] and "orders/0" in ended["produced_partitions"]
            assert [*client.reader("orders")] == []

    run_story(tmp_path, story)


def test_a_transaction_registers_so_many_places_ahead(tmp_path: Path) -> None:
    """Kills: a short command that costs every process seconds. Sends still register partitions."""

    async def story(place: Place) -> None:
        raw = await place.client()
        with txlog.open(place.store) as client:
            client.create_topic("wide", AHEAD_MAX + 1)
        txn = await begin(raw)
        await add(raw, txn, "wide")
        last = f"wide-partition-{AHEAD_MAX}"
        await raw.ask("producer", request_id=1, producer_id=0, topic=last)
        with txlog.open(place.store) as client:
            assert len(client.admin.transaction_metadata(txn)["produced_partitions"]) == AHEAD_MAX
            raw.write([send(0, 1, txn)])
            assert (await raw.next())[0] == "send_receipt"
            places = client.admin.transaction_metadata(txn)["produced_partitions"]
            assert len(places) == AHEAD_MAX + 1
        assert await end(raw, txn, COMMIT) == ""

    run_story(tmp_path, story)


def test_transaction_goes_on_with_another_server(tmp_path: Path) -> None:
    """A server keeps no state of transactions: a second server can end one of the first."""
    began: list[TxnId] = []

    async def first(place: Place) -> None:
        began.append(await begin(await place.client()))

    async def second(place: Place) -> None:
        assert await end(await place.client(), began[0], COMMIT) == ""

    run_story(tmp_path, first)
    run_story(tmp_path, second)
    with txlog.open(str(tmp_path / "store")) as client:
        assert client.show_transaction(began[0])["state"] == "committed"


def test_key_fences_its_previous_holder(tmp_path: Path) -> None:
    """The proposal of transaction keys, by the extension fields."""

    async def take(raw: Raw, epoch: int) -> tuple[str, int]:
        _, body = await raw.ask(
            "tcClientConnectRequest", request_id=1, tc_id=0, transaction_key="n", epoch=epoch
        )
        return error_in(body), body.epoch

    async def story(place: Place) -> None:
        zombie, successor = await place.client(), await place.client()
        assert await take(zombie, -1) == ("", 0)
        txn = await begin(zombie)
        assert await take(successor, -1) == ("", 1)
        assert await end(zombie, txn, COMMIT) == "InvalidTxnStatus"  # expired: fenced
        _, body = await zombie.ask("newTxn", request_id=2, txn_ttl_seconds=1000, tc_id=0)
        assert error_in(body) == "ProducerFenced"
        assert (await take(zombie, 0))[0] == "NotAllowedError"
        assert await end(successor, await begin(successor), COMMIT) == ""

    run_story(tmp_path, story)


def test_example_of_a_key_in_the_documents_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    programs = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    (program,) = [one for one in programs if "epoch" in one]

    async def story(place: Place) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program.replace("6650", str(place.port))),
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "src"},
        )
        output, _ = await process.communicate()
        assert output.decode().split() == ["0", "1"]

    run_story(tmp_path, story)


def test_ends_of_many_clients_fail_alone(tmp_path: Path) -> None:
    """The ends share a frame, and a refused end does not affect the others."""

    async def story(place: Place) -> None:
        raws = [await place.client() for _ in range(4)]
        txns = [await begin(raw) for raw in raws]
        txns[2] = TxnId(0, 10**6)
        answers = await asyncio.gather(*map(end, raws, txns, [COMMIT, ABORT, COMMIT, COMMIT]))
        assert answers == ["", "", "TransactionNotFound", ""]
        assert await end(raws[0], txns[0], COMMIT) == ""

    run_story(tmp_path, story)


def test_sends_in_transactions_fail_alone_and_come_with_the_commit(tmp_path: Path) -> None:
    """A refused send closes its own producer, and no other."""

    async def story(place: Place) -> None:
        raw = await place.client()
        for number in range(3):
            await raw.ask("producer", request_id=1, producer_id=number, topic="orders")
        txns = [await begin(raw), TxnId(0, 10**6), await begin(raw)]
        for number, txn in enumerate(txns):
            answers = ["send_error", "close_producer"] if number == 1 else ["send_receipt"]
            assert await sent(raw, number, txn) == answers[0]
            for name in answers[1:]:
                assert (await raw.next())[0] == name
        assert [await end(raw, txn, COMMIT) for txn in (txns[2], txns[0])] == ["", ""]
        with txlog.open(place.store) as client:
            assert [message.value for message in client.reader("orders")] == [b"2", b"0"]

    async def sent(raw: Raw, number: int, txn: TxnId) -> str:
        command = make_command("send", producer_id=number, sequence_id=number, **halves(txn))
        head = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        raw.write(
            message_frame(command.SerializeToString(), head.SerializeToString(), b"%d" % number)
        )
        return (await raw.next())[0]

    run_story(tmp_path, story)


def send(producer: int, sequence: int, txn: TxnId | None) -> bytes:
    """The frame of a message, in a transaction or not; its value is its sequence."""
    within = {} if txn is None else halves(txn)
    command = make_command("send", producer_id=producer, sequence_id=sequence, **within)
    head = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    value = b"%d" % sequence
    pieces = message_frame(command.SerializeToString(), head.SerializeToString(), value)
    return b"".join(pieces)


def test_pipelined_commands_are_one_call_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a lock for each message or each kind of command."""
    submitted: list[int] = []
    submit = Store.submit

    def counted(store: Store, calls: list[Any]) -> None:
        submitted.append(len(calls))
        submit(store, calls)

    async def story(place: Place) -> None:
        raw = await place.client()
        await raw.ask("producer", request_id=1, producer_id=0, topic="orders")
        txns = [await begin(raw) for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(Store, "submit", counted)
            raw.write(
                [
                    encode_command("newTxn", request_id=8, txn_ttl_seconds=60_000, tc_id=0),
                    *(send(0, at, txns[at % 3]) for at in range(30)),
                    encode_command(
                        "addPartitionToTxn", request_id=9, partitions=["orders"], **halves(txns[0])
                    ),
                    encode_command("endTxn", request_id=10, txn_action=ABORT, **halves(txns[1])),
                ]
            )
            names = [(await raw.next())[0] for _ in range(33)]
        assert sorted(submitted, reverse=True)[0] == sum(submitted) == 33
        assert names.count("send_receipt") == 30
        assert [await end(raw, txn, COMMIT) for txn in (txns[2], txns[0])] == ["", ""]
        with txlog.open(place.store) as client:
            values = [message.value for message in client.reader("orders")]
        assert values == [b"%d" % at for of in (2, 0) for at in range(of, 30, 3)]

    run_story(tmp_path, story)


def test_sends_behind_a_refused_one_are_refused(tmp_path: Path) -> None:
    """One call of the store has all the sends, and refuses those behind the bad one.

    Kills: a message of the producer that the transaction commits after the loss of an earlier one.
    """

    async def story(place: Place) -> None:
        raw = await place.client()
        for number in range(2):
            await raw.ask("producer", request_id=1, producer_id=number, topic="orders")
        good, bad = await begin(raw), TxnId(0, 10**6)
        raw.write([send(0, at, bad if at == 1 else good) for at in range(4)])
        raw.write([send(1, 9, good)])
        answers = [await raw.next() for _ in range(4)]
        receipts = {body.sequence_id for name, body in answers if name == "send_receipt"}
        assert receipts == {0, 9}
        assert [body.sequence_id for name, body in answers if name == "send_error"] == [1]
        assert [name for name, _ in answers].count("close_producer") == 1
        assert await end(raw, good, COMMIT) == ""
        with txlog.open(place.store) as client:
            assert {body.value for body in client.reader("orders")} == {b"0", b"9"}

    run_story(tmp_path, story)


def test_stored_messages_are_freed_without_a_garbage_collection(tmp_path: Path) -> None:
    """Kills: a cycle of references, which keeps megabytes of messages until a collection."""

    async def story(place: Place) -> None:
        raw = await place.client()
        await raw.ask("producer", request_id=1, producer_id=0, topic="orders")
        txn = await begin(raw)
        gc.collect()
        gc.disable()
        try:
            raw.write([send(0, at, txn if at % 2 else None) for at in range(6)])
            for _ in range(6):
                await raw.next()
            await end(raw, txn, COMMIT)
            names = ("_FrameWrite", "_TxnWrite", "_ProducerRows", "QueuedSend")
            kinds = tuple(vars(group_commit)[name] for name in names)
            alive = {"all"}
            for _ in range(100):  # the thread that stored them may end its call after the answers
                await raw.ask("ping")
                alive = {type(item).__name__ for item in gc.get_objects() if type(item) in kinds}
                if not alive:
                    break
        finally:
            gc.enable()
        assert alive == set()

    run_story(tmp_path, story)


def test_commit_is_answered_even_if_later_work_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a durable commit that is answered as a failure."""

    def failed(store: Store) -> None:
        raise DiskFailed("the disk of delayed messages is broken")

    async def story(place: Place) -> None:
        raw = await place.client()
        await raw.ask("producer", request_id=1, producer_id=0, topic="orders")
        txn, other = await begin(raw), await begin(raw)
        with monkeypatch.context() as patch:
            patch.setattr(group_commit, "tend_due", failed)
            raw.write(
                [
                    send(0, 1, other),
                    encode_command("endTxn", request_id=2, txn_action=COMMIT, **halves(txn)),
                ]
            )
            answers = dict([await raw.next(), await raw.next()])
        assert error_in(answers["endTxnResponse"]) == ""
        assert "close_producer" in answers
        with txlog.open(place.store) as client:
            assert client.show_transaction(txn)["state"] == "committed"

    run_story(tmp_path, story)
