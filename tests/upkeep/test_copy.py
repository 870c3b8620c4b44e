"""A store is copied as it is at one LSN while others write; an unfinished copy is no store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import Bench, begin, send, send_txn, values
from tests.harness import KILLED, Children, python, ready, run
from tests.tiers import graded
from txlog import Bound, Client
from txlog.cli.main import main
from txlog.errors import (
    AlreadyExists,
    Corruption,
    InvalidArgument,
    ReadOnlyStore,
    StoreLocked,
    StoreNotFound,
)
from txlog.lake.sql.client_query import Query

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Rows in all kinds of files: sealed, parts, frames, buckets; some trimmed, some
    acknowledged.
    """
    new_bench = Bench(tmp_path / "store", ledger_entries_max=3, reader_grace_ms=0, coordinators=1)
    client = new_bench.client
    for topic in ("t", "u"):
        client.create_topic(topic, partitions=2)
    client.create_subscription("t", "s", type="shared")
    sent = send(client, *(b"%d" % number for number in range(10)))
    client.checkpoint()
    client.admin.trim("t", Bound("id", sent[4]), force_unacked=True)
    send_txn(client, b"a", b"b", topic="u")
    client.producer("t").send(b"late", partition=1, deliver_after=3_600_000)
    client.acknowledge("t", "s", sent[6:8])
    client.checkpoint(roll_all=True)
    send(client, b"in", b"frames")
    send_txn(client, b"c", topic="t", partition=1)
    yield new_bench
    new_bench.close()


def rows(client: Client, lsn: int | None = None) -> list[dict[str, object]]:
    """Every message, up to an LSN if one is given."""
    only = "" if lsn is None else f"WHERE lsn <= {lsn}"
    with Query(client, f"FROM messages {only} ORDER BY topic, ledger, entry, txn_index") as query:
        found_rows: list[dict[str, object]] = query.rows().read_all().to_pylist()
        return found_rows


def check(path: str) -> None:
    """Verify finds nothing wrong with a copy, not even a warning that upkeep would clear."""
    report = txlog.verify(path, deep=True)
    assert (report["errors"], report["warnings"]) == (0, 0), report["problem_list"]


def test_a_copy_is_the_store_at_its_lsn(bench: Bench, tmp_path: Path) -> None:
    dest, reports = str(tmp_path / "copy"), list[tuple[int, int]]()
    answer = bench.client.copy(dest, verify=True, tell=lambda done, of: reports.append((done, of)))
    assert (answer["path"], answer["verified"], answer["offloaded"]) == (dest, True, 0)
    assert reports[-1] == (answer["size_bytes"], answer["size_bytes"])
    assert len(reports) == answer["files"]
    check(dest)
    rows_before = rows(bench.client)
    send(bench.client, b"later")
    with txlog.open(dest, clock=bench.clock) as copied:
        assert copied.status()["store"]["uuid"] == answer["uuid"]
        assert copied.status()["journal"]["lsn"] == answer["lsn"]
        assert rows(copied) == rows_before == rows(bench.client, answer["lsn"])
        assert [s["backlog"] for s in copied.subscriptions()] == [
            s["backlog"] - 1 for s in bench.client.subscriptions()
        ]
        send(copied, b"its own")
        copied.checkpoint(roll_all=True)
    check(dest)
    assert b"its own" not in values(bench.client)


def test_a_store_without_a_checkpoint_is_copied(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    send(bench.client, b"1")
    bench.client.copy(str(tmp_path / "copy"))
    check(str(tmp_path / "copy"))
    with txlog.open(str(tmp_path / "copy"), clock=bench.clock) as copied:
        assert values(copied) == [b"1"]


def test_the_first_writer_of_a_copy_aborts_open_transactions(bench: Bench, tmp_path: Path) -> None:
    """Its client uses the first store, where the transaction goes on."""
    txn = begin(bench.client)
    bench.client.producer("t").send(b"open", partition=0, txn=txn)
    bench.client.copy(str(tmp_path / "copy"))
    with txlog.open(str(tmp_path / "copy"), clock=bench.clock) as copied:
        send(copied, b"first")
        assert copied.show_transaction(txn)["state"] == "aborted"
        assert copied.reports() == ["this copy was made while transactions were open: 1 aborted"]
    bench.client.commit(txn)
    assert b"open" in values(bench.client)


def test_files_that_upkeep_lets_go_meanwhile_are_copied(bench: Bench, tmp_path: Path) -> None:
    """R18: the files are pinned. Guards against a copy that fails on a missing file."""
    dest, other, steps = str(tmp_path / "copy"), bench.another(), 0

    def upkeep(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:  # the journals and the manifests are copied already
            send(other, b"meanwhile")
            other.admin.trim("t", Bound("end"), force_unacked=True)
            for _ in range(3):
                other.checkpoint(roll_all=True)
                other.admin.gc(apply=True, keep_ms=0)
                send(other, b"more")

    rows_before = rows(bench.client)
    answer = bench.client.copy(dest, tell=upkeep)
    assert steps == answer["files"] > 8
    check(dest)
    with txlog.open(dest, clock=bench.clock) as copied:
        assert rows(copied) == rows_before


def test_an_unfinished_copy_is_no_store_and_is_replaced(bench: Bench, tmp_path: Path) -> None:
    dest = str(tmp_path / "copy")
    files = bench.client.copy(str(tmp_path / "whole"))["files"]
    for remaining in range(1, files):

        def stop(done: int, total: int, remaining: list[int] = [remaining]) -> None:  # noqa: B006
            remaining[0] -= 1
            if not remaining[0]:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bench.client.copy(dest, tell=stop)
        with pytest.raises(StoreNotFound):
            txlog.open(dest)
        with pytest.raises(AlreadyExists):
            txlog.init(dest)
    send(bench.client, b"since")
    bench.client.checkpoint(roll_all=True)
    bench.client.copy(dest, verify=True)
    check(dest)


def test_a_place_that_is_taken_is_refused(bench: Bench, tmp_path: Path) -> None:
    client = bench.client
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(AlreadyExists):
        client.copy(str(tmp_path / "full"))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    with pytest.raises(InvalidArgument, match="in the store itself"):
        client.copy(f"{bench.path}/copy")
    (tmp_path / "link").symlink_to(bench.path)
    with pytest.raises(InvalidArgument, match="in the store itself"):
        client.copy(str(tmp_path / "link" / "copy"))
    client.copy(str(tmp_path / "copy"))
    with pytest.raises(AlreadyExists, match="is a store already"):
        client.copy(str(tmp_path / "copy"))
    with pytest.raises(ReadOnlyStore):
        bench.another(read_only=True).copy(str(tmp_path / "other"))

    def second(done: int, total: int) -> None:
        with pytest.raises(StoreLocked):
            bench.another(lock_timeout_ms=0).copy(str(tmp_path / "third"))

    client.copy(str(tmp_path / "third"), tell=second)
    (tmp_path / "empty").mkdir()
    client.copy(str(tmp_path / "empty"))
    check(str(tmp_path / "empty"))


def test_a_damaged_file_is_not_copied(bench: Bench, tmp_path: Path) -> None:
    [file, *_] = Path(bench.path).rglob("*.parquet")
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    with pytest.raises(Corruption, match="damaged"):
        bench.client.copy(str(tmp_path / "copy"))
    with pytest.raises(StoreNotFound):
        txlog.open(str(tmp_path / "copy"))


def test_a_copy_that_does_not_verify_is_no_store(bench: Bench, tmp_path: Path) -> None:
    """No program takes it for a store, and the next copy to that place starts over."""
    dest = str(tmp_path / "copy")

    def damage(done_bytes: int, total_bytes: int) -> None:
        for file in Path(dest).rglob("*.parquet"):
            data = bytearray(file.read_bytes())
            data[40] ^= 1
            file.chmod(0o600)
            file.write_bytes(data)

    with pytest.raises(Corruption, match="not good"):
        bench.client.copy(dest, verify=True, tell=damage)
    assert not Path(dest, "txlog.toml").exists()
    bench.client.copy(dest, verify=True)
    check(dest)


def test_a_copy_removes_nothing_outside(bench: Bench, tmp_path: Path) -> None:
    """Offloaded files belong to the first store, which still needs them."""
    (tmp_path / "far").mkdir()
    bench.client.admin.offload("u", str(tmp_path / "far"))
    outside = {path for path in (tmp_path / "far").rglob("*") if path.is_file()}
    assert outside
    answer = bench.client.copy(str(tmp_path / "copy"))
    assert answer["offloaded"] == len(outside)
    with txlog.open(str(tmp_path / "copy"), clock=bench.clock) as copied:
        assert values(copied, "u") == values(bench.client, "u") != []
        copied.admin.trim("u", Bound("end"), force_unacked=True)
        copied.checkpoint()
        copied.admin.gc(apply=True, keep_ms=0)
        copied.checkpoint()
    assert {path for path in (tmp_path / "far").rglob("*") if path.is_file()} == outside
    assert values(bench.client, "u")


@pytest.mark.parametrize("left", graded(range(1, 160, 5), (41,)))
def test_a_copy_that_is_killed_leaves_no_store(bench: Bench, tmp_path: Path, left: int) -> None:
    dest = str(tmp_path / "copy")
    done = run(ready("copy_store", bench.path, dest, left), code=None)
    if done.returncode == 0:
        check(dest)
        return
    assert done.returncode == KILLED
    if not Path(dest, "txlog.toml").exists():
        with pytest.raises(StoreNotFound):
            txlog.open(dest)
        bench.client.copy(dest)
    check(dest)
    bench.client.admin.gc(apply=True)  # it removes the pin of the dead process
    check(bench.path)


@pytest.mark.deep
def test_copies_made_while_four_processes_write_are_whole(tmp_path: Path) -> None:
    """Each copy is the store at its LSN, without half a transaction; the writers die by SIGKILL."""
    path = str(tmp_path / "store")
    txlog.init(path, durability="os", free_bytes_min=0, reader_grace_ms=0)
    copies = []
    with txlog.open(path) as client:
        for topic in ("t", "u"):
            client.create_topic(topic, partitions=2)
        with Children() as children:
            commands = [python("copied_writer", number, path) for number in range(4)]
            writers = [children.start(command) for command in commands]
            for copy in range(4):
                for writer in writers[: 4 - copy]:
                    for _ in range(15):
                        writer.line()
                copies.append(client.copy(str(tmp_path / f"copy-{copy}")))
                writers[3 - copy].kill()
        for answer in copies:
            check(answer["path"])
            with txlog.open(answer["path"]) as copied:
                found_rows = rows(copied)
                assert found_rows == rows(client, answer["lsn"])
                of_txns = [
                    {
                        row["value"]
                        for row in found_rows
                        if row["topic"] == topic and row["txn_index"]
                    }
                    for topic in ("t", "u")
                ]
                assert of_txns[0] == of_txns[1] != set()


def test_the_command_copies(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dest = str(tmp_path / "copy")
    assert main(["copy", dest, "-S", bench.path, "--verify"]) == 0
    output = capfd.readouterr()
    assert "copied" in output.err and output.out.count("\n") <= 8
    assert main(["copy", dest, "-S", bench.path]) == 4
    assert main(["copy", "-S", bench.path]) == 2
