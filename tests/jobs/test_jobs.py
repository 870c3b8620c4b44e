"""Tests of txlog.lake.jobs on DuckDB: an audit reports every fault and no false one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from tests.sql.test_querying import FIRST, STEPS, History
from tests.tiers import graded
from txlog import Client
from txlog.base.rows.jobs import Audit, AuditCheck
from txlog.clock import ManualClock
from txlog.engine.model import tail
from txlog.engine.model.schema import decode_rows
from txlog.engine.relation import frames
from txlog.engine.relation import stored as stored_rows
from txlog.engine.relation.relation import FileSource
from txlog.engine.relation.stored import ACKS, ROWS, StoredFrames, StoredRows, part_rows
from txlog.errors import InvalidArgument, PartitionUnavailable, TopicNotFound
from txlog.lake.jobs import audit as auditing
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.lateness import DELAYS_MS, lateness
from txlog.lake.jobs.local import Local
from txlog.lake.sql.duck import Session

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Return a client of a store with a topic `orders` of two partitions."""
    txlog.init(str(tmp_path / "store"), max_message_bytes=200)
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=2)
        yield opened


def failed(answer: Audit) -> list[str]:
    """The names of the checks that failed."""
    names = [check["name"] for check in answer["check_list"] if not check["ok"]]
    assert answer["failed"] == len(names)
    return names


def acknowledge(history: History, rng: random.Random) -> None:
    """A subscription with some acknowledged messages, also beyond its mark-delete position."""
    tables = list(history.client.read("t"))
    ids = [
        txlog.MessageId(row["ledger"], row["entry"], row["index"] or 0)
        for table in tables
        for row in table.to_pylist()
    ]
    history.client.create_subscription("t", "s", if_not_exists=True)
    if ids:
        chosen = rng.sample(ids, k=min(len(ids), 5))
        history.client.acknowledge("t", "s", chosen)


def audited(folder: Path, seed: str) -> set[str]:
    """Run one history with audits on the way, and return the names of the checks that ran."""
    history = History(folder, seed)
    seen: set[str] = set()
    try:
        for number in range(STEPS):
            history.step(random.Random(f"{seed}:{number}"))
            if number % 20 == 19:
                acknowledge(history, random.Random(f"{seed}:acks:{number}"))
                answer = audit(history.client, [], Local())
                assert failed(answer) == [], answer
                seen |= {check["name"] for check in answer["check_list"]}
    except BaseException:
        print(f"seed {seed!r}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()
    return seen


@pytest.mark.deep
def test_audit_of_a_sound_store_finds_no_fault(tmp_path: Path) -> None:
    """Rows, manifest and folds agree.

    Guards against a check that reports a fault in a sound store.
    """
    seen: set[str] = set()
    for seed in range(FIRST, FIRST + 5):
        seen |= audited(tmp_path, str(seed))
    assert seen == {
        "bytes",
        "files",
        "entries",
        "transactions",
        "large",
        "acks",
        "messages",
        "markers",
        "places",
        "ids",
        "sequences",
        "digest",
    }


@pytest.mark.slow
def test_audit_of_many_sound_stores_finds_no_fault(tmp_path: Path) -> None:
    """The same with 60 more histories."""
    for seed in range(FIRST + 2000, FIRST + 2060):
        audited(tmp_path, str(seed))


def filled(client: Client) -> StoredRows:
    """Fill a topic with every kind of row, and return its stored rows."""
    producer = client.producer("orders", "p", chunking=True)
    for partition in (0, 1):
        producer.send(b"plain", partition=partition)
        with client.transaction() as txn:
            producer.send(b"one", txn=txn, partition=partition)
            producer.send(b"two", txn=txn, partition=partition)
            producer.send(b"x" * 1000, txn=txn, partition=partition)
        client.checkpoint(roll_all=True)
        producer.send(b"later", partition=partition)
    client.checkpoint()
    producer.send(b"last", partition=0)
    [stored] = auditing.stored_of(client, ["public/default/orders"])
    return stored


def checks(client: Client, stored: StoredRows) -> list[AuditCheck]:
    """The answers of all checks of these stored rows."""
    return list(auditing._checks(client, stored, Local()))


def checked(client: Client, stored: StoredRows) -> list[str]:
    """The names of the checks that fail for these stored rows."""
    return [check["name"] for check in checks(client, stored) if not check["ok"]]


def with_row_twice(frames: StoredFrames) -> StoredFrames:
    """The same rows in frames, with the first row twice."""
    stored_frames = StoredFrames(frames._journals)
    for key, table in frames._slices:
        stored_frames.add(key, [table])
    key, (run, start, _) = frames._slices[0]
    stored_frames.add(key, [(run, start, start + 1)])
    return stored_frames


def with_value(table: pa.Table, name: str, row: int, value: object) -> pa.Table:
    """A table with one value changed."""
    at = table.schema.get_field_index(name)
    values = table.column(name).to_pylist()
    values[row] = value
    return table.set_column(
        at, table.schema.field(at), pa.array(values, table.schema.field(at).type)
    )


@pytest.mark.deep
def test_each_check_finds_its_fault(client: Client) -> None:
    """Guards against a check that compares a value with itself."""
    stored = filled(client)
    assert checked(client, stored) == []
    tampered = dataclasses.replace
    index, file, ref = stored.claims[0]
    claim = tampered_ref(ref, rows=ref.rows + 1)
    changed: dict[str, tuple[StoredRows, set[str]]] = {
        "a file has a row less": (
            tampered(stored, claims=[(index, file, claim), *stored.claims[1:]]),
            {"files"},
        ),
        "a ledger has an entry less": (
            tampered(stored, ledgers=with_value(stored.ledgers, "entries", 0, 9)),
            {"entries"},
        ),
        "a row is stored twice": (
            tampered(stored, frames=with_row_twice(stored.frames)),
            {"entries", "messages", "ids", "sequences"},
        ),
        "a part is there twice": (
            tampered(stored, parts=[*stored.parts, stored.parts[0]]),
            {"files", "entries", "messages", "ids", "sequences"},
        ),
        "a marker is unknown": (tampered(stored, markers=stored.markers.slice(1)), {"markers"}),
        "a marker counts another number": (
            tampered(stored, markers=with_value(stored.markers, "messages", 0, 7)),
            {"markers"},
        ),
        "a marker stands elsewhere": (
            tampered(stored, markers=with_value(stored.markers, "entry", 0, 7)),
            {"markers"},
        ),
        "a message of a transaction is missing": (
            tampered(stored, large=stored.large.slice(1)),
            {"transactions", "messages"},
        ),
        "a chunk is missing": (
            tampered(stored, large=with_value(stored.large, "value_bytes", 0, 1001)),
            {"large"},
        ),
        "the topic counts one more": (tampered(stored, counts=[6, 6]), {"messages"}),
        "an entry is acknowledged that is not there": (
            tampered(stored, acks=acks(stored, last=99)),
            {"acks"},
        ),
        "a message of a marker is acknowledged that is not there": (
            tampered(stored, acks=acks(stored, index_last=4)),
            {"acks"},
        ),
    }
    assert stored.counts == [6, 5]
    for name, (wrong, names) in changed.items():
        assert set(checked(client, wrong)) == names, name
    assert checked(client, tampered(stored, acks=acks(stored))) == []
    assert checked(client, tampered(stored, acks=acks(stored, index_last=3))) == []


def test_queries_in_shares_give_the_same_answer_as_one_query(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that must be unique are in memory together, so the audit asks by shares and never for a
    whole topic.

    Guards against a share with rows of another one, and against a row in no share.
    """
    stored = filled(client)
    cases = [
        stored,
        dataclasses.replace(stored, frames=with_row_twice(stored.frames)),
        dataclasses.replace(stored, large=stored.large.slice(1)),
        dataclasses.replace(stored, ledgers=with_value(stored.ledgers, "entries", 0, 9)),
    ]
    at_once = [checks(client, case) for case in cases]
    assert [sum(not check["ok"] for check in case) for case in at_once] == [0, 4, 2, 1]
    lines: list[str] = []
    arrow = Session.arrow

    def noted(self: Session, sql: str) -> pa.Table:
        lines.append(sql)
        return arrow(self, sql)

    monkeypatch.setattr(auditing, "ROWS_AT_ONCE", auditing._rows(stored) // 2)
    monkeypatch.setattr(auditing, "BLOCKS_AT_ONCE", auditing._blocks(stored) // 2)
    monkeypatch.setattr(Session, "arrow", noted)
    assert [checks(client, case) for case in cases] == at_once
    # entries, transactions, ids; ids once more if there are faults, to name them
    assert sum(", 3) = 1" in sql for sql in lines) == 3 * len(cases) + 1
    assert not any("DISTINCT" in sql and "mod(" in sql for sql in lines)


def tampered_ref(ref: Any, **values: object) -> Any:
    """A file reference with changed facts."""
    return type(ref)(**{name: getattr(ref, name) for name in ref.__struct_fields__} | values)


def test_audit_of_parts_keeps_only_references_in_memory(client: Client) -> None:
    """Guards against an audit that keeps the rows of parts, with their values, in memory during the
    query.
    """
    stored = filled(client)
    assert {source.ref.form for source in stored.parts} == {"part"}
    in_frames = pa.concat_tables(stored.frames.tables())
    assert in_frames["file"].unique().to_pylist() == [""]
    in_parts = sum(source.ref.rows for source in stored.parts)
    rows = pa.concat_tables(part_rows(stored.parts, client.open))
    assert rows.schema == in_frames.schema
    assert rows.num_rows == in_parts > 0
    with Local().stored(client, stored) as ask:
        answer = ask("SELECT role, partition, ledger, entry, file FROM stored WHERE file <> ''")
    names = answer.column_names
    order = [(name, "ascending") for name in names]
    assert answer.sort_by(order).equals(rows.select(names).sort_by(order))


def test_rows_in_frames_are_read_in_pieces(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an audit that keeps all rows since the last checkpoint, with their values, in
    memory at once.
    """
    filled(client).frames.close()
    producer = client.producer("orders")
    for number in range(20):
        producer.send(b"%d" % number, partition=number % 2)
    [stored] = auditing.stored_of(client, ["public/default/orders"])
    whole = pa.concat_tables(stored.frames.tables())
    assert whole.num_rows == stored.frames.rows == 21
    monkeypatch.setattr(stored_rows, "PIECE_ROWS", 4)
    pieces = list(stored.frames.tables())
    assert max(piece.num_rows for piece in pieces) == 4 < len(pieces)
    assert pa.concat_tables(pieces).equals(whole)
    for names in (["value"], ["role", "partition"], ["file", "entry", "kind"]):
        table = pa.concat_tables(stored.frames.tables(names))
        assert table.equals(whole.select(names))
        assert table.schema == pa.schema([ROWS.field(name) for name in names])
    assert checked(client, stored) == []
    stored.frames.close()


def test_an_audit_reads_each_frame_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against reading all frames again for each partition with rows in them."""
    producer = client.producer("orders")
    of = pa.array([0, 1] * 5, pa.int32())
    for _ in range(20):
        producer.send_batch(pa.table({"value": [b"x"] * 10, "partition": of}))
    [stored] = auditing.stored_of(client, ["public/default/orders"])
    decoded: list[int] = []

    def counted(columns: int, rows: pa.Buffer) -> pa.RecordBatch:
        decoded.append(columns)
        return decode_rows(columns, rows)

    monkeypatch.setattr(tail, "decode_rows", counted)
    monkeypatch.setattr(frames, "WINDOW_FRAMES", 3)
    rows = pa.concat_tables(stored.frames.tables(["partition", "value"]))
    assert rows.column("partition").value_counts().to_pylist() == [
        {"values": 0, "counts": 100},
        {"values": 1, "counts": 100},
    ]
    assert len(decoded) == 20
    stored.frames.close()


def test_an_audit_leaves_no_journal_open(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(client).frames.close()
    opened: list[StoredRows] = []

    def noted(*args: Any) -> list[StoredRows]:
        stored = stored_rows.stored(*args)
        opened.extend(stored)
        return stored

    monkeypatch.setattr(auditing, "stored", noted)
    audit(client, ["orders"], Local())
    with pytest.raises(TopicNotFound):
        audit(client, ["orders", "nope"], Local())
    assert len(opened) == 2
    assert all(holding.frames.rows and not holding.frames._journals._files for holding in opened)


def acks(stored: StoredRows, last: int = 1, index_last: int = 0) -> pa.Table:
    """A plain message and a marker acknowledged, the first two entries of the first partition."""
    [ledger] = {row["ledger"] for row in stored.markers.to_pylist() if row["partition"] == 0}
    first = 1 if index_last else 0
    row = ("s", 0, ledger, first, last, index_last)
    return pa.Table.from_arrays(
        [pa.array([value], f.type) for value, f in zip(row, ACKS, strict=True)], schema=ACKS
    )


def test_a_row_that_names_another_marker_is_found(client: Client, tmp_path: Path) -> None:
    """Readers trust a clean file and do not check its markers, so the audit has to."""
    stored = filled(client)
    clean = next(source for source in stored.files if source.role == "s" and source.ref.clean)
    path = Path(client.path, clean.ref.path)
    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    wrong = with_value(table, "marker_entry", 0, 99)
    (tmp_path / clean.ref.path).parent.mkdir(parents=True)
    pq.write_table(wrong, tmp_path / clean.ref.path)
    name = f"../{clean.ref.path}"
    moved = FileSource(clean.partition, "s", tampered_ref(clean.ref, path=name))
    files = [moved if source is clean else source for source in stored.files]
    with Local().stored(client, dataclasses.replace(stored, files=files)) as ask:
        table = ask(auditing._FAULTS["places"][1])
    assert table.to_pylist() == [{"partition": clean.partition, "faults": 1}]


def test_flipped_bit_is_reported_with_its_file(client: Client) -> None:
    stored = filled(client)
    path = Path(client.path, stored.files[0].ref.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    answer = audit(client, ["orders"], Local())
    assert failed(answer) == ["bytes"]
    assert path.name in answer["check_list"][0]["found"]


def test_audit_of_a_missing_topic_is_an_error(client: Client) -> None:
    with pytest.raises(TopicNotFound):
        audit(client, ["orders", "nope"], Local())
    with pytest.raises(TopicNotFound):
        lateness(client, "nope", 60_000, Local())
    with pytest.raises(InvalidArgument):
        lateness(client, "orders", 0, Local())
    client.admin.set_offline("orders", 0)
    with pytest.raises(PartitionUnavailable):
        audit(client, [], Local())


@pytest.mark.parametrize("seed", graded(range(FIRST, FIRST + 3), 1))
def test_lateness_equals_the_count_of_a_reader(tmp_path: Path, seed: int) -> None:
    """The model reads the messages one by one.

    Guards against an order over all partitions, and against `>=` instead of `>`.
    """
    client = timed(tmp_path, seed)
    with client:
        answer = lateness(client, "t", 60_000, Local())
        assert answer == modelled(client, 60_000), f"seed {seed}"
        assert sum(row["late"] for row in answer["row_list"]) == answer["delay_list"][0]["late"] > 0


def timed(folder: Path, seed: int) -> Client:
    """A store with messages in any order of time, some in transactions, some without an
    event time.
    """
    rng = random.Random(seed)
    start = 1_700_000_000_000
    clock = ManualClock(start)
    path = str(folder / f"timed-{seed}")
    txlog.init(path)
    client = txlog.open(path, clock=clock)
    client.create_topic("t", 2)
    producer = client.producer("t")
    for _ in range(60):
        clock.advance(rng.choice((0, 1, 1000, 30_000)))
        events = [start + rng.randrange(-100_000_000, 900_000) for _ in range(rng.choice((1, 3)))]
        if rng.random() < 0.3:
            with client.transaction() as txn:
                for event in events:
                    producer.send(b"x", event_time=event, partition=rng.randrange(2), txn=txn)
        else:
            for event in events:
                event_time = None if rng.random() < 0.1 else event
                producer.send(b"x", event_time=event_time, partition=rng.randrange(2))
    return client


def modelled(client: Client, by_ms: int) -> dict[str, Any]:
    """Lateness, counted by hand."""
    rows = [row for table in client.read("t") for row in table.to_pylist()]
    rows.sort(key=lambda row: (row["partition"], row["ledger"], row["entry"], row["index"] or 0))
    greatest: dict[int, int] = {}
    spans: dict[int, list[tuple[int, bool]]] = {}
    numbers_after: list[int] = []
    for row in rows:
        if row["event_time"] is None:
            continue
        event, published = (
            round(row[n].timestamp() * 1000) for n in ("event_time", "publish_time")
        )
        greatest_before = greatest.get(row["partition"], event)
        numbers_after.append(greatest_before - event)
        greatest[row["partition"]] = max(greatest_before, event)
        span = spans.setdefault(published - published % by_ms, [])
        span.append((published - event, event < greatest_before))
    listed = []
    for start, span in sorted(spans.items()):
        waits = sorted(wait for wait, _ in span)
        quantiles = {
            f"p{percent}_ms": waits[-(-percent * len(waits) // 100) - 1] for percent in (50, 90, 99)
        }
        listed.append(
            {
                "from_time": start,
                "messages": len(span),
                "late": sum(late for _, late in span),
                **quantiles,
                "max_ms": waits[-1],
            }
        )
    delays = [
        {"delay_ms": delay, "late": sum(ms > delay for ms in numbers_after)} for delay in DELAYS_MS
    ]
    return {"topic": "t", "messages": len(numbers_after), "row_list": listed, "delay_list": delays}


def test_lateness_of_nothing(client: Client) -> None:
    client.producer("orders").send(b"without a time")
    answer = lateness(client, "orders", 60_000, Local())
    assert (answer["messages"], answer["row_list"]) == (0, [])
    assert answer["delay_list"][0] == {"delay_ms": 0, "late": 0}
