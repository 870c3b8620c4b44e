"""Owns reading streams with the data source `txlog`: the driver plans offsets, workers read rows.

An offset is `{"0": "L:E", "1": "L:E"}`: for each partition, the first position not yet read. The
very first offset also has `initial`. The end of the batch that begins there records the start in
`since`, because a repeated batch must not begin at the later end of the log. A partition that an
offset does not name was added later, and begins with its first message. `store` is the store's id,
because a new store at the same path counts its ledgers from the beginning again.
Spark keeps a reader in a process of the driver as long as the query runs; it also pickles it for
the workers, where only `read` is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from txlog.base.ids import TopicName
from txlog.client.client import Client
from txlog.engine.door.catalog import Topic, number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.facts import Mark
from txlog.engine.door.relation import (
    Places,
    Relation,
    RelationFilter,
    Span,
    are_rows_between,
    check_there,
    first_place,
    first_places,
    indexes_of,
    last_before,
    last_places,
    next_places,
    scans_of,
    watermark_at,
)
from txlog.engine.door.space import Pin
from txlog.engine.door.store import View
from txlog.errors import InvalidArgument, MessageNotFound, SnapshotExpired, StoreNotFound
from txlog.lake.spark.datasource import plain
from txlog.lake.spark.options import StreamOptions, stream_options
from txlog.lake.spark.session import opened
from txlog.lake.spark.source import (
    WATERMARK,
    Share,
    check_schema,
    check_typed,
    read_share,
    shares_of,
)

_TRIES: Final = 5
Offset = dict[str, Any]
_INITIAL = "initial"
_SINCE = "since"
_STORE = "store"


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of a stream; for wrong options, a reader whose methods raise the error.

    If this raised, Spark's own error (an UnboundLocalError) would come before the reason.
    """
    try:
        return StreamReader(stream_options(options), schema)
    except InvalidArgument as error:
        return RefusedReader(error)


@plain
class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Replaces a reader that cannot be made: each of its methods raises the reason."""

    def __init__(self, error: InvalidArgument) -> None:
        self._error = error

    def initialOffset(self) -> Offset:
        """Raises InvalidArgument, like all methods here."""
        raise self._error

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Like initialOffset."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        """Like initialOffset."""
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Like initialOffset."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Like initialOffset."""
        raise self._error


@plain
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages as they arrive in a topic; a batch is the same whenever it is read."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._name = TopicName.parse(options.topic, allow_partition=True)
        self._schema = check_schema(schema, [WATERMARK])
        self._opened: Client | None = None
        self._pin: Pin | None = None
        self._target: Places | None = None

    def __getstate__(self) -> dict[str, object]:
        """The state for a worker; no client goes to another process (R27)."""
        return {**self.__dict__, "_opened": None, "_pin": None, "_target": None}

    # --- on the driver -----------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """The start of a query without a checkpoint.

        raises: StoreNotFound, TopicNotFound, SubscriptionNotFound, MessageNotFound
        """

        def look(view: View) -> Places:
            topic, indexes = self._topic(view)
            return first_places(view, topic, indexes, self._options.starting)

        return {**_text(self._client._ask(look)), _STORE: self._client.uuid, _INITIAL: True}

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxRowsPerTrigger or maxBytesPerTrigger; Spark takes one, `_limits` adds the other."""
        options = self._options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; start itself when there is no message to read.

        raises: MessageNotFound when messages after start were trimmed (with failOnDataLoss false it
                only warns), or when start is behind the end of the log; StoreNotFound when start is
                from another store, or the store was deleted
        """
        self._check_store(start)
        rows_max, bytes_max = self._limits(limit)

        def look(view: View) -> tuple[Places, Places] | None:
            topic, indexes = self._topic(view)
            places = self._there(view, topic, indexes, _places(start))
            ends = last_places(view, topic, indexes)
            if self._target is not None:
                ends = {index: self._target.get(index, places[index]) for index in indexes}
            ends = {index: max(end, places[index]) for index, end in ends.items()}
            if not are_rows_between(view, topic, places, ends):
                return None
            return places, next_places(view, topic, places, ends, rows_max, bytes_max)

        progress = self._client._ask(look)
        if progress is None:
            return start
        places, ends = progress
        since = {_SINCE: _text(places)} if start.get(_INITIAL) else {}
        return {**_text(ends), _STORE: self._client.uuid, **since}

    def reportLatestOffset(self) -> Offset:
        """The current end of the log."""
        return _text(self._client._ask(lambda view: last_places(view, *self._topic(view))))

    def prepareForTriggerAvailableNow(self) -> None:
        """End this run at the current end of the log; it leaves out partitions added later."""
        self._target = self._client._ask(lambda view: last_places(view, *self._topic(view)))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The share of each task in a batch; its files stay until the next batch is planned.

        raises: as latestOffset; PartitionUnavailable, Corruption, SnapshotExpired
        """
        if end.get(_INITIAL):
            return []
        self._check_store(end)
        begins = _places(end.get(_SINCE, start) if start.get(_INITIAL) else start)
        ends = _places(end)

        def look(view: View) -> tuple[dict[int, Span], int | None]:
            topic, _ = self._topic(view)
            there = self._there(view, topic, list(ends), begins)
            spans = {index: Span(there[index], stop) for index, stop in ends.items()}
            is_asked = WATERMARK in self._schema.fieldNames()
            return spans, watermark_at(view, topic, there) if is_asked else None

        spans, watermark_ms = self._client._ask(look)
        nonempty = {index: span for index, span in spans.items() if not span.is_empty}
        if not nonempty:
            return []
        relation = self._pinned(nonempty)
        check_typed(self._schema, relation)
        return list(shares_of(self._client.path, scans_of(relation), {}, watermark_ms))

    def _pinned(self, spans: dict[int, Span]) -> Relation:
        """The relation of a batch, with its files pinned."""
        for _ in range(_TRIES):
            relation = self._client._relation(self._options.topic, RelationFilter(spans=spans))
            files = [*relation.direct, *relation.unclean, *relation.open, *relation.large_files]
            self._unpin()
            if files:
                self._pin = self._client._pin(files)
            if self._client.has_files(files):
                return relation
            # R21: a checkpoint has removed files since
        raise SnapshotExpired("the store moved on faster than it could be read")

    def commit(self, end: Offset) -> None:
        """Acknowledge all messages before an offset to the subscription, if the options name one.

        raises: SubscriptionNotFound
        """
        name = self._options.subscription
        if name is None:
            return

        def look(view: View) -> list[tuple[int, Any]]:
            topic, _ = self._topic(view)
            return [
                (index, last_before(view, number_of(topic, index), mark))
                for index, mark in _places(end).items()
            ]

        topic = self._name.topic.full
        for index, last in self._client._ask(look):
            if last is not None:
                self._client.acknowledge(f"{topic}/{index}", name, [last], cumulative=True)

    def stop(self) -> None:
        """Release all resources."""
        self._unpin()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _client(self) -> Client:
        if self._opened is None:
            self._opened = opened(self._options.path)
        return self._opened

    def _unpin(self) -> None:
        if self._pin is not None:
            self._pin.close()
            self._pin = None

    def _topic(self, view: View) -> tuple[Topic, list[int]]:
        topic = find_topic(view, self._name)
        return topic, indexes_of(topic, self._name)

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """(most messages, most bytes) of a batch; None: no limit."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows, size = self._options.rows_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, size
        if isinstance(limit, ReadMaxBytes):
            return rows, limit.max_bytes
        raise InvalidArgument(f"a stream of txlog has no limit {type(limit).__name__}")

    def _there(self, view: View, topic: Topic, indexes: list[int], current: Places) -> Places:
        """By partition, where a stream at `current` continues; raises MessageNotFound."""
        out: Places = {}
        for index in indexes:
            first = first_place(view, topic, index)
            out[index] = current.get(index, first)
            if index not in current:
                continue
            self._check_passed(view, topic, index, current[index])
            try:
                check_there(view, topic, {index: current[index]})
            except MessageNotFound as error:
                if self._options.fail_on_data_loss:
                    raise
                warnings.warn(f"{error}; the stream continues after them", stacklevel=2)
                out[index] = first
        return out

    def _check_store(self, offset: Offset) -> None:
        """Raise StoreNotFound for an offset of another store; old offsets have no id."""
        if offset.get(_STORE, self._client.uuid) != self._client.uuid:
            path = self._client.path
            raise StoreNotFound(
                f"the checkpoint is of another store than the one at {path}, which was replaced",
                hint="bring the store back, or start with a new checkpoint",
                path=path,
            )

    def _check_passed(self, view: View, topic: Topic, index: int, mark: Mark) -> None:
        """Raise MessageNotFound if a stream has read past the end of the log.

        It would wait until the log had grown to that position, and miss those messages.
        """
        end = last_places(view, topic, [index])[index]
        if mark > end:
            short = self._name.topic.short
            raise MessageNotFound(
                f"{short}/{index} ends at {end[0]}:{end[1]}, and the stream has read up to"
                f" {mark[0]}:{mark[1]}: the store is older than the checkpoint",
                hint="bring the newer store back, or start with a new checkpoint",
                topic=short,
                partition=index,
            )

    # --- in a worker -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a share."""
        return read_share(partition if isinstance(partition, Share) else None, self._schema)


def _text(places: Places) -> Offset:
    """Positions as an offset, in the order of partitions: Spark compares offsets as text."""
    return {
        str(index): ":".join(map(str, mark if mark[2] else mark[:2]))
        for index, mark in sorted(places.items())
    }


def _places(offset: Offset) -> Places:
    """The positions in an offset."""
    out: Places = {}
    for index, text in offset.items():
        if index.isdecimal():
            ledger, entry, *inner = map(int, text.split(":"))
            out[int(index)] = (ledger, entry, inner[0] if inner else 0)
    return out
