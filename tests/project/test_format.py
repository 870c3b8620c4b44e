"""docs/format.md is true: its tables match the code, its example decodes, old stores open."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

import txlog
from tests.format import make
from tests.source_tree import ROOT
from tests.tiers import graded
from txlog.clock import ManualClock
from txlog.engine import view
from txlog.engine.model import ops, schema
from txlog.engine.storage import bucket, frame, manifest, segment
from txlog.engine.storage import journal as journal_module
from txlog.engine.store import identity
from txlog.engine.store import store as store_module
from txlog.engine.upkeep.changes.rows import SCHEMAS
from txlog.errors import Corruption, FormatMismatch, TxlogError

TEXT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
STRUCTS = {
    "frame": (frame.HEADER.format, ""),
    "file": (frame.FILE_HEADER.format, "I472x"),
    "witness": (frame.RECORD.format, ""),
    "manifest": (manifest.HEAD.format, ""),
}  # fmt: skip
FOLDERS = sorted(make.FOLDER.parent.glob("v*"))
of_each_format = pytest.mark.parametrize("kept", FOLDERS, ids=lambda path: path.name)
of_each_older_format = pytest.mark.parametrize("kept", FOLDERS[:-1], ids=lambda path: path.name)
FULL = [folder for folder in FOLDERS if (folder / "full.tar.gz").is_file()]
of_each_full_store = pytest.mark.parametrize("kept", FULL, ids=lambda path: path.name)


@pytest.mark.parametrize("name", STRUCTS)
def test_offsets_match_the_struct(name: str) -> None:
    first, remaining = STRUCTS[name]
    assert list(_ruler(name)) == list(_fields(first + remaining))


@pytest.mark.whole_reserve
def test_sizes_in_the_text_match_the_code() -> None:
    for pattern, size in (
        (r"length of the header, (\d+)", frame.HEADER_BYTES),
        (r"header \((\d+)\) · ops", frame.HEADER_BYTES),
        (r"A journal file is a (\d+)-byte header", frame.FILE_HEADER_BYTES),
        (r"grown by writing zeros, (\d+) MiB", frame.FILL_BYTES >> 20),
        (r"at most\s+(\d+) GiB", frame.FRAME_BYTES_MAX >> 30),
        (r"at\s+most\s+(50,000)\s+rows", segment.GROUP_ROWS),
        (r"above\s+one\s+row,\s+(\d+)\s+MiB", segment.GROUP_BYTES >> 20),
        (r"\| zeros, (\d+) MiB", identity.RESERVE_BYTES >> 20),
        (r"from\s+byte\s+(\d+)\s+on,\s+is\s+msgpack", manifest.HEAD.size),
    ):
        match = re.search(pattern, TEXT)
        assert match is not None, pattern
        assert int(match[1].replace(",", "")) == size, pattern


def test_magic_words() -> None:
    for magic in (
        frame.MAGIC,
        frame.FILE_MAGIC,
        frame.WITNESS_MAGIC,
        manifest.MAGIC,
        view.STATE_MAGIC,
    ):
        assert f"`{magic.decode()}`" in TEXT


def test_columns_match_the_schema() -> None:
    documented: list[tuple[str, str]] = []
    row = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (\S.*?) \| (?:yes|no) \|", re.MULTILINE)
    for names, kind in row.findall(TEXT):
        documented += [(name, kind) for name in re.findall(r"\w+", names)]
    types = [(field.name, str(field.type)) for field in segment.SEALED]
    types += [("schema_version", "int32"), ("record", "struct")]
    assert [(name, kind.split(" (")[0]) for name, kind in types] == documented


def test_the_bits_of_a_frames_columns() -> None:
    for bit in (
        schema.KEY,
        schema.PROPERTIES,
        schema.EVENT_TIME,
        schema.DELIVER_AT,
        schema.SEQUENCE,
    ):
        name = schema.frame_schema(bit).names[1]
        assert re.search(rf"\b{bit}\s+`{name}`", TEXT), f"{bit} {name}"


def test_ops_match_the_code() -> None:
    documented = re.findall(r"^\| `(\w+)` \| ([A-Z]\w+) \| (.*) \|$", TEXT, re.MULTILINE)
    declared = [
        (str(op.__struct_config__.tag), op.__name__, _described(op)) for op in ops.Op.__args__
    ]
    assert documented == declared


def test_folds_match_the_code() -> None:
    """Kills: a fold that is dumped into state files, and that section 7 does not list."""
    documented = re.search(r"Folds: (.*?)\.", TEXT, re.DOTALL)
    assert documented is not None
    assert re.findall(r"`(\w+)\s", documented[1]) == [*view.HOMES]


@pytest.mark.parametrize("kind", [manifest.Manifest, segment.FileRef, manifest.DumpRef,
                                  manifest.HistoryRef, manifest.Changes, manifest.ChangeRef,
                                  bucket.Head, bucket.Segment,
                                  bucket.PackedBitmaps])  # fmt: skip
def test_the_fields_of_structs(kind: type[msgspec.Struct]) -> None:
    assert f"| {kind.__name__} | {_described(kind)} |" in TEXT


@pytest.mark.parametrize(("kind", "before"), [
    ("key", "\nOf keys;"), ("cursor", "\nOf cursors;"), ("catalog", "Of the catalog;"),
])  # fmt: skip
def test_the_columns_of_changes(kind: str, before: str) -> None:
    """In order. A line gives one type for all its columns, or a type for each."""
    ranges = re.search(r"^R is (.*?):\s+entries", TEXT, re.MULTILINE)
    assert ranges is not None
    lines = TEXT[TEXT.index(before) :].split("|---|---|---|\n")[1].splitlines()
    documented: list[tuple[str, str]] = []
    for line in lines[: lines.index("") if "" in lines else None]:
        names, kinds = line.split("|")[1:3]
        columns = re.findall(r"`(\w+)`", names)
        types = re.split(r", (?![^<]*>|tz)", kinds.strip())
        types = types * len(columns) if len(types) == 1 else types
        documented += [
            (name, re.sub(r"\bR\b", ranges[1], kind))
            for name, kind in zip(columns, types, strict=True)
        ]
    declared = [(f.name, str(f.type).replace("element: ", "")) for f in SCHEMAS[kind]]
    assert documented == declared


def test_the_identity_in_the_text_is_written_like_that() -> None:
    block = re.search(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert block is not None
    example = identity.Identity(3, "00112233-4455-4677-8899-aabbccddeeff", 1_700_000_000_000)
    assert identity.text_of(example) == block[1]


def test_the_example_decodes_by_the_ruler() -> None:
    """Read field by field at the offsets of the table, without the program's decoder."""
    data = _example()
    numbers = [int.from_bytes(data[at : at + size], "little") for at, size in _ruler("frame")]
    (
        _,
        version,
        columns,
        header_bytes,
        lsn,
        durable_lsn,
        time_ms,
        offset,
        ops_bytes,
        rows_bytes,
        _,
        previous_crc,
        crc,
    ) = numbers
    assert (version, columns, header_bytes) == (1, schema.ONE_ROW, 64)
    assert (lsn, durable_lsn, time_ms, offset) == (7, 6, 1_700_000_000_000, 512)
    assert (ops_bytes, rows_bytes) == (15, 8)
    assert (previous_crc, crc) == (0xCAFEF00D, 0x4C7B69FA)
    assert (data[0:4], data[48:56].hex()) == (b"TXLF", "0011223344556677")
    assert crc32c(data[64:], crc32c(data[:60])) == crc
    end = 64 + ops_bytes
    assert msgspec.msgpack.decode(data[64:end]) == [["app", 1, 1, 0, 0, 1, 5, None, -1, None]]
    rows = data[end : end + rows_bytes]
    assert msgspec.msgpack.decode(rows) == [b"hello"]
    assert schema.decode_rows(columns, rows).to_pydict() == {"value": [b"hello"]}
    assert not any(data[end + rows_bytes :])
    assert len(data) == frame.frame_bytes(ops_bytes, rows_bytes)


def test_encoder_makes_the_example() -> None:
    data = _example()
    ops_at, rows_at = 64, 64 + 15
    decoded = ops.decode_ops(data[ops_at:rows_at], lsn=7)
    assert decoded == [ops.Appended(1, 1, 0, 0, 1, 5)]
    parts, total, _ = frame.encode(
        lsn=7,
        durable_lsn=6,
        time_ms=1_700_000_000_000,
        offset=512,
        ops=ops.encode_ops(decoded),
        rows=schema.OneRow(b"hello", None, None, None).encoded()[1],
        columns=schema.ONE_ROW,
        salt=bytes.fromhex("0011223344556677"),
        previous_crc=0xCAFEF00D,
    )
    assert (frame.joined(parts), total) == (data, len(data))
    header = frame.decode_header(data)
    assert header is not None
    assert frame.is_genuine(header, memoryview(data), header.salt, 512)
    assert not frame.is_genuine(header, memoryview(data), header.salt, 520)


@of_each_format
@pytest.mark.parametrize("read_only", [False, True])
def test_store_of_each_format_shows_its_contents(
    tmp_path: Path, read_only: bool, kept: Path
) -> None:
    store = _unpack(tmp_path, kept)
    clock = ManualClock(make.START_MS + 3000, boot_id=make.BOOT)
    with txlog.open(str(store), clock=clock, read_only=read_only) as client:
        assert client.reports() == []
        assert json.loads(json.dumps(make.show(client))) == _expected(kept)


@of_each_format
def test_a_store_of_each_format_goes_on_after_a_reboot(tmp_path: Path, kept: Path) -> None:
    """Open transactions are aborted, committed messages stay, and new rows come after them."""
    store = _unpack(tmp_path, kept)
    clock = ManualClock(make.START_MS + 3000, boot_id="another boot")
    with txlog.open(str(store), clock=clock) as client:
        client.producer("orders").send(b"after", partition=1)
        assert [client.connect("k")["epoch"] for _ in range(2)] == [0, 1]
        assert client.admin.scale_coordinators(5) == {"before": 2, "after": 5}
        contents = json.loads(json.dumps(make.show(client)))
        client.checkpoint(roll_all=True)
        assert json.loads(json.dumps(make.show(client))) == contents
    with txlog.open(str(store), clock=clock) as client:
        assert client.connect("k")["epoch"] == 2
    expected = _expected(kept)
    assert [row[3] for row in contents["topics"]["orders"]] == [
        *(row[3] for row in expected["topics"]["orders"]),
        "after",
    ]
    states = {txn: (state, reason) for txn, state, reason in contents["transactions"]}
    for txn, state, reason in expected["transactions"]:
        assert states[txn] == (("aborted", "recovery") if state == "open" else (state, reason))
    assert "open" not in {state for state, _ in states.values()}


@of_each_format
def test_the_store_of_each_format_has_every_kind_of_file(tmp_path: Path, kept: Path) -> None:
    suffixes = {path.suffix for path in _unpack(tmp_path, kept).rglob("*") if path.is_file()}
    assert {".journal", ".manifest", ".state", ".arrow", ".parquet", ".toml"} <= suffixes


def test_a_store_of_each_format_is_kept() -> None:
    """Kills: a new format without a store on which later versions are tested."""
    stored = {path.name for path in FOLDERS if (path / "store.tar.gz").is_file()}
    assert stored == {f"v{number}" for number in range(1, identity.FORMAT + 1)}
    assert {path.name for path in FULL} >= {f"v{number}" for number in range(2, identity.FORMAT)}


def test_stores_of_old_formats_are_never_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    files_before = {path: path.read_bytes() for folder in FOLDERS for path in folder.iterdir()}
    for folder in FULL:
        assert make.main(folder) == 1
    assert files_before == {
        path: path.read_bytes() for folder in FOLDERS for path in folder.iterdir()
    }


@of_each_full_store
@pytest.mark.parametrize("read_only", [False, True])
def test_full_store_of_each_format_shows_its_contents(
    tmp_path: Path, read_only: bool, kept: Path
) -> None:
    """The newest program shows everything that the last program of the format stored."""
    store = _unpack(tmp_path, kept, "full")
    clock = ManualClock(make.START_MS + 4000, boot_id=make.BOOT)
    with txlog.open(str(store), clock=clock, read_only=read_only) as client:
        _need_within(_expected(kept, "full"), json.loads(json.dumps(make.show_full(client))))
    assert txlog.verify(str(store), deep=True)["errors"] == 0


@of_each_full_store
def test_full_store_of_each_format_goes_on(tmp_path: Path, kept: Path) -> None:
    """Its open transaction commits; checkpoints, a trim and a compaction keep every message."""
    store = _unpack(tmp_path, kept, "full")
    clock = ManualClock(make.START_MS + 4000, boot_id=make.BOOT)
    before = _expected(kept, "full")
    with txlog.open(str(store), clock=clock) as client:
        (key,) = [row for row in client.admin.transaction_keys() if row["txn_state"] == "open"]
        assert key["txn"] is not None
        client.commit(key["txn"])
        client.producer("flights").send({"plane": "new", "seats": 1}, partition=1)
        assert client.connect("worker")["epoch"] == 1
        client.admin.set_online("away", 0)
        contents = make.show_full(client)
        for _ in range(2):
            client.checkpoint(roll_all=True)
            client.admin.compact_topic("acme/eu/keys")
            client.admin.gc(apply=True, keep_ms=0)
            assert make.show_full(client)["topics"] == contents["topics"]
    assert txlog.verify(str(store), deep=True)["errors"] == 0
    values = {topic: [row[3] for row in rows] for topic, rows in contents["topics"].items()}  # type: ignore[attr-defined]
    for topic, rows in before["topics"].items():
        assert [value for value in values[topic] if value in {row[3] for row in rows}] == [
            row[3] for row in rows
        ]
    assert "left open" in values["acme/eu/keys"]


def _need_within(expected: Any, shown: Any, at: str = "") -> None:
    """Later programs may show more fields; each earlier field has its value."""
    if isinstance(expected, dict) and isinstance(shown, dict):
        for name, value in expected.items():
            assert name in shown, f"{at}.{name}"
            _need_within(value, shown[name], f"{at}.{name}")
    elif isinstance(expected, list) and isinstance(shown, list):
        assert len(expected) == len(shown), at
        for number, (value, other) in enumerate(zip(expected, shown, strict=True)):
            _need_within(value, other, f"{at}[{number}]")
    else:
        assert expected == shown, at


def _of_old_format(folder: Path, kept: Path) -> tuple[Path, ManualClock]:
    clock = ManualClock(make.START_MS + 3000, boot_id=make.BOOT)
    return _unpack(folder, kept), clock


@of_each_older_format
def test_reading_leaves_the_format_as_it_is(tmp_path: Path, kept: Path) -> None:
    store, clock = _of_old_format(tmp_path, kept)
    files_before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with txlog.open(str(store), clock=clock, read_only=True) as client:
        make.show(client)
    assert files_before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@of_each_older_format
def test_the_first_write_makes_it_the_newest_format(tmp_path: Path, kept: Path) -> None:
    """Unflushed frames move to the new format, and two numbers keep an older program out."""
    store, clock = _of_old_format(tmp_path, kept)
    with txlog.open(str(store), clock=clock) as client:
        assert f"format = {kept.name[1:]}\n" in (store / "txlog.toml").read_text()
        client.producer("orders").send(b"after", partition=1)
        contents = json.loads(json.dumps(make.show(client)))
    assert txlog.verify(str(store))["errors"] == 0
    assert f"format = {identity.FORMAT}\n" in (store / "txlog.toml").read_text()
    headers = [path.read_bytes()[8:12] for path in sorted(store.glob("journal/*.journal"))]
    assert [int.from_bytes(version, "little") for version in headers][-1] == (frame.FILE_VERSION)
    expected = _expected(kept)
    assert contents["transactions"] == expected["transactions"]  # open ones stay open
    assert contents["topics"]["orders"][:-1] == expected["topics"]["orders"]
    with txlog.open(str(store), clock=clock) as client:
        assert json.loads(json.dumps(make.show(client))) == contents


@of_each_older_format
@pytest.mark.parametrize("call", graded(range(1, 15), (1, 5, 11)))
def test_a_change_of_format_that_is_cut_short_is_made_again(
    tmp_path: Path, call: int, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a store that keeps the number of one format and files of another for ever."""
    store, clock = _of_old_format(tmp_path, kept)
    count = 0

    def cut(name: str) -> Any:
        known = getattr(os, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= call:
                raise OSError(errno.EIO, "cut short")
            return known(*arguments, **options)

        return counted

    client = txlog.open(str(store), clock=clock)
    with monkeypatch.context() as patch:
        for name in ("fsync", "link", "rename", "pwrite", "pwritev"):
            patch.setattr(os, name, cut(name))
        with suppress(TxlogError):
            client.producer("orders").send(b"first", partition=1)
            assert count < call
    del client
    with txlog.open(str(store), clock=clock) as client:
        client.producer("orders").send(b"after", partition=1)
        values = [row[3] for row in make.show(client)["topics"]["orders"]]  # type: ignore[index]
    assert txlog.verify(str(store))["errors"] == 0
    assert [value for value in values if value != "first"] == [
        *(row[3] for row in _expected(kept)["topics"]["orders"]),
        "after",
    ]


@contextmanager
def _as_before(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """A program whose newest format, and newest version of journal files, is `number`."""
    with monkeypatch.context() as patch:
        patch.setattr(identity, "FORMAT", number)
        patch.setattr(store_module, "FORMAT", number)
        patch.setattr(journal_module, "FILE_VERSION", number)
        patch.setattr(frame, "FILE_VERSION", number)
        yield


@of_each_older_format
def test_older_program_stops_at_a_store_of_the_new_format(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused with 603, also one that has slept since before a checkpoint.

    Kills: an open program that has not seen the new ops, reads a dump without its new fields, and
    writes one that has lost them.
    """
    store, clock = _of_old_format(tmp_path, kept)
    number = int(kept.name[1:])
    with _as_before(monkeypatch, number):
        old = txlog.open(str(store), clock=clock)
        old.producer("orders").send(b"old", partition=1)
    with txlog.open(str(store), clock=clock) as client:
        client.producer("orders").send(b"new", partition=1)
        client.checkpoint()
        client.checkpoint()
        expected = make.show(client)
    files_before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with _as_before(monkeypatch, number):
        for use in (
            lambda: old.producer("orders").send(b"void", partition=1),
            lambda: make.show(old),
            lambda: txlog.open(str(store), clock=clock),
        ):
            with pytest.raises((FormatMismatch, Corruption)) as refused:
                use()
            assert refused.value.code in (602, 603)
    assert files_before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with txlog.open(str(store), clock=clock) as client:
        assert make.show(client) == expected


@of_each_older_format
def test_death_at_a_change_of_format_strands_no_older_program(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: an older program, already open, whose messages go to a journal file that is void."""
    store, clock = _of_old_format(tmp_path, kept)
    number = int(kept.name[1:])
    old = txlog.open(str(store), clock=clock)
    with _as_before(monkeypatch, number):
        for value in (b"one", b"two"):  # the second call finds the state that the first one left
            old.producer("orders").send(value, partition=1)

    def dies(*arguments: Any) -> None:
        frame.publish_journal(*arguments)
        raise KeyboardInterrupt

    new = txlog.open(str(store), clock=clock)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journal_module, "publish_journal", dies)
        new.producer("orders").send(b"never", partition=1)
    with _as_before(monkeypatch, number), pytest.raises((Corruption, FormatMismatch)):
        old.producer("orders").send(b"void", partition=1)
    with txlog.open(str(store), clock=clock) as client:
        client.producer("orders").send(b"after", partition=1)
        values = [row[3] for row in make.show(client)["topics"]["orders"]]  # type: ignore[index]
    assert values[-3:] == ["one", "two", "after"]
    assert txlog.verify(str(store))["errors"] == 0


def _unpack(folder: Path, folder_of_format: Path, kind: str = "store") -> Path:
    store = folder / "store"
    store.mkdir(mode=0o700)
    with tarfile.open(folder_of_format / f"{kind}.tar.gz") as archive:
        archive.extractall(store, filter="data")
    return store


def _expected(folder_of_format: Path, kind: str = "expected") -> Any:
    return json.loads((folder_of_format / f"{kind}.json").read_text(encoding="utf-8"))


def _ruler(name: str) -> Iterator[tuple[int, int]]:
    """Offset and size of each row of a struct's table."""
    table = TEXT.split(f"<!-- struct {name} -->\n", 1)[1].split("\n\n", 1)[0]
    for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", table, re.MULTILINE):
        yield int(at), int(size)


def _fields(form: str) -> Iterator[tuple[int, int]]:
    at = 0
    for count, letter in re.findall(r"(\d*)([a-zA-Z])", form):
        if letter in "sx":
            sizes = [int(count or 1)]
        else:
            sizes = [struct.calcsize(f"<{letter}")] * int(count or 1)
        for size in sizes:
            yield at, size
            at += size


def _described(kind: type[msgspec.Struct]) -> str:
    words = []
    for field in msgspec.structs.fields(kind):
        factory = field.default_factory
        default = factory() if factory is not msgspec.NODEFAULT else field.default
        if isinstance(default, msgspec.Raw):
            default = msgspec.msgpack.decode(default)
        words.append(field.name if field.required else f"{field.name}={json.dumps(default)}")
    return " ".join(words)


def _example() -> bytes:
    block = re.search(r"^```hex\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert block is not None
    return bytes.fromhex("".join(line[4:] for line in block[1].splitlines()))
