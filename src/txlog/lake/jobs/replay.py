"""Owns the job `replay`: messages of a range become messages of another topic, once.

The key, the topic or partition, the range as text and the function's name identify the batch; the
topic by a name that a rename does not change. The same again give the first answer, even if the
range covers other messages by now. Each message gets a property that names its source; the function
may change it further.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import Range
from txlog.base.startup import compute as pc
from txlog.base.text.previews import preview
from txlog.client.client import Client
from txlog.engine.door.catalog import number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.facts import PROPERTY_MAP
from txlog.engine.door.relation import RelationContent, RelationFilter, scans_of
from txlog.engine.door.store import View
from txlog.engine.door.topics import lasting_name
from txlog.errors import CommandFailed, InvalidArgument
from txlog.lake.jobs.engine import Engine, Tell, silent
from txlog.lake.jobs.sources.loads import KEPT, PROPERTY, Transform
from txlog.lake.jobs.sources.rows import as_message

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Replay


# --- the job ---------------------------------------------------------------------------------


def replay(
    client: Client,
    topic: str,
    dest: str,
    range_of_text: tuple[str, Range],
    key: str,
    engine: Engine,
    *,
    function: tuple[str, Transform] | None = None,
    dry_run: bool = False,
    tell: Tell = silent,
) -> Replay:
    """Store the committed messages of a range in another topic, once for this key and range.

    range_of_text: the range as text, which identifies the batch, and its meaning
    function: its name, which also identifies the batch, and the function that changes messages:
              columns key, value, properties, event_time, deliver_at
    returns:  {topic, dest, read, written, txn, already}; read is None when it was done before
    raises:   InvalidArgument, TopicNotFound, CommandFailed when the function failed; as Bulk.commit
    """
    source, target = (TopicName.parse(name, allow_partition=True) for name in (topic, dest))
    if source.topic.full == target.full:
        raise InvalidArgument("a topic cannot be replayed into itself")
    text, range_ = range_of_text
    batch = _batch_name(client, source, text, function and function[0])
    earlier = _batch_name(client, source.topic, text, function and function[0])
    if _is_of_earlier(client, source, dest, key, (earlier, batch), dry_run=dry_run):
        batch = earlier
    answer = _unanswered(source, target)
    if client.has_batch(target.full, key, batch):
        answer["already"] = True
        stored = client.bulk(dest, key=key, batch=batch).stored if not dry_run else None
        if stored is not None:
            answer["written"], answer["txn"] = stored["messages"], stored["txn"]
        return answer
    content = client._content(topic, RelationFilter(range=range_))
    if dry_run:
        answer["read"] = sum(
            table.num_rows
            for scan in scans_of(content.relation)
            for table in client.scanned(scan, ["lsn"])
        )
        return answer
    relation = content.relation
    pin = client._pin([*relation.direct, *relation.unclean, *relation.open, *relation.large_files])
    try:
        tell(f"{source.short}: replaying")
        read, done = engine.replay(
            client, content, target.full, key, batch, function and function[1]
        )
    finally:
        if pin is not None:
            pin.close()
    answer["read"], answer["already"] = read, done["already"]
    answer["written"], answer["txn"] = done["messages"], done["txn"]
    return answer


def _unanswered(source: TopicName, target: TopicName) -> Replay:
    return {
        "topic": source.short,
        "dest": target.short,
        "read": None,
        "written": None,
        "txn": None,
        "already": False,
    }


def _batch_name(client: Client, source: TopicName, text: str, function: str | None) -> str:
    lasting = client.store.read(lambda view: lasting_name(view, source))
    part = "" if source.partition is None else f"/{source.partition}"
    return f"replay {lasting}{part} {text}" + (f" {function}" if function else "")


def _is_of_earlier(
    client: Client, source: TopicName, dest: str, key: str, names: tuple[str, str], *, dry_run: bool
) -> bool:
    """Whether a version that named partitions like their topic stored this partition.

    Then no message of the batch names a source outside the partition.
    names: of the batch in that version, and in this one
    """
    earlier, batch = names
    if earlier == batch or client.has_batch(dest, key, batch):
        return False
    if not client.has_batch(dest, key, earlier):
        return False
    stored = None if dry_run else client.bulk(dest, key=key, batch=earlier).stored
    if stored is None or stored["txn"] is None:
        return True
    of_batch = Range(kind="txn", txn=stored["txn"])
    ledgers = {
        int(origin[1])
        for table in client.read(dest, range=of_batch, columns=["properties"])
        for properties in table.column("properties").to_pylist()
        if (origin := _ORIGIN.search(dict(properties).get(PROPERTY, ""))) is not None
    }

    def check(view: View) -> bool:
        number = number_of(find_topic(view, source), source.partition or 0)
        return all(view.catalog.owners.get(ledger) == (number, "p") for ledger in ledgers)

    return client.store.ask(check)


# --- its messages ----------------------------------------------------------------------------

_ORIGIN: Final = re.compile(r":([0-9]+):[0-9]+(:[0-9]+)?$")
_READ: Final = ["topic", "partition", "message_id", *KEPT]
T = TypeVar("T")


def transformed(function: Transform, messages: T, kind: type[T], ranges: Callable[[], str]) -> T:
    """The result of a user's function for messages.

    ranges: the messages in words, for an error
    raises: CommandFailed, with the messages and the line of the user's code
    """
    try:
        result = function(messages)
    except Exception as error:  # a user's function may raise anything
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise CommandFailed(
            f"the transform failed: {type(error).__name__}: {error} ({ranges()})",
            hint=f"{where.filename}:{where.lineno} in {where.name}",
        ) from error
    if not isinstance(result, kind):
        raise CommandFailed(
            f"the transform returned a {type(result).__name__}, not a {kind.__name__}"
        )
    return result


def in_words(topic: str, ranges: Iterable[tuple[int, int, str, str]]) -> str:
    """Messages of a topic in words: partition, number, first and last id of each range."""
    return ", ".join(
        f"{messages:,} messages of {topic}/{partition}, {first} to {last}"
        if messages > 1
        else f"message {first} of {topic}/{partition}"
        for partition, messages, first, last in ranges
    )


class Replayed:
    """The messages of a content as batches to send again; read: how many were read so far."""

    def __init__(
        self, client: Client, content: RelationContent, function: Transform | None
    ) -> None:
        self._client = client
        self._relation = content.relation
        self._function = function
        self.read = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for scan in scans_of(self._relation):
            for table in self._client.scanned(scan, _READ):
                if not table.num_rows:
                    continue
                self.read += table.num_rows
                sent = table.select(list(KEPT)).set_column(
                    KEPT.index("properties"), "properties", _with_source(table)
                )
                if self._function is not None:
                    sent = transformed(self._function, sent, pa.Table, partial(_described, table))
                for batch in sent.to_batches():
                    yield as_message(batch)


def _described(table: pa.Table) -> str:
    """The messages of a table in words; of a single one also its key and value."""
    ids: dict[int, list[MessageId]] = {}
    rows = zip(
        *(table.column(name).to_pylist() for name in ("partition", "message_id")), strict=True
    )
    for partition, message_id in rows:
        ids.setdefault(partition, []).append(MessageId.parse(message_id))
    ranges = [(number, len(of), str(min(of)), str(max(of))) for number, of in sorted(ids.items())]
    words = in_words(table.column("topic")[0].as_py(), ranges)
    if table.num_rows == 1:
        for name in ("key", "value"):
            if (text := preview(table.column(name)[0].as_py())) is not None:
                words += f", {name} {text}"
    return words


def _with_source(table: pa.Table) -> pa.Array:
    """The properties of messages, plus the source of each, which replaces an earlier source."""
    count = table.num_rows
    origins = pc.binary_join_element_wise(table.column("topic"), table.column("message_id"), ":")
    properties = pa.concat_arrays(table.column("properties").cast(PROPERTY_MAP).chunks)
    properties = properties.take(pa.arange(0, count))  # offsets from 0, no gaps between the rows
    names = pa.ListArray.from_arrays(properties.offsets, properties.keys)
    of = pc.list_parent_indices(names).cast(pa.int64())
    is_other = pc.not_equal(properties.keys, PROPERTY)
    rows = pa.concat_arrays([of.filter(is_other), pa.arange(0, count)])
    keys = pa.concat_arrays([properties.keys.filter(is_other), pa.repeat(PROPERTY, count)])
    items = pa.concat_arrays([properties.items.filter(is_other), *origins.chunks])
    order = pc.sort_indices(rows)  # stable: ours comes last
    ends = pc.cumulative_sum(pc.value_counts(rows.take(order)).field("counts"))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    return pa.MapArray.from_arrays(offsets, keys.take(order), items.take(order))
