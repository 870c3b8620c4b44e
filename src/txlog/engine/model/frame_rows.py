"""The user rows of journal frames: read, checked and decoded on demand, some of them kept.

There are two ways. A frame alone becomes a record batch over its own bytes, and a few of those are
kept. Rows that came with their frames, read and checked once already, are *packed*: many small
frames become one table by one call of Arrow, and the rows of a frame are a range of it. A
checkpoint reads every row behind the last one and packs them; 2 us a frame instead of 20.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import pyarrow as pa

from txlog.engine.model.schema import ALL_COLUMNS, decode_rows, frame_schema
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.journal.file import JournalName
from txlog.engine.storage.journal.frame import decode_header, is_genuine
from txlog.engine.storage.journal.journal import Journal
from txlog.errors import Corruption, FormatMismatch

BATCHES_KEPT_MAX = 256
BATCH_BYTES_KEPT_MAX = 32 << 20
# A table is packed of frames that lie within so many bytes: what was read around them stays in
# memory until then. The rows of a frame alone stay where they were read, if they are that many.
PACK_BYTES = 1 << 20
ROWS_UNCOPIED_BYTES = 256 << 10
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


class FrameRef(msgspec.Struct, frozen=True, gc=False):
    """Where a frame with rows lies."""

    journal: JournalName
    offset: int
    total_bytes: int
    rows_offset: int
    rows_bytes: int
    columns: int
    lsn: int
    time_ms: int


class FrameRows:
    """The rows of frames, with a small cache of batches and the packed tables."""

    __slots__ = ("_batches", "_journal", "_kept_bytes", "_packed", "_unpacked")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._batches: OrderedDict[int, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._kept_bytes = 0
        self._packed: dict[int, tuple[pa.Table, int]] = {}  # lsn -> (table, its first row there)
        self._unpacked: list[tuple[FrameRef, memoryview]] = []  # of one shape

    def pack(self, ref: FrameRef, rows: memoryview) -> None:
        """Take over the checked rows of a frame; they stay until the end of this object."""
        if not 0 <= ref.columns <= ALL_COLUMNS:
            return  # `batch` refuses the frame, should anybody want its rows
        if self._unpacked:
            first = self._unpacked[0][0]
            span = ref.offset + ref.total_bytes - first.offset
            if first.columns != ref.columns or span > PACK_BYTES:
                self._finish_pack()
        self._unpacked.append((ref, rows))

    def _finish_pack(self) -> None:
        """Decode what waits as one stream: a schema, then the messages as the frames hold them."""
        frames, self._unpacked = self._unpacked, []
        schema = frame_schema(frames[0][0].columns)
        if len(frames) == 1:
            rows = frames[0][1]
            data = rows if len(rows) >= ROWS_UNCOPIED_BYTES else bytes(rows)
            batches = [pa.ipc.read_record_batch(data, schema)]
            table = pa.Table.from_batches(batches)
        else:
            messages = [schema.serialize(), *(rows for _, rows in frames), _STREAM_END]
            with pa.ipc.open_stream(b"".join(messages)) as reader:
                batches = list(reader)
            if len(batches) != len(frames):
                first, last = frames[0][0], frames[-1][0]
                raise Corruption(
                    f"{first.journal.path}: {len(frames)} frames with rows from LSN {first.lsn} "
                    f"hold {len(batches)} record batches",
                    path=first.journal.path, offset=first.offset, lsn=first.lsn,
                    last_lsn=last.lsn, code=602,
                )  # fmt: skip
            table = pa.Table.from_batches(batches).combine_chunks(pa.system_memory_pool())
        at = 0
        for (ref, _), batch in zip(frames, batches, strict=True):
            self._packed[ref.lsn] = (table, at)
            at += batch.num_rows

    def packed(self) -> dict[int, tuple[pa.Table, int]]:
        """By LSN the table a frame's rows are packed in, and the first of them there."""
        if self._unpacked:
            self._finish_pack()
        return self._packed

    def batch(self, ref: FrameRef) -> pa.RecordBatch:
        """The user columns of a frame, checked; raises Corruption."""
        found = self._batches.get(ref.lsn)
        if found is not None:
            self._batches.move_to_end(ref.lsn)
            return found[0]
        journal = self._journal.file(ref.journal)
        data = journal.file.pread(ref.offset, ref.total_bytes)
        header = decode_header(data)
        if header is None or not is_genuine(
            header, memoryview(data), self._journal.salt, ref.offset
        ):
            raise Corruption(
                f"{ref.journal.path} is damaged, bytes {ref.offset} to "
                f"{ref.offset + ref.total_bytes} (LSN {ref.lsn})",
                hint=HINT, code=602,
                path=ref.journal.path, offset=ref.offset, lsn=ref.lsn,
            )  # fmt: skip
        at = ref.rows_offset - ref.offset
        rows = pa.py_buffer(data).slice(at, ref.rows_bytes)
        try:
            batch = decode_rows(ref.columns, rows)
        except IndexError as exc:
            raise FormatMismatch(
                f"the frame of LSN {ref.lsn} has columns this version does not know",
                hint="use the txlog that wrote it, or a newer one", lsn=ref.lsn,
            ) from exc  # fmt: skip
        self._keep(ref.lsn, batch, ref.rows_bytes)
        return batch

    def _keep(self, lsn: int, batch: pa.RecordBatch, size: int) -> None:
        """Keep a decoded batch: the next slice of the frame is likely to be asked for soon.

        The last one stays whatever its size, or a reader of few rows would read it for each call.
        """
        self._batches[lsn] = (batch, size)
        self._kept_bytes += size
        while len(self._batches) > 1 and (
            len(self._batches) > BATCHES_KEPT_MAX or self._kept_bytes > BATCH_BYTES_KEPT_MAX
        ):
            _, (_, dropped) = self._batches.popitem(last=False)
            self._kept_bytes -= dropped

    def drop_through(self, lsn: int) -> None:
        """Let go what is kept of frames whose rows are in files by now."""
        for known in [known for known in self._batches if known <= lsn]:
            self._kept_bytes -= self._batches.pop(known)[1]
