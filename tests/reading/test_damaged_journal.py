"""A journal that is damaged after some LSN: a reader gets the messages before, then the error.

spec/reliability 2.3, V < D; Law 3: readers get no frame unless it is known to be durable.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests import harness
from tests.engine_kit import START_MS, Bench, begin, read, send, send_txn, values
from txlog import Client
from txlog.base.ids import MessageId
from txlog.base.ranges import END, START, Bound, Range
from txlog.base.startup.crc32c import crc32c
from txlog.clock import ManualClock
from txlog.engine.storage.frame import FILE_HEADER_BYTES
from txlog.errors import Corruption
from txlog.lake.jobs.export_files import export_directory, export_file, export_stream

pytestmark = pytest.mark.usefixtures("quick_disk")
BEFORE = {"t": [b"old", b"t1", b"x", b"y"], "u": [b"u1"]}
SECOND_MS = START_MS + 1000  # when t1 was sent
EVERY = [*BEFORE["t"], *BEFORE["u"]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two topics; one transaction ends before the damage, one continues after it."""
    new_bench, at = written(tmp_path)
    damage(new_bench, at)
    return new_bench


def written(folder: Path) -> tuple[Bench, int]:
    """The store without damage, closed; and the byte after which the test damages the journal."""
    new_bench = Bench(folder / "store")
    client = new_bench.client
    client.create_topic("t", 2)
    client.create_topic("u")
    client.create_subscription("t", "s")
    send(client, b"old")
    client.checkpoint()
    new_bench.clock.advance(1000)
    send(client, b"t1")
    send(client, b"u1", topic="u")
    send_txn(client, b"x", b"y", partition=1)
    across = begin(client, 600_000)
    client.producer("t").send(b"across", txn=across)
    client.flush()
    at = client.status()["journal"]["size_bytes"]
    send(client, b"behind", b"behind too", topic="u")
    client.commit(across)
    client.create_topic("late")
    new_bench.close()
    return new_bench, at


def damage(new_bench: Bench, at: int) -> None:
    """Flip a bit of the first frame after an offset."""
    path = journal(new_bench)
    data = bytearray(path.read_bytes())
    data[at + 70] ^= 4
    path.write_bytes(data)


def journal(new_bench: Bench) -> Path:
    return max(Path(new_bench.path, "journal").glob("*.journal"))


def told(error: Corruption) -> None:
    """The error has the file, the byte, the LSNs, a hint and code 602."""
    assert (error.code, error.exit) == (602, 6)
    assert error.fields["path"] == f"journal/{Path(str(error.fields['path'])).name}"
    assert {"offset", "lsn", "last_lsn"} <= {*error.fields}
    assert "is damaged at byte" in error.message
    assert "LSN" in error.message
    assert "txlog admin repair" in (error.hint or "")


def read_to_damage(client: Client, topics: Any, **options: Any) -> list[bytes]:
    """The values that a reader gets before the error, which must come."""
    out: list[bytes] = []
    with pytest.raises(Corruption) as ended:
        for table in client.read(topics, **options):
            out += table.column("value").to_pylist()
    told(ended.value)
    return out


@pytest.mark.parametrize("read_only", [False, True])
def test_readers_return_the_messages_before_the_damage_then_the_error(
    bench: Bench, read_only: bool
) -> None:
    """Each topic, all topics together, and following; no part of a transaction that ends after the
    damage.
    """
    client = bench.another(read_only=read_only)
    for topic, expected in BEFORE.items():
        assert sorted(read_to_damage(client, topic)) == sorted(expected)
        assert sorted(read_to_damage(client, topic, follow=True)) == sorted(expected)
        seen: list[bytes] = []
        with client.reader(topic) as reader, pytest.raises(Corruption) as ended:
            assert reader.has_message_available()
            for message in reader:
                seen.append(message.value or b"")
        told(ended.value)
        assert sorted(seen) == sorted(expected)
        with pytest.raises(Corruption):
            reader = client.reader(topic, "latest")
            reader.has_message_available()
    assert read_to_damage(client, ["u", "t"])[0] == b"u1"
    assert sorted(read_to_damage(client, ["t", "u"])) == sorted(EVERY)
    assert b"across" not in read_to_damage(client, "t", isolation="committed")
    bench.close()


def test_reading_only_messages_before_the_damage_is_no_error(bench: Bench) -> None:
    """The first messages are certain; the last ones may be after the damage, so they are
    an error.
    """
    client = bench.another()
    assert values(client, limit=2) == [b"old", b"t1"]
    last = Range(Bound("last", 1), END)
    assert len(read_to_damage(client, "u", range=last, limit=1)) == 1
    with client.reader("t") as reader:
        first = reader.read_next()
        assert first is not None
        assert first.message_id is not None
        reader.seek(first.message_id)
        assert first.value in [
            reader.receive_batch(1).column("value")[0].as_py() for _ in "123"
        ]  # x, y
    bench.close()


def test_a_range_that_ends_before_it_is_no_error(bench: Bench) -> None:
    """Where no later frame can belong to the range, the store answers as before the damage."""
    client = bench.another()
    first, last = places(client)
    message_id_after = MessageId(last.ledger, last.entry + 1)
    for stop, expected in ((first, []), (last, [b"old"]), (message_id_after, [b"old", b"t1"])):
        for start in (START, Bound("skip", 0), Bound("id", first), Bound("time", 0)):
            range_ = Range(start, Bound("id", stop))
            assert values(client, range=range_) == expected, range_
            assert values(client, range=range_, isolation="uncommitted") == expected
            assert values(client, range=range_, partitions=[0]) == expected
    for end, expected in (
        (Bound("skip", 2), [b"old", b"t1"]),
        (Bound("skip", 1), [b"old"]),
        (Bound("time", SECOND_MS), [b"old"]),
    ):
        assert values(client, range=Range(START, end), partitions=[0]) == expected, end
        assert values(client, "t/0", range=Range(START, end)) == expected, end
    bench.close()


def test_a_range_that_may_go_on_behind_it_ends_with_the_error(bench: Bench) -> None:
    """The unreadable frames may have more messages of the range, or even a new partition."""
    client = bench.another()
    _, last = places(client)
    beyond = Bound("id", MessageId(last.ledger, last.entry + 2))
    for start, stop, expected in (
        (START, beyond, [b"old", b"t1"]),
        (START, END, [b"old", b"t1"]),
        (START, Bound("skip", 3), [b"old", b"t1"]),
        (START, Bound("time", SECOND_MS + 1), [b"old", b"t1"]),
        (START, Bound("last", 1), [b"old"]),
        (START, Bound("sub", "s"), []),
        (Bound("last", 1), Bound("id", last), []),
        (Bound("sub", "s"), Bound("id", last), [b"old"]),
    ):
        damaged = read_to_damage(client, "t", range=Range(start, stop), partitions=[0])
        assert damaged == expected, (start, stop)
    for stop in (Bound("skip", 1), Bound("time", SECOND_MS)):  # a range over every partition
        assert read_to_damage(client, "t", range=Range(START, stop))[:1] == [b"old"]
    bench.close()


def test_damage_that_is_met_while_a_range_is_read_ends_it(tmp_path: Path) -> None:
    """The read began over an intact journal; after a reload, the view lacks a part of it."""
    new_bench, at = written(tmp_path)
    client = new_bench.another()
    tables = client.read("t", batch_messages=1)
    assert next(tables)["value"].to_pylist() == [b"old"]
    damage(new_bench, at)
    client.store.reload()
    out: list[bytes] = []
    with pytest.raises(Corruption) as ended:
        for table in tables:
            out += table["value"].to_pylist()
    told(ended.value)
    assert sorted(out) == [b"t1", b"x", b"y"]
    new_bench.close()


@pytest.mark.parametrize("to", ["file", "directory", "stream"])
def test_an_export_that_ends_before_it_is_made(bench: Bench, tmp_path: Path, to: str) -> None:
    """An export has the messages of its range; one without an end is refused, and leaves
    no file.
    """
    client = bench.another()
    expected = Range(START, Bound("id", places(client)[1]))
    path = tmp_path / "out"

    def export(given_values: Range | None) -> int:
        if to == "stream":
            stream = export_stream(client, "t", io.BytesIO(), message_range=given_values)
        elif to == "file":
            stream = export_file(client, "t", str(path), message_range=given_values)
        else:
            stream = export_directory(client, "t", str(path), message_range=given_values)
        return int(stream["messages"])

    with pytest.raises(Corruption) as refused:
        export(None)
    told(refused.value)
    assert not [each_path for each_path in path.rglob("*") if each_path.is_file()]
    assert export(expected) == 1
    bench.close()


def places(client: Client) -> list[MessageId]:
    """The ids of the two plain messages of t/0 before the damage."""
    message_ids = [message.message_id for message in read(client, limit=2)]
    return [message_id for message_id in message_ids if message_id is not None]


READING: list[Callable[[Client], object]] = [
    lambda client: client.topics(),
    lambda client: client.describe_topic("t"),
    lambda client: client.subscriptions(),
    lambda client: client.status(),
    lambda client: client.transactions(all=True),
    lambda client: client._content("t"),
    lambda client: client._contents(),
    lambda client: client.segments(),
    lambda client: client.topic("t").histogram(),
    lambda client: client.subscription("t", "s").describe(),
    lambda client: client.wait_for_change(0),
    lambda client: client.reader("t").get_last_message_ids(),
    lambda client: client.reader("late"),  # this topic was created after the damage
    lambda client: [*client.read("late")],
    lambda client: client.topic("late"),
]  # fmt: skip
ASKED: list[Callable[[Client], object]] = [
    *READING,
    lambda client: send(client, b"new"),
    lambda client: client.create_topic("t", if_not_exists=True),
    lambda client: client.consumer("t", "s").receive_batch(1, 0),
    lambda client: client.consumer("t", "mine", durable=False).receive_batch(1, 0),
    lambda client: client.begin(),
    lambda client: client.checkpoint(),
    lambda client: client.admin.gc(),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(ASKED)))
def test_nothing_else_is_answered_from_an_old_state(bench: Bench, at: int) -> None:
    """Neither the first call, nor one after a reader, nor a repeat is answered; no file changes."""
    files = {path: path.read_bytes() for path in Path(bench.path).rglob("*") if path.is_file()}
    client = bench.another()
    for _ in range(2):
        with pytest.raises(Corruption) as caught:
            ASKED[at](client)
        told(caught.value)
        read_to_damage(client, "t")
    bench.close()
    contents = {path: path.read_bytes() for path in files}
    assert contents == files


def test_a_dry_run_is_refused_as_the_write_would_be(bench: Bench) -> None:
    client = bench.another(dry_run=True)
    with pytest.raises(Corruption) as caught:
        client.create_topic("v")
    told(caught.value)
    bench.close()


def test_a_reader_that_is_open_meets_the_damage_and_goes_on_behind_a_repair(bench: Bench) -> None:
    """One handle, before and after `admin repair --apply --accept-loss`."""
    client = bench.another()
    assert sorted(read_to_damage(client, "t")) == sorted(BEFORE["t"])
    txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    assert sorted(values(client)) == sorted(BEFORE["t"])
    assert [row["topic"] for row in client.topics()] == ["t", "u"]
    send(client, b"new")
    assert sorted(values(client)) == sorted([*BEFORE["t"], b"new"])
    assert sorted(values(bench.another())) == sorted([*BEFORE["t"], b"new"])
    bench.close()
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0


def test_behind_a_reboot_it_is_the_same(bench: Bench) -> None:
    """R22: after a reboot the witness is of another boot, and every frame comes from the disk."""
    bench.clock = ManualClock(bench.clock.now().wall_ms, boot_id="another")
    assert sorted(read_to_damage(bench.another(), "t")) == sorted(BEFORE["t"])
    with pytest.raises(Corruption):
        bench.another().topics()
    bench.close()


def test_without_a_witness_frames_after_the_damage_prove_it(bench: Bench) -> None:
    """A of spec/reliability 2.3: genuine frames record what was durable, even after a bad frame."""
    Path(bench.path, "journal", "witness").write_bytes(bytes(8192))
    assert sorted(read_to_damage(bench.another(), "t")) == sorted(BEFORE["t"])
    with pytest.raises(Corruption):
        bench.another().topics()
    bench.close()


def test_the_header_of_a_younger_file_is_damage_like_any_other(tmp_path: Path) -> None:
    """A journal file that a reader must continue in, after a checkpoint of another process."""
    new_bench = Bench(tmp_path / "store")
    new_bench.client.create_topic("t")
    send(new_bench.client, b"a")
    reader = new_bench.another().reader("t")
    assert reader.read_next() is not None
    send(new_bench.client, b"b")
    new_bench.client.store.cut(lambda view: None)
    send(new_bench.client, b"c")
    path = journal(new_bench)
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    assert len(data) > FILE_HEADER_BYTES
    path.write_bytes(data)
    assert [message.value for message in (reader.read_next(),) if message] == [b"b"]
    with pytest.raises(Corruption) as ended:
        reader.read_next()
    assert (ended.value.code, ended.value.fields["path"]) == (602, f"journal/{path.name}")
    new_bench.close()


def flip_header(data: bytearray) -> bytes:
    data[9] ^= 1
    return bytes(data)


def cut_header(data: bytearray) -> bytes:
    return bytes(data[: FILE_HEADER_BYTES - 1])


def other_chain(data: bytearray) -> bytes:
    """A good header of a file that continues another frame."""
    data[32] ^= 1
    return bytes(data[:36]) + struct.pack("<I", crc32c(bytes(data[:36]))) + bytes(data[40:])


HEADERS = [flip_header, cut_header, other_chain]


@pytest.fixture
def headless(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """The newest checkpoint continues in a file with a bad header; the frames of the file
    are good.
    """
    new_bench, _ = written(tmp_path)
    path = journal(new_bench)
    path.write_bytes(request.param(bytearray(path.read_bytes())))
    return new_bench


@pytest.mark.parametrize("headless", HEADERS, indirect=True)
@pytest.mark.parametrize("read_only", [False, True])
def test_behind_a_bad_header_the_checkpoint_is_read(headless: Bench, read_only: bool) -> None:
    """A reader gets the messages of the checkpoint, no frame of the file, then the error.

    Every other call gets only the error.
    """
    client = headless.another(read_only=read_only)
    for _ in range(2):
        assert told_of_header(headless, client, "t") == [b"old"]
        assert told_of_header(headless, client, "u") == []
        for ask in READING if read_only else ASKED:
            with pytest.raises(Corruption) as caught:
                ask(client)
            assert (caught.value.code, caught.value.exit) == (602, 6)
    with client.reader("t") as reader:
        assert reader.has_message_available()
    assert values(client, limit=1) == [b"old"]
    headless.close()


def told_of_header(new_bench: Bench, client: Client, topic: str) -> list[bytes]:
    """The values that a reader gets before the error, which names the header."""
    out: list[bytes] = []
    with pytest.raises(Corruption) as ended:
        for table in client.read(topic):
            out += table.column("value").to_pylist()
    values = ended.value
    assert (values.code, values.fields["path"]) == (602, f"journal/{journal(new_bench).name}")
    assert int(str(values.fields["offset"])) < FILE_HEADER_BYTES
    assert "txlog admin repair" in (values.hint or "")
    return out


@pytest.mark.parametrize("headless", HEADERS[:1], indirect=True)
def test_a_bad_header_is_found_and_mended_without_loss(headless: Bench) -> None:
    """Verify finds it and repair mends it; an open handle and its reader go on afterwards."""
    client = headless.another()
    reader = client.reader("t")
    assert [message.value for message in (reader.read_next(),) if message] == [b"old"]
    with pytest.raises(Corruption):
        reader.read_next()
    problems = txlog.verify(headless.path, clock=headless.clock)["problem_list"]
    assert ("error", "TXL-602", f"journal/{journal(headless).name}") in [
        (problem["severity"], problem["code"], problem["path"]) for problem in problems
    ]
    done = txlog.repair(headless.path, apply=True, clock=headless.clock)
    assert done["action_list"][0]["action"] == "rebuild-journal"
    assert [row["topic"] for row in client.topics()] == ["late", "t", "u"]
    assert sorted(message.value or b"" for message in reader) == [b"across", b"t1", b"x", b"y"]
    send(client, b"new")
    assert sorted(values(headless.another())) == sorted([*BEFORE["t"], b"across", b"new"])
    headless.close()
    assert txlog.verify(headless.path, deep=True, clock=headless.clock)["errors"] == 0


@pytest.mark.parametrize("headless", HEADERS[:1], indirect=True)
def test_reading_goes_on_once_a_header_is_restored(headless: Bench) -> None:
    """The user restored the file from a copy: clients that stopped before it read and
    write again.
    """
    client, writer = headless.another(), headless.another()
    assert told_of_header(headless, client, "t") == [b"old"]
    data = bytearray(journal(headless).read_bytes())
    journal(headless).write_bytes(flip_header(data))
    send(writer, b"new")
    assert sorted(values(client)) == sorted([*BEFORE["t"], b"across", b"new"])
    headless.close()


@pytest.mark.parametrize("headless", HEADERS[:1], indirect=True)
def test_the_commands_read_up_to_a_bad_header(headless: Bench) -> None:
    for arguments in (["consume", "t"], ["peek", "t"]):
        code, out, error_text = run(headless, *arguments, "-f", "%v\n")
        assert (code, out) == (6, "old\n"), arguments
        assert f"the header of journal/{journal(headless).name} is damaged" in error_text, arguments
    for arguments in (["topic", "list"], ["produce", "t", "-m", "x"]):
        code, out, error_text = run(headless, *arguments)
        assert (code, out) == (6, ""), arguments
        assert "the header of" in error_text, arguments
    headless.close()


def run(new_bench: Bench, *arguments: str) -> tuple[int, str, str]:
    done = harness.run(harness.txlog_of(new_bench.path, *arguments), code=None)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.deep
def test_the_commands_report_the_damage(bench: Bench) -> None:
    """consume and peek print the messages before the damage and exit with 6.

    Every other command exits with 6 at once.
    """
    for arguments in (["consume", "t", "u"], ["peek", "t", "--last", "9"], ["consume", "t", "-F"]):
        code, out, error_text = run(bench, *arguments, "-f", "%v\n")
        assert (code, b"across" in out.encode()) == (6, False), arguments
        expected = EVERY if "u" in arguments else BEFORE["t"]
        assert sorted(out.split()) == sorted(value.decode() for value in expected), arguments
        assert "is damaged at byte" in error_text, arguments
        assert "txlog admin repair" in error_text, arguments
    assert run(bench, "consume", "t", "-n", "1", "-f", "%v\n")[:2] == (0, "old\n")
    second = str(read(bench.another(), limit=2)[1].message_id)
    assert run(bench, "consume", "t", "--until", second, "-f", "%v\n")[:2] == (0, "old\n")
    message_id = str(read(bench.another(), limit=1)[0].message_id)
    assert run(bench, "peek", "t", "--at", message_id, "-f", "%v\n")[:2] == (0, "old\n")
    for arguments in (
        ["topic", "list"],
        ["query", "FROM t"],
        ["status"],
        ["consume", "t", "-s", "s"],
        ["produce", "t", "-m", "x"],
        ["inspect", "t"],
    ):
        code, out, error_text = run(bench, *arguments)
        assert (code, out) == (6, ""), arguments
        assert "is damaged at byte" in error_text, arguments
    code, out, _ = run(bench, "doctor")
    assert code != 0
    assert "is damaged at byte" in out
    bench.close()
