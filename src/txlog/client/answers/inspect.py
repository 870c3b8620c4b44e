"""`inspect`: describes the thing that a word names in a store, or the content of a file.

A word may name a topic, a transaction, a message or a file of the store. A file is shown as rows:
the rows of an Arrow file, the frames of a journal, the files that a manifest names. DuckDB reads
the rows of Parquet files; this module only reads their columns and row groups, from the footer. The
file may belong to any store or to none: it is not compared with a manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import Bound, Range
from txlog.base.suggest import command_line
from txlog.client.answers import keys, lag, status, topics_and_txns
from txlog.client.answers.changes import recent_of_key, recent_of_subscription
from txlog.client.answers.lists import frame_rows, kept_frames
from txlog.engine.door import catalog as catalogs
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import covers
from txlog.engine.door.journal import describe_frame, inspect_file, journal_frames, manifest_files
from txlog.engine.door.reading import Marker, find_marker, plan, received, resolve_range
from txlog.engine.door.segments import arrow_module, said_by_arrow
from txlog.engine.door.store import Store, View
from txlog.errors import Corruption, InvalidArgument, MessageNotFound, NotFound, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.files import ColumnStatistics, GroupStatistics


PREFIXES = ("topic", "sub", "key", "txn", "msg", "ledger", "lsn", "file")


# --- words -----------------------------------------------------------------------------------


def inspect(view: View, store: Store, what: str | None) -> dict[str, Any]:
    """Describe the thing that a word names, as {kind, ...}.

    raises: NotFound, InvalidArgument (205: the word names two things)
    """
    if not what:
        return {"kind": "store", **status.status(view, store)}
    prefix, _, name = what.partition(":")
    if prefix in PREFIXES and name:
        return _named(view, store, prefix, name)
    matches: list[tuple[str, dict[str, Any]]] = []
    for guess in ("txn", "msg", "topic", "sub", "key"):
        try:
            matches.append((guess, _named(view, store, guess, what)))
        except Corruption:
            raise
        except TxlogError as error:
            if error.code == 205:
                raise
            continue  # the word is not a name of this kind
    if Path(what).is_file():
        matches.append(("file", {"kind": "file", "path": what}))
    if len(matches) > 1:
        raise InvalidArgument(
            f"{what} can mean more than one thing",
            code=205,
            hint=" or ".join(f"{kind}:{what}" for kind, _ in matches),
        )
    if not matches:
        raise _nothing(what)
    [(kind, answer)] = matches
    return inspect_file(what) if kind == "file" else answer


def _nothing(what: str) -> NotFound:
    return NotFound(
        f"nothing in the store is named {what}",
        hint="give a topic, topic/partition, subscription, key, transaction, message id or file",
    )


def _named(view: View, store: Store, kind: str, text: str) -> dict[str, Any]:
    if kind == "file":
        return inspect_file(text)
    if kind == "txn":
        return {
            "kind": "transaction",
            **topics_and_txns.transaction(view, store, TxnId.parse(text)),
        }
    if kind == "topic":
        name = TopicName.parse(text, allow_partition=True)
        topic_row = topics_and_txns.topic(view, find_topic(view, name), store)
        if name.partition is None:
            return {"kind": "topic", **topic_row}
        row = topic_row["partition_list"][name.partition]
        return {"kind": "partition", "topic": topic_row["topic"], **row}
    if kind == "sub":
        rows = [row for row in lag.lag(view, store) if row["subscription"] == text]
        if not rows:
            raise _nothing(text)
        if len(rows) > 1:
            raise InvalidArgument(
                f"several topics have a subscription {text}: "
                f"{', '.join(sorted(str(row['topic']) for row in rows)[:5])}",
                code=205,
                hint=command_line("sub describe", text, "-t", rows[0]["topic"]),
                subscription=text,
            )
        recent = recent_of_subscription(view, rows[0]["topic"], text)
        return {"kind": "subscription", **rows[0], "change_list": recent}
    if kind == "key":
        answer = keys.transaction_key(view, store, store.disk.owner(), text, None)
        of = (answer["coordinator"], answer["owner_uid"], answer["transaction_key"])
        return {"kind": "transaction_key", **answer, "change_list": recent_of_key(view, *of)}
    if kind == "ledger":
        return _ledger(view, _number(text))
    if kind == "lsn":
        return _frame(view, _number(text))
    return _message(view, MessageId.parse(text))


def _number(text: str) -> int:
    if not (text.isdecimal() and len(text) < 20):
        raise InvalidArgument(f"{text} is not a number", code=203)
    return int(text)


def _message(view: View, message_id: MessageId) -> dict[str, Any]:
    owner = view.catalog.owners.get(message_id.ledger)
    if owner is None or owner[1] != "p":
        raise MessageNotFound(f"message {message_id} does not exist", message_id=message_id)
    topic = catalogs.topic_of(view.catalog, owner[0])
    index = catalogs.index_of(topic, owner[0])
    place = resolve_range(view, topic, Range(start=Bound("id", message_id)), [index])[index]
    plan_ = plan(view, owner[0], place.after, 1)
    piece = plan_.pieces[0] if plan_.pieces else None
    if (
        piece is None
        or (piece.ledger, piece.entry) != (message_id.ledger, message_id.entry)
        or (message_id.index not in (0, piece.index))
    ):
        raise MessageNotFound(f"message {message_id} does not exist", message_id=message_id)
    table = received(view, topics_and_txns.short(topic), index, owner[0], plan_.pieces)
    message = (message_id.ledger, message_id.entry, message_id.index or piece.index)
    done = []
    for number in topic.subscriptions:
        cursor = view.cursor(number, owner[0])
        whole = cursor.acked.entries.get(message[0])
        inner = cursor.acked.inner.get(message[:2])
        if (
            covers(cursor.mark_delete, message)
            or (whole is not None and message[1] in whole)
            or (inner is not None and message[2] in inner)
        ):
            done.append(view.catalog.subscriptions[number].name)
    file, row = _place(view, message_id.ledger, message_id.entry)
    if piece.marker is not None:
        file, row = _place_inside(view, piece.marker, message[2])
    counts: dict[str, Any] = {}
    if not message_id.index and piece.index:  # the id of a marker means all its messages
        marker = find_marker(view.buffer(owner[0]), message_id.ledger, message_id.entry)
        counts["messages"] = 0 if marker is None else marker.count
    return {
        "kind": "message",
        "record": table,
        **counts,
        "acknowledged_list": done,
        "file": file,
        "row": row,
    }


def located(view: View, ids: Sequence[MessageId]) -> list[tuple[str | None, int | None]]:
    """(file, row in the file) of each message; (None, None) if it is only in the journal.

    ids: of visible messages; (None, None) also if a message was trimmed or does not exist
    """
    out: list[tuple[str | None, int | None]] = []
    for message_id in ids:
        owner = view.catalog.owners.get(message_id.ledger)
        marker = None
        if owner is not None and owner[1] == "p" and message_id.index:
            marker = find_marker(view.buffer(owner[0]), message_id.ledger, message_id.entry)
        if marker is not None:
            out.append(_place_inside(view, marker, message_id.index))
        else:
            out.append(
                (None, None)
                if message_id.index
                else _place(view, message_id.ledger, message_id.entry)
            )
    return out


def _place(view: View, ledger: int, row: int) -> tuple[str | None, int | None]:
    """(file, row in the file) of a row of a ledger; (None, None) if it is only in the journal."""
    for ref in view.files.of(ledger):
        first = ref.first if ref.form == "part" else 0
        if first <= row < first + ref.rows:
            return ref.path, row - first
    return None, None


def _place_inside(view: View, marker: Marker, index: int) -> tuple[str | None, int | None]:
    """As `_place`, for a message of a transaction, whose row is in the sidecar."""
    for ledger, row, rows, first in marker.ranges:
        if first <= index < first + rows:
            return _place(view, ledger, row + index - first)
    return None, None


def _ledger(view: View, number: int) -> dict[str, Any]:
    owner = view.catalog.owners.get(number)
    if owner is None:
        raise _nothing(f"ledger {number}")
    topic = catalogs.topic_of(view.catalog, owner[0])
    state = view.topic(owner[0]) if owner[1] != "s" else view.buffer(owner[0])
    end = next((end for end in state.ledgers if end.ledger == number), None)
    if owner[1] == "c" and (refs := view.files.of(number)):
        status, rows = "compacted", sum(ref.rows for ref in refs)
    elif end is None:  # trimmed, compacted, or reserved for a compaction that never happened
        status, rows = "trimmed", 0
    else:
        open_one = end is state.ledgers[-1]
        status = "sealed" if end.sealed else "open" if open_one else "closed"
        rows = end.entries
    return {
        "kind": "ledger",
        "ledger": number,
        "topic": topics_and_txns.short(topic),
        "partition": catalogs.index_of(topic, owner[0]),
        "sidecar": owner[1] == "s",
        "state": status,
        "rows": rows,
        "size_bytes": topics_and_txns.file_bytes(view, [number]),
        "file_list": [
            {
                "file": ref.path,
                "rows": ref.rows,
                "size_bytes": ref.bytes,
                "crc32c": f"{ref.crc:08x}",
            }
            for ref in view.files.of(number)
        ],
    }


def _frame(view: View, lsn: int) -> dict[str, Any]:
    raw = next((raw for raw in kept_frames(view) if raw.lsn == lsn), None)
    if raw is None:
        raise _nothing(f"LSN {lsn}")
    return {"kind": "frame", **describe_frame(raw), "durable": lsn <= view.journal.durable_lsn}


# --- files -----------------------------------------------------------------------------------

_LINE_BYTES = 16


def is_parquet(path: str) -> bool:
    """True for a Parquet file, judged by its first bytes."""
    with Path(path).open("rb") as file:
        return file.read(4) == b"PAR1"


def rows_of(path: str) -> pa.Table:
    """The rows of an Arrow file, the frames of a journal, the files that a manifest names.

    raises: InvalidArgument for a file that has no rows; Corruption
    """
    data = Path(path).read_bytes()
    try:
        if data.startswith(b"ARROW1"):
            with pa.ipc.open_file(pa.BufferReader(data)) as reader:
                return reader.read_all()
        if data.startswith(b"TXLOGMAN"):
            return pa.Table.from_pylist(manifest_files(data))
    except (pa.ArrowException, OSError, ValueError, RecursionError) as exc:
        raise Corruption(
            f"{path} cannot be read: {said_by_arrow(exc)}", path=path, offset=0
        ) from exc
    except msgspec.DecodeError as exc:
        raise Corruption(f"{path} cannot be read: {exc}", path=path, offset=0) from exc
    if data.startswith(b"TXLOGJNL"):
        return frame_rows(journal_frames(data)[0], None)
    raise InvalidArgument(f"{path} has no rows", path=path)


def columns_of(path: str) -> list[ColumnStatistics]:
    """The columns of a Parquet file: their size and, where there are statistics, the bounds."""
    footer = arrow_module("pyarrow.parquet").read_metadata(path)
    out: list[ColumnStatistics] = []
    for number in range(footer.num_columns):
        pieces = [footer.row_group(at).column(number) for at in range(footer.num_row_groups)]
        statistics = [piece.statistics for piece in pieces if piece.is_stats_set]
        bounds = [of for of in statistics if of.has_min_max]
        column = footer.schema.column(number)
        out.append(
            {
                "name": column.path,
                "type": column.physical_type.lower(),
                "codec": pieces[0].compression.lower() if pieces else None,
                "size_bytes": sum(piece.total_compressed_size for piece in pieces),
                "raw_bytes": sum(piece.total_uncompressed_size for piece in pieces),
                "values": sum(piece.num_values for piece in pieces),
                "nulls": sum(of.null_count for of in statistics) if statistics else None,
                "min": min((of.min for of in bounds), default=None),
                "max": max((of.max for of in bounds), default=None),
            }
        )
    return out


def groups_of(path: str) -> list[GroupStatistics]:
    """The row groups of a Parquet file, with the lowest and highest entry of each."""
    footer = arrow_module("pyarrow.parquet").read_metadata(path)
    names = [footer.schema.column(at).path for at in range(footer.num_columns)]
    return [
        _group(number, footer.row_group(number), names) for number in range(footer.num_row_groups)
    ]


def _group(number: int, group: Any, names: list[str]) -> GroupStatistics:
    statistics = None
    if "entry" in names:
        statistics = group.column(names.index("entry")).statistics
    bounds = statistics if statistics is not None and statistics.has_min_max else None
    columns = [group.column(at) for at in range(group.num_columns)]
    return {
        "row_group": number,
        "rows": group.num_rows,
        "size_bytes": sum(column.total_compressed_size for column in columns),
        "raw_bytes": group.total_byte_size,
        "first_entry": None if bounds is None else bounds.min,
        "last_entry": None if bounds is None else bounds.max,
    }


def hexdump(path: str, offset: int, length: int) -> Iterator[str]:
    """Bytes of a file, sixteen on a line: offset, hex, ASCII."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        while length > 0:
            data = file.read(min(_LINE_BYTES, length))
            if not data:
                return
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
            yield f"{offset:08x}  {data[:8].hex(' '):23}  {data[8:].hex(' '):23}  {text}\n"
            offset, length = offset + len(data), length - len(data)
