"""Repair: without loss wherever the journal or older files suffice; otherwise counted and recorded.

R3, R13, R14; Laws 1, 2, 6. The store of the corruption suite, with one damage at a time.
"""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.crash.test_corruption import SEED, damages, files_of, read_all, sample, truth
from tests.crash.world import TOPIC, open_client, read_messages
from tests.disk.memory import Killed, MemoryDisk
from tests.engine_kit import Bench, read, send, send_txn, values
from tests.harness import Child, run, txlog_of
from tests.tiers import graded
from txlog import Client
from txlog.base.ranges import Bound
from txlog.base.rows.store import Repaired
from txlog.client.answers.integrity import repair_disk, verify_disk
from txlog.clock import ManualClock
from txlog.engine.upkeep.repair.plan import make_plan, perform
from txlog.errors import DiskFailed, ExpiredTransaction, InvalidTxnStatus, ProducerFenced, Refused

pytestmark = pytest.mark.usefixtures("quick_disk")
NO_WITNESS = ("zeroed", "deleted", "that of another store")
# Kinds of files of the sample store that repair restores without loss: files of its newest
# checkpoint, and all derived files.
LOSSLESS = ("manifest", "state", "part", "side part", "witness", "reserve")


def clock_of() -> ManualClock:
    clock = open_client(sample().copy()).store.clock
    assert isinstance(clock, ManualClock)
    return clock


def actions(answer: Repaired) -> list[str]:
    return list(dict.fromkeys(one["action"] for one in answer["action_list"]))


def damaged(path: str, data: bytes | None) -> MemoryDisk:
    disk = sample().copy()
    disk.damage(path, data)
    return disk


@pytest.mark.parametrize("kind", graded(LOSSLESS, ("witness", "side part")))
def test_files_that_can_be_derived_are_made_again(kind: str) -> None:
    """Every message, cursor and transaction is as before; a deep verify is silent."""
    rng, clock, repaired = random.Random(f"{SEED} repair {kind}"), clock_of(), 0
    for path in files_of(kind):
        every = list(damages(path, rng))
        tried = 9 if kind in ("witness", "reserve") else 2
        for what, data in rng.sample(every, min(tried, len(every))):
            if data == sample().read(path) or (kind == "witness" and what in NO_WITNESS):
                continue  # without any witness this may be another boot, so R9 aborts
            disk = damaged(path, data)
            plan = repair_disk(disk, clock, apply=False)
            assert disk.files() == damaged(path, data).files(), "a plan changes nothing"
            done = repair_disk(disk, clock, apply=True)
            where = f"seed {SEED}: {path} {what}: {actions(done)}"
            assert done["messages_lost"] == 0, where
            assert not plan["action_list"] or all(one["done"] for one in done["action_list"]), where
            found = verify_disk(disk, clock, deep=True)
            assert found["errors"] == 0, (where, found["problem_list"])
            assert read_all(open_client(disk)) == truth(False), where
            assert repair_disk(disk, clock, apply=False)["action_list"] == [], where
            repaired += bool(done["action_list"])
    assert repaired


def test_a_file_that_was_sealed_since_is_made_from_its_parts(tmp_path: Path) -> None:
    """The checkpoint before the seal still names the parts of the partition and the sidecar."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    send(client, b"a", b"b")
    send_txn(client, b"x", b"y")
    client.checkpoint(roll_all=True)
    client.close()
    sealed = sorted(Path(bench.path, "topics").rglob("ledger-*.parquet"))
    assert len(sealed) == 2
    for path in sealed:
        path.write_bytes(path.read_bytes()[:100])
    assert txlog.verify(bench.path, clock=bench.clock)["errors"] == 2
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert (actions(done)[0], done["messages_lost"]) == ("rebuild-file", 0)
    assert values(bench.reopen()) == [b"a", b"b", b"x", b"y"]
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0
    bench.close()


@pytest.mark.parametrize("idle", [False, True])
def test_the_newest_state_is_rebuilt_after_a_trim_and_a_sweep(tmp_path: Path, idle: bool) -> None:
    """Repair rebuilds it before any checkpoint, which would drop the older files; gc keeps
    those.
    """
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    send(client, b"a", b"b", b"c")
    client.checkpoint(roll_all=True)
    send(client, b"d")
    client.admin.trim("t", Bound("end"))
    send(client, b"kept")
    client.checkpoint()
    if idle:
        bench.clock.advance(2 * 3_600_000)
        client.checkpoint()
        client.admin.gc(apply=True)
    else:
        client.admin.gc(apply=True, keep_ms=0)
    client.close()
    assert not list(Path(bench.path, "topics").rglob("ledger-*.parquet")), (
        "trimmed: nobody needs it"
    )
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["problem_list"] == []
    max(Path(bench.path, "state").iterdir()).unlink()
    plan = txlog.repair(bench.path, clock=bench.clock)
    assert actions(plan) == ["rebuild-state"]
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert (actions(done), done["messages_lost"]) == (["rebuild-state"], 0)
    assert values(bench.reopen()) == [b"kept"]
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["problem_list"] == []
    bench.close()


def test_no_checkpoint_is_written_over_a_dump_that_is_missing(tmp_path: Path) -> None:
    """A second checkpoint would name the missing dump, and drop the manifest that can
    rebuild it.
    """
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    send(client, b"a")
    client.checkpoint()
    send(client, b"b")
    client.checkpoint()
    newest = max(Path(bench.path, "state").iterdir())
    before = {path.name for path in Path(bench.path, "manifest").iterdir()}
    data = newest.read_bytes()
    send(client, b"c")
    for damaged_one in (None, data[:-1]):
        newest.unlink()
        if damaged_one is not None:
            newest.write_bytes(damaged_one)
        with pytest.raises(txlog.errors.IntegrityError, match="no checkpoint is written") as caught:
            client.checkpoint()
        assert "admin repair" in (caught.value.hint or "")
        newest.write_bytes(data)
    assert {path.name for path in Path(bench.path, "manifest").iterdir()} == before
    assert client.checkpoint()["generation"] > 2
    bench.close()


def lossy_store(bench: Bench) -> tuple[Client, Path]:
    """A sealed ledger of several row groups whose parts are removed; returns its file."""
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s")
    big = b"x" * 5_000_000
    ids = send(client, b"first", big, big, big, b"last")
    client.acknowledge("t", "s", ids[:1])
    client.checkpoint(roll_all=True)
    send(client, b"more")
    client.checkpoint()
    send(client, b"tail")
    client.checkpoint()
    return client, next(Path(bench.path, "topics").rglob("ledger-*.parquet"))


def test_a_loss_is_refused_counted_and_recorded(tmp_path: Path) -> None:
    """Good row groups stay. A lost message keeps its id, without a value, and has the reason."""
    bench = Bench(tmp_path / "store", reader_grace_ms=0)
    client, path = lossy_store(bench)
    before = [str(m.message_id) for m in read(client)]
    client.close()
    data = bytearray(path.read_bytes())
    data[200] ^= 1  # the first row group
    path.write_bytes(data)
    with pytest.raises(Refused) as caught:
        txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert caught.value.code == 902
    assert path.read_bytes() == data, "nothing was done"
    plan = txlog.repair(bench.path, clock=bench.clock)
    assert actions(plan)[0] == "salvage-file"
    done = txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    lost = done["messages_lost"]
    assert lost is not None
    assert 1 <= lost < 5
    assert plan["messages_lost"] == lost
    client = bench.reopen()
    found = read(client)
    assert [str(m.message_id) for m in found] == before
    empty = [m for m in found if m.value is None]
    assert len(empty) == lost
    assert all("was damaged" in (m.properties or {})["txlog.lost"] for m in empty)
    assert [m.value for m in found if m.value is not None][-2:] == [b"more", b"tail"]
    problems = client.status()["problem_list"]
    assert any(one["code"] == "loss" and f"{lost} messages" in one["message"] for one in problems)
    warned = txlog.verify(bench.path, deep=True, clock=bench.clock)
    assert (warned["errors"], [one["code"] for one in warned["problem_list"]]) == (
        0,
        ["quarantine", "loss"],
    )
    assert send(client, b"goes on")
    bench.close()


def test_a_quarantined_partition_comes_back_by_repair(tmp_path: Path) -> None:
    """A reader found the damage; once no file is damaged any more, repair brings the partition
    back.
    """
    bench = Bench(tmp_path / "store", reader_grace_ms=0)
    client, path = lossy_store(bench)
    good = path.read_bytes()
    client.close()
    path.write_bytes(good[:300])
    client = bench.reopen()
    with pytest.raises(txlog.errors.IntegrityError):
        read(client)
    assert client.describe_topic("t")["partition_list"][0]["online"] is False
    client.close()
    path.write_bytes(good)
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert "bring-online" in actions(done)
    client = bench.reopen()
    assert len(read(client)) == 7
    assert client.describe_topic("t")["partition_list"][0]["online"] is True
    bench.close()


def journal_damage(bench: Bench) -> tuple[list[str], Any]:
    """Damage a frame in the middle of the live journal; returns the ids before it, a fenced txn."""
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    send(client, b"safe", b"too")
    client.checkpoint()
    send(client, b"before")
    kept = [str(m.message_id) for m in read(client)]
    open_one = client.begin(600_000, key="nightly")["txn"]
    client.producer("t").send(b"held", txn=open_one)
    client.flush()
    at = client.status()["journal"]["size_bytes"]
    lost = send(client, b"lost 1", b"lost 2", partition=1)
    client.acknowledge("t", "s", lost)
    send_txn(client, b"lost 3")
    client.close()
    path = max(Path(bench.path, "journal").glob("*.journal"))
    data = bytearray(path.read_bytes())
    data[at + 70] ^= 4
    path.write_bytes(data)
    return kept, open_one


def test_the_journal_is_cut_before_the_damage(tmp_path: Path) -> None:
    """Law 2: the frames before it are a legal state; Law 6: no number is given out twice."""
    bench = Bench(tmp_path / "store")
    kept, open_one = journal_damage(bench)
    with pytest.raises(txlog.errors.Corruption) as asked:
        bench.another().status()
    assert "txlog admin repair" in (asked.value.hint or "")
    with pytest.raises(Refused, match="an unknown number of messages"):
        txlog.repair(bench.path, apply=True, clock=bench.clock)
    done = txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    first = done["action_list"][0]
    assert (first["action"], first["done"]) == ("cut-journal", True)
    assert first["messages_lost"] is done["messages_lost"] is None, "one frame cannot be read"
    assert (
        "2 messages known to be lost; what was in 1 frame that cannot be read is unknown"
        in (first["detail"])
    )
    client = bench.another()
    assert [str(m.message_id) for m in read(client)] == kept
    status = client.status()
    assert first["last"] is not None
    assert status["journal"]["lsn"] > first["last"], "an LSN would be used again"
    assert any(one["code"] == "loss" for one in status["problem_list"])
    new = send(client, b"new")[0]
    assert new.ledger > 1_000_000, "an entry would be used again"
    with pytest.raises((ExpiredTransaction, InvalidTxnStatus, ProducerFenced)):
        client.producer("t").send(b"late", txn=open_one)
    assert client.connect("nightly")["epoch"] == 2
    assert send_txn(client, b"x")[1]
    found = txlog.verify(bench.path, deep=True, clock=bench.clock)
    assert (found["errors"], {one["code"] for one in found["problem_list"]}) == (
        0,
        {"loss", "void"},
    )
    bench.close()


def test_a_missing_journal_loses_only_its_own_frames(tmp_path: Path) -> None:
    """The checkpoint has everything before; without later frames nothing is lost."""
    bench = Bench(tmp_path / "store")
    journal_damage(bench)
    path = max(Path(bench.path, "journal").glob("*.journal"))
    path.unlink()
    with pytest.raises(Refused):
        txlog.repair(bench.path, apply=True, clock=bench.clock)
    done = txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    assert actions(done)[:2] == ["rebuild-journal", "cut-journal"]
    client = bench.another()
    assert values(client) == [b"safe", b"too"]
    assert send(client, b"new")[0].ledger > 1_000_000
    client.checkpoint()
    client.close()
    max(Path(bench.path, "journal").glob("*.journal")).unlink()
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert actions(done)[0] == "rebuild-journal"
    assert values(bench.another()) == [b"safe", b"too", b"new"]
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0
    bench.close()


@pytest.mark.parametrize("kind", ["sealed", "sealed side"])
def test_a_salvaged_file_keeps_every_id(kind: str) -> None:
    """Counts, markers, transactions and cursors agree as before: a deep verify is silent."""
    rng, clock = random.Random(f"{SEED} salvage {kind}"), clock_of()
    whole = [(m.partition, str(m.message_id)) for m in every(sample().copy())]
    salvaged = 0
    for path in files_of(kind):
        what, data = rng.choice([one for one in damages(path, rng) if one[1] is not None][:20])
        disk = damaged(path, data)
        if data == sample().read(path):
            continue
        done = repair_disk(disk, clock, apply=True, accept_loss=True)
        found = every(disk)
        assert [(m.partition, str(m.message_id)) for m in found] == whole, (path, what)
        assert 0 < sum(m.value is None for m in found) == done["messages_lost"]
        assert verify_disk(disk, clock, deep=True)["errors"] == 0, (path, what)
        salvaged += 1
    assert salvaged


@pytest.mark.parametrize("kind", ["sealed", "sealed side"])
def test_nothing_is_replaced_that_cannot_be_kept(kind: str) -> None:
    """R4: repair replaces a damaged file only after a copy of it is in the quarantine."""
    path, clock = files_of(kind)[0], clock_of()
    data = sample().read(path)
    disk = damaged(path, data[: len(data) // 2] + b"\xff" * (len(data) - len(data) // 2))
    before = disk.files()[path]
    victim = disk.process()

    def step(op: str, path: str, **info: int) -> None:
        if op == "link" and path.startswith("quarantine/"):
            raise OSError(errno.EIO, "Input/output error")

    victim.step = step
    with pytest.raises(DiskFailed):
        repair_disk(victim, clock, apply=True, accept_loss=True)
    assert disk.files()[path] == before
    done = repair_disk(disk, clock, apply=True, accept_loss=True)
    assert done["action_list"]
    assert any(name.startswith("quarantine/") for name in disk.files())


def every(disk: MemoryDisk) -> list[Any]:
    return list(read_messages(open_client(disk.copy()), TOPIC))


def test_a_checkpoint_of_another_makes_a_plan_void() -> None:
    """Law 6: repair never makes a manifest from an older one than the newest."""
    clock = clock_of()
    path = "state/0000000003.state"
    data = sample().read(path)
    disk = damaged(path, data[:40] + b"\xff\xfe" + data[42:])
    plan = make_plan(disk, clock)
    repair_disk(disk.process(), clock, apply=True)  # another process, between look and lock
    before = disk.files()
    assert perform(disk, clock, plan, 1000) is None
    plan.close()
    assert {name: data for name, data in disk.files().items() if not name.endswith("lock")} == {
        name: data for name, data in before.items() if not name.endswith("lock")
    }
    assert read_all(open_client(disk)) == truth(False)


def test_rebuilding_everything_changes_no_answer() -> None:
    """--rebuild all on a sound store: Law 1."""
    clock, disk = clock_of(), sample().copy()
    done = repair_disk(disk, clock, apply=True, rebuild="all")
    assert "rebuild-state" in actions(done)
    assert done["messages_lost"] == 0
    assert read_all(open_client(disk)) == truth(False)
    assert verify_disk(disk, clock, deep=True)["errors"] == 0


def test_a_file_that_cannot_be_made_again_is_reported_and_left() -> None:
    """No other file has the identity of the store."""
    disk, clock = damaged("txlog.toml", b"no store"), clock_of()
    before = disk.files()
    done = repair_disk(disk, clock, apply=True, accept_loss=True)
    assert [(one["action"], one["done"]) for one in done["action_list"]] == [("restore", False)]
    assert disk.files() == before


def first_part() -> str:
    return next(path for path in files_of("part") if path.startswith("topics/"))


KILLED: list[tuple[str, Any]] = [
    ("manifest/0000000003.manifest", lambda data: data[:30] + b"x" + data[31:]),
    ("state/0000000003.state", lambda data: data[:40] + b"\xff\xfe" + data[42:]),
    ("part", lambda data: data[:100]),
    ("journal", lambda data: data[:3000] + b"damage" + data[3006:]),
]


@pytest.mark.parametrize(
    "stride", [pytest.param(31, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("path", "change"), KILLED, ids=[one[0] for one in KILLED])
def test_a_repair_that_is_killed_anywhere_is_done_by_the_next(
    path: str, change: Any, stride: int
) -> None:
    """kill -9 before each call with an effect: a second repair ends like a single one."""
    clock = clock_of()
    path = first_part() if path == "part" else path
    path = max(files_of("journal")) if path == "journal" else path
    disk = damaged(path, change(sample().read(path)))
    whole = disk.copy()
    done = repair_disk(whole, clock, apply=True, accept_loss=True)
    expected, at = outcome(whole), stride // 2
    while True:
        one = disk.copy()
        left = [at]

        def step(op: str, path: str, **info: int) -> None:
            left[0] -= 1  # noqa: B023
            if left[0] < 0:  # noqa: B023
                raise Killed

        victim = one.process()
        victim.step = step
        try:
            repair_disk(victim, clock, apply=True, accept_loss=True)
        except Killed:
            pass
        else:
            break
        repair_disk(one, clock, apply=True, accept_loss=True)
        assert outcome(one) == expected, f"killed before call {at}"
        assert verify_disk(one, clock, deep=True)["errors"] == 0, f"killed before call {at}"
        at += stride
    assert at > 10
    assert done["action_list"]


def outcome(disk: MemoryDisk) -> list[tuple[object, ...]]:
    client = open_client(disk.copy())
    return [(m.partition, m.value, str(m.message_id)) for m in read_messages(client, TOPIC)]


@pytest.mark.slow
def test_real_processes_killed_amid_a_repair(tmp_path: Path) -> None:
    """SIGKILL during `txlog admin repair --apply`, several times, then a repair without a kill."""
    bench = Bench(tmp_path / "store")
    kept, _ = journal_damage(bench)
    rng = random.Random(SEED)
    for turn in range(12):
        path = tmp_path / f"copy{turn}"
        shutil.copytree(bench.path, path)
        command = txlog_of(path, "admin", "repair", "--apply", "--accept-loss")
        for _ in range(3):
            with Child(command) as child, suppress(subprocess.TimeoutExpired):
                child.process.wait(rng.uniform(0.15, 0.7))
        run(command)
        assert txlog.verify(str(path), deep=True)["errors"] == 0, f"seed {SEED}, turn {turn}"
        with txlog.open(str(path)) as client:
            assert [str(m.message_id) for m in read(client)] == kept
