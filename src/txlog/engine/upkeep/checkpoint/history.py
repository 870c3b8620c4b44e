"""The history of transactions: the ops of coordinators, kept after their journal is deleted.

It is in system/transaction_log/<generation>.arrow, one part per checkpoint for all coordinators,
with a row for each op. A checkpoint merges too many parts, and drops parts by age and by count, as
the records of ended transactions are. No state is ever recovered from them; they answer `txn log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from txlog.base.settings import Settings
from txlog.base.startup import compute as pc
from txlog.base.startup.crc32c import crc32c
from txlog.engine.folds.coordinator import UNDECIDED
from txlog.engine.model.ops import (
    Component,
    CounterRaised,
    IdsReserved,
    Op,
    PartitionAdded,
    StatusUpdated,
    SubscriptionAdded,
    TxnEnded,
    TxnOpened,
    TxnPrepared,
    TxnsForgotten,
    encode_ops,
)
from txlog.engine.model.schema import INSTANT
from txlog.engine.storage.checked import HINT, damaged, said_by_arrow
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import HistoryRef
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import Corruption, MissingFile, SnapshotExpired

HISTORY_DIR = "system/transaction_log"
HISTORY = pa.schema(
    [
        ("lsn", pa.int64()),
        ("time", INSTANT),
        ("coordinator", pa.int32()),
        ("sequence", pa.int64()),
        ("op", pa.string()),
        ("partition", pa.int64()),
        ("subscription", pa.int64()),
        ("count", pa.int64()),
        ("detail", pa.string()),
    ]
)
# More parts than this are merged into one.
PARTS_MAX = 16
# The history keeps this many rows for each remembered transaction.
ROWS_PER_TXN = 8
READ_TRIES_MAX = 5
# Ops that become columns together; 4,096 take 2 ms.
ITEMS_MAX = 4096
Item = tuple[int, int, Any]  # LSN, time, op
Ops = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ComponentLog:
    """How many ops of one component are kept; a TxnEnded counts as the ops that it replaces.

    parts:   (history file, how many of its rows are of the component)
    tail_ops, tail_bytes: its ops in the journal after the checkpoint that was written at cut_ms
    """

    parts: list[tuple[HistoryRef, int]]
    tail_ops: int
    tail_bytes: int
    cut_ms: int
    last_lsn: int


def table_of(items: Sequence[tuple[int, int, Op]]) -> pa.Table:
    """Ops of coordinators as rows, kind by kind, each kind in the order given.

    Kinds are in the order they have in a frame, so a stable sort by LSN gives the order of the ops.
    cost: a few lists for each kind, and for each row only their items
    """
    kinds: dict[type, list[Item]] = {kind: [] for kind in _COLUMNS}
    add = {kind: ops_of_kind.append for kind, ops_of_kind in kinds.items()}
    for item in items:
        op = item[2]
        if type(op) is TxnEnded:  # it has the rows of the ops that it replaces
            for step in op.steps():
                add[type(step)]((item[0], item[1], step))
        else:
            add[type(op)](item)
    tables = [
        _rows(kind, piece) for kind, ops_of_kind in kinds.items() for piece in _pieces(ops_of_kind)
    ]
    return pa.concat_tables(tables) if tables else HISTORY.empty_table()


def _pieces(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Small pieces, because Arrow holds the interpreter's lock while it converts one."""
    return (items[at : at + ITEMS_MAX] for at in range(0, len(items), ITEMS_MAX))


def _rows(kind: type, items: Sequence[Item]) -> pa.Table:
    if kind is TxnsForgotten:  # one row for each forgotten transaction
        items = [
            (lsn, time, _Forgotten(op.coordinator, number))
            for lsn, time, op in items
            for number in op.sequences
        ]
    lsns, times, ops = zip(*items, strict=True)
    values: dict[str, Iterable[object]] = {
        "lsn": lsns,
        "time": times,
        "coordinator": map(_COORDINATOR, ops),
        **{name: column(ops) for name, column in _COLUMNS[kind].items()},
    }
    arrays = [
        pa.repeat(pa.scalar(kind.__name__, pa.string()), len(ops))
        if field.name == "op"
        else pa.array(list(values[field.name]), field.type)
        if field.name in values
        else pa.nulls(len(ops), field.type)
        for field in HISTORY
    ]
    return pa.Table.from_arrays(arrays, schema=HISTORY)


class _Forgotten(NamedTuple):
    coordinator: int
    sequence: int


def _attribute(name: str) -> Callable[[Ops], Iterable[object]]:
    get = attrgetter(name)
    return lambda ops: map(get, ops)


def _opened(ops: Ops) -> list[object]:
    texts: dict[tuple[str, int, str | None], str] = {}
    out: list[object] = []
    for op in ops:
        details = (op.owner, op.timeout_ms, op.key)
        text = texts.get(details)
        if text is None:
            key = "" if op.key is None else f", key {op.key}"
            text = texts[details] = f"owner {op.owner}, timeout_ms {op.timeout_ms}{key}"
        out.append(text)
    return out


def _status(ops: Ops) -> list[object]:
    return [
        f"{op.expected} to {op.status}"
        if op.expected not in UNDECIDED
        else f"{op.expected} to {op.status}, acks {op.acks}"
        if op.reason is None
        else f"{op.expected} to {op.status}, reason {op.reason}, acks {op.acks}"
        for op in ops
    ]


def _prepared(ops: Ops) -> list[object]:
    return [f"{op.kind} {op.label}, row {op.token}" for op in ops]


def _messages(ops: Ops) -> list[object]:
    return [op.messages if op.expected in UNDECIDED else None for op in ops]


_COORDINATOR = attrgetter("coordinator")
_SEQUENCE, _PARTITION = _attribute("sequence"), _attribute("partition")
# The columns that each kind fills besides lsn, time, coordinator and op.
_COLUMNS: dict[type, dict[str, Callable[[Ops], Iterable[object]]]] = {
    IdsReserved: {"count": _attribute("below")},
    CounterRaised: {"count": _SEQUENCE},
    TxnOpened: {"sequence": _SEQUENCE, "detail": _opened},
    PartitionAdded: {"sequence": _SEQUENCE, "partition": _PARTITION},
    SubscriptionAdded: {
        "sequence": _SEQUENCE, "partition": _PARTITION, "subscription": _attribute("subscription"),
    },
    StatusUpdated: {"sequence": _SEQUENCE, "count": _messages, "detail": _status},
    TxnsForgotten: {"sequence": _SEQUENCE},
    TxnPrepared: {"sequence": _SEQUENCE, "detail": _prepared},
}  # fmt: skip


KINDS = frozenset([*_COLUMNS, TxnEnded])


# --- at a checkpoint -------------------------------------------------------------------------


def publish(
    view: View, rows: pa.Table, generation: int, settings: Settings, now_ms: int
) -> list[HistoryRef]:
    """Add rows to the history, and drop rows that are too old; returns the parts to name."""
    if not (settings.txn_ended_retention_ms and settings.txn_ended_retention_count):
        return []
    parts = _due(view.manifest.history, rows.num_rows, settings, now_ms)
    if len(parts) + (rows.num_rows > 0) > PARTS_MAX:
        try:
            tables = [_read(view.disk, ref) for ref in parts]
        except (Corruption, MissingFile):  # the checkpoint goes on; repair reports the damage
            return [*parts, *([_write(view.disk, rows, generation)] if rows.num_rows else [])]
        rows = pa.concat_tables([*tables, rows])
        if settings.txn_ended_retention_ms > 0:
            horizon = pa.scalar(now_ms - settings.txn_ended_retention_ms, INSTANT)
            rows = rows.filter(pc.greater_equal(rows.column("time"), horizon))
        parts = []
    if rows.num_rows:
        parts.append(_write(view.disk, rows, generation))
    return parts


def _due(
    parts: Sequence[HistoryRef], new_rows: int, settings: Settings, now_ms: int
) -> list[HistoryRef]:
    """The newest parts within the bounds on age and count; a negative bound is no bound.

    Parts are dropped from the oldest on, up to the first that is young enough. So a later part with
    old times, written after a clock was set back, stays.
    """
    age, count = settings.txn_ended_retention_ms, settings.txn_ended_retention_count
    young = dropwhile(lambda ref: age > 0 and now_ms - ref.time_last > age, parts)
    out: list[HistoryRef] = []
    newer_rows = new_rows
    for ref in reversed([*young]):
        if count > 0 and newer_rows >= count * ROWS_PER_TXN:
            break
        out.append(ref)
        newer_rows += ref.rows
    return out[::-1]


def _write(disk: Disk, rows: pa.Table, generation: int) -> HistoryRef:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, HISTORY, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    data = memoryview(sink.getvalue()).cast("B")
    path = f"{HISTORY_DIR}/{generation:010d}.arrow"
    disk.publish(path, [data])
    lsn = pc.min_max(rows.column("lsn")).as_py()
    time = pc.min_max(rows.column("time").cast(pa.int64())).as_py()
    return HistoryRef(
        path,
        rows.num_rows,
        lsn["min"],
        lsn["max"],
        time["min"],
        time["max"],
        len(data),
        crc32c(data),
    )


def _read(disk: Disk, ref: HistoryRef) -> pa.Table:
    """The rows of a part, its bytes checked first (R5)."""
    data = disk.read(ref.path)
    if len(data) != ref.bytes or crc32c(data) != ref.crc:
        raise Corruption(
            f"{ref.path} is damaged, bytes 0 to {ref.bytes}",
            hint=HINT,
            path=ref.path,
            offset=0,
            expected=ref.crc,
            found=crc32c(data),
        )
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        reason = said_by_arrow(error)
        raise damaged(ref.path, 0, ref.bytes, "a file that decodes", reason) from error


# --- questions -------------------------------------------------------------------------------


def transaction_rows(store: Store, coordinator: int, sequence: int) -> list[dict[str, Any]]:
    """The kept ops of a transaction in journal order, as rows of HISTORY."""

    def question(view: View) -> list[pa.Table]:
        tables = [_read(view.disk, ref) for ref in view.manifest.history]
        ops_of_coordinator = [
            item
            for key, items in view.waiting("coordinator")
            if key[1] == coordinator
            for item in items
        ]
        tables.append(table_of(ops_of_coordinator))
        pair = (pa.scalar(coordinator, pa.int32()), pa.scalar(sequence, pa.int64()))
        return [
            table.filter(
                pc.and_(
                    pc.equal(table.column("coordinator"), pair[0]),
                    pc.equal(table.column("sequence"), pair[1]),
                )
            )
            for table in tables
        ]

    rows = pa.concat_tables(_replayed(store, question))
    times = rows.column("time").cast(pa.int64()).to_pylist()
    out: list[dict[str, Any]] = rows.drop_columns(["time"]).to_pylist()
    for row, time_ms in zip(out, times, strict=True):
        row["time"] = time_ms
    return sorted(out, key=lambda row: row["lsn"])


def component_log(store: Store, key: Component) -> ComponentLog:
    """How many ops of one component are kept; only coordinators have history files."""

    def question(view: View) -> ComponentLog:
        items = next((items for component, items in view.waiting(key[0]) if component == key), [])
        parts: list[tuple[HistoryRef, int]] = []
        for ref in view.manifest.history if key[0] == "coordinator" else ():
            numbers = _read(view.disk, ref).column("coordinator")
            rows = pc.sum(pc.equal(numbers, pa.scalar(key[1], pa.int32()))).as_py() or 0
            parts.append((ref, rows))
        last_lsns = [ref.lsn_last for ref, rows in parts if rows]
        return ComponentLog(
            parts,
            sum(len(op.steps()) if type(op) is TxnEnded else 1 for _, _, op in items),
            len(encode_ops([op for _, _, op in items])) if items else 0,
            view.manifest.time_ms,
            items[-1][0] if items else max(last_lsns, default=0),
        )

    return _replayed(store, question)


def _replayed(store: Store, question: Callable[[View], T]) -> T:
    """The answer of a fresh view; retries when a checkpoint removed a part meanwhile (R21)."""
    for _ in range(READ_TRIES_MAX):
        try:
            return store.replayed(question)
        except MissingFile as error:
            last = error
    raise SnapshotExpired("the history moved on faster than it could be read") from last
