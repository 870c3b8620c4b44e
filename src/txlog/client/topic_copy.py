"""Copying a topic to another store: each message once, in order in its partition.

    partition by partition:  read the source after the last message that is stored
                             store the next messages in the other store as one batch

The batch and its number are one frame of the other store (see `bulk`). The number is the position
of its last message in the source, under a key of this topic and partition. So after a kill at any
moment the next call continues behind what is stored. A batch ends with a whole entry, as a number
has no room for the index within a transaction. Two copies at once would cut their batches at other
positions, so a batch names the number that it follows: the slower copy stores nothing and stops.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec.structs import replace

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import START, Bound, Range
from txlog.base.startup import compute as pc
from txlog.base.suggest import command_line
from txlog.client.sending.bulk import planned
from txlog.client.topics.created import created
from txlog.engine.door.catalog import number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.staging import last_number
from txlog.errors import (
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    SnapshotExpired,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.base.rows.topics import TopicCopied
    from txlog.base.schemas.schema import Schema
    from txlog.client.client import Client
    from txlog.engine.door.store import View

Tell = Callable[[int], None]
BATCH_MESSAGES: Final = 20_000
_ENTRY_BITS: Final = 30  # ledger_entries_max is at most a billion
_KEPT: Final = ("key", "value", "properties", "event_time", "deliver_at", "schema_version")


def silent(messages: int) -> None:
    """Ignore the progress."""


def copy_topic(
    source: Client,
    target: Client,
    topic: str,
    name: str | None = None,
    *,
    range: Range | None = None,
    tell: Tell = silent,
) -> TopicCopied:
    """Copy a topic to another store, each message once, in order in its partition.

    Call it again to go on, after an interruption or for newer messages. If it fails before it has
    stored a message, it removes the topic that it made. Key, value, properties, event and delivery
    time and the schema are kept; ids, producers and sequences are not. No message is refused for
    its value: one without a record in the source has none in the copy. Exported as
    txlog.copy_topic.
    target: a client of the other store; the topic is made there if it is missing. The store
            records progress for each user: a copy by another user begins anew
    name:   its name there, by default the same
    range:  only these messages, after the last one copied before: messages that a range leaves
            out are not copied later either
    tell:   called with the number of messages copied so far
    raises: NotAllowed (onto itself, other partitions there, several Avro schemas, messages there
            that the source does not have), TopicNotFound, TryAgain (another copy at the same time),
            InvalidMessage (larger than the store takes), InvalidArgument (a range that ends within
            a transaction)
    """
    short = TopicName.parse(topic).short
    dest = TopicName.parse(name or topic).short
    span = range or Range()
    _check_range(span)
    _check_other(source, target, short, dest)
    partitions, schemas = _schemas_of(source, short)
    with created(
        target.store,
        [TopicName.parse(dest).full],
        partitions=partitions,
        schemas=len(schemas),
    ):
        _prepare(target, short, dest, partitions, schemas)
        return _copy(source, target, (short, dest), partitions, span, tell)


def _copy(
    source: Client,
    target: Client,
    names: tuple[str, str],
    count: int,
    span: Range,
    tell: Tell,
) -> TopicCopied:
    """Copy the messages; an error says how many were copied before it."""
    short, dest = names
    # by numbers: a topic that was deleted and created again is a different topic
    stem = f"copy:{source.uuid}:{_number_of(source, short)}:{_number_of(target, dest)}"
    copied = already = 0
    try:
        for partition in builtins.range(count):
            key = f"{stem}:{partition}"
            last = _last(target, dest, key)
            already += last >= 0
            _check_has(source, short, partition, last)
            for table in _whole(_rows(source, short, partition, span, last)):
                _check_end(source, short, partition, span, table)
                plan = replace(planned(target.store, dest, key, _number(table)), copies=True)
                bulk = target.bulk_of(plan)
                answer = bulk.commit(bulk.stage([_sent(table)]), rows_if_small=True, after=last)
                last = _number(table)
                if not answer["already"]:  # stored by another copy, which is ahead
                    copied += table.num_rows
                tell(copied)
    except TxlogError as error:
        if copied:
            were = "1 message was" if copied == 1 else f"{copied:,} messages were"
            error.message += f" ({were} copied before; the next call goes on)"
        raise
    return {"topic": short, "to": dest, "messages": copied, "continued": already > 0}


def _check_other(source: Client, target: Client, topic: str, dest: str) -> None:
    """Raises NotAllowed for a copy onto itself, which would double each message."""
    if topic == dest and Path(source.path).resolve() == Path(target.path).resolve():
        raise NotAllowed(
            f"a copy of {topic} onto itself would double its messages",
            hint="another store, or another name: --as, name=",
            topic=topic,
        )


def _check_has(source: Client, topic: str, partition: int, last: int) -> None:
    """Raises NotAllowed if the source ends before `last`: an older copy of its store was restored.

    Its new messages get positions of messages copied before, so the copy would leave them out.
    """
    name = TopicName.parse(topic)

    def look(view: View) -> tuple[int, int]:
        state = view.topic(number_of(find_topic(view, name), partition))
        return state.last_message[:2] if state.last_message else (state.ledgers[-1].ledger, -1)

    ledger, entry = source.store.ask(look)
    if last > (ledger << _ENTRY_BITS) + entry:
        raise NotAllowed(
            f"messages of partition {partition} of {topic} were copied that it no longer has: "
            "an older copy of its store was restored",
            hint="copy it under another name: --as, name=",
            topic=topic,
        )


def _check_end(source: Client, topic: str, partition: int, span: Range, table: pa.Table) -> None:
    """Raises InvalidArgument if the span ends within a transaction: the copy would lack its end."""
    ledger, entry, index = (table.column(name)[-1].as_py() for name in ("ledger", "entry", "index"))
    if span.stop is None or not index:
        return
    later = Range(start=Bound("after", MessageId(ledger, entry, index)))
    tables = source.read(topic, range=later, partitions=[partition], batch_messages=1)
    following = next(tables, None)
    if following is not None and (ledger, entry) == (
        following.column("ledger")[0].as_py(),
        following.column("entry")[0].as_py(),
    ):
        raise InvalidArgument(
            f"the range ends within the transaction at {ledger}:{entry}",
            hint=f"a copy takes whole transactions: end it with after={ledger}:{entry}",
        )


def _check_range(span: Range) -> None:
    stop = None if span.stop is None else span.stop.value
    if span.kind != "range" or (isinstance(stop, MessageId) and stop.index):
        raise InvalidArgument(
            "a copy needs a range that ends between transactions", hint="give the id without :INDEX"
        )


def _schemas_of(source: Client, topic: str) -> tuple[int, list[Schema]]:
    """The partitions of the topic, and the schemas that its copy gets.

    raises: TopicNotFound, NotAllowed (values that only their schema reads)
    """
    versions = source.topic(topic).schemas.list(deleted=True)
    if len(versions) > 1 and any(version["type"] == "avro" for version in versions):
        raise NotAllowed(
            f"the values of {topic} have several Avro schemas; a batch is checked against one",
            hint=f"{command_line('export', topic, 'FILE')} keeps the records of all versions",
            topic=topic,
        )
    partitions = int(source.describe_topic(topic)["partitions"])
    schemas = source.topic(topic).schemas
    return partitions, [schemas.get(row["version"]) for row in versions if not row["deleted"]]


def _prepare(
    target: Client, topic: str, dest: str, partitions: int, wanted: Sequence[Schema]
) -> None:
    """Give the topic in the other store its schemas; raises NotAllowed (other partitions there)."""
    described = target.describe_topic(dest)
    there = int(described["partitions"])
    if there != partitions:
        raise NotAllowed(
            f"{dest} has {there} partitions in the other store, {topic} has {partitions}: the "
            "order would change",
            hint="another name: --as NAME",
            topic=dest,
        )
    there_schemas = target.topic(dest).schemas
    begun = [there_schemas.get(row["version"]) for row in there_schemas.list(deleted=True)]
    # a copy that was killed has made the topic, and perhaps some of the versions
    if not int(described["messages"]) and begun == wanted[: len(begun)]:
        for schema in wanted[len(begun) :]:
            there_schemas.add(schema)


def _number_of(client: Client, topic: str) -> int:
    name = TopicName.parse(topic)
    return client.store.ask(lambda view: find_topic(view, name).number)


def _last(target: Client, dest: str, key: str) -> int:
    """The number of the source's last entry that the other store has; -1: none."""
    store, name = target.store, TopicName.parse(dest)
    store.settle()

    def look(view: View) -> int | None:
        topic = find_topic(view, name).number
        return last_number(view, store.settings, store.disk.owner(), topic, key)

    number = store.read(look)
    return -1 if number is None else number


def _number(table: pa.Table) -> int:
    ledger, entry = (table.column(name)[-1].as_py() for name in ("ledger", "entry"))
    return int(ledger << _ENTRY_BITS | entry)


def _rows(source: Client, topic: str, partition: int, span: Range, last: int) -> Iterator[pa.Table]:
    """The messages of a partition behind a position, up to now or the end of the span."""

    def read(start: Bound) -> Iterator[pa.Table]:
        part = Range(start=start, stop=span.stop)
        return source.read(topic, range=part, partitions=[partition], batch_messages=BATCH_MESSAGES)

    if last < 0:
        yield from read(span.start)
        return
    if span.start != START:  # it may begin before the position or behind it
        for table in read(span.start):
            numbers = pc.add(
                pc.shift_left(table.column("ledger"), _ENTRY_BITS), table.column("entry")
            )
            yield table.filter(pc.greater(numbers, last))
        return
    done = MessageId(last >> _ENTRY_BITS, last & ((1 << _ENTRY_BITS) - 1))
    try:
        tables = read(Bound("after", done))
        first = next(tables, None)
    except (MessageNotFound, SnapshotExpired):  # trimmed: all that is left comes behind it
        tables = read(START)
        first = next(tables, None)
    if first is not None:
        yield first
        yield from tables


def _whole(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same messages, cut behind whole transactions."""
    incomplete: list[pa.Table] = []
    for table in tables:
        rows = pa.concat_tables([*incomplete, table])
        if not rows.num_rows:
            continue
        last = [rows.column(name)[-1] for name in ("ledger", "entry")]
        places = [rows.column("ledger"), rows.column("entry")]
        is_last = pc.and_(*(map(pc.equal, places, last)))
        is_open = pc.and_(is_last, pc.is_valid(rows.column("index")))
        count = pc.sum(is_open).as_py() or 0
        incomplete = [rows.slice(len(rows) - count)] if count else []
        if count < len(rows):
            yield rows.slice(0, len(rows) - count)
    if incomplete:
        yield incomplete[0]


def _sent(table: pa.Table) -> pa.Table:
    return table.select([*_KEPT, "partition"])
