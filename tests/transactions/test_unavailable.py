"""Partitions that are not available: spec/transactions 11, I-6, I-7, I-17, I-24."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, pending, read, rows, send, values
from txlog import Client, MessageId, TxnId
from txlog.client.answers.lists import kept_frames
from txlog.engine.decide.draft import Decision
from txlog.engine.model.ops import (
    Op,
    PartitionAvailable,
    StatusUpdated,
    TxnsForgotten,
    decode_ops,
)
from txlog.errors import (
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnStatus,
    PartitionUnavailable,
    TopicNotFound,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], coordinators=2),
]


def fill(client: Client, txn: TxnId, *message_ids: MessageId, value: bytes = b"x") -> TxnId:
    """Send a message to each partition, and acknowledge messages."""
    for partition in (0, 1):
        client.producer("t").send(value, partition=partition, txn=txn)
    if message_ids:
        client.acknowledge("t", "s", list(message_ids), txn=txn)
    return txn


def last_frame(client: Client) -> list[Op]:
    """The ops of the newest frame."""
    raw = client.store.ask(kept_frames)[-1]
    assert raw.lsn == client.wait_for_change(0)
    return decode_ops(raw.ops, lsn=raw.lsn)


def names(ops: list[Op]) -> list[str]:
    """The class of each op, with the sequence of its transaction."""
    return [
        f"{type(op).__name__} {op.sequence}" if hasattr(op, "sequence") else type(op).__name__
        for op in ops
    ]


def test_calls_on_an_offline_partition(bench: Bench) -> None:
    """11: sends, acks and reads there are PartitionUnavailable; the other partition goes on."""
    client = bench.client
    (here,) = send(client, b"a", partition=0)
    (there,) = send(client, b"b", partition=1)
    assert client.admin.set_offline("t", 1) == {
        "topic": "t",
        "partition": 1,
        "online": False,
        "changed": True,
        "finished_list": [],
    }
    assert client.admin.set_offline("t/1")["changed"] is False
    lsn = client.wait_for_change(0)
    txn = begin(client)
    producer = client.producer("t")
    for refused in (
        lambda: producer.send(b"x", partition=1),
        lambda: producer.send(b"x", partition=1, txn=txn),
        lambda: client.acknowledge("t", "s", [there]),
        lambda: client.acknowledge("t", "s", [here, there], txn=txn),
        lambda: read(client, partitions=[1]),
        lambda: read(client),
        lambda: client.reader("t-partition-1").read_next(),
    ):
        with pytest.raises(PartitionUnavailable) as caught:
            refused()
        assert (caught.value.code, caught.value.retryable) == (506, True)
        assert (caught.value.fields["topic"], caught.value.fields["partition"]) == ("t", 1)
    assert client.wait_for_change(0) == lsn + 1  # the begin; nothing else was written
    producer.send(b"more", partition=0, txn=txn)
    client.acknowledge("t", "s", [here], txn=txn)
    assert client.commit(txn)["state"] == "committed"
    assert values(client, partitions=[0]) == [b"a", b"more"]
    assert [row["online"] for row in client.describe_topic("t")["partition_list"]] == [True, False]
    assert [problem["code"] for problem in client.status()["problem_list"]] == ["unavailable"]


def test_readable_messages_come_before_the_error(bench: Bench) -> None:
    """A reader of all partitions never ends as if no message were missing."""
    client = bench.client
    send(client, b"a", b"b", partition=0)
    send(client, b"c", partition=1)
    client.admin.set_offline("t/1")
    tables = client.read("t", batch_messages=1)
    assert [m.value for m in rows([next(tables), next(tables)])] == [b"a", b"b"]
    with pytest.raises(PartitionUnavailable):
        next(tables)
    reader = client.reader("t")
    assert reader.has_message_available()
    assert [reader.read_next().value for _ in range(2)] == [b"a", b"b"]  # type: ignore[union-attr]
    assert not reader.has_message_available()
    client.admin.set_online("t/1")
    assert reader.read_next().value == b"c"  # type: ignore[union-attr]


def test_a_consumer_gets_the_other_partitions(bench: Bench) -> None:
    """11: consumers of other partitions are not affected; with no partition left it is an error."""
    client = bench.client
    send(client, b"a", partition=0)
    send(client, b"b", partition=1)
    with client.consumer("t", "s") as consumer:
        client.admin.set_offline("t/1")
        assert consumer.receive().value == b"a"  # type: ignore[union-attr]
        assert consumer.receive() is None
        client.admin.set_offline("t/0")
        with pytest.raises(PartitionUnavailable):
            consumer.receive()
        client.admin.set_online("t/1")
        assert consumer.receive().value == b"b"  # type: ignore[union-attr]


def test_a_commit_does_what_it_can_and_waits_for_the_rest(bench: Bench) -> None:
    """11: online partitions are settled at once; success with the status and waitingFor."""
    client, other = bench.client, bench.another()
    (here,) = send(client, b"in", partition=0)
    (there,) = send(client, b"in", partition=1)
    txn = fill(client, begin(client), here, there, value=b"out")
    client.admin.set_offline("t/1")
    answer = client.commit(txn)
    assert (answer["state"], answer["already"]) == ("committing", False)
    assert answer["waiting_list"] == ["t/1", "t/1:s"]
    assert (answer["messages"], answer["acks"]) == (2, 2)
    assert [row["partition"] for row in answer["marker_list"]] == [0]
    assert values(other, partitions=[0]) == [b"in", b"out"]
    assert [m.value for m in pending(other)] == [b"out"]  # `here` is acknowledged, not given back
    fill_plain = send(other, b"plain", partition=0)  # other clients are not affected
    assert fill_plain[0].entry == 2
    free = begin(other)
    other.producer("t").send(b"free", partition=0, txn=free)
    assert other.commit(free)["state"] == "committed"

    answer_again = client.commit(txn)
    assert (answer_again["already"], answer_again["state"]) == (True, "committing")
    for name in ("waiting_list", "marker_list", "messages", "acks"):
        assert answer_again[name] == answer[name]
    with pytest.raises(InvalidTxnStatus):
        client.abort(txn)
    (row,) = client.transactions()
    assert (row["state"], row["waiting_list"]) == ("committing", ["t/1", "t/1:s"])
    txn_row = client.show_transaction(txn)
    assert [each_row["done"] for each_row in txn_row["partition_list"]] == [True, False]
    assert [each_row["done"] for each_row in txn_row["ack_list"]] == [True, False]

    back = other.admin.set_online("t/1")
    assert back["finished_list"] == [txn]
    assert values(client, partitions=[1]) == [b"in", b"out"]
    final = client.commit(txn)
    assert (final["state"], final["waiting_list"]) == ("committed", [])
    assert [row["partition"] for row in final["marker_list"]] == [0, 1]
    assert [m.value for m in pending(client)] == [b"out", b"plain", b"free", b"out"]
    assert client.transactions() == []


def test_an_abort_waits_likewise(bench: Bench) -> None:
    """11: ABORTING; acknowledgements there stay pending until the partition is back."""
    client = bench.client
    (there,) = send(client, b"in", partition=1)
    txn = fill(client, begin(client), there)
    client.admin.set_offline("t/1")
    answer = client.abort(txn)
    assert (answer["state"], answer["reason"]) == ("aborting", "user")
    assert answer["waiting_list"] == ["t/1", "t/1:s"]
    answer_again = client.abort(txn)
    assert (answer_again["already"], answer_again["state"]) == (True, "aborting")
    with pytest.raises(InvalidTxnStatus):
        client.commit(txn)
    assert client.admin.set_online("t/1")["finished_list"] == [txn]
    assert [(m.value, m.redelivery_count) for m in pending(client)] == [(b"in", 1)]
    assert client.show_transaction(txn)["state"] == "aborted"
    assert values(client) == [b"in"]


def test_coming_back_is_one_frame_in_order_of_decision(bench: Bench) -> None:
    """11, I-7: markers, aborts and cursor changes of all that wait, then `available`."""
    client = bench.client
    message_ids = send(client, *[b"%d" % n for n in range(6)], partition=1)
    txns = [
        fill(client, begin(client), message_ids[n], message_ids[5 - n], value=b"out%d" % n)
        for n in range(3)
    ]
    still_open = begin(client)
    client.producer("t").send(b"open", partition=1, txn=still_open)
    client.admin.set_offline("t/1")
    order = [txns[2], txns[0]]
    for txn in order:
        client.commit(txn)
    client.abort(txns[1])
    client.checkpoint(roll_all=True)
    lsn_before = client.wait_for_change(0)
    assert client.admin.set_online("t/1")["finished_list"] == [*order, txns[1]]
    assert client.wait_for_change(0) == lsn_before + 1
    ops = last_frame(client)
    assert isinstance(ops[-1], PartitionAvailable)
    assert names(ops) == [
        *(
            f"{kind} {txn.sequence}"
            for txn in order
            for kind in ("CommitMarker", "BufferCommitted", "PendingCommitted", "StatusUpdated")
        ),
        *(
            f"{kind} {txns[1].sequence}"
            for kind in ("BufferAborted", "PendingAborted", "StatusUpdated")
        ),
        "PartitionAvailable",
    ]
    shown_values = [m.value for m in read(client, partitions=[1])]
    assert shown_values[6:] == [b"out2", b"out0"]
    assert [m.value for m in read(client, partitions=[0])] == [b"out2", b"out0"]
    assert client.show_transaction(still_open)["state"] == "open"
    # 2 and 3 were deleted by the first, 0 and 5 by the second; 1 and 4 come again
    unread = [m.value for m in pending(client) if m.partition == 1]
    assert unread == [b"1", b"4", b"out2", b"out0"]
    client = bench.reopen()
    assert [m.value for m in pending(client) if m.partition == 1] == unread
    assert client.commit(still_open)["state"] == "committed"


def test_acknowledgements_of_one_cursor_follow_one_another(bench: Bench) -> None:
    """Several commits in one frame: each outcome builds on the one before."""
    client = bench.client
    marker_txn = begin(client)
    for number in range(4):
        client.producer("t").send(b"%d" % number, partition=1, txn=marker_txn)
    marker = client.commit(marker_txn)["marker_list"][0]["marker"]
    inner = [MessageId(marker.ledger, marker.entry, number) for number in (1, 2, 3, 4)]
    (message_id_after,) = send(client, b"after", partition=1)
    parts = ([inner[0], inner[3]], [inner[1]], [inner[2], message_id_after])
    txns = [begin(client) for _ in parts]
    for txn, message_ids in zip(txns, parts, strict=True):
        client.acknowledge("t", "s", message_ids, txn=txn)
    client.admin.set_offline("t/1")
    for txn in txns:
        assert client.commit(txn)["waiting_list"] == ["t/1:s"]
    assert client.admin.set_online("t/1")["finished_list"] == txns
    assert pending(client) == []
    cursor = client.store.read(lambda view: view.cursor(1, 2))
    assert cursor.mark_delete == (message_id_after.ledger, message_id_after.entry, 0)
    assert cursor.acked.count() == (0, 0)
    assert client.subscriptions()[0]["backlog"] == 0


def test_two_partitions_come_back_one_by_one(bench: Bench) -> None:
    """11: complete only with the last; then the record has every marker."""
    client = bench.client
    txn = fill(client, begin(client))
    for number in (0, 1):
        client.admin.set_offline("t", number)
    assert client.commit(txn)["waiting_list"] == ["t/0", "t/1"]
    assert client.admin.set_online("t/1")["finished_list"] == []
    assert values(client, partitions=[1]) == [b"x"]
    answer_again = client.commit(txn)
    assert (answer_again["state"], answer_again["waiting_list"]) == ("committing", ["t/0"])
    assert [row["partition"] for row in answer_again["marker_list"]] == [1]
    partitions = client.show_transaction(txn)["partition_list"]
    assert [(partition["done"], partition["marker"] is None) for partition in partitions] == [
        (False, True),
        (True, False),
    ]
    assert client.admin.set_online("t/0")["finished_list"] == [txn]
    final = bench.reopen().commit(txn)
    assert [row["partition"] for row in final["marker_list"]] == [0, 1]


def test_open_transactions_stay_open(bench: Bench) -> None:
    """11: they may end at any time; one without a message there does not wait."""
    client = bench.client
    (there,) = send(client, b"in", partition=1)
    both, only_here, acks = (begin(client) for _ in range(3))
    fill(client, both)
    client.producer("t").send(b"y", partition=0, txn=only_here)
    client.acknowledge("t", "s", [there], txn=acks)
    client.admin.set_offline("t/1")
    assert [row["state"] for row in client.transactions()] == ["open"] * 3
    client.producer("t").send(b"more", partition=0, txn=both)
    assert client.commit(only_here)["state"] == "committed"
    assert client.commit(acks)["waiting_list"] == ["t/1:s"]
    client.admin.set_online("t/1")
    assert client.commit(both)["state"] == "committed"
    assert pending(client)[0].value == b"y"


def test_a_time_out_waits_too(bench: Bench) -> None:
    """6, 11: ABORTING with reason timeout, ended when the partition comes back."""
    client = bench.client
    txn = fill(client, begin(client, 1000))
    client.admin.set_offline("t/1")
    bench.clock.advance(1001)
    client.flush()
    txn_row = client.show_transaction(txn)
    assert (txn_row["state"], txn_row["reason"], txn_row["overdue"]) == (
        "aborting",
        "timeout",
        False,
    )
    assert txn_row["waiting_list"] == ["t/1"]
    assert client.admin.set_online("t/1")["finished_list"] == [txn]
    assert client.show_transaction(txn)["state"] == "aborted"


def test_a_reboot_keeps_what_is_decided(bench: Bench) -> None:
    """5.2, K8: a lossy recovery aborts open transactions; a waiting commit stays one."""
    client = bench.client
    decided, undecided = fill(client, begin(client)), fill(client, begin(client), value=b"no")
    client.admin.set_offline("t/1")
    client.commit(decided)
    bench.close()
    bench.clock.reboot("another boot")
    client = bench.client = bench.another()
    client.flush()
    states = {row["txn"]: (row["state"], row["reason"]) for row in client.transactions()}
    assert states == {decided: ("committing", None), undecided: ("aborting", "recovery")}
    assert client.admin.set_online("t/1")["finished_list"] == [decided, undecided]
    assert values(client, partitions=[1]) == [b"x"]


def test_the_sweep_completes_decided_transactions(bench: Bench) -> None:
    """6 (2), K8: decided, with its participants available: the next call completes it."""
    client = bench.client
    (there,) = send(client, b"in", partition=1)
    txns = [fill(client, begin(client), there), fill(client, begin(client), value=b"y")]
    decided: list[Op] = [
        StatusUpdated(txn.coordinator, txn.sequence, "OPEN", status, None, 2, 1)
        for txn, status in zip(txns, ("ABORTING", "COMMITTING"), strict=True)
    ]
    client.store.write(lambda view, now: Decision(decided, None, True))
    reader = bench.another(read_only=True)
    states = [(row["state"], row["waiting_list"]) for row in reader.transactions()]
    assert states == [("aborting", []), ("committing", [])]
    hanging_rows = reader.admin.find_hanging(-1)
    assert [row["cause"] for row in hanging_rows] == ["overdue", "overdue"]
    assert client.expire() == {
        "expired": 0,
        "rolled_forward": 1,
        "rolled_back": 1,
        "forgotten": 0,
        "waiting_list": [],
    }
    assert {row["state"] for row in reader.transactions(all=True)} == {"committed", "aborted"}
    assert values(client, partitions=[1]) == [b"in", b"y"]
    assert [m.redelivery_count for m in pending(client) if m.value == b"in"] == [1]


def test_a_call_drives_on_in_order_of_decision(tmp_path: Path) -> None:
    """I-7: a call beyond the limit completes all that were decided before; each is already
    committed.
    """
    bench = Bench(tmp_path / "store", coordinators=1, sweep_max=1)
    client = bench.client
    client.create_topic("t", 2)
    txns = [fill(client, begin(client), value=b"%d" % n) for n in range(4)]
    decided: list[Op] = [StatusUpdated(0, txn.sequence, "OPEN", "COMMITTING") for txn in txns]
    client.store.write(lambda view, now: Decision(decided, None, True))
    answer = client.commit(txns[2])
    assert (answer["state"], answer["already"]) == ("committed", True)
    states = {row["txn"]: row["state"] for row in bench.another(read_only=True).transactions()}
    assert states == {txns[3]: "committing"}
    assert values(client, partitions=[1]) == [b"0", b"1", b"2"]
    client.flush()
    assert values(client, partitions=[1]) == [b"0", b"1", b"2", b"3"]


def test_dry_runs_change_nothing(bench: Bench) -> None:
    """spec/cli 4: the plan equals the later result."""
    client = bench.client
    txn = fill(client, begin(client))
    client.flush()
    lsn = client.wait_for_change(0)
    assert bench.another(dry_run=True).admin.set_offline("t/1")["changed"]
    assert client.wait_for_change(0) == lsn
    client.admin.set_offline("t/1")
    client.commit(txn)
    rehearsal = bench.another(dry_run=True)
    assert rehearsal.admin.set_online("t/1")["finished_list"] == [txn]
    assert client.transactions()[0]["state"] == "committing"


def test_names_of_partitions(bench: Bench) -> None:
    client = bench.client
    client.create_topic("one")
    assert client.admin.set_offline("one")["partition"] == 0
    for wrong in ("t/2", "nowhere/0"):
        with pytest.raises(TopicNotFound):
            client.admin.set_offline(wrong)
    with pytest.raises(InvalidArgument, match="which one"):
        client.admin.set_offline("t")
    assert client.admin.set_online("t-partition-1")["changed"] is False


def test_waiting_for_the_end_of_a_commit(bench: Bench) -> None:
    """commit(wait_ms) gives up and returns the current state; the commit stays decided."""
    client = bench.client
    txn = fill(client, begin(client))
    client.admin.set_offline("t/1")
    assert client.commit(txn, wait_ms=1)["state"] == "committing"
    client.admin.set_online("t/1")
    assert client.commit(txn, wait_ms=60_000)["state"] == "committed"


def test_a_deleted_participant_is_skipped(bench: Bench) -> None:
    """5.1: it counts as done and is listed; a refusal would leave COMMITTING for ever."""
    client = bench.client
    (here,) = send(client, b"in", partition=0)
    txn = fill(client, begin(client), here)

    def delete(view: object) -> None:
        view.catalog.subscriptions.pop(1)  # type: ignore[attr-defined]
        view.catalog.topics[1].subscriptions.clear()  # type: ignore[attr-defined]

    client.store.read(delete)
    answer = client._end(txn, True)
    assert answer.status == "COMMITTED"
    assert answer.skipped == [(1, 1)]
    assert answer.waiting == []
    assert not any(isinstance(op, TxnsForgotten) for op in last_frame(client))


def test_a_key_and_its_waiting_transactions(bench: Bench) -> None:
    """10, 11: a decided one goes on, an open one is fenced and waits; the key records both."""
    client = bench.client
    decided = fill(client, client.begin(key="nightly")["txn"])
    client.admin.set_offline("t/1")
    assert client.commit(decided)["state"] == "committing"
    assert client.connect("nightly")["fenced_txn"] is None
    client.admin.set_online("t/1")
    names_of = names(last_frame(client))
    assert names_of[-3:-1] == [
        f"StatusUpdated {decided.sequence}",
        f"KeyReleased {decided.sequence}",
    ]
    fenced = client.begin(key="nightly", epoch=client.connect("nightly")["epoch"])["txn"]
    fill(client, fenced, value=b"no")
    client.admin.set_offline("t/1")
    assert client.connect("nightly")["fenced_txn"] == fenced
    txn_row = client.show_transaction(fenced)
    assert (txn_row["state"], txn_row["reason"]) == ("aborting", "fenced")
    for end in (client.commit, client.abort):
        with pytest.raises(ExpiredTransaction):
            end(fenced)
    assert client.admin.set_online("t/1")["finished_list"] == [fenced]
    assert client.show_transaction(fenced)["state"] == "aborted"
    assert client.admin.transaction_key("nightly")["txn"] is None
    assert values(client, partitions=[1]) == [b"x"]
