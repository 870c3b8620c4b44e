"""The commands of administration: the fields, types and exit codes of spec/cli, and the values of
the answers.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_store import NOW, Tool
from tests.engine_kit import Bench, begin, send, send_txn
from txlog import MessageId, TxnId
from txlog.engine.storage.user_files import replace_file
from txlog.errors import (
    CoordinatorNotFound,
    DiskFailed,
    InvalidTxnStatus,
    ReadOnlyStore,
    SubscriptionNotFound,
    TopicNotFound,
    TransactionConflict,
    TransactionTimedOut,
)

# spec/cli 8.1, 8.5, 8.7: `?` may be null; `:o` is an object, `:s` a string; `:b` and `:t` as in the
# spec.
LISTED = (
    "txn state transaction_key? age_ms expires_in_ms? topic_list messages acks owner owner_uid "
    "epoch? coordinator overdue:b reason:s? subscription_list size_bytes begin_time timeout_at "
    "end_time? waiting_list prepared_ms? database:s?"
)
CONTRACT = {
    "admin coordinators": "coordinator state ongoing_txn_size keys",
    "admin coordinator-stats -c 1 --internal": (
        "coordinator state least_sig_bits low_water_mark ongoing_txn_size next_sequence "
        "prepared_size committing_size aborting_size ended_size oldest_open_time? "
        "recover_start_time? recover_end_time? log_stats:o?"
    ),
    "admin transaction-metadata OPEN": (
        "txn status:s open_time timeout_at timeout_ms owner owner_uid transaction_key? epoch? "
        "reason:s? overdue:b end_time? decision_lsn? waiting_list skipped_list "
        "produced_partitions:o acked_partitions:o"
    ),
    "admin slow-transactions --time 0s --now 2026-11-20T09:12:14Z": LISTED,
    "admin transaction-buffer-stats orders": (
        "topic partition state ongoing_txn_size total_aborted_transactions sidecar_live_bytes "
        "sidecar_garbage_bytes max_read_position:id? low_water_marks:o last_snapshot_time? "
        "recover_start_time? recover_end_time?"
    ),
    "admin transaction-buffer-stats orders -p 0 --txn OPEN": (
        "topic partition state ongoing_txn_size total_aborted_transactions sidecar_live_bytes "
        "sidecar_garbage_bytes max_read_position:id? low_water_marks:o last_snapshot_time? "
        "recover_start_time? recover_end_time? start_position:id? aborted:b messages marker?"
    ),
    "admin pending-ack-stats orders billing --internal": (
        "topic partition subscription state ongoing_txn_size pending_messages low_water_marks:o "
        "recover_start_time? recover_end_time? log_stats:o?"
    ),
    "admin pending-ack-stats orders billing --txn OPEN": (
        "topic partition subscription state ongoing_txn_size pending_messages low_water_marks:o "
        "recover_start_time? recover_end_time? log_stats:o? cumulative_ack_position:id? "
        "individual_acks"
    ),
    "admin position-in-pending-ack orders billing 1:0": "topic subscription position state txn?",
    "admin locks": "name path held:b pid? command? since_time? subscription?",
    "txn list --all": LISTED,
    "txn show OPEN --keys": (
        f"{LISTED} timeout_ms decision_lsn? partition_list ack_list skipped_list key_list?"
    ),
    "txn wait DONE": "txn state",
    "txn log DONE": "lsn time:t op:s topic? partition? subscription? count? detail?",
    "metrics": "name type labels:o value:number",
}
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
STRINGS = set(
    "topic subscription producer owner transaction_key key path file state type kind class name "
    "command code message hint detail".split()
)
IDS = set("message_id position first last mark_delete marker".split())


@pytest.fixture
def tool(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Tool:
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TXLOG_NOW", NOW)
    new_tool = Tool(tmp_path / "shop", capfd)
    new_tool.ok("init", str(new_tool.path), "--coordinators", "2")
    new_tool.ok("topic", "create", "orders", "--partitions", "2")
    new_tool.ok("sub", "create", "billing", "-t", "orders")
    new_tool.ok("produce", "orders", "-m", "a", "-m", "b", "-p", "0")
    return new_tool


def prepared(tool: Tool) -> dict[str, str]:
    """A committed transaction, an aborted one, and an open one with a message and an ack."""
    ids = {}
    for name in ("DONE", "GONE", "OPEN"):
        ids[name] = tool.ok("txn", "begin", "-c", "1").strip()
        tool.ok(
            "produce", "orders", "-m", "x", "-k", f"key-{name}", "-p", "0", "--txn-id", ids[name]
        )
    tool.ok("sub", "ack", "billing", "1:0", "--txn-id", ids["OPEN"])
    tool.ok("txn", "commit", ids["DONE"])
    tool.ok("txn", "abort", ids["GONE"])
    return ids


@pytest.mark.parametrize("command", CONTRACT)
def test_fields_and_types_match_the_contract(tool: Tool, command: str) -> None:
    """spec/cli 8 and 11.2: exactly these keys in this order, with these types, and null only if
    marked.
    """
    ids = prepared(tool)
    arguments = [ids.get(word, word) for word in command.split()]
    parsed = json.loads(tool.ok(*arguments, "--json"))
    rows = parsed if isinstance(parsed, list) else [parsed]
    assert rows
    marks = [mark.rstrip("?").split(":") for mark in CONTRACT[command].split()]
    nullable = [mark.endswith("?") for mark in CONTRACT[command].split()]
    for row in rows:
        assert list(row) == [mark[0] for mark in marks]
        for mark, may_be_null in zip(marks, nullable, strict=True):
            if row[mark[0]] is None:
                assert may_be_null, mark
            else:
                assert fits(mark, row[mark[0]]), (mark, row[mark[0]])
    help_lines = tool.ok(*arguments, "-f", "help").splitlines() if arguments[0] != "metrics" else []
    assert {line.split("\t")[0] for line in help_lines} >= {m[0] for m in marks if help_lines}


def fits(mark: list[str], value: Any) -> bool:
    name, kind = mark[0], mark[1] if len(mark) > 1 else ""
    if kind == "o":
        return isinstance(value, dict)
    if kind == "b":
        return isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float)
    if name.endswith("_list"):
        return isinstance(value, list)
    if kind == "t" or name.endswith(("_time", "_at")):
        return INSTANT.fullmatch(value) is not None
    if name == "txn":
        return TxnId.parse(value) is not None
    if kind == "id" or name in IDS:
        return MessageId.parse(value) is not None
    if kind == "s" or name in STRINGS:
        return isinstance(value, str)
    return isinstance(value, int) and not isinstance(value, bool) and value >= -1


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["admin", "coordinator-stats", "-c", "2"], 308),
        (["admin", "slow-transactions", "--time", "1s", "-c", "9"], 308),
        (["admin", "slow-transactions"], 201),
        (["admin", "slow-transactions", "--time", "soon"], 203),
        (["admin", "transaction-metadata", "1:77"], 304),
        (["admin", "transaction-metadata", "1:x"], 203),
        (["admin", "transaction-buffer-stats", "nothing"], 302),
        (["admin", "transaction-buffer-stats", "orders", "-p", "2"], 302),
        (["admin", "transaction-buffer-stats", "orders/5"], 302),
        (["admin", "transaction-buffer-stats", "orders", "--txn", "1:77"], 304),
        (["admin", "pending-ack-stats", "orders", "shipping"], 303),
        (["admin", "position-in-pending-ack", "orders", "shipping", "1:0"], 303),
        (["admin", "position-in-pending-ack", "orders", "billing", "x"], 203),
        (["txn", "log", "1:77"], 304),
        (["txn", "wait", "1:77"], 304),
        (["txn", "wait", "1:0", "--for", "ever"], 201),
        (["metrics", "--textfile", "/nowhere/at/all"], 102),
    ],
)
def test_each_error_has_its_code(tool: Tool, args: list[str], code: int) -> None:
    if args[0] == "metrics":
        assert tool(*args)[0] == code // 100
        return
    assert tool.error(*args)["code"] == f"TXL-{code}"


def test_waiting_for_an_end(tool: Tool) -> None:
    """spec/cli 8.5: 0 if the state was reached, 8 if the time ran out or the transaction ended the
    other way. Both are answers, not errors.
    """
    ids = prepared(tool)
    for args, code, state in (
        ([ids["DONE"]], 0, "committed"),
        ([ids["DONE"], "--for", "committed"], 0, "committed"),
        ([ids["DONE"], "--for", "aborted"], 8, "committed"),
        ([ids["GONE"]], 0, "aborted"),
        ([ids["OPEN"], "--timeout", "1ms"], 8, "open"),
        ([ids["OPEN"], "--for", "aborted", "--now", "2026-11-21T00:00:00Z"], 0, "aborted"),
    ):
        exit_code, out, err = tool("txn", "wait", *args, "--json")
        assert (exit_code, err) == (code, "")
        assert json.loads(out) == {"txn": args[0], "state": state}


def test_list_takes_all_its_filters(tool: Tool) -> None:
    """spec/cli 8.5: --topic in any spelling, --transaction-key, --since."""
    ids = prepared(tool)
    for args, expected in (
        (["--topic", "public/default/orders"], [ids["OPEN"]]),
        (["--topic", "other"], []),
        (["--transaction-key", "k"], []),
        (["--key", "k"], []),
        (["--since", "2026-11-20T09:12:05Z"], []),
        (["--older-than", "1s"], []),
        (["--state", "aborted", "--sort", "id"], [ids["GONE"]]),
        (["--all", "--limit", "0"], []),
    ):
        parts = tool.ok("txn", "list", *args, "-f", "names").split()
        assert parts == expected, args


def test_keys_of_the_messages(tool: Tool) -> None:
    ids = prepared(tool)
    for name, keys in (("OPEN", ["key-OPEN"]), ("DONE", ["key-DONE"]), ("GONE", [])):
        assert tool.json("txn", "show", ids[name], "--keys")["key_list"] == keys
        assert tool.json("txn", "show", ids[name])["key_list"] is None


# --- answers ---------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path, quick_disk: None) -> Iterator[Bench]:
    new_bench = Bench(tmp_path / "store", coordinators=2)
    new_bench.client.create_topic("t", 2)
    new_bench.client.create_subscription("t", "s")
    yield new_bench
    new_bench.close()


def test_a_coordinator_counts_its_transactions(bench: Bench) -> None:
    """15: the highest issued number, and the lowest unfinished one less one: -1 while 0 is
    unfinished.
    """
    client = bench.client
    row = client.admin.coordinator_stats(1)[0]
    assert (row["least_sig_bits"], row["low_water_mark"], row["next_sequence"]) == (0, 0, 0)
    txns = [client.begin(coordinator=1)["txn"] for _ in range(3)]
    client.flush()
    row = client.admin.coordinator_stats(1)[0]
    assert (row["least_sig_bits"], row["low_water_mark"], row["next_sequence"]) == (2, -1, 3)
    assert (row["ongoing_txn_size"], row["oldest_open_time"]) == (3, bench.clock.now().wall_ms)
    client.commit(txns[0])
    client.abort(txns[1])
    row = client.admin.coordinator_stats(1)[0]
    assert (row["low_water_mark"], row["ongoing_txn_size"], row["ended_size"]) == (1, 1, 2)
    assert [coordinator["ongoing_txn_size"] for coordinator in client.admin.coordinators()] == [
        0,
        1,
    ]
    with pytest.raises(CoordinatorNotFound):
        client.admin.coordinator_stats(2)
    reader = bench.another(read_only=True)
    assert {coordinator["state"] for coordinator in reader.admin.coordinators()} == {"ReadOnly"}


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_the_ledger_behind_a_coordinator(bench: Bench, is_checkpointed: bool) -> None:
    """managedLedgerInternalStats: added entries are kept, in the history or in the journal."""
    client = bench.client
    send_txn(client, b"a", b"b")
    if is_checkpointed:
        client.checkpoint()
    (row,) = client.admin.coordinator_stats(0, internal=True)
    assert row["log_stats"] is not None
    managed_ledger_internal_stats = row["log_stats"]["managed_ledger_internal_stats"]
    assert (
        managed_ledger_internal_stats["entries_added_counter"]
        == managed_ledger_internal_stats["number_of_entries"]
        == 5
    )
    assert (managed_ledger_internal_stats["current_ledger_entries"] == 0) == is_checkpointed
    assert sum(piece["entries"] for piece in managed_ledger_internal_stats["ledgers"]) == (
        5 if is_checkpointed else 0
    )
    assert managed_ledger_internal_stats["last_confirmed_entry"]


def test_a_damaged_coordinator_is_corrupt_and_others_answer(bench: Bench) -> None:
    """15: its state is Corrupt, and the others are not affected; R5."""
    client = bench.client
    for number in (0, 1):
        client.commit(client.begin(coordinator=number)["txn"])
    client.checkpoint()
    manifest = client.store.read(lambda view: view.manifest)
    (ref,) = [dump for dump in manifest.dumps if (dump.kind, dump.a) == ("coordinator", 1)]
    path = Path(bench.path, ref.path)
    data = bytearray(path.read_bytes())
    data[ref.offset + ref.length - 1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    fresh = bench.another()
    assert [row["state"] for row in fresh.admin.coordinators()] == ["Ready", "Corrupt"]
    assert [row["state"] for row in fresh.admin.coordinator_stats()] == ["Ready", "Corrupt"]


def test_the_metadata_of_a_transaction(bench: Bench) -> None:
    client = bench.client
    first, second = send(client, b"a", b"b")
    txn = begin(client, 5000)
    client.producer("t").send(b"x", partition=1, txn=txn)
    client.acknowledge("t", "s", [first], txn=txn)
    client.flush()
    metadata = client.admin.transaction_metadata(txn)
    produced_partition = metadata["produced_partitions"]["t/1"]
    assert (
        produced_partition["messages"],
        produced_partition["aborted"],
        produced_partition["marker"],
    ) == (1, False, None)
    assert produced_partition["start_position"] is not None
    assert metadata["acked_partitions"] == {
        "t/0": {"s": {"cumulative_ack_position": None, "individual_acks": 1}}
    }
    assert (metadata["status"], metadata["timeout_at"] - metadata["open_time"]) == ("OPEN", 5000)
    client.acknowledge("t", "s", [second], cumulative=True, txn=txn)
    client.flush()
    (stat,) = client.admin.pending_ack_stats("t", "s", 0, txn=txn)
    assert (stat["cumulative_ack_position"], stat["individual_acks"]) == (second, 0)
    assert stat["pending_messages"] == 2
    client.commit(txn)
    metadata = client.admin.transaction_metadata(txn)
    produced_partition = metadata["produced_partitions"]["t/1"]
    assert (
        produced_partition["marker"] is not None
        and produced_partition["start_position"] is not None
    )
    deleted_txn = begin(client)
    client.producer("t").send(b"y", txn=deleted_txn)
    client.abort(deleted_txn)
    produced_partition = client.admin.transaction_metadata(deleted_txn)["produced_partitions"][
        "t/0"
    ]
    assert (produced_partition["start_position"], produced_partition["aborted"]) == (None, True)


def test_a_sidecar_counts_bytes_and_transactions(bench: Bench) -> None:
    """I-21: the garbage is the bytes of aborted transactions."""
    client = bench.client
    stat_before = client.admin.transaction_buffer_stats("t", 0)[0]
    assert (stat_before["state"], stat_before["max_read_position"]) == ("None", None)
    _, ids = send_txn(client, b"abc")
    kept_txn, deleted_txn = begin(client), begin(client)
    for txn in (kept_txn, deleted_txn):
        client.producer("t").send(b"12345", txn=txn, partition=0)
    client.abort(deleted_txn)
    row = client.admin.transaction_buffer_stats("t/0")[0]
    assert (row["state"], row["ongoing_txn_size"], row["total_aborted_transactions"]) == (
        "Ready",
        1,
        1,
    )
    assert (row["sidecar_live_bytes"], row["sidecar_garbage_bytes"]) == (8, 5)
    assert row["max_read_position"] == ids[-1]
    assert list(row["low_water_marks"]) == [str(kept_txn.coordinator)]
    assert [stat["partition"] for stat in client.admin.transaction_buffer_stats("t")] == [0, 1]
    with pytest.raises(TopicNotFound):
        client.admin.transaction_buffer_stats("t", 2)


def test_the_state_of_a_position(bench: Bench) -> None:
    """15: PendingAck with its holder, MarkDelete, NotInPendingAck, InvalidPosition."""
    client = bench.client
    plain = send(client, b"a", b"b", b"c")
    marker, inner = send_txn(client, b"x", b"y")
    txn = begin(client)
    client.acknowledge("t", "s", [plain[0], inner[1]], txn=txn)
    client.acknowledge("t", "s", [plain[2]])
    client.flush()

    def state(position: MessageId) -> tuple[str, TxnId | None]:
        row = client.admin.position_in_pending_ack("t", "s", position)
        return row["state"], row["txn"]

    assert state(plain[0]) == state(inner[1]) == state(marker) == ("PendingAck", txn)
    assert state(plain[1]) == state(inner[0]) == ("NotInPendingAck", None)
    assert state(plain[2]) == ("MarkDelete", None)
    for wrong in (
        MessageId(plain[0].ledger, 99),
        MessageId(999, 0),
        MessageId(marker.ledger, marker.entry, 3),
        MessageId(plain[0].ledger, plain[0].entry, 1),
    ):
        assert state(wrong) == ("InvalidPosition", None)
    client.acknowledge("t", "s", [plain[1]])
    client.commit(txn)
    assert state(plain[0]) == state(inner[1]) == ("MarkDelete", None)
    assert state(inner[0]) == state(marker) == ("NotInPendingAck", None)
    client.acknowledge("t", "s", [inner[0]])
    client.flush()
    assert state(marker) == state(inner[0]) == ("MarkDelete", None)
    with pytest.raises(SubscriptionNotFound):
        client.admin.position_in_pending_ack("t", "none", plain[0])


def test_slow_transactions_are_older_and_unfinished(bench: Bench) -> None:
    client = bench.client
    old = begin(client)
    ended = begin(client)
    bench.clock.advance(2000)
    begin(client)
    client.commit(ended)
    slow = client.admin.slow_transactions(1000)
    assert [row["txn"] for row in slow] == [old]
    assert [row["txn"] for row in client.admin.slow_transactions(0, old.coordinator)] == [old]
    assert client.admin.slow_transactions(2000) == []  # older than the bound, not exactly as old


def test_locks_name_their_holder(bench: Bench) -> None:
    client = bench.client
    assert [(row["name"], row["held"]) for row in client.admin.locks()] == [
        ("write", False),
        ("flush", False),
        ("maintenance", False),
    ]
    with client.consumer("t", "s"):
        row = client.admin.locks()[3]
        assert (row["name"], row["subscription"], row["held"]) == ("consumer", "s", True)
        assert (row["pid"], row["since_time"]) == (os.getpid(), bench.clock.now().wall_ms)
        assert Path(bench.path, row["path"]).exists()
        readers = bench.another(read_only=True).admin.locks()
        assert [reader["held"] for reader in readers] == [False, False, False, True]
    assert len(client.admin.locks()) == 3


# --- the file of the node exporter -----------------------------------------------------------


def test_a_reader_sees_the_old_file_or_the_new(tmp_path: Path) -> None:
    """spec/cli 12.11: the file is replaced at once. Guards against a write in place."""
    path = tmp_path / "out.prom"
    texts = [f"{n}\n".encode() * 20_000 for n in (1, 2)]
    replace_file(str(path), texts[0])
    stop = threading.Event()
    seen: list[bytes] = []

    def watch() -> None:
        while not stop.is_set():
            seen.append(path.read_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        for text in texts:
            replace_file(str(path), text)
    stop.set()
    watcher.join()
    assert seen and set(seen) <= set(texts)
    assert os.listdir(tmp_path) == ["out.prom"]
    assert path.stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("call", ["fsync", "replace", "fdopen"])
def test_a_failure_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "out.prom"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(DiskFailed, match="No space left"):
        replace_file(str(path), b"new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.prom"]


def test_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "x.prom"
    target.write_text("old")
    link = tmp_path / "x.prom"
    link.symlink_to(target)
    replace_file(str(link), b"new")
    assert link.is_symlink() and target.read_text() == "new"


# --- dry runs --------------------------------------------------------------------------------


def frozen(path: str) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in Path(path).rglob("*") if p.is_file()}


def test_dry_run_gives_the_answer_of_the_call_and_changes_no_byte(bench: Bench) -> None:
    """spec/cli 4. Guards against a dry run that still takes a lock, flushes, sweeps or makes a
    checkpoint.
    """
    client = bench.client
    ids = send(client, b"a", b"b")
    txn, late = begin(client), begin(client, 1000)
    client.producer("t").send(b"x", txn=txn)
    client.acknowledge("t", "s", ids[:1], txn=txn)
    client.producer("t").send(b"y", txn=late)
    bench.clock.advance(2000)
    frozen_before = frozen(bench.path)
    dry = bench.another(dry_run=True)
    assert dry.create_topic("new") is True
    assert [row["topic"] for row in dry.topics()] == ["new", "t"]
    assert dry.acknowledge("t", "s", ids)["dropped"] == 1
    with pytest.raises(TransactionConflict):
        dry.acknowledge("t", "s", ids[1:], txn=begin(dry))
    with pytest.raises(TransactionTimedOut):
        dry.commit(late)
    planned = dry.commit(txn)
    assert dry.commit(txn)["already"]
    with pytest.raises(ReadOnlyStore):
        dry.producer("t").send(b"z")
    with pytest.raises(ReadOnlyStore):
        dry.checkpoint()
    dry.close()
    bench.clients.remove(dry)
    assert frozen(bench.path) == frozen_before
    done = client.commit(txn)
    for name in ("state", "messages", "acks", "already"):
        assert done[name] == planned[name]
    assert [row["topic"] for row in client.topics()] == ["t"]


def test_dry_run_after_a_reboot_includes_the_recovery(bench: Bench) -> None:
    """R9: recovery would abort open transactions before the call, so the dry run counts them as
    aborted.
    """
    txn = begin(bench.client)
    bench.client.flush()
    bench.close()
    bench.clock.reboot("another boot")
    frozen_before = frozen(bench.path)
    dry = bench.another(dry_run=True)
    with pytest.raises(InvalidTxnStatus, match="recovery"):
        dry.commit(txn)
    assert frozen(bench.path) == frozen_before
