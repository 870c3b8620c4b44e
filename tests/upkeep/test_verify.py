"""Verify: silent about sound stores, an error or warning for every damage and contradiction.

Law 1 and Law 4 on stored bytes; promise 5 of the design: verify flags every flipped, cut or lost
file. Damages that carry nothing according to docs/format.md are left out: the length of the zeros
after the journal, and state files that only wait to be unlinked.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from crc32c import crc32c

import txlog
from tests.crash.test_corruption import KINDS, SEED, damages, files_of, sample
from tests.crash.world import TOPIC, open_client
from tests.engine_kit import Bench, begin, read, send, send_txn
from tests.laws.history import random_history
from txlog.client.answers.integrity import verify_disk
from txlog.engine.folds.buffer import Buffer
from txlog.engine.folds.coordinator import Coordinator, EndedTxns
from txlog.engine.folds.cursor import Cursor
from txlog.engine.folds.delayed import Delayed
from txlog.engine.folds.topic import Topic
from txlog.engine.folds.transaction_key import Keys
from txlog.engine.folds.watermark import ActiveProducer, Watermark
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.manifest import (
    encode_manifest,
    generations,
    manifest_path,
    read_manifest,
)
from txlog.engine.storage.segment import encode_part, make_ref
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.verify.journal import check_journals
from txlog.engine.view import FOLDS
from txlog.errors import TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 25))]
)
def test_a_sound_store_has_no_findings(tmp_path: Path, seed: int) -> None:
    """Every kind of call with checkpoints between: verify finds nothing, and changes nothing."""
    bench = Bench(tmp_path / "store")
    random_history(bench, seed, checkpoints=True)
    files_before = contents(bench.path)
    report = txlog.verify(bench.path, deep=True, clock=bench.clock)
    assert (report["problem_list"], report["errors"], report["warnings"]) == ([], 0, 0)
    assert contents(bench.path) == files_before
    waiting = waiting_for_their_end(bench)
    on_disk = sum(
        len(data)
        for path, data in files_before.items()
        if path not in waiting and "/_stage/" not in path  # files of no batch yet
    )
    assert report["size_bytes"] >= on_disk * 0.9, "not every file was read"
    bench.close()


def waiting_for_their_end(bench: Bench) -> set[str]:
    """Files that no reader uses any more; verify may read them or not."""
    disk = PosixDisk(bench.path, read_only=True)
    salt = bench.client.store.identity.salt
    newest = read_manifest(disk, generations(disk)[-1], salt)
    disk.close()
    return {path for path, _ in newest.dropped}


def contents(path: str) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in Path(path).rglob("*") if p.is_file()}


def carries_nothing(path: str, label: str) -> bool:
    """Damages that no promise covers; docs/format.md 2, 4 and 7."""
    if path == "state/0000000001.state":
        return True  # dropped: it waits for its grace
    if path == "reserve":
        return label.startswith("cut") or label == "longer by zeros"
    if path.startswith("state/"):
        return label.startswith("longer")
    if not path.endswith(".journal"):
        return False
    cut = re.fullmatch(r"cut to (\d+)", label)
    frames = len(sample().read(path).rstrip(b"\0"))  # but for the padding of the last one
    return label == "longer by zeros" or (cut is not None and int(cut[1]) >= frames + 8)


@pytest.mark.parametrize("kind", KINDS)
def test_every_damage_is_flagged(kind: str) -> None:
    """One bit, a cut, a block, the whole file: an error, or a warning where nothing is lost."""
    rng = random.Random(f"{SEED} verify {kind}")
    clock = open_client(sample().copy()).store.clock
    flagged = 0
    for path in files_of(kind):
        all_damages = [case for case in damages(path, rng) if not carries_nothing(path, case[0])]
        for label, data in all_damages[:: 6 if len(all_damages) > 30 else 2]:
            if data == sample().read(path):
                continue
            disk = sample().copy()
            disk.damage(path, data)
            report = verify_disk(disk, clock)
            assert report["problem_list"], f"seed {SEED}: SILENT about {path} {label}"
            reported_paths = [row["path"] or "" for row in report["problem_list"]]
            assert path == "txlog.toml" or any(case in path for case in reported_paths), (
                path,
                label,
                reported_paths,
            )
            flagged += 1
    assert flagged


@pytest.mark.parametrize("kind", ["part", "sealed", "side part", "sealed side"])
def test_a_lost_row_is_an_error(kind: str) -> None:
    """A damage to a file of the newest checkpoint is never only a warning."""
    clock = open_client(sample().copy()).store.clock
    live = open_client(sample().copy()).store.read(
        lambda view: {ref.path for ledger in view.catalog.owners for ref in view.files.of(ledger)}
    )
    for path in files_of(kind):
        if path.startswith("system/"):
            continue
        disk = sample().copy()
        data = disk.read(path)
        disk.damage(path, data[:60] + bytes([data[60] ^ 1]) + data[61:])
        report = verify_disk(disk, clock)
        assert bool(report["errors"]) is (path in live)
        row = report["problem_list"][0]
        assert (row["path"], row["topic"]) == (path, TOPIC)
        assert row["code"] == ("TXL-601" if path in live else "predecessor")


def test_a_durable_frame_is_an_error_and_an_unfinished_one_is_not() -> None:
    """Promise 6: a frame that was durable is rotten, any other one is torn."""
    clock = open_client(sample().copy()).store.clock
    path = max(files_of("journal"))
    data = sample().read(path)
    used = len(data.rstrip(b"\0"))
    for at in (560, used // 2, used - 20):
        disk = sample().copy()
        disk.damage(path, data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])
        [row] = [
            problem
            for problem in verify_disk(disk, clock)["problem_list"]
            if problem["path"] == path
        ]
        assert (row["severity"], row["code"]) == ("error", "TXL-602"), at
        assert "were durable and cannot be read" in row["message"]
    disk = sample().copy()
    end = (used + 7) // 8 * 8
    disk.damage(path, data[:end] + b"TXLF" + bytes(8) + b"half" + data[end + 16 :])
    report = verify_disk(disk, clock)
    assert (report["errors"], [problem["code"] for problem in report["problem_list"]]) == (
        0,
        ["tail"],
    )


# --- components that disagree ----------------------------------------------------------------


def edited(bench: Bench, kind: str, a: int | None, change: Callable[[Any], None]) -> None:
    """Write the newest checkpoint anew with one state changed, so that every checksum is right.

    a: the number of the component; None: there is only one, whose number depends on the user
    """
    disk = PosixDisk(bench.path)
    salt = bench.client.store.identity.salt
    generation = generations(disk)[-1]
    manifest = read_manifest(disk, generation, salt)
    at = next(n for n, ref in enumerate(manifest.dumps) if ref.kind == kind and a in (None, ref.a))
    ref = manifest.dumps[at]
    path = Path(bench.path, ref.path)
    data = path.read_bytes()
    state = FOLDS[kind].load(data[ref.offset : ref.offset + ref.length])
    change(state)
    blob = FOLDS[kind].dump(state)
    manifest.dumps[at] = msgspec.structs.replace(
        ref, offset=len(data), length=len(blob), crc=crc32c(blob)
    )
    path.write_bytes(data + blob)
    Path(bench.path, manifest_path(generation)).write_bytes(encode_manifest(manifest, salt))
    disk.close()


def _messages(state: Topic) -> None:
    state.ledgers[-1].messages += 1


def _marker(state: Buffer) -> None:
    for marker in state.markers.values():
        marker[0] = msgspec.structs.replace(marker[0], sequence=marker[0].sequence + 1)


def _lost_marker(state: Buffer) -> None:
    state.markers.clear()


def _range(state: Buffer) -> None:
    for range_entry in state.held.values():
        for entry in range_entry.values():
            ledger, row, rows, index = entry.ranges[0]
            entry.ranges[0] = (ledger, row, rows, index + 1)


def _mark_delete(state: Cursor) -> None:
    state.mark_delete = (1, 99, 0)


def _acked(state: Cursor) -> None:
    state.acked.add((1, 50, 51, 0, 0))


def _pending(state: Cursor) -> None:
    for entry in state.pending.values():
        entry.count += 1


def _in_hand(state: Cursor) -> None:
    state.leases.lease(77, [(1, 2, 2, 0, 0)], None)


def _ended(state: Coordinator) -> None:
    for txn in list(state.unfinished.values()):
        txn.status = "ABORTED"
        state.ended.put(state.unfinished.pop(txn.sequence))


def _markers_of_txn(state: Coordinator) -> None:
    ended_txns = list(state.ended.values())
    for txn in ended_txns:
        txn.markers = tuple(
            (number, ledger, entry, count + 1) for number, ledger, entry, count in txn.markers
        )
    state.ended = EndedTxns(ended_txns)


def _bound(state: Keys) -> None:
    for entry in state.of.values():
        for txn_id in entry.values():
            txn_id.sequence = -1


def _delayed(state: Delayed) -> None:
    state.mutable.at[0] += 1


def _not_indexed(state: Delayed) -> None:
    state.mutable.cut(1)


def _watermark(state: Watermark) -> None:
    till = state.state.active["till"]
    state.state.active["till"] = ActiveProducer(1001, till.ledger, till.entry, till.time_ms)


DISAGREE: list[tuple[str, int | None, Callable[[Any], None], str]] = [
    ("topic", 1, _messages, r"ledger 1 has \d messages, and \d are counted"),
    ("buffer", 1, _marker, r"the marker 1:\d is of 0:0 with 2 messages, the sidecar says 0:1"),
    ("buffer", 1, _lost_marker, "ledger 1 has 1 markers, and 0 are known"),
    ("buffer", 1, _range, "has txn_index 1, and 2 is expected of transaction"),
    ("cursor", 1, _mark_delete, "subscription s: mark-delete 1:99 is not a place"),
    ("cursor", 1, _acked, "subscription s: 1:50 to 1:51 is acknowledged but does not exist"),
    ("cursor", 1, _pending, "holds 2 acknowledgements, its ids are 1"),
    ("cursor", 1, _in_hand, "consumer 77 has messages in hand but does not exist"),
    ("coordinator", 1, _ended, "it has ended and has messages without an end"),
    ("coordinator", 0, _markers_of_txn, "with 2 messages, transaction 0:0 says 3"),
    ("key", None, _bound, "is open under key nightly, which does not know of it"),
    ("delayed", 1, _delayed, "each is not in the index, the first is 1:"),
    ("delayed", 1, _not_indexed, "1 delayed messages: each is not in the index"),
    ("watermark", 1, _watermark, "the watermark is 1001, and its rows say 1000"),
]  # fmt: skip


def full_store(bench: Bench) -> None:
    """One of each component."""
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s", type="shared")
    send(client, b"a", b"b", b"c")
    _, ids = send_txn(client, b"x", b"y")
    client.topic("t").watermarks.set(1000, "till")
    at = bench.clock.now().wall_ms + 3_600_000
    for number in range(2):
        client.producer("t").send(b"later%d" % number, deliver_at=at + number)
    open_one = begin(client, 600_000)
    client.producer("t").send(b"held", txn=open_one)
    client.acknowledge("t", "s", [ids[0]], txn=open_one)
    client.begin(600_000, key="nightly")
    client.checkpoint()
    send(client, b"tail")
    client.checkpoint()


@pytest.mark.parametrize(("kind", "a", "change", "message"), DISAGREE)
def test_components_that_disagree_are_found(
    made: tuple[Bench, dict[str, bytes]],
    kind: str,
    a: int | None,
    change: Callable[[Any], None],
    message: str,
) -> None:
    """Laws 1 and 4: a state that contradicts the rows, the journal or another state."""
    bench = restored(made)
    edited(bench, kind, a, change)
    fast = txlog.verify(bench.path, clock=bench.clock)
    assert fast["errors"] == 0, "every checksum is right"
    report = txlog.verify(bench.path, deep=True, clock=bench.clock)
    messages = [row["message"] for row in report["problem_list"]]
    assert any(re.search(message, each_message) for each_message in messages), messages
    assert {row["code"] for row in report["problem_list"]} == {"TXL-604"}


def test_a_state_that_the_journal_does_not_lead_to_is_found(
    made: tuple[Bench, dict[str, bytes]],
) -> None:
    """Law 1: no other component contradicts this state, but the older checkpoint does."""
    bench = restored(made)

    def change(state: Topic) -> None:
        state.dedup_dropped += 1

    edited(bench, "topic", 1, change)
    report = txlog.verify(bench.path, deep=True, clock=bench.clock)
    [row] = report["problem_list"]
    assert "the state of topic 1 in manifest/0000000002.manifest is not what" in row["message"]


def test_rows_in_a_wrong_order_are_found(made: tuple[Bench, dict[str, bytes]]) -> None:
    """A part with the right checksums and a wrong order: verify checks every entry."""
    bench = restored(made)
    disk = PosixDisk(bench.path)
    salt = bench.client.store.identity.salt
    generation = generations(disk)[-1]
    manifest = read_manifest(disk, generation, salt)
    ref = manifest.files[1][0]
    file = disk.open(ref.path)
    table = SegmentReader(file, ref).rows(0, ref.rows)
    file.close()
    turned = pa.concat_tables(
        [table.slice(0, 1), table.slice(2, 1), table.slice(1, 1), table.slice(3)]
    )
    buffers = encode_part(turned)
    Path(bench.path, ref.path).write_bytes(b"".join(buffers))
    manifest.files[1][0] = make_ref(ref.path, 1, buffers, turned, form="part")
    Path(bench.path, manifest_path(generation)).write_bytes(encode_manifest(manifest, salt))
    disk.close()
    assert txlog.verify(bench.path, clock=bench.clock)["errors"] == 0
    report = txlog.verify(bench.path, deep=True, clock=bench.clock)
    assert "row 1 of ledger 1 is entry 2" in [row["message"] for row in report["problem_list"]]
    assert str(report["problem_list"][0]["first"]) == "1:1"


def test_only_the_files_of_the_given_topics_are_read(made: tuple[Bench, dict[str, bytes]]) -> None:
    """--topic skips the files of other topics; an unknown topic is refused."""
    bench = restored(made)
    path = next(name for name in made[1] if name.endswith(".arrow") and "/t/" in name)
    Path(bench.path, path).write_bytes(b"x" + made[1][path][1:])
    assert txlog.verify(bench.path, topics=["t"], clock=bench.clock)["errors"] == 1
    with pytest.raises(TopicNotFound):
        txlog.verify(bench.path, topics=["none"], clock=bench.clock)


def test_leftover_files_are_named(made: tuple[Bench, dict[str, bytes]]) -> None:
    """Unnamed files, temporaries of dead processes, foreign files, an unfinished frame."""
    bench = restored(made)
    part = next(name for name in made[1] if name.endswith(".arrow") and "/t/" in name)
    leftover_paths = {
        re.sub(r"\d{10}\.arrow", "0000000009.arrow", part): "unnamed",
        f"{part.rpartition('/')[0]}/.tmp-0011": "temporary",
        "state/notes.txt": "foreign",
        "quarantine/00000000000000000009-00000000.tail": "quarantine",
    }
    for name in leftover_paths:
        Path(bench.path, name).write_bytes(b"left")
    journal = max(name for name in made[1] if name.endswith(".journal"))
    data = made[1][journal]
    end = max(512, len(data.rstrip(b"\0")) // 8 * 8 + 8)
    Path(bench.path, journal).write_bytes(data[:end] + b"TXLF garbage" + data[end + 12 :])
    report = txlog.verify(bench.path, clock=bench.clock)
    codes = {row["path"]: row["code"] for row in report["problem_list"]}
    assert codes == {**leftover_paths, journal: "tail"}
    assert (report["errors"], report["warnings"]) == (0, len(codes))
    for name in leftover_paths:
        Path(bench.path, name).unlink()


def test_a_store_at_work_has_no_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints, seals, trims and a thread that sends: a file that moves meanwhile is no damage.

    Here nothing has a grace and checkpoints do not end, so verify may have to retry very often.
    """
    monkeypatch.setattr("txlog.engine.upkeep.verify.verify.TRIES_MAX", 1000)
    bench = Bench(tmp_path / "store", reader_grace_ms=0)
    client, done = bench.client, threading.Event()
    client.create_topic("t")
    client.create_subscription("t", "s")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(16):
                send(client, b"a" * 100, b"b")
                last = send_txn(client, b"x", b"y")[0]
                client.acknowledge("t", "s", [last])
                client.checkpoint(roll_all=turn % 4 == 0)
                if turn % 8 == 7:
                    client.admin.compact("t")
                    client.admin.gc(apply=True, keep_ms=0)
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    looks = 0
    while not done.is_set() or not looks:
        report = txlog.verify(bench.path, deep=True, clock=bench.clock)
        assert [row for row in report["problem_list"] if row["severity"] == "error"] == []
        looks += 1
    thread.join()
    assert not errors
    assert looks


def test_a_write_during_verify_is_seen_by_the_witness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify opens the view after it has read the journal, so the view may have newer frames."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    looks: list[int] = []

    def half_written(*arguments: Any, **options: Any) -> Any:
        if not looks:
            send(bench.client, b"quick, and then quiet")
            arguments[4].error(602, "a frame that was half there", path="journal")
        looks.append(1)
        return check_journals(*arguments, **options)

    monkeypatch.setattr("txlog.engine.upkeep.verify.verify.check_journals", half_written)
    assert txlog.verify(bench.path, clock=bench.clock)["problem_list"] == []
    assert len(looks) == 2
    bench.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, dict[str, bytes]]]:
    bench = Bench(tmp_path_factory.mktemp("verify") / "store")
    full_store(bench)
    bench.client.close()
    yield bench, contents(bench.path)


def restored(parts: tuple[Bench, dict[str, bytes]]) -> Bench:
    bench, files = parts
    for name, data in files.items():
        Path(bench.path, name).write_bytes(data)
    return bench


def test_files_outside_of_the_store_are_read_too(tmp_path: Path) -> None:
    """Verify compares offloaded files where they are; a missing place is an error."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    send(client, b"a", b"b")
    client.checkpoint(roll_all=True)
    location = tmp_path / "archive"
    location.mkdir()
    assert client.admin.offload("t", str(location))["files"] == 1
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0
    far = next(location.rglob("*.parquet"))
    data = far.read_bytes()
    far.write_bytes(data[:50] + b"x" + data[51:])
    [row] = txlog.verify(bench.path, clock=bench.clock)["problem_list"]
    assert (row["code"], row["path"], row["topic"]) == ("TXL-601", f"file://{far}", "t")
    far.unlink()
    [row] = txlog.verify(bench.path, clock=bench.clock)["problem_list"]
    assert row["severity"] == "error"
    plan = txlog.repair(bench.path, clock=bench.clock)
    assert [action["action"] for action in plan["action_list"]] == ["restore"]
    bench.close()


@pytest.mark.parametrize("times", [1, 2])
def test_doctor_does_not_report_a_concurrent_checkpoint_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """R21: if a file vanished because another client wrote meanwhile, doctor looks again."""
    bench = Bench(tmp_path / "store", reader_grace_ms=0)
    bench.client.create_topic("t")
    bench.client.checkpoint()
    remaining = [times]

    def checkpointed(*args: Any, **options: Any) -> Any:
        while remaining[0]:
            remaining[0] -= 1
            send(bench.client, b"m")
            bench.client.checkpoint(roll_all=True)
            bench.clock.advance(1)
            bench.client.admin.gc(apply=True, keep_ms=0)
        return check_journals(*args, **options)

    monkeypatch.setattr("txlog.engine.upkeep.verify.verify.check_journals", checkpointed)
    answers = {row["name"]: row["status"] for row in txlog.doctor(bench.path, clock=bench.clock)}
    assert answers["journal"] == "ok"


def three_messages(tmp_path: Path) -> tuple[Bench, Path, list[bytes]]:
    """Three durable messages; returns the witness file and its content after each."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    path, copies = Path(bench.path, "journal", "witness"), []
    for value in (b"1", b"2", b"3"):
        send(bench.client, value)
        copies.append(path.read_bytes())
    bench.close()
    return bench, path, copies


def read_only(bench: Bench) -> tuple[list[bytes | None], list[str]]:
    client = bench.another(read_only=True)
    try:
        return [m.value for m in read(client)], client.reports()
    finally:
        bench.close()


def test_an_older_witness_hides_nothing_that_frames_prove(tmp_path: Path) -> None:
    """R8, Law 3: each frame records what was durable when it was written; the last one
    proves none.
    """
    bench, path, copies = three_messages(tmp_path)
    path.write_bytes(copies[0])
    reader_state, reports = read_only(bench)
    assert reader_state == [b"1", b"2"]
    assert any("is older than the journal" in line for line in reports)
    for deep in (False, True):
        problems = txlog.verify(bench.path, clock=bench.clock, deep=deep)["problem_list"]
        assert [item["code"] for item in problems] == ["witness"]
        assert "older than the journal" in problems[0]["message"]
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert [item["action"] for item in done["action_list"]] == ["settle"]
    assert txlog.verify(bench.path, clock=bench.clock)["problem_list"] == []
    assert read_only(bench) == ([b"1", b"2", b"3"], [])


def test_a_damaged_record_of_the_witness_is_reported(tmp_path: Path) -> None:
    """The other record may be older: a reader hides unproven frames, and reports the damage."""
    bench, path, copies = three_messages(tmp_path)
    data = bytearray(copies[-1])
    newest = max((0, 4096), key=lambda at: int.from_bytes(data[at + 8 : at + 16], "little"))
    data[newest + 60] ^= 1
    path.write_bytes(data)
    reader_state, reports = read_only(bench)
    assert reader_state == [b"1", b"2"]
    assert any("a record of journal/witness is damaged" in line for line in reports)
    with bench.another() as client:
        client.flush()
    assert read_only(bench)[0] == [b"1", b"2", b"3"]


def test_a_sound_witness_gives_no_report(tmp_path: Path) -> None:
    """Frames that no writer has flushed yet do not make the witness old."""
    bench, _, _ = three_messages(tmp_path)
    client = bench.another()
    txn = client.begin(600_000)["txn"]
    client.producer("t").send(b"held", txn=txn)
    other = bench.another(read_only=True)
    assert [m.value for m in read(other)] == [b"1", b"2", b"3"]
    assert other.reports() == []
    assert txlog.verify(bench.path, clock=bench.clock)["problem_list"] == []
    bench.close()
