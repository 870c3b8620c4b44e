"""Changes of keys, cursors and the catalog as rows: the effects of ops of the journal, op by op.

The schemas of the three logs are here. The row of a key, or of a thing in the catalog, has its
whole state after the change. Of a cursor, only the last row of each checkpoint has the state, and
is `complete`; the others have only the change. Successive acknowledgements on a cursor within a
second become one row, since a busy subscription writes one per frame. Leases are not recorded,
because they end with their consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base.ids import TopicName, TxnId
from txlog.base.startup import compute as pc
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import transaction_key as transaction_keys
from txlog.engine.folds.catalog import Catalog
from txlog.engine.folds.cursor import Dumped, PendingAcks, read_dump
from txlog.engine.folds.transaction_key import Key, Keys
from txlog.engine.model.idset import covers, runs_of_inner
from txlog.engine.model.ops import (
    CATALOG,
    Acked,
    BatchRecorded,
    Component,
    CursorOpened,
    CursorTrimmed,
    DeadLettered,
    Fold,
    IsolationSet,
    KeyBound,
    KeyConnected,
    KeyDeleted,
    KeyReleased,
    LossAccepted,
    Mark,
    NamespacePolicySet,
    Op,
    PartitionAvailable,
    PartitionOffline,
    PartitionsAdded,
    PendingAborted,
    PendingAcked,
    PendingCommitted,
    PlaceAdded,
    PolicySet,
    Promoted,
    Returned,
    Run,
    SchemaAdded,
    SchemasDeleted,
    SettingSet,
    Sought,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPolicySet,
    SubscriptionTypeSet,
    TopicCreated,
    TopicDeleted,
    TopicRenamed,
)
from txlog.engine.model.schema import INSTANT
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import DumpRef, Manifest
from txlog.engine.view import FOLDS, load_dump

# At most this many acknowledgements, over at most this much time, are one row.
MERGED_MAX: Final = 1_000
MERGED_MS: Final = 1_000
# A row with more ranges than this has them as bitmaps only.
RANGES_MAX: Final = 10_000
SNAPSHOT: Final = "snapshot"
_FEW: Final = 64

_RANGE: Final = pa.struct(
    [
        ("ledger", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("index_first", pa.int32()),
        ("index_last", pa.int32()),
    ]
)


def _list(kind: pa.DataType) -> pa.DataType:
    """A list with Parquet's name for its items, so that both forms of a file have one schema."""
    return pa.list_(pa.field("element", kind))


_RANGES: Final = _list(_RANGE)
_BITMAP: Final = pa.struct([("ledger", pa.int64()), ("entry", pa.int64()), ("bitmap", pa.binary())])
_PENDING: Final = pa.struct(
    [("txn", pa.string()), ("messages", pa.int64()), ("ranges", _RANGES), ("through", pa.string())]
)
_COUNT: Final = pa.struct(
    [("ledger", pa.int64()), ("entry", pa.int64()), ("index", pa.int32()), ("count", pa.int64())]
)
KEY_CHANGES: Final = pa.schema(
    [
        ("lsn", pa.int64()),
        ("time", INSTANT),
        ("change", pa.string()),
        ("coordinator", pa.int32()),
        ("owner_uid", pa.int64()),
        ("owner", pa.string()),
        ("transaction_key", pa.string()),
        ("epoch", pa.int64()),
        ("txn", pa.string()),
        ("open_txn", pa.string()),
        ("deleted", pa.bool_()),
        ("batch", pa.string()),
        ("last_batch", pa.int64()),
        ("batch_names", pa.int64()),
        ("ended_txns", pa.int64()),
    ]
)
CURSOR_CHANGES: Final = pa.schema(
    [
        ("lsn", pa.int64()),
        ("time", INSTANT),
        ("change", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("subscription", pa.string()),
        ("first_lsn", pa.int64()),
        ("changes", pa.int64()),
        ("messages", pa.int64()),
        ("mark_ledger", pa.int64()),
        ("mark_entry", pa.int64()),
        ("mark_index", pa.int32()),
        ("ranges", _RANGES),
        ("txn", pa.string()),
        ("complete", pa.bool_()),
        ("acknowledged", _RANGES),
        ("bitmaps", _list(_BITMAP)),
        ("pending", _list(_PENDING)),
        ("redelivered", _list(_COUNT)),
        ("acknowledged_messages", pa.int64()),
        ("redelivered_messages", pa.int64()),
        ("seeks", pa.int64()),
        ("subscription_number", pa.int64()),
        ("partition_number", pa.int64()),
    ]
)
CATALOG_CHANGES: Final = pa.schema(
    [
        ("lsn", pa.int64()),
        ("time", INSTANT),
        ("change", pa.string()),
        ("entity", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("subscription", pa.string()),
        ("name", pa.string()),
        ("value", pa.string()),
        ("deleted", pa.bool_()),
    ]
)
SCHEMAS: Final = {"key": KEY_CHANGES, "cursor": CURSOR_CHANGES, "catalog": CATALOG_CHANGES}
# Rows with equal values here are about the same thing.
KEYS: Final = {
    "key": ["coordinator", "owner_uid", "transaction_key"],
    "cursor": ["subscription_number", "partition_number"],
    "catalog": ["entity"],
}

Item = tuple[int, int, Any]  # LSN, time, op
Cell = tuple[int, int]  # numbers of a subscription and of a partition


class CursorName(NamedTuple):
    """The name of a cursor at a checkpoint: topic (short), partition in it, and subscription."""

    topic: str
    partition: int
    subscription: str


class Entity(NamedTuple):
    """One thing in the catalog, such as a topic, policy or subscription; value is JSON."""

    topic: str | None
    partition: int | None
    subscription: str | None
    name: str | None
    value: str


class _CursorChange:
    """A row of a cursor that later changes may extend."""

    __slots__ = (
        "change",
        "changes",
        "first_lsn",
        "first_ms",
        "lsn",
        "mark",
        "messages",
        "runs",
        "time_ms",
        "txn",
    )

    def __init__(
        self,
        change: str,
        lsn: int,
        time_ms: int,
        mark: Mark | None,
        runs: Iterable[Run],
        messages: int,
        txn: tuple[int, int] | None = None,
    ) -> None:
        self.change = change
        self.first_lsn = self.lsn = lsn
        self.first_ms = self.time_ms = time_ms
        self.changes = 1
        self.mark = mark
        self.runs = list(runs)
        self.messages = messages
        self.txn = txn


class CollectedChanges:
    """Changes in journal order, collected op by op; only ops whose type is in TAKES have any."""

    __slots__ = ("catalog", "cursors", "deleted", "keys")

    def __init__(self) -> None:
        self.keys: list[Item] = []
        self.catalog: list[Item] = []
        self.cursors: dict[Cell, list[_CursorChange]] = {}
        self.deleted: set[int] = set()  # subscriptions

    def take(self, lsn: int, time_ms: int, op: Op) -> None:
        """Record the effect of an op, if it has one here."""
        take = TAKES.get(type(op))
        if take is not None:
            take(self, lsn, time_ms, op)

    def key(self, lsn: int, time_ms: int, op: Op) -> None:
        """Collect an op of a transaction key."""
        self.keys.append((lsn, time_ms, op))

    def of_catalog(self, lsn: int, time_ms: int, op: Op) -> None:
        """Collect an op of the catalog; forget the changes of cursors that it deletes."""
        self.catalog.append((lsn, time_ms, op))
        if type(op) is SubscriptionDeleted:
            self.deleted.add(op.subscription)
            for partition in op.partitions:
                self.cursors.pop((op.subscription, partition), None)

    def acked(self, lsn: int, time_ms: int, op: Acked) -> None:
        """Collect an acknowledgement; it extends the last row if that is a recent one, too."""
        rows = self.cursors.get((op.subscription, op.partition))
        if rows is None:
            rows = self.cursors[(op.subscription, op.partition)] = []
        elif (
            (last := rows[-1]).change == "acknowledged"
            and last.changes < MERGED_MAX
            and 0 <= time_ms - last.first_ms < MERGED_MS
        ):
            last.lsn, last.time_ms, last.mark = lsn, time_ms, op.mark_delete
            last.changes += 1
            last.messages += op.count
            join(last.runs, op.runs)
            return
        rows.append(_CursorChange("acknowledged", lsn, time_ms, op.mark_delete, op.runs, op.count))

    def of_cursor(self, lsn: int, time_ms: int, op: Op) -> None:
        """Collect any other op of a cursor."""
        change, mark, runs, messages, txn = _described(op)
        cell: Cell = (op.subscription, op.partition)  # type: ignore[union-attr]
        rows = self.cursors.setdefault(cell, [])
        rows.append(_CursorChange(change, lsn, time_ms, mark, runs, messages, txn))


def join(runs: list[Run], more: Iterable[Run]) -> None:
    """Append runs in place; a run that starts where the last one ends extends it."""
    for run in more:
        if runs and not run[3]:
            last = runs[-1]
            if last[2] + 1 == run[1] and last[0] == run[0] and not last[3]:
                runs[-1] = (last[0], last[1], run[2], 0, 0)
                continue
        runs.append(run)


def _described(
    op: Any,
) -> tuple[str, Mark | None, Sequence[Run], int, tuple[int, int] | None]:
    """(change, mark-delete after it, runs, messages, transaction) of a cursor's op."""
    kind = type(op)
    if kind is PendingAcked:
        return "held", None, op.runs, op.count, (op.coordinator, op.sequence)
    if kind is PendingCommitted:
        return "committed", op.mark_delete, op.runs, 0, (op.coordinator, op.sequence)
    if kind is PendingAborted:
        return "aborted", None, (), 0, (op.coordinator, op.sequence)
    if kind is Returned:
        runs = [*op.uncounted, *(op.counted or ())]
        return "returned", None, runs, 0, None
    if kind is Sought:
        return "sought", op.mark_delete, (), 0, None
    if kind is CursorTrimmed:
        return "trimmed", op.mark_delete, (), 0, None
    if kind is CursorOpened:
        return "opened", op.mark_delete, (), 0, None
    if kind is DeadLettered:
        return "dead_lettered", None, (), op.count, None
    assert kind is Promoted
    return "promoted", None, op.runs, 0, None


Take = Callable[[CollectedChanges, int, int, Any], None]
TAKES: Final[Mapping[type, Take]] = {
    Acked: CollectedChanges.acked,
    **dict.fromkeys(
        (KeyConnected, KeyBound, KeyReleased, KeyDeleted, BatchRecorded), CollectedChanges.key
    ),
    **dict.fromkeys(
        (PendingAcked, PendingCommitted, PendingAborted, Returned, Sought, CursorTrimmed,
         CursorOpened, DeadLettered, Promoted),
        CollectedChanges.of_cursor,
    ),
    **dict.fromkeys(
        (SettingSet, TopicCreated, PartitionsAdded, TopicDeleted, PolicySet, SubscriptionCreated,
         SubscriptionDeleted, SubscriptionPolicySet, SubscriptionTypeSet, IsolationSet,
         PartitionOffline, PartitionAvailable, NamespacePolicySet, PlaceAdded, LossAccepted,
         SchemaAdded, SchemasDeleted, TopicRenamed),
        CollectedChanges.of_catalog,
    ),
}  # fmt: skip


# --- tables ----------------------------------------------------------------------------------


def tables(
    disk: Disk,
    manifest: Manifest,
    collected: CollectedChanges,
    cursors: Iterable[tuple[Cell, CursorName, bytes]],
    kinds: Iterable[str] = SCHEMAS,
) -> dict[str, pa.Table]:
    """The rows of the changes after a manifest, by kind.

    cursors: every cursor with changes, with its dump after them
    raises:  Corruption (a dump), MissingFile
    """
    refs = {(ref.kind, ref.a, ref.b): ref for ref in manifest.dumps}
    of = ((cell, name, collected.cursors.get(cell) or [], blob) for cell, name, blob in cursors)
    make = {
        "key": lambda: _key_table(disk, refs, collected.keys),
        "cursor": lambda: _cursor_table(of),
        "catalog": lambda: _catalog_table(disk, refs, collected.catalog),
    }
    return {kind: make[kind]() for kind in kinds}


def snapshot(
    disk: Disk,
    dumps: Sequence[DumpRef],
    lsn: int,
    time_ms: int,
    kinds: Iterable[str] = SCHEMAS,
    cells: set[Cell] | None = None,
) -> dict[str, pa.Table]:
    """By kind, one row with the state of each thing, from its dump at an LSN.

    cells: only these cursors; None: all
    raises: Corruption, MissingFile
    """
    out: dict[str, pa.Table] = {}
    selected = set(kinds)
    state = catalog_in(disk, dumps)
    if "key" in selected:
        rows = _Rows(KEY_CHANGES)
        for ref in dumps:
            if ref.kind == "key":
                keys: Keys = load_dump(disk, FOLDS["key"], ref)  # type: ignore[assignment]
                for uid, of_owner in sorted(keys.of.items()):
                    for key, key_state in sorted(of_owner.items()):
                        rows.add(_key_row(lsn, time_ms, SNAPSHOT, ref.a, uid, key, key_state, None))
        out["key"] = rows.table()
    if "cursor" in selected:
        out["cursor"] = _cursor_table(
            (cell, named, [_CursorChange(SNAPSHOT, lsn, time_ms, None, (), 0)], blob)
            for ref in dumps
            if ref.kind == "cursor"
            and (cells is None or (ref.a, ref.b) in cells)
            and (named := name_of(state, cell := (ref.a, ref.b))) is not None
            and (blob := bytes_of(disk, ref)) is not None
        )
    if "catalog" in selected:
        rows = _Rows(CATALOG_CHANGES)
        for entity, thing in entities(state).items():
            rows.add((lsn, time_ms, SNAPSHOT, entity, *thing, False))
        out["catalog"] = rows.table()
    return out


def name_of(state: Catalog, cell: Cell) -> CursorName | None:
    """The name of a cursor; None: its subscription or topic was deleted."""
    subscription, partition = cell
    record = state.subscriptions.get(subscription)
    topic = None if record is None else state.topics.get(record.topic)
    if record is None or topic is None:
        return None
    index = catalogs.index_of(topic, partition)
    return None if index < 0 else CursorName(_short(topic.name), index, record.name)


def _short(name: str) -> str:
    return TopicName.parse(name).short


class _Rows:
    """Rows that become a table, added one by one."""

    __slots__ = ("_rows", "_schema")

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[tuple[object, ...]] = []

    def add(self, row: tuple[object, ...]) -> None:
        self._rows.append(row)

    def table(self) -> pa.Table:
        if not self._rows:
            return self._schema.empty_table()
        columns = zip(*self._rows, strict=True)
        arrays = [
            _column(column, field.type) for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _column(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Values as a column; a number that does not fit becomes the nearest one that does.

    Ops hold unsigned 64-bit numbers, and an odd value must not stop every checkpoint.
    """
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid):
        most = (1 << (kind.bit_width - 1)) - 1
        return pa.array(
            [min(max(value, -most), most) if isinstance(value, int) else value for value in values],
            kind,
        )


def catalog_in(disk: Disk, dumps: Sequence[DumpRef]) -> Catalog:
    """The catalog of a checkpoint, from its dumps; raises Corruption, MissingFile."""
    state: Catalog = _loaded(disk, {(ref.kind, ref.a, ref.b): ref for ref in dumps}, CATALOG)
    return state


def _loaded(disk: Disk, refs: Mapping[Component, DumpRef], key: Component) -> Any:
    ref = refs.get(key)
    return FOLDS[key[0]].new() if ref is None else load_dump(disk, FOLDS[key[0]], ref)


def bytes_of(disk: Disk, ref: DumpRef) -> bytes:
    """The bytes of a dump; raises Corruption, MissingFile."""
    fold = FOLDS[ref.kind]
    blob = load_dump(disk, Fold(fold.kind, fold.new, fold.apply, fold.dump, bytes), ref)
    assert isinstance(blob, bytes)
    return blob


# --- keys ------------------------------------------------------------------------------------

_KEY_WORDS: Final[dict[type, str]] = {
    KeyConnected: "connected", KeyBound: "bound", KeyReleased: "released", KeyDeleted: "deleted",
    BatchRecorded: "batch",
}  # fmt: skip


def _key_table(disk: Disk, refs: Mapping[Component, DumpRef], items: Sequence[Item]) -> pa.Table:
    rows = _Rows(KEY_CHANGES)
    states: dict[int, Keys] = {}
    for lsn, time_ms, op in items:
        number = op.coordinator
        state = states.get(number)
        if state is None:
            state = states[number] = _loaded(disk, refs, ("key", number, 0))
        transaction_keys.apply(state, lsn, time_ms, op)
        key_state = transaction_keys.find(state, op.uid, op.key)
        assert key_state is not None  # the op changed this key
        rows.add(
            _key_row(lsn, time_ms, _KEY_WORDS[type(op)], number, op.uid, op.key, key_state, op)
        )
    return rows.table()


def _key_row(
    lsn: int, time_ms: int, change: str, number: int, uid: int, key: str, key_state: Key, op: Any
) -> tuple[object, ...]:
    sequence = getattr(op, "sequence", op.answer.sequence if type(op) is BatchRecorded else None)
    return (
        lsn,
        time_ms,
        change,
        number,
        uid,
        key_state.owner,
        key,
        key_state.epoch,
        None if sequence is None else str(TxnId(number, sequence)),
        None if key_state.sequence < 0 else str(TxnId(number, key_state.sequence)),
        key_state.deleted,
        str(op.batch) if type(op) is BatchRecorded else None,
        None if key_state.batch < 0 else key_state.batch,
        len(key_state.names),
        key_state.ended_count,
    )


# --- cursors ---------------------------------------------------------------------------------


def _cursor_table(
    cursors: Iterable[tuple[Cell, CursorName, list[_CursorChange], bytes]],
) -> pa.Table:
    """Rows by cursor, then LSN; the last row of each cursor has its state."""
    columns: dict[str, list[Any]] = {field.name: [] for field in CURSOR_CHANGES}
    add = {name: values.append for name, values in columns.items()}
    ranges = _Lists()
    acknowledged = _Lists()
    for cell, cursor_name, changes, blob in cursors:
        if not changes:
            continue
        dumped = read_dump(blob)
        mark: Mark | None = None
        last = changes[-1]
        for change in changes:
            is_last = change is last
            mark = dumped.mark_delete if is_last else change.mark or mark
            add["lsn"](change.lsn)
            add["time"](change.time_ms)
            add["change"](change.change)
            add["topic"](cursor_name.topic)
            add["partition"](cursor_name.partition)
            add["subscription"](cursor_name.subscription)
            add["first_lsn"](change.first_lsn)
            add["changes"](change.changes)
            add["messages"](change.messages)
            add["mark_ledger"](None if mark is None else mark[0])
            add["mark_entry"](None if mark is None else mark[1])
            add["mark_index"](None if mark is None else mark[2])
            ranges.add(_beyond(change) if change.change in _WITH_RANGES else None)
            add["txn"](None if change.txn is None else str(TxnId(*change.txn)))
            add["complete"](is_last)
            state = _state_of(dumped) if is_last else _NO_STATE
            acknowledged.add(state[0])
            for name, value in zip(_STATE, state[1:], strict=True):
                add[name](value)
            add["subscription_number"](cell[0])
            add["partition_number"](cell[1])
    if not columns["lsn"]:
        return CURSOR_CHANGES.empty_table()
    lists = {"ranges": ranges, "acknowledged": acknowledged}
    arrays = [
        lists[field.name].array()
        if field.name in lists
        else pa.array(columns[field.name], field.type)
        for field in CURSOR_CHANGES
    ]
    return pa.Table.from_arrays(arrays, schema=CURSOR_CHANGES)


def _beyond(change: _CursorChange) -> list[Run]:
    """The part of a change above mark-delete, if the row has that position."""
    mark = change.mark
    if mark is None:
        return change.runs
    return [run for run in change.runs if not covers(mark, (run[0], run[2], run[4]))]


_WITH_RANGES: Final = ("acknowledged", "held", "committed", "returned", "promoted")
_STATE: Final = (
    "bitmaps",
    "pending",
    "redelivered",
    "acknowledged_messages",
    "redelivered_messages",
    "seeks",
)
_NO_STATE: Final[tuple[Any, ...]] = (None,) * (len(_STATE) + 1)


def _state_of(dumped: Dumped) -> tuple[Any, ...]:
    """`acknowledged` and the columns of _STATE for a cursor."""
    acknowledged = ranges_of(dumped)
    bitmaps = [
        {"ledger": ledger, "entry": None, "bitmap": raw} for ledger, raw in dumped.acked.items()
    ]
    bitmaps += [
        {"ledger": ledger, "entry": entry, "bitmap": raw} for ledger, entry, raw in dumped.inner
    ]
    counts = dumped.redelivered
    few = len(counts) <= RANGES_MAX
    return (
        acknowledged,
        bitmaps,
        [_pending_of(TxnId(a, b), pending) for a, b, pending in sorted(dumped.pending, key=_ids)],
        [dict(zip(_COUNT.names, row, strict=True)) for row in counts] if few else None,
        dumped.acked_count,
        len(counts),
        dumped.epoch,
    )


def _ids(row: tuple[int, int, PendingAcks]) -> tuple[int, int]:
    return row[:2]


def _pending_of(txn: TxnId, pending: PendingAcks) -> dict[str, Any]:
    through = pending.cumulative
    return {
        "txn": str(txn),
        "messages": pending.count,
        "ranges": [_as_dict(run) for run in pending.runs]
        if len(pending.runs) <= RANGES_MAX
        else None,
        "through": None if through is None else ":".join(map(str, through)),
    }


def _as_dict(run: Run) -> dict[str, int | None]:
    ledger, first, last, index_first, index_last = run
    return {
        "ledger": ledger,
        "first": first,
        "last": last,
        "index_first": index_first or None,
        "index_last": index_last or None,
    }


def ranges_of(dumped: Dumped) -> list[Run] | None:
    """The ids acknowledged above mark-delete; None: more ranges than RANGES_MAX."""
    out: list[Run] = []
    for ledger, raw in sorted(dumped.acked.items()):
        firsts, lasts = _bounds(BitMap64.deserialize(raw))
        if len(out) + len(firsts) > RANGES_MAX:
            return None
        out += [(ledger, a, b, 0, 0) for a, b in zip(firsts, lasts, strict=True)]
    for ledger, entry, raw in dumped.inner:
        inner = BitMap.deserialize(raw)
        if len(out) + len(inner) > RANGES_MAX:
            return None
        out += runs_of_inner(ledger, entry, inner)
    return sorted(out)


def _bounds(entries: BitMap64) -> tuple[list[int], list[int]]:
    """The first and the last entry of each range; by columns when there are many."""
    count = len(entries)
    if not count:
        return [], []
    if entries[count - 1] - entries[0] + 1 == count:
        return [entries[0]], [entries[count - 1]]
    if count <= _FEW:
        numbers = list(entries)
        gaps = [n for n in range(1, count) if numbers[n] != numbers[n - 1] + 1]
        return [numbers[0], *(numbers[n] for n in gaps)], [
            *(numbers[n - 1] for n in gaps),
            numbers[-1],
        ]
    values = pa.Array.from_buffers(
        pa.uint64(), count, [None, pa.py_buffer(entries.to_array())]
    ).cast(pa.int64())
    steps = pc.subtract(values.slice(1), values.slice(0, count - 1))
    at = pc.indices_nonzero(pc.not_equal(steps, 1))
    if len(at) >= RANGES_MAX:
        return [0] * len(at), []
    firsts = values.slice(1).take(at).to_pylist()
    lasts = values.take(at).to_pylist()
    return [entries[0], *firsts], [*lasts, entries[count - 1]]


class _Lists:
    """Lists of ranges that become one column, without an object for each range."""

    __slots__ = ("_offsets", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._offsets: list[int | None] = [0]

    def add(self, runs: list[Run] | None) -> None:
        if runs is None or len(runs) > RANGES_MAX * 10:
            self._offsets[-1] = None
        else:
            self._runs += runs
        self._offsets.append(len(self._runs))

    def array(self) -> pa.ListArray:
        columns = list(zip(*self._runs, strict=True)) or [()] * 5
        arrays: list[pa.Array] = [
            pa.array(column, field.type) for column, field in zip(columns, _RANGE, strict=True)
        ]
        for n in (3, 4):  # 0: a whole entry
            has = pc.not_equal(arrays[n], pa.scalar(0, pa.int32()))
            arrays[n] = pc.if_else(has, arrays[n], pa.scalar(None, pa.int32()))
        values = pa.StructArray.from_arrays(arrays, fields=list(_RANGE))
        offsets = pa.array(self._offsets, pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=_RANGES)


# --- the catalog -----------------------------------------------------------------------------


def entities(state: Catalog) -> dict[str, Entity]:
    """Everything in the catalog, by a name such as `topic/3` or `namespace/a/b/ttl_ms`."""
    out: dict[str, Entity] = {}
    for name in state.settings:
        out |= _setting(state, name)
    for number in state.topics:
        out |= _topic(state, number)
    for number in state.subscriptions:
        out |= _subscription(state, number)
    for number in state.unavailable:
        out |= _partition(state, number)
    for name in state.namespace_policies:
        out |= _namespace(state, name)
    return out | _places(state, "") | _losses(state, "")


def _catalog_table(
    disk: Disk, refs: Mapping[Component, DumpRef], items: Sequence[Item]
) -> pa.Table:
    rows = _Rows(CATALOG_CHANGES)
    if not items:
        return rows.table()
    state: Catalog = _loaded(disk, refs, CATALOG)
    for lsn, time_ms, op in items:
        look, of = _OBJECTS[type(op)](op)
        things_before = look(state, of)
        catalogs.apply(state, lsn, time_ms, op)
        things_after = look(state, of)
        word = _word(type(op))
        for entity, thing in things_after.items():
            if things_before.get(entity) != thing:
                rows.add((lsn, time_ms, word, entity, *thing, False))
        for entity, thing in things_before.items():
            if entity not in things_after:
                rows.add((lsn, time_ms, word, entity, *thing[:4], None, True))
    return rows.table()


def _word(kind: type) -> str:
    """SubscriptionCreated as subscription_created."""
    name = kind.__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _setting(state: Catalog, name: Any) -> dict[str, Entity]:
    if name not in state.settings:
        return {}
    value = _json(state.settings[name])
    return {f"setting/{name}": Entity(None, None, None, name, value)}


def _topic(state: Catalog, number: Any) -> dict[str, Entity]:
    topic = state.topics.get(number)
    if topic is None:
        return {}
    name = _short(topic.name)
    value_json = _json({"number": number, "partitions": topic.partitions})
    out = {f"topic/{number}": Entity(name, None, None, None, value_json)}
    for policy, value in state.policies.get(number, {}).items():
        out[f"topic/{number}/{policy}"] = Entity(name, None, None, policy, _json(value))
    for version in topic.schemas:
        if not version.deleted:
            value_json = _json({"type": version.kind, "definition": version.definition})
            out[f"topic/{number}/schema/{version.version}"] = Entity(
                name, None, None, None, value_json
            )
    for partition in state.unavailable:  # deleted with the topic
        if catalogs.index_of(topic, partition) >= 0:
            out |= _partition(state, partition)
    return out


def _whole_topic(state: Catalog, number: Any) -> dict[str, Entity]:
    """A topic and its subscriptions, whose rows have its name."""
    out = _topic(state, number)
    for subscription in state.topics[number].subscriptions:
        out |= _subscription(state, subscription)
    return out


def _subscription(state: Catalog, number: Any) -> dict[str, Entity]:
    record = state.subscriptions.get(number)
    if record is None:
        return {}
    name = _short(state.topics[record.topic].name)
    value_json = _json({"number": number, "type": record.type, "isolation": record.isolation})
    out = {f"subscription/{number}": Entity(name, None, record.name, None, value_json)}
    for policy, value in record.policies.items():
        out[f"subscription/{number}/{policy}"] = Entity(
            name, None, record.name, policy, _json(value)
        )
    return out


def _partition(state: Catalog, number: Any) -> dict[str, Entity]:
    why = state.unavailable.get(number)
    if why is None or not catalogs.has_partition(state, number):
        return {}
    topic = catalogs.topic_of(state, number)
    value_json = _json(
        {"available": False, "reason": why.reason, "ledger": why.ledger, "row": why.row}
    )
    index = catalogs.index_of(topic, number)
    return {f"partition/{number}": Entity(_short(topic.name), index, None, None, value_json)}


def _namespace(state: Catalog, name: Any) -> dict[str, Entity]:
    return {
        f"namespace/{name}/{policy}": Entity(None, None, None, policy, _json(value))
        for policy, value in state.namespace_policies.get(name, {}).items()
    }


def _places(state: Catalog, _: Any) -> dict[str, Entity]:
    return {
        f"place/{place}": Entity(None, None, None, None, _json(place)) for place in state.places
    }


def _losses(state: Catalog, _: Any) -> dict[str, Entity]:
    return {
        f"loss/{n}": Entity(None, None, None, None, _json(msgspec.structs.asdict(loss)))
        for n, loss in enumerate(state.losses)
    }


Look = Callable[[Catalog, Any], dict[str, Entity]]
_OBJECTS: Final[Mapping[type, Callable[[Any], tuple[Look, Any]]]] = {
    SettingSet: lambda op: (_setting, op.name),
    **dict.fromkeys(
        (TopicCreated, PartitionsAdded, TopicDeleted, PolicySet, SchemaAdded, SchemasDeleted),
        lambda op: (_topic, op.topic),
    ),
    **dict.fromkeys(
        (SubscriptionCreated, SubscriptionDeleted, SubscriptionPolicySet, SubscriptionTypeSet,
         IsolationSet),
        lambda op: (_subscription, op.subscription),
    ),
    **dict.fromkeys(
        (PartitionOffline, PartitionAvailable), lambda op: (_partition, op.partition)
    ),
    TopicRenamed: lambda op: (_whole_topic, op.topic),
    NamespacePolicySet: lambda op: (_namespace, op.namespace),
    PlaceAdded: lambda op: (_places, None),
    LossAccepted: lambda op: (_losses, None),
}  # fmt: skip
