"""The table of spec/reliability 2.3, row by row: a torn tail is cut, rot is never skipped."""

from __future__ import annotations

import errno
import random

import pytest
from msgspec.structs import replace

from tests.crash.world import (
    START_MS,
    TOPIC,
    after_reboot,
    new_disk,
    observe,
    open_client,
    read_messages,
)
from tests.disk.faults import FaultyDisk
from tests.disk.memory import Killed, MemoryDisk
from tests.engine_kit import client_on
from tests.tiers import graded
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.storage.frame import (
    FILE_HEADER_BYTES,
    HEADER_BYTES,
    WITNESS_PATH,
    WitnessRecord,
    decode_header,
    decode_record,
    encode_record,
)
from txlog.engine.storage.manifest import manifest_path
from txlog.engine.store.identity import read_identity
from txlog.errors import Corruption, DiskFailed, OutcomeUnknown, TxlogError

SEED = 20261129
JOURNAL = "journal/00000000000000000001.journal"


def store_with(count: int) -> MemoryDisk:
    """A store with this many messages, all flushed and witnessed; its client is closed."""
    disk = new_disk()
    client = open_client(disk)
    client.create_topic(TOPIC, 2)
    client.create_subscription(TOPIC, "s")
    for number in range(count):
        client.producer(TOPIC).send(f"v{number}".encode(), partition=0)
    client.close()
    return disk


def frames(disk: MemoryDisk, path: str = JOURNAL) -> list[tuple[int, int]]:
    """Offset and length of each frame of a journal file."""
    data = disk.read(path)
    at, out = FILE_HEADER_BYTES, []
    while (header := decode_header(data[at : at + HEADER_BYTES])) is not None:
        out.append((at, header.total_bytes))
        at += header.total_bytes
    return out


def flip(disk: MemoryDisk, path: str, offset: int, mask: int = 1) -> None:
    """Change one byte of a file."""
    data = bytearray(disk.read(path))
    data[offset] ^= mask
    disk.damage(path, bytes(data))


def put(disk: MemoryDisk, path: str, offset: int, new: bytes) -> None:
    """Overwrite bytes of a file."""
    data = bytearray(disk.read(path))
    data[offset : offset + len(new)] = new
    disk.damage(path, bytes(data))


def edit_witness(disk: MemoryDisk, **changes: object) -> WitnessRecord:
    """Write the newest record with changes over both records; returns it as it was."""
    salt = read_identity(disk).salt
    data = disk.read(WITNESS_PATH)
    records = [decode_record(data[at : at + 128], salt) for at in (0, 4096)]
    newest = max((r for r in records if r is not None), key=lambda r: r.seq)
    changed = replace(newest, **changes)
    put(disk, WITNESS_PATH, 0, encode_record(changed, salt))
    put(disk, WITNESS_PATH, 4096, encode_record(changed, salt))
    return newest


def values(client: Client) -> list[str]:
    """The values of the topic."""
    return [m.value.decode() for m in read_messages(client, TOPIC) if m.value is not None]


def expected(count: int) -> list[str]:
    """The values that store_with sends."""
    return [f"v{number}" for number in range(count)]


def write(disk: MemoryDisk, clock: ManualClock | None = None) -> Client:
    """A client that has written, and therefore recovered the store."""
    client = open_client(disk, clock)
    client.producer(TOPIC).send(b"next", partition=0)
    return client


def test_a_clean_store_is_left_alone() -> None:
    """V = D, zeros behind: no report, no quarantine, nothing cut."""
    disk = store_with(3)
    client = write(disk)
    assert client.reports() == []
    assert values(client) == [*expected(3), "next"]
    assert disk.listdir("quarantine") == []


def test_frames_written_and_not_flushed_are_flushed_with_the_next() -> None:
    """V > D without an interrupted flush: hidden from readers, kept by the next writer."""
    disk = store_with(2)
    client = open_client(disk)
    txn = client.begin()["txn"]
    client.producer(TOPIC).send(b"held", partition=0, txn=txn)
    files_before = disk.listdir("journal")
    other = write(disk)
    assert [str(row["txn"]) for row in other.transactions()] == [str(txn)]
    other.commit(txn)
    assert values(other) == [*expected(2), "next", "held"]
    assert disk.listdir("journal") == files_before
    assert other.reports() == []


class Writes:
    """Counts the pwrites to the journal and the witness of a disk, and their bytes."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.calls: list[tuple[str, int, int]] = []
        disk.step = self

    def __call__(self, op: str, path: str, **info: int) -> None:
        if op == "pwrite":
            self.calls.append((path, info["offset"], info["length"]))


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_durable_send_is_three_writes_however_many_processes_send(processes: int) -> None:
    """Append, mark and raise: each byte is written once.

    R11 has unflushed frames rewritten, and here every frame is flushed.
    """
    disk = store_with(1)
    writers = [disk.process() for _ in range(processes)]
    clients = [open_client(process) for process in writers]
    producers = [client.producer(TOPIC) for client in clients]
    for producer in producers:
        producer.send(b"first", partition=0)
    frames_before = frames(disk)
    counts = [Writes(process) for process in writers]
    for _ in range(5):
        for producer in producers:
            producer.send(b"again", partition=0)
    calls = [call for count in counts for call in count.calls]
    assert len(calls) == 3 * 5 * processes
    appended = [(offset, length) for path, offset, length in calls if path == JOURNAL]
    assert sorted(appended) == frames(disk)[len(frames_before) :]


@pytest.mark.parametrize("is_reboot", [False, True])
def test_a_fresh_process_rewrites_nothing_that_is_known_to_be_durable(is_reboot: bool) -> None:
    """After a reboot, the last frame attests its predecessor, and the witness still counts."""
    disk = store_with(20)
    counted = Writes(other := disk.process())
    client = open_client(other, after_reboot() if is_reboot else None)
    frames_before = frames(disk)
    client.producer(TOPIC).send(b"next", partition=0)
    assert [(offset, length) for path, offset, length in counted.calls if path == JOURNAL] == [
        frames(disk)[-1]
    ]
    assert len(frames(disk)) == len(frames_before) + 1


def test_unflushed_frames_are_rewritten_once_before_the_flush() -> None:
    """R11: the frames of one process between two flushes are one run, and one write."""
    disk = store_with(1)
    client = open_client(disk.process())
    txn = client.begin()["txn"]
    for number in range(4):
        client.producer(TOPIC).send(f"held{number}".encode(), partition=0, txn=txn)
    unflushed = frames(disk)
    counted = Writes(other := disk.process())
    second = open_client(other)
    for value in (b"next", b"last"):
        second.producer(TOPIC).send(value, partition=0)
    written = [(offset, length) for path, offset, length in counted.calls if path == JOURNAL]
    first, *own_frames = frames(disk)[-2:]
    start = written[1][0]
    assert written[0] == first
    assert start + written[1][1] == first[0]
    assert start in [offset for offset, _ in unflushed]
    assert unflushed[-1][0] > start  # more frames than one
    assert written[2:] == own_frames
    counted.calls.clear()
    client.commit(txn)
    assert values(second)[-4:] == [f"held{number}" for number in range(4)]


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_an_interrupted_flush_is_rolled_forward_into_a_new_file(behind: int) -> None:
    """V > D and flushing > durable: the writer never flushes the old bytes again."""
    disk = store_with(5)
    lsn = len(frames(disk))
    edit_witness(disk, durable_lsn=lsn - behind, flushing_lsn=lsn)
    if not behind:
        edit_witness(disk, durable_lsn=lsn - 1, flushing_lsn=lsn, poisoned=True)
    flushed: list[str] = []
    disk.step = lambda op, path, **info: flushed.append(path) if op == "datasync" else None
    client = write(disk)
    # The header of a later frame records what was durable when it was written, so less may be new.
    assert any("rolled forward" in line for line in client.reports())
    assert JOURNAL not in flushed
    assert len(disk.listdir("journal")) == 3  # two files and the witness
    assert values(client) == [*expected(5), "next"]
    assert values(open_client(disk)) == [*expected(5), "next"]


def test_a_death_between_the_flush_mark_and_the_flush() -> None:
    """The same, caused by a process that dies there."""
    disk = store_with(1)
    client = open_client(disk)

    def die(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path == JOURNAL:
            raise Killed

    disk.step = die
    with pytest.raises(Killed):
        client.producer(TOPIC).send(b"mine", partition=0)
    other = write(disk.fork_kill())
    assert values(other) == ["v0", "mine", "next"]
    assert any("rolled forward" in line for line in other.reports())


def test_a_failed_flush_poisons_and_the_next_handle_rolls_forward() -> None:
    """A failed flush gives OutcomeUnknown; the next handle settles the outcome once, in a
    new file.
    """
    disk = store_with(1)
    client = open_client(disk)
    txn = client.begin()["txn"]

    def fail(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path == JOURNAL:
            raise OSError(errno.EIO, "Input/output error")

    disk.step = fail
    with pytest.raises(OutcomeUnknown) as caught:
        client.producer(TOPIC).send(b"mine", partition=0)
    assert caught.value.exit == 10
    flushed: list[str] = []
    disk.step = lambda op, path, **info: flushed.append(path) if op == "datasync" else None
    other = write(disk)
    assert JOURNAL not in flushed
    assert values(other) == ["v0", "mine", "next"]
    assert [row["state"] for row in other.transactions(all=True)] == ["aborted"]
    assert other.show_transaction(txn)["reason"] == "recovery"
    for image in disk.images(random.Random(1), 20):
        assert values(open_client(image, after_reboot()))[:2] == ["v0", "mine"]


class Alarm:
    """A signal handler that raises before the nth effect, counted from one."""

    def __init__(self, disk: MemoryDisk, nth: int) -> None:
        self.left = nth
        self.at = ""
        disk.step = self

    def __call__(self, op: str, path: str, **info: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.at = f"{op} {path}"
            raise TimeoutError("time is up")


# lock, append, flush of the names, mark, flush, raise
@pytest.mark.parametrize("nth", graded(range(1, 7), 2))
@pytest.mark.parametrize("call", ["send", "commit"])
def test_a_signal_handler_that_raises_does_not_poison_the_store(nth: int, call: str) -> None:
    """R13: a flush that a signal cut short did not fail.

    The store is not poisoned, and no transaction of another client is aborted.
    """
    disk = store_with(1)
    client, other = open_client(disk.process()), open_client(disk.process())
    other_txn, own_txn = other.begin()["txn"], client.begin()["txn"]
    for name, owner, txn in (("theirs", other, other_txn), ("mine", client, own_txn)):
        owner.producer(TOPIC).send(name.encode(), partition=0, txn=txn)
    producer = client.producer(TOPIC)
    alarm = Alarm(process_of(client), nth)
    with pytest.raises((TimeoutError, OutcomeUnknown), match="time is up"):
        if call == "send":
            producer.send(b"plain", partition=0)
        else:
            client.commit(own_txn)
    assert alarm.at
    other.commit(other_txn)
    producer.send(b"next", partition=0)
    client.commit(own_txn)
    stored = values(other)
    assert stored.count("plain") <= (call == "send")
    assert sorted(set(stored) - {"plain"}) == ["mine", "next", "theirs", "v0"]
    assert len(stored) == len(set(stored))
    for line in (*client.reports(), *other.reports()):
        assert "aborted" not in line
        assert "poison" not in line
    for image in disk.images(random.Random(nth), 10):
        assert values(open_client(image, after_reboot())) == stored


def process_of(client: Client) -> MemoryDisk:
    """The disk as the process of a client has it."""
    disk = client.store.disk
    assert isinstance(disk, MemoryDisk)
    return disk


@pytest.mark.parametrize("length", [1, 8, 63, 64, 300])
@pytest.mark.parametrize("is_reboot", [False, True])
def test_a_torn_tail_is_quarantined_and_zeroed(length: int, is_reboot: bool) -> None:
    """V >= D, other bytes after V: kept in quarantine/, zeroed, reported."""
    disk = store_with(2)
    start, size = frames(disk)[-1]
    garbage = random.Random(length).randbytes(length - 1) + b"\1"
    put(disk, JOURNAL, start + size, garbage)
    client = open_client(disk, after_reboot() if is_reboot else None)
    assert values(client) == expected(2)
    client.store.flush()
    assert any(f"cut {length} bytes" in line for line in client.reports())
    [name] = disk.listdir("quarantine")
    assert disk.read(f"quarantine/{name}") == garbage
    client.producer(TOPIC).send(b"next", partition=0)
    assert values(client) == [*expected(2), "next"]
    last, its_size = frames(disk)[-1]
    assert not any(disk.read(JOURNAL)[last + its_size :])


def test_garbage_far_behind_the_end_is_cut_as_well() -> None:
    """A power cut may leave a later sector of a frame whose first is zeros."""
    disk = store_with(2)
    start, size = frames(disk)[-1]
    put(disk, JOURNAL, start + size + 4096, b"rubbish")
    client = write(disk, after_reboot())
    assert len(disk.listdir("quarantine")) == 1
    assert values(client) == [*expected(2), "next"]
    assert disk.read(JOURNAL).count(b"rubbish") == 0


def test_an_unfinished_last_frame_above_the_witness_is_a_torn_tail() -> None:
    """Its writer died in the write, so no caller has an answer."""
    disk = store_with(3)
    lsn = len(frames(disk))
    start, size = frames(disk)[-1]
    edit_witness(disk, durable_lsn=lsn - 1)
    put(disk, JOURNAL, start + size // 2, bytes(size - size // 2))
    client = write(disk)
    assert values(client) == [*expected(2), "next"]
    assert len(disk.listdir("quarantine")) == 1


def test_a_later_genuine_frame_convicts_only_what_it_knew_durable() -> None:
    """Two unflushed frames, the first lost in a power cut: no corruption, as neither was answered
    as durable.
    """
    disk = store_with(1)
    client = open_client(disk)
    client.begin()
    client.producer(TOPIC).send(b"v1", partition=0)
    for where in [m.message_id for m in read_messages(client, TOPIC)]:
        assert where is not None
        client.acknowledge(TOPIC, "s", [where])  # not flushed
    start, size = frames(disk)[-2]
    put(disk, JOURNAL, start, bytes(size))
    other = write(disk, after_reboot())
    assert values(other) == ["v0", "v1", "next"]
    assert observe(other)["unacked"][0] == ["v0", "v1", "next"]
    assert len(disk.listdir("quarantine")) == 1


def check_convicted(disk: MemoryDisk, lsn: int, offset: int, clock: ManualClock) -> None:
    """Check that writers and readers get an error that names the place, and nothing is cut."""
    files_before = disk.files()
    tries = 0
    for act in (lambda c: c.store.flush(), lambda c: values(c)):
        with pytest.raises(Corruption) as caught:
            act(open_client(disk, clock))
        assert caught.value.fields["path"] == JOURNAL
        assert caught.value.fields["offset"] == offset
        assert caught.value.fields["lsn"] == lsn
        assert caught.value.exit == 6
        tries += 1
    assert tries == 2
    assert {p: d for p, d in disk.files().items() if p != WITNESS_PATH} == {
        p: d for p, d in files_before.items() if p != WITNESS_PATH
    }


@pytest.mark.parametrize("back", [1, 2, 3])
@pytest.mark.parametrize("place", ["magic", "durable", "lsn", "ops", "last", "all"])
@pytest.mark.parametrize("is_reboot", [False, True])
def test_damage_to_durable_frames_is_corruption(back: int, place: str, is_reboot: bool) -> None:
    """V < D: named by file, offset and LSN range, never skipped, never cut."""
    disk = store_with(4)
    all_frames = frames(disk)
    start, size = all_frames[-back]
    at = {"magic": 0, "lsn": 9, "durable": 17, "ops": 70, "last": size - 9, "all": 0}[place]
    if place == "all":
        put(disk, JOURNAL, start, bytes(size))
    else:
        flip(disk, JOURNAL, start + at, 0x40)
    clock = after_reboot() if is_reboot else ManualClock(START_MS)
    check_convicted(disk, len(all_frames) - back + 1, start, clock)


def test_a_later_frame_convicts_an_earlier_one_without_a_witness() -> None:
    """A: the highest durable_lsn of a genuine frame counts when both records are lost."""
    disk = store_with(4)
    all_frames = frames(disk)
    start, _ = all_frames[-3]
    flip(disk, JOURNAL, start + 70)
    disk.damage(WITNESS_PATH, bytes(8192))
    with pytest.raises(Corruption) as caught:
        open_client(disk).store.flush()
    assert caught.value.fields["lsn"] == len(all_frames) - 2


def test_an_older_copy_of_the_journal_is_corruption() -> None:
    """The journal file is an old copy; the newer witness shows it."""
    disk = store_with(2)
    past = disk.read(JOURNAL)
    client = write(disk)
    client.close()
    lsn = len(frames(disk))
    offset = frames(disk)[-1][0]
    disk.damage(JOURNAL, past)
    check_convicted(disk, lsn, offset, ManualClock(START_MS))


def test_a_frame_of_another_chain_is_not_taken() -> None:
    """A frame with a right CRC and a wrong predecessor ends the chain."""
    disk = store_with(3)
    twin = disk.copy()
    for copy, value in ((disk, b"aaaa"), (twin, b"bbbb")):
        client = open_client(copy)
        client.producer(TOPIC).send(value, partition=0)
        client.producer(TOPIC).send(b"last", partition=0)
    start, size = frames(twin)[-2]
    put(disk, JOURNAL, start, twin.read(JOURNAL)[start : start + size])
    with pytest.raises(Corruption):
        open_client(disk).store.flush()


@pytest.mark.parametrize("is_reboot", [False, True])
def test_both_witness_records_bad(is_reboot: bool) -> None:
    """One fault: go on, rewrite, report.

    Open transactions are aborted, as they may have lost frames.
    """
    disk = store_with(3)
    client = open_client(disk)
    client.begin()
    disk.damage(WITNESS_PATH, b"\xff" * 8192)
    clock = after_reboot() if is_reboot else None
    assert values(open_client(disk, clock)) == expected(3)
    other = write(disk, clock)
    assert any("witness" in line for line in other.reports())
    assert values(other) == [*expected(3), "next"]
    assert [row["state"] for row in other.transactions(all=True)] == ["aborted"]
    assert write(disk, clock).reports() == []


def test_one_witness_record_bad() -> None:
    """The other record, or a frame, has what recovery needs."""
    for at in (0, 4096):
        disk = store_with(3)
        flip(disk, WITNESS_PATH, at + 60)
        assert values(open_client(disk)) in (expected(3), expected(2))
        assert values(write(disk)) == [*expected(3), "next"]


def test_the_witness_is_missing() -> None:
    """As if both records were bad."""
    disk = store_with(3)
    disk.damage(WITNESS_PATH, None)
    assert values(open_client(disk)) == expected(3)
    assert values(write(disk)) == [*expected(3), "next"]
    assert disk.exists(WITNESS_PATH)


def checkpointed() -> tuple[MemoryDisk, int]:
    """(a store with several checkpoints and frames after the last, the newest generation)."""
    disk = store_with(3)
    generation = 0
    for number in range(3):
        client = open_client(disk)
        generation = client.checkpoint()["generation"]
        client.producer(TOPIC).send(f"v{number + 3}".encode(), partition=0)
        client.close()
    return disk, generation


@pytest.mark.parametrize("kind", ["flipped", "missing", "cut", "empty"])
def test_the_newest_manifest_is_bad(kind: str) -> None:
    """The older manifest and its journals are complete: go on and report, never silently."""
    disk, generation = checkpointed()
    path = manifest_path(generation)
    data = disk.read(path)
    bad = {
        "flipped": data[:40] + b"\xff" + data[41:],
        "missing": None,
        "cut": data[:-1],
        "empty": b"",
    }[kind]
    disk.damage(path, bad)
    reader = open_client(disk)
    assert values(reader) == expected(6)
    assert any("manifest" in line for line in reader.reports())
    client = write(disk)
    assert values(client) == [*expected(6), "next"]
    answer = client.checkpoint()
    assert answer["generation"] > generation or kind == "missing"
    assert values(open_client(disk)) == [*expected(6), "next"]


def test_both_manifests_bad_is_corruption() -> None:
    """Two faults: refused, not guessed."""
    disk, generation = checkpointed()
    for number in (generation, generation - 1):
        flip(disk, manifest_path(number), 50)
    for act in (lambda: values(open_client(disk)), lambda: write(disk)):
        with pytest.raises(Corruption):
            act()


def test_a_lossy_recovery_aborts_every_open_transaction() -> None:
    """R9: none can commit with less than was answered; decided transactions are not affected."""
    disk = store_with(1)
    client = open_client(disk)
    done, open_one, open_two = (client.begin()["txn"] for _ in range(3))
    producer = client.producer(TOPIC)
    for txn in (done, open_one, open_two):
        producer.send(b"held", partition=0, txn=txn)
    client.commit(done)
    client.close()
    other = open_client(disk, after_reboot())
    with pytest.raises(TxlogError) as caught:
        other.commit(open_one)
    assert caught.value.exit == 4
    states = {str(row["txn"]): row["state"] for row in other.transactions(all=True)}
    assert states == {str(done): "committed", str(open_one): "aborted", str(open_two): "aborted"}
    assert values(other) == ["v0", "held"]
    assert other.begin()["txn"] not in (done, open_one, open_two)


def test_the_death_of_a_process_is_not_lossy() -> None:
    """Open transactions of a dead process go on in any other process."""
    disk = store_with(1)
    client = open_client(disk)
    txn = client.begin()["txn"]
    client.producer(TOPIC).send(b"held", partition=0, txn=txn)
    other = open_client(disk.fork_kill())
    other.commit(txn)
    assert values(other) == ["v0", "held"]


def test_a_read_error_is_not_an_end_of_file() -> None:
    """R31: reading fails, nothing is cut."""
    disk = store_with(3)

    def fail(op: str, path: str, **info: int) -> None:
        if op == "pread" and path == JOURNAL and info["offset"] > 0:
            raise OSError(errno.EIO, "Input/output error")

    disk.look = fail
    with pytest.raises(DiskFailed):
        open_client(disk)
    disk.look = lambda op, path, **info: None
    assert values(write(disk)) == [*expected(3), "next"]
    assert disk.listdir("quarantine") == []


def test_recovery_leaves_what_observers_saw() -> None:
    """A second recovery changes nothing."""
    disk = store_with(3)
    put(disk, JOURNAL, sum(frames(disk)[-1]), b"torn")
    first = observe(write(disk))
    files = disk.files()
    client = open_client(disk)
    client.store.flush()
    assert observe(client) == first
    assert disk.files() == files


@pytest.mark.parametrize("is_of_another_store", [False, True])
def test_a_frame_at_a_wrong_place_is_no_proof_of_damage(is_of_another_store: bool) -> None:
    """Only salt, offset and CRC make a frame genuine: foreign bytes after the end are a
    torn tail.
    """
    disk = store_with(4)
    all_frames = frames(disk)
    lost, size = all_frames[-2]
    source = store_with(4) if is_of_another_store else disk
    if is_of_another_store:
        salt = read_identity(disk).salt
        put(source, JOURNAL, all_frames[-1][0] + 48, bytes(byte ^ 1 for byte in salt))
    stray = source.read(JOURNAL)[all_frames[-1][0] : sum(all_frames[-1])]
    edit_witness(disk, durable_lsn=len(all_frames) - 2)
    put(disk, JOURNAL, lost, bytes(size + all_frames[-1][1]))
    put(disk, JOURNAL, all_frames[-1][0] if is_of_another_store else lost + 4096, stray)
    client = write(disk)
    assert values(client) == [*expected(2), "next"]
    assert len(disk.listdir("quarantine")) == 1


def test_a_death_after_a_cut_does_not_hide_the_new_journal_file() -> None:
    """Each next writer appends to the file named after the cut, and a reboot finds its frames."""
    disk = store_with(2)
    client = open_client(disk)
    state = {"linked": False}

    def die(op: str, path: str, **info: int) -> None:
        if state["linked"]:
            raise Killed
        state["linked"] = op == "link" and path.startswith("journal/")

    disk.step = die
    with pytest.raises(Killed):
        client.checkpoint()
    other = write(disk.process())
    other.close()
    late = open_client(disk.process(), after_reboot())
    assert values(late) == [*expected(2), "next"]
    late.producer(TOPIC).send(b"late", partition=0)
    assert values(late) == [*expected(2), "next", "late"]


def test_a_checkpoint_flushes_the_name_of_an_empty_journal_file() -> None:
    """Its maker died before it did, and the next checkpoint has nothing to cut, but names it.

    Found by the simulation (torn, seed 3).
    """
    disk = store_with(2)
    dying = open_client(disk)
    state = {"linked": False}

    def die(op: str, path: str, **info: int) -> None:
        if state["linked"]:
            raise Killed
        state["linked"] = op == "link" and path.startswith("journal/")

    disk.step = die
    with pytest.raises(Killed):
        dying.checkpoint()
    with open_client(disk.process()) as other:
        assert other.checkpoint()["generation"] == 1
        images = list(disk.images(random.Random(SEED), 32))
    for image in images:
        with open_client(image, after_reboot()) as late:
            assert values(late) == expected(2)


def test_the_last_frame_convicts_the_one_before_it() -> None:
    """This holds even when its own end is zeros, as padding is, and no witness is left."""
    disk = store_with(4)
    all_frames = frames(disk)
    flip(disk, JOURNAL, all_frames[-2][0] + 70)
    flip(disk, JOURNAL, all_frames[-3][0] + 70)
    disk.damage(WITNESS_PATH, bytes(8192))
    with pytest.raises(Corruption) as caught:
        open_client(disk).store.flush()
    assert caught.value.fields["last_lsn"] == len(all_frames) - 1


def test_frames_before_a_new_journal_file_are_as_durable_as_those_in_it() -> None:
    """A checkpoint dies between the new file and the manifest, and a send is flushed in that file.

    The acknowledgements in the old file were written and not flushed. Kills: a power cut that takes
    frames from the middle of the journal.
    """
    disk = store_with(3)
    client = open_client(disk)
    dying = FaultyDisk(disk.process())
    dying.fail_at("publish", Killed(), "manifest/*")
    with client.consumer(TOPIC, "s") as consumer:
        for _ in range(2):
            message = consumer.receive()
            assert message is not None
            consumer.acknowledge(message)
        with pytest.raises(Killed), client_on(dying, ManualClock(START_MS)) as other:
            other.checkpoint()
        with open_client(disk.process()) as third:  # it has not written to the old file
            third.producer(TOPIC).send(b"after", partition=0)
            images = list(disk.images(random.Random(SEED), 32))
    assert len(images) > 1
    for image in images:
        with open_client(image, after_reboot()) as found:
            assert [m.value for m in read_messages(found, TOPIC)] == [b"v0", b"v1", b"v2", b"after"]
            found.producer(TOPIC).send(b"later", partition=0)
