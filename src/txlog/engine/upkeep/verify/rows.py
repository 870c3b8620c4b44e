"""Verifying the rows of a partition and its sidecar against the folds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from txlog.base.ids import TxnId
from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Marker, live_rows
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.schema import KIND_DATA, TXN_COMMIT, W_IDLE, W_SET, W_SNAPSHOT
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.view.files import Request
from txlog.engine.view.view import View

ROWS_AT_ONCE: Final = 200_000
_PARTITION: Final = ("kind", "entry", "txn_most", "txn_least", "count")
_SIDECAR: Final = ("kind", "txn_most", "txn_least", "txn_index")
_COMPACTED: Final = ("key", "marker_ledger", "marker_entry", "txn_index")
_WATERMARKS: Final = pa.array([W_SET, W_IDLE, W_SNAPSHOT], pa.int8())


def check_partition_rows(view: View, number: int, findings: Findings) -> None:
    """Check that entries have no gap, and that messages and markers are those of the fold."""
    state = view.topic(number)
    last = 0
    for end in state.ledgers:
        owner = view.catalog.owners.get(end.ledger)
        if owner != (number, "p") or end.ledger <= last:
            findings.error(
                604,
                f"ledger {end.ledger} is not the next one of partition {number}",
                partition=number,
                ledger=end.ledger,
            )
            continue
        last = end.ledger
        if _has_entries(view, number, end.ledger, end.entries, findings):
            _check_ledger(view, number, end, findings)
    for name in ("messages", "payload_bytes"):
        total = sum(getattr(end, name) for end in state.ledgers)
        if total != getattr(state, name):
            findings.error(
                604,
                f"partition {number} has {getattr(state, name)} {name}, its ledgers have {total}",
                partition=number,
            )


def _has_entries(view: View, number: int, ledger: int, entries: int, findings: Findings) -> bool:
    """Check that files and frames have exactly these entries; readers would ignore more."""
    refs = view.files.of(ledger)
    stored = sum(ref.rows for ref in refs)
    runs = view.tail.runs.get(ledger, [])
    in_frames = sum(run.rows for run in runs)
    if stored + in_frames == entries or (refs and refs[0].form != "part" and stored == entries):
        return True
    findings.error(
        604,
        f"ledger {ledger} has {entries} entries, and {stored} in files, {in_frames} in frames",
        partition=number,
        ledger=ledger,
        path=refs[-1].path if refs else None,
    )
    return False


def _check_ledger(view: View, number: int, end: LedgerEnd, findings: Findings) -> None:
    ledger, silent = end.ledger, view.watermark(number).silent.get(end.ledger, ())
    markers = {marker.entry: marker for marker in view.buffer(number).markers.get(ledger, [])}
    messages = seen = 0
    for start in range(0, end.entries, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, end.entries)
        table = pa.concat_tables(view.rows([(ledger, start, stop)], _PARTITION))
        wrong = _first(pc.not_equal(table["entry"], pa.arange(start, stop)))
        if wrong is not None:
            _say(
                findings,
                number,
                ledger,
                start + wrong,
                f"row {start + wrong} of ledger {ledger} is entry {table['entry'][wrong].as_py()}",
            )
            return
        kinds = table["kind"]
        messages += int(pc.sum(pc.equal(kinds, KIND_DATA)).as_py() or 0)
        rows = table.filter(pc.equal(kinds, TXN_COMMIT))
        seen += rows.num_rows
        for entry, most, least, count in _lists(rows, _PARTITION[1:]):
            messages += count
            found_marker = markers.get(entry)
            if (
                found_marker is None
                or _pair(most, least) != (found_marker.coordinator, found_marker.sequence)
                or (count != found_marker.count)
            ):
                _say(
                    findings,
                    number,
                    ledger,
                    entry,
                    f"the marker {ledger}:{entry} is of {TxnId(*_pair(most, least))} with {count} "
                    f"messages, {_name(found_marker)}",
                )
        quiet = table.filter(pc.is_in(kinds, _WATERMARKS))["entry"].to_pylist()
        for entry in [entry for entry in quiet if entry not in silent][:1]:
            _say(
                findings,
                number,
                ledger,
                entry,
                f"{ledger}:{entry} is a row of watermarks that is counted as a message",
            )
    if seen != len(markers):
        _say(
            findings,
            number,
            ledger,
            0,
            f"ledger {ledger} has {seen} markers, and {len(markers)} are known",
        )
    if messages != end.messages:
        _say(
            findings,
            number,
            ledger,
            0,
            f"ledger {ledger} has {messages} messages, and {end.messages} are counted",
        )


def check_compacted_rows(view: View, number: int, findings: Findings) -> None:
    """Check that compacted rows have keys, rising ids up to the horizon, and numbers from 0."""
    compaction = view.topic(number).compaction
    last: tuple[int, ...] = (0, -1, -1)
    for ledger in () if compaction is None else compaction.ledgers:
        if view.catalog.owners.get(ledger) != (number, "c") or not view.files.of(ledger):
            findings.error(
                604,
                f"ledger {ledger} is not one of the compacted rows of partition {number}",
                partition=number,
                ledger=ledger,
            )
            continue
        assert compaction is not None
        last = _check_compacted(view, number, ledger, (last, compaction.horizon), findings)


def _check_compacted(
    view: View,
    number: int,
    ledger: int,
    between: tuple[tuple[int, ...], tuple[int, int]],
    findings: Findings,
) -> tuple[int, ...]:
    """Check the rows of a ledger; between: the last id before them, and the horizon."""
    last, horizon = between
    rows = view.files.of(ledger)[0].rows
    for start in range(0, rows, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, rows)
        table = pa.concat_tables(view.rows([(ledger, start, stop)], _COMPACTED))
        ids = [pc.fill_null(table[name], 0).combine_chunks() for name in _COMPACTED[1:]]
        previous_ids = [
            pa.concat_arrays([pa.array([previous], ids[at].type), ids[at][:-1]])
            for at, previous in enumerate(last)
        ]
        is_above = pc.greater(ids[2], previous_ids[2])
        for at in (1, 0):
            same = pc.and_(pc.equal(ids[at], previous_ids[at]), is_above)
            is_above = pc.or_(pc.greater(ids[at], previous_ids[at]), same)
        wrong = _first(pc.invert(pc.and_(is_above, pc.is_valid(table["key"]).combine_chunks())))
        if wrong is not None:
            message = f"row {start + wrong} of {ledger} has no key, or an id out of order"
            _say(findings, number, ledger, start + wrong, message)
            return last
        last = tuple(column[-1].as_py() for column in ids)
    if last[:2] > horizon:
        _say(findings, number, ledger, rows - 1, f"ledger {ledger} has rows after its horizon")
    return last


def check_sidecar_rows(view: View, number: int, findings: Findings) -> None:
    """Check that every message that is or may become visible is a row of its transaction and
    index.
    """
    state = view.buffer(number)
    live = live_rows(state)
    ledgers = {end.ledger for end in state.ledgers}
    for end in state.ledgers:
        if view.catalog.owners.get(end.ledger) != (number, "s"):
            findings.error(
                604,
                f"ledger {end.ledger} is not one of the sidecar of partition {number}",
                partition=number,
                ledger=end.ledger,
            )
            return
        refs = view.files.of(end.ledger)
        is_clean = bool(refs) and refs[0].clean
        rows = sum(ref.rows for ref in refs) if is_clean else end.entries
        if end.ledger in state.chunked:
            continue
        if is_clean:
            dead = sum(count for _, count in state.trimmed.get(end.ledger, ()))
            if live.get(end.ledger, 0) + dead != rows:
                findings.error(
                    604,
                    f"ledger {end.ledger} has {rows} rows, and "
                    f"{live.get(end.ledger, 0) + dead} are known",
                    partition=number,
                    ledger=end.ledger,
                    path=refs[0].path,
                )
        elif not _has_entries(view, number, end.ledger, end.entries, findings):
            return
    lost = sorted(live.keys() - ledgers)
    if lost:
        findings.error(
            604,
            f"messages lie in ledger {lost[0]}, which the sidecar of partition "
            f"{number} does not have",
            partition=number,
            ledger=lost[0],
        )
        return
    for spans in _batches(_live_spans(view, number)):
        _check_spans(view, number, spans, findings)


Span = tuple[int, int, int, int, int, int]  # ledger, row, rows, index, coordinator, sequence


def _live_spans(view: View, number: int) -> Iterator[Span]:
    state = view.buffer(number)
    for _, markers in sorted(state.markers.items()):
        for marker in markers:
            for ledger, row, rows, index in marker.ranges:
                yield ledger, row, rows, index, marker.coordinator, marker.sequence
    for coordinator, held_by in state.held.items():
        for sequence, messages in held_by.items():
            for ledger, row, rows, index in messages.ranges:
                yield ledger, row, rows, index, coordinator, sequence


def _batches(spans: Iterator[Span]) -> Iterator[list[Span]]:
    """Spans in the order they are stored, so that each file is read once."""
    waiting: list[Span] = []
    rows = 0
    for span in sorted(spans):
        waiting.append(span)
        rows += span[2]
        if rows >= ROWS_AT_ONCE:
            yield waiting
            waiting, rows = [], 0
    if waiting:
        yield waiting


def _check_spans(view: View, number: int, spans: list[Span], findings: Findings) -> None:
    requests: list[Request] = [(ledger, row, row + rows) for ledger, row, rows, *_ in spans]
    table = pa.concat_tables(view.rows(requests, _SIDECAR))
    counts = pa.array([span[2] for span in spans], pa.int64())
    which = pa.array(_repeated([span[2] for span in spans]), pa.int64())
    start = pc.take(pc.subtract(pc.cumulative_sum(counts), counts), which)
    offset = pc.subtract(pa.arange(0, table.num_rows), start)
    expected = {
        "kind": pa.repeat(pa.scalar(KIND_DATA, pa.int8()), table.num_rows),
        "txn_most": pc.take(pa.array([span[4] << 48 for span in spans], pa.int64()), which),
        "txn_least": pc.take(pa.array([span[5] for span in spans], pa.int64()), which),
        "txn_index": pc.add(
            pc.take(pa.array([span[3] for span in spans], pa.int64()), which), offset
        ),
    }
    for name, values in expected.items():
        actual = table[name].cast(values.type)
        wrong = _first(pc.fill_null(pc.not_equal(actual, values), True))
        if wrong is not None:
            span = spans[which[wrong].as_py()]
            row = span[1] + offset[wrong].as_py()
            actual_text = f"row {row} of ledger {span[0]} has {name} {actual[wrong].as_py()}"
            expected_text = f"{values[wrong].as_py()} is expected of transaction {TxnId(*span[4:])}"
            _say(findings, number, span[0], row, f"{actual_text}, and {expected_text}")
            return


def _repeated(counts: list[int]) -> Iterator[int]:
    for number, count in enumerate(counts):
        yield from [number] * count


def _first(wrong: pa.ChunkedArray | pa.Array) -> int | None:
    """The number of the first value that is true."""
    at = pc.index(wrong, True).as_py()
    return None if at < 0 else int(at)


def _lists(table: pa.Table, names: tuple[str, ...]) -> Iterator[tuple[int, int, int, int]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _pair(most: int, least: int) -> tuple[int, int]:
    return most >> 48, least


def _name(marker: Marker | None) -> str:
    if marker is None:
        return "and the sidecar knows of none"
    return f"the sidecar says {TxnId(marker.coordinator, marker.sequence)} with {marker.count}"


def _say(findings: Findings, number: int, ledger: int, entry: int, message: str) -> None:
    findings.error(604, message, partition=number, ledger=ledger, first=(ledger, entry))
