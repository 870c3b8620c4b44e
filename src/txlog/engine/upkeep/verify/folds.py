"""Verifying that the components agree with each other and with the stored rows.

    partition     its ledgers against the rows: entries, messages, markers
    sidecar       every visible or open message is a row of that transaction with that index
    cursors       every acknowledged, held or leased message exists, the consumer of a lease exists,
                  and no message is leased and also acknowledged or held
    coordinators  held messages belong to an unfinished transaction; a commit has its markers
    keys          the bound transactions are exactly those open under a key
    delayed       the index has exactly the messages of the log that are not due
    watermarks    folding the rows gives the state, and every snapshot on the way

Each check is a function of one view, and reads rows in columns. A component whose own bytes are
damaged is reported, and the others are still checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import pyarrow as pa

from txlog.base.ids import SIDECAR, TopicName, TxnId
from txlog.base.startup import compute as pc
from txlog.base.suggest import command_line
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds import transaction_key as transaction_keys
from txlog.engine.folds.buffer import Marker, live_rows
from txlog.engine.folds.cursor import BEFORE_ALL, Cursor
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.folds.watermark import START, WatermarkState, read_snapshot
from txlog.engine.model.idset import IdSet, covers, size
from txlog.engine.model.ops import Run
from txlog.engine.model.schema import KIND_DATA, TXN_COMMIT, W_IDLE, W_SET, W_SNAPSHOT
from txlog.engine.plan.delayed.upcoming import TIMES, columns_of, later_in, scan
from txlog.engine.plan.participants import contradictions
from txlog.engine.plan.reading.watermarks import StoredWatermark, moves_between, read_rows
from txlog.engine.upkeep.delayed.buckets import ID_MAX, ID_MIN, delayed_partitions
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.view import Request, View
from txlog.errors import IntegrityError, TxlogError

ROWS_AT_ONCE: Final = 200_000
_PARTITION: Final = ("kind", "entry", "txn_most", "txn_least", "count")
_SIDECAR: Final = ("kind", "txn_most", "txn_least", "txn_index")
_COMPACTED: Final = ("key", "marker_ledger", "marker_entry", "txn_index")
_WATERMARKS: Final = pa.array([W_SET, W_IDLE, W_SNAPSHOT], pa.int8())


def check_partition_rows(view: View, number: int, findings: Findings) -> None:
    """Check that entries have no gap, and that messages and markers agree with the fold."""
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
    """Check that each row of a visible or open message has its transaction and index."""
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


# --- the components -------------------------------------------------------------------------------


# --- cursors ---------------------------------------------------------------------------------


def check_cursor(view: View, subscription: int, number: int, findings: Findings) -> None:
    """Check the cursor of a subscription in one partition."""
    cursor = view.cursor(subscription, number)
    subscription_record = view.catalog.subscriptions[subscription]
    check = _Check(view, number, f"subscription {subscription_record.name}", findings)
    check.mark(cursor)
    check.ids("acknowledged", cursor.acked, cursor)
    check.ids("held by a transaction", cursor.held, cursor)
    check.ids("in hand", cursor.leases.leased, cursor)
    check.pending(cursor, subscription)
    for consumer, lease in cursor.leases.by_consumer.items():
        if lease.ids and consumer not in view.catalog.consumers:
            check.say(f"consumer {consumer} has messages in hand but does not exist")
    for name, other in (("acknowledged", cursor.acked), ("held", cursor.held)):
        for run in cursor.leases.leased.runs():
            if other.first_common(run) is not None:
                check.say(f"{_text(run)} is in hand and {name}", run)
                break


class _Check:
    """The shared state of the checks of one cursor."""

    __slots__ = ("_ends", "_findings", "_number", "_view", "_who")

    def __init__(self, view: View, number: int, who: str, findings: Findings) -> None:
        self._view = view
        self._number = number
        self._who = who
        self._findings = findings
        self._ends = {end.ledger: end.entries for end in view.topic(number).ledgers}

    def say(self, message: str, run: Run | None = None) -> None:
        first = None if run is None else (run[0], run[1])
        self._findings.error(
            604,
            f"{self._who}: {message}",
            partition=self._number,
            ledger=None if run is None else run[0],
            first=first,
        )

    def mark(self, cursor: Cursor) -> None:
        """Check that mark-delete is in the partition, or before its first ledger."""
        ledger, entry, index = cursor.mark_delete
        if cursor.mark_delete == BEFORE_ALL or ledger < min(self._ends):
            return
        entries = self._ends.get(ledger)
        run: Run = (ledger, entry, entry, index, index)
        if entries is None or entry >= entries or entry < -1:
            self.say(f"mark-delete {ledger}:{entry} is not a place of the partition", run)
        elif index:
            marker = buffers.find_marker(self._view.buffer(self._number), ledger, entry)
            if marker is None or index > marker.count:
                self.say(f"mark-delete {ledger}:{entry}:{index} is not a message", run)

    def ids(self, state_name: str, ids: IdSet, cursor: Cursor) -> None:
        """Check that every id is a message of the partition after mark-delete."""
        for run in ids.runs():
            if not self._exists(run):
                self.say(f"{_text(run)} is {state_name} but does not exist", run)
                return
            last = (run[0], run[2], run[4])
            if covers(cursor.mark_delete, last) and state_name != "held by a transaction":
                self.say(f"{_text(run)} is {state_name} but is before mark-delete", run)
                return

    def _exists(self, run: Run) -> bool:
        ledger, first, last, index_first, index_last = run
        if ledger < min(self._ends):
            return True  # trimmed: it counts as deleted
        entries = self._ends.get(ledger)
        if entries is None or not 0 <= first <= last < entries:
            return False
        if not index_first:
            return True
        marker = buffers.find_marker(self._view.buffer(self._number), ledger, first)
        return marker is not None and index_last <= marker.count

    def pending(self, cursor: Cursor, subscription: int) -> None:
        """Check the ids that transactions hold: one transaction each, right counts, registered."""
        seen = IdSet()
        for (coordinator, sequence), pending in cursor.pending.items():
            name = f"transaction {coordinator}:{sequence}"
            if (run := _common(seen, pending.runs)) is not None:
                self.say(f"{_text(run)} is held by {name} and by another", run)
            for run in pending.runs:
                seen.add(run)
            txn = coordinators.find(self._view.coordinator(coordinator), sequence)
            if txn is not None and (subscription, self._number) not in txn.subscriptions:
                self.say(f"{name} holds acknowledgements but is not registered for it")
            count = sum(self._messages(run) for run in pending.runs)
            if count != pending.count:
                self.say(f"{name} holds {pending.count} acknowledgements, its ids are {count}")

    def _messages(self, run: Run) -> int:
        """How many messages a run has; a marker counts with its messages."""
        if run[3]:
            return size(run)
        state = self._view.buffer(self._number)
        silent = self._view.watermark(self._number).silent.get(run[0])
        total = size(run)
        if silent is not None:
            total -= silent.range_cardinality(run[1], run[2] + 1)
        for marker in state.markers.get(run[0], []):
            if run[1] <= marker.entry <= run[2] and marker.count:
                total += marker.count - 1
        return total


def _common(seen: IdSet, runs: Iterable[Run]) -> Run | None:
    for run in runs:
        if seen.first_common(run) is not None:
            return run
    return None


def _text(run: Run) -> str:
    ledger, first, last, index_first, index_last = run
    if index_first:
        return f"{ledger}:{first}:{index_first}" + (
            f" to :{index_last}" if index_last > index_first else ""
        )
    return f"{ledger}:{first}" + (f" to {ledger}:{last}" if last > first else "")


# --- the others ------------------------------------------------------------------------------

_NAMED = "txlog delay rebuild TOPIC rebuilds the index from the log"


def check_folds(view: View, findings: Findings, partitions: Collection[int] | None) -> None:
    """Check every component; partitions: only these and the records about them."""
    try:
        numbers_ = [n for topic in view.catalog.topics.values() for n in catalogs.numbers(topic)]
    except TxlogError as error:
        findings.caught(error)
        return
    selected = [n for n in numbers_ if partitions is None or n in partitions]
    for number in selected:
        for check in _OF_PARTITION:
            _guarded(check, view, number, findings)
        topic = catalogs.topic_of(view.catalog, number)
        for subscription in topic.subscriptions:
            try:
                check_cursor(view, subscription, number, findings)
            except TxlogError as error:
                findings.caught(error, partition=number)
    for number in delayed_partitions(view):
        if number in selected:
            _guarded(_delayed, view, number, findings)
    _transactions(view, selected, findings)
    _reserved(view, selected, findings)
    if partitions is None:
        _keys(view, findings)
        _owners(view, set(numbers_), findings)


def _guarded(
    check: Callable[[View, int, Findings], None], view: View, number: int, findings: Findings
) -> None:
    try:
        check(view, number, findings)
    except TxlogError as error:
        findings.caught(error, partition=number)
    except (LookupError, ValueError, TypeError, AssertionError, pa.ArrowException) as error:
        findings.error(
            604,
            f"{check.__name__.strip('_')} of partition {number} cannot be checked: {error!r}",
            partition=number,
        )


def _contradictions(view: View, number: int, findings: Findings) -> None:
    """Report what is held for ended or unknown transactions, and markers of aborted ones."""
    for contradiction in contradictions(view, number):
        findings.error(
            604,
            f"transaction {contradiction.coordinator}:{contradiction.sequence}: "
            f"{contradiction.detail}",
            partition=number,
        )


def _transactions(view: View, selected: Collection[int], findings: Findings) -> None:
    """Check that each transaction is kept by its status, was issued, and has its markers."""
    try:
        view.load_coordinators()
    except TxlogError as error:
        findings.caught(error)
        return
    for _, state in view.loaded_coordinators():
        records = [(*item, False) for item in state.unfinished.items()]
        records += [(*item, True) for item in zip(state.ended, state.ended.values(), strict=True)]
        for sequence, txn, is_ended in records:
            if (txn.status == coordinators.PREPARED) > (txn.prepared is not None):
                findings.error(
                    604, f"transaction {txn.coordinator}:{sequence} is prepared and has no database"
                )
            if txn.sequence != sequence or (txn.status in coordinators.ENDED) is not is_ended:
                findings.error(
                    604,
                    f"transaction {txn.coordinator}:{sequence} is kept as "
                    f"{'ended' if is_ended else 'unfinished'} and is {txn.status}",
                )
            if sequence >= state.next_sequence or sequence >= state.reserved_below:
                findings.error(604, f"transaction {txn.coordinator}:{sequence} was never issued")
            for number, ledger, entry, count in txn.markers:
                if number in selected:
                    _marker(view, txn, (number, ledger, entry, count), findings)


def _marker(
    view: View, txn: coordinators.Txn, marker_at: tuple[int, int, int, int], findings: Findings
) -> None:
    number, ledger, entry, count = marker_at
    try:
        if all(end.ledger != ledger for end in view.topic(number).ledgers):
            return  # trimmed
        marker = buffers.find_marker(view.buffer(number), ledger, entry)
    except TxlogError:
        return  # its dump is damaged, which is reported already
    name = f"transaction {txn.coordinator}:{txn.sequence}"
    refs = view.files.of(ledger)
    if refs and refs[0].form == "adopted":
        return  # the files of a batch belong to a topic without a marker
    if marker is None:
        findings.error(
            604,
            f"{name} has no marker at {ledger}:{entry}",
            partition=number,
            ledger=ledger,
            first=(ledger, entry),
        )
    elif (marker.coordinator, marker.sequence, marker.count) != (
        txn.coordinator,
        txn.sequence,
        count,
    ):
        findings.error(
            604,
            f"the marker at {ledger}:{entry} is of {marker.coordinator}:{marker.sequence} "
            f"with {marker.count} messages, {name} says {count}",
            partition=number,
            ledger=ledger,
            first=(ledger, entry),
        )


def _reserved(view: View, selected: Collection[int], findings: Findings) -> None:
    """Warn of topics with a name that is refused now; they are read and written like others."""
    for topic in view.catalog.topics.values():
        if TopicName.parse(topic.name).name == SIDECAR and topic.first_partition in selected:
            findings.warning(
                "reserved",
                f"topic {SIDECAR} has the name of a sidecar",
                partition=topic.first_partition,
                hint="copy it to another topic, then delete it: "
                + command_line("topic copy", SIDECAR, "--as", "NAME"),
            )


def _keys(view: View, findings: Findings) -> None:
    """Check that each key has bound its open transaction, and that no other is open under it."""
    states = dict(view.loaded_coordinators())
    bound: set[tuple[int, int]] = set()
    for key in sorted(view.known()):
        if key[0] != "key":
            continue
        try:
            keys: transaction_keys.Keys = view.keys(key[1])
        except TxlogError as error:
            findings.caught(error)
            continue
        for uid, keys_of_user in keys.of.items():
            for name, key_record in keys_of_user.items():
                if key_record.sequence < 0:
                    continue
                txn = (
                    states[key[1]].unfinished.get(key_record.sequence) if key[1] in states else None
                )
                if txn is None or (txn.key, txn.owner_uid) != (name, uid):
                    findings.error(
                        604,
                        f"key {name} of {key_record.owner} has bound transaction "
                        f"{key[1]}:{key_record.sequence}, which is not open under it",
                    )
                elif txn.epoch > key_record.epoch:
                    findings.error(
                        604,
                        f"transaction {key[1]}:{key_record.sequence} has epoch {txn.epoch} of key "
                        f"{name}, which is at {key_record.epoch}",
                    )
                bound.add((key[1], key_record.sequence))
    for number, state in states.items():
        for sequence, txn in state.unfinished.items():
            is_open = txn.status in coordinators.UNDECIDED and txn.key is not None
            if is_open and (number, sequence) not in bound:
                findings.error(
                    604,
                    f"transaction {number}:{sequence} is open under key {txn.key}, which "
                    "does not know of it",
                )


def _owners(view: View, partitions: set[int], findings: Findings) -> None:
    """Check that every ledger has an existing owner, and is below the next number."""
    catalog = view.catalog
    for ledger, (number, _) in sorted(catalog.owners.items()):
        if number not in partitions:
            findings.error(
                604,
                f"ledger {ledger} belongs to partition {number}, which does not exist",
                ledger=ledger,
            )
        if ledger >= catalog.next_ledger:
            findings.error(604, f"ledger {ledger} was never given out", ledger=ledger)
    for consumer in catalog.consumers.values():
        if consumer.subscription not in catalog.subscriptions:
            findings.error(604, f"consumer {consumer.name} has a subscription that does not exist")


def _delayed(view: View, number: int, findings: Findings) -> None:
    """Compare the index of delayed messages with the log, for messages that may not be due."""
    state = view.delayed(number)
    first_ledger = view.topic(number).ledgers[0].ledger
    tables = [TIMES.empty_table(), columns_of(state.mutable)]
    for bucket in state.buckets:
        try:
            tables.append(later_in(view, bucket, state.passed_ms))
        except IntegrityError:
            return  # reported for its file; it is dropped and rebuilt
    indexed = _comparable(pa.concat_tables(tables), state.passed_ms, first_ledger)
    logged = _comparable(scan(view, number, ID_MIN, ID_MAX), state.passed_ms, first_ledger)
    names = TIMES.names
    missing = logged.join(indexed, names, join_type="left anti")
    for first, last in state.unindexed:
        missing = _outside(missing, first, last)
    surplus = indexed.join(logged, names, join_type="left anti")
    for table, how in ((missing, "is not in the index"), (surplus, "is in the index only")):
        if table.num_rows:
            ledger, entry = table["ledger"][0].as_py(), table["entry"][0].as_py()
            findings.error(
                604,
                f"{table.num_rows} delayed messages: each {how}, the first is {ledger}:{entry}",
                partition=number,
                ledger=ledger,
                first=(ledger, entry),
                hint=_NAMED,
            )


def _comparable(times: pa.Table, passed_ms: int, first_ledger: int) -> pa.Table:
    is_later = pc.greater(times["deliver_at"], passed_ms)
    return times.filter(pc.and_(is_later, pc.greater_equal(times["ledger"], first_ledger)))


def _outside(times: pa.Table, first: tuple[int, int, int], last: tuple[int, int, int]) -> pa.Table:
    rows = zip(*(times[name].to_pylist() for name in ("ledger", "entry", "index")), strict=True)
    return times.filter(pa.array([not first <= row <= last for row in rows], pa.bool_()))


def _watermark(view: View, number: int, findings: Findings) -> None:
    """Fold the rows that move the watermark, from the first snapshot on; compare with the state."""
    watermark = view.watermark(number)
    snapshots = sorted(
        (ledger, entry) for ledger, rows in watermark.snapshots.items() for entry in rows
    )
    state, start = WatermarkState(), START
    if snapshots:
        first = _snapshot(view, snapshots[0])
        if first is None:
            return  # the snapshot has a version that this program does not read
        state, start = first, snapshots[0]
    elif not watermark.state.seen:
        return
    for position in snapshots[1:]:
        for row in _moves(view, number, start, position):
            row.take(state)
        start = position
        snapshot = _snapshot(view, position)
        if snapshot is not None and (snapshot.active, snapshot.seen) != (state.active, state.seen):
            findings.error(
                604,
                f"the watermark snapshot at {position[0]}:{position[1]} is not what the rows "
                "before it say",
                partition=number,
                ledger=position[0],
                first=position,
            )
            return
    for row in _moves(view, number, start, None):
        row.take(state)
    if (watermark.state.active, watermark.state.seen) != (state.active, state.seen):
        findings.error(
            604,
            f"the watermark is {watermark.state.value}, and its rows say {state.value}",
            partition=number,
        )


def _moves(
    view: View, number: int, start: tuple[int, int], last: tuple[int, int] | None
) -> Iterator[StoredWatermark]:
    return read_rows(view, [*moves_between(view.watermark(number), start, last)])


def _snapshot(view: View, position: tuple[int, int]) -> WatermarkState | None:
    ledger, entry = position
    (table,) = view.rows([(ledger, entry, entry + 1)], ["value"])
    snapshot = read_snapshot(table.column(0)[0].as_py())
    return None if snapshot is None else snapshot.state


_OF_PARTITION: Final = (
    check_partition_rows, check_sidecar_rows, check_compacted_rows, _contradictions, _watermark,
)  # fmt: skip
