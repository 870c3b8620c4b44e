"""A few rows of large ledgers: each row group and frame is read once, and counters show it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog import Bound, Client, Range
from txlog.engine import view as views
from txlog.engine.model import tail
from txlog.engine.model.schema import PROPERTY_MAP, decode_rows
from txlog.engine.plan.reading.dispatch import RECEIVED
from txlog.engine.session.reading.message import messages
from txlog.engine.storage import segment
from txlog.engine.view import View

ROWS = 2_000
GROUP = 100


pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, ledger_entries_max=ROWS),
]


def send_rows(bench: Bench, count: int) -> pa.Table:
    """Send this many rows in one frame."""
    table = pa.table({"value": pa.array([b"%d" % n for n in range(count)], pa.binary())})
    bench.client.producer("t").send_batch(table)
    return table


def take(bench: Bench, places: list[int], names: tuple[str, ...] = ("value",)) -> pa.Table:
    """These rows of the first ledger, each as a request of its own."""

    def look(view: View) -> pa.Table:
        [key] = [key for key in view.known() if key[0] == "topic"]
        ledger = view.topic(key[1]).ledgers[0].ledger
        requests = [(ledger, at, at + 1) for at in places]
        return pa.concat_tables(view.rows(requests, names))

    return bench.client.store.read(look)


SPREAD = list(range(3, ROWS, 40))


def test_a_frame_is_read_once_for_many_rows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against one read for each row, which filled the memory with copies of one
    large frame.
    """
    table = send_rows(bench, ROWS)
    decoded: list[int] = []

    def noted(columns: int, rows: pa.Buffer) -> pa.RecordBatch:
        decoded.append(columns)
        return decode_rows(columns, rows)

    monkeypatch.setattr(tail, "decode_rows", noted)
    monkeypatch.setattr(tail, "BATCH_BYTES_KEPT_MAX", 10)
    assert take(bench, SPREAD).equals(table.take(SPREAD))
    assert take(bench, SPREAD[:3]).equals(table.take(SPREAD[:3]))
    assert len(decoded) == 1  # the last decoded frame stays, whatever its size


def test_rows_of_several_frames_and_of_markers_keep_their_order(bench: Bench) -> None:
    """Requests that jump between frames, back and forth, with markers between them."""
    client = bench.client
    for start in range(0, 60, 20):
        with client.transaction() as txn:
            client.producer("t").send(b"inner", txn=txn)
        values = [b"%d" % n for n in range(start, start + 20)]
        client.producer("t").send_batch(pa.table({"value": pa.array(values, pa.binary())}))
    places = [*range(0, 63, 2), 5, 4, 62, *range(20, 0, -1), *range(21, 45)]
    whole = take(bench, list(range(63))).column("value").to_pylist()
    assert take(bench, places).column("value").to_pylist() == [whole[at] for at in places]
    client.checkpoint()
    assert take(bench, places).column("value").to_pylist() == [whole[at] for at in places]


def test_a_sealed_ledger_decodes_each_group_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`consume --stats` shows the requested rows, and the row groups that have them."""
    monkeypatch.setattr(segment, "GROUP_ROWS", GROUP)
    table = send_rows(bench, ROWS)
    send_rows(bench, 1)  # the ledger before is full: it is sealed
    bench.client.checkpoint()
    client = bench.reopen()
    assert take(bench, SPREAD).equals(table.take(SPREAD))
    assert client.reading() == {
        "rows_read": len(SPREAD),
        "row_groups_decoded": ROWS // GROUP,
        "handed_out": 0,
    }
    take(bench, [5, 7])
    assert client.reading()["row_groups_decoded"] == ROWS // GROUP + 1


def test_handed_out_rows_are_counted(bench: Bench) -> None:
    """For consumers and readers alike, also over a reload of the view."""
    client = bench.client
    client.create_subscription("t", "s", type="shared", position=None)
    send_rows(bench, 30)
    with client.consumer("t", "s") as consumer:
        consumer.acknowledge(consumer.receive_batch(10))
        client.store.reload()
        assert consumer.receive_batch(10).num_rows == 10
    assert client.reading() == {"rows_read": 20, "row_groups_decoded": 0, "handed_out": 20}
    assert sum(len(table) for table in client.read("t")) == 30
    assert client.reading() == {"rows_read": 50, "row_groups_decoded": 0, "handed_out": 50}


def kept(client: Client) -> int:
    """The size of the decoded row groups that a client's open files keep."""
    return client.store.read(
        lambda view: sum(reader.cached_bytes for _, reader in view.files._readers.values())
    )


def test_a_scan_keeps_no_row_group_that_it_has_passed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against two row groups of every file in memory, so that a read needs as much as the
    store.
    """
    monkeypatch.setattr(segment, "GROUP_ROWS", GROUP)
    for _ in range(5):
        send_rows(bench, ROWS)
    bench.client.checkpoint()
    client = bench.reopen()
    most = 0
    for table in client.read("t", batch_messages=GROUP):
        assert len(table) == GROUP
        most = max(most, kept(client))
    groups = client.reading()["row_groups_decoded"]
    assert groups == 5 * ROWS // GROUP + 1 - ROWS // GROUP  # the last ledger is one part
    assert most < 3 * ROWS * 20
    assert not kept(client)
    for _ in range(3):  # a few rows at the end: the next call may need them again
        assert len(list(client.read("t", range=Range(Bound("last", 1))))) == 1
    assert client.reading()["row_groups_decoded"] == groups + 1
    assert kept(client)


def test_decoded_row_groups_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used files drop their row groups, and one file always keeps them."""
    monkeypatch.setattr(segment, "GROUP_ROWS", GROUP)
    for _ in range(5):
        send_rows(bench, ROWS)
    bench.client.checkpoint()
    client = bench.reopen()

    def look(at: int) -> None:
        range_ = Range(Bound("skip", at), Bound("skip", at + 1))
        assert [len(table) for table in client.read("t", range=range_)] == [1]

    look(0)
    each_files = kept(client)
    monkeypatch.setattr(views, "KEPT_BYTES_MAX", 2 * each_files + each_files // 2)
    for ledger in range(4):
        look(ledger * ROWS)
        assert kept(client) <= 2 * each_files + each_files // 2
    row_groups_decoded_before = client.reading()["row_groups_decoded"]
    look(3 * ROWS)
    look(2 * ROWS)
    assert client.reading()["row_groups_decoded"] == row_groups_decoded_before
    look(0)
    assert client.reading()["row_groups_decoded"] == row_groups_decoded_before + 1
    monkeypatch.setattr(views, "KEPT_BYTES_MAX", 0)
    look(ROWS)
    look(ROWS)
    assert client.reading()["row_groups_decoded"] == row_groups_decoded_before + 2
    assert 0 < kept(client) <= each_files


def test_a_message_is_made_from_few_steps(bench: Bench) -> None:
    """A field that no message of a batch has costs no step per message.

    49 bytecodes for each message, and its fields take 41.
    """
    send_rows(bench, 300)
    rows = bench.client.reader("t").receive_batch(300)
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    def steps_for(count: int) -> int:
        nonlocal steps
        some_rows, steps = rows.slice(0, count), 0
        trace_before = sys.gettrace()
        sys.settrace(trace)
        try:
            for _ in messages(some_rows):
                pass
        finally:
            sys.settrace(trace_before)
        return steps

    steps_for(300)  # the first call loads modules
    assert steps_for(300) - steps_for(100) <= 200 * 52
    first, second = list(messages(rows))[:2]
    assert first.properties == second.properties == {}
    assert first.properties is not second.properties


def test_properties_of_maps_however_they_lie() -> None:
    """Guards against dicts with pairs under a null, from before a slice, or shared by two rows."""
    pairs = [[("a", "1"), ("b", "2")], None, [], [("a", "3")], [("x", "4"), ("x", "5")], None]
    maps = pa.array(pairs, PROPERTY_MAP)
    hidden = pa.MapArray.from_arrays(
        maps.offsets, maps.keys, maps.items, mask=pa.array([True, *[False] * 5])
    )
    nulls = pa.nulls(3, PROPERTY_MAP)
    for chunks in ([maps], [maps.slice(1, 4), maps.slice(3)], [hidden, nulls, maps], [nulls]):
        column = pa.chunked_array(chunks)
        length = len(column)
        columns = {"properties": column, "ledger": pa.repeat(pa.scalar(1, pa.int64()), length)}
        table = pa.table(
            [columns.get(row.name, pa.nulls(length, row.type)) for row in RECEIVED], schema=RECEIVED
        )
        properties = [message.properties for message in messages(table)]
        assert properties == [dict(row or ()) for row in column.to_pylist()]
        assert len({id(row) for row in properties}) == length
