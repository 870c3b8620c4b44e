"""Owns importing files: `import` and the job `bulk-load`; rows become messages of a topic, once.

All rows of a batch are stored or none. The transaction key and the bytes of the files identify it:
importing both again gives the first answer, and writes nothing. With `resume` each file is a batch
of its own, so a killed import continues with the files that are not stored.

A schema is not inferred from a sample: a column of a CSV has a type if every text in it is written
like values of that type, so `007` stays a text. An ndjson value stays its line; text in it that
looks like an instant stays text, as in the schema of the line. Source: spec/cli 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from txlog.base.ids import TopicName
from txlog.base.schemas.schema import Schema, names_of_columns, of_arrow, told_names
from txlog.base.settings import GIB
from txlog.base.suggest import command_line
from txlog.client.client import Client
from txlog.client.topics.created import created
from txlog.errors import (
    BadRecord,
    IncompatibleSchema,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    TopicNotFound,
    TxlogError,
)
from txlog.lake.jobs.engine import Engine, Tell, silent
from txlog.lake.jobs.local import Local, as_parquet, opened
from txlog.lake.jobs.sources.loads import Columns, Files, Form, telling
from txlog.lake.jobs.sources.rows import field_names, field_types, record_type

if TYPE_CHECKING:
    from txlog.base.rows.jobs import BulkLoaded, Imported
    from txlog.base.rows.sending import BulkStored


# --- bulk-load -------------------------------------------------------------------------------


def bulk_load(
    client: Client,
    source: Files,
    topic: str,
    key: str,
    engine: Engine,
    *,
    dry_run: bool = False,
    tell: Tell = silent,
) -> BulkLoaded:
    """Store the rows of files as messages, once for this key and these bytes.

    returns: {topic, files, messages, size_bytes, ledgers, txn, already}; files: of the source
    raises:  InvalidArgument, TopicNotFound, PartitionUnavailable, NotAllowed; BadRecord,
             CommandFailed when a file does not have the stated form: nothing was stored
    """
    source.check_whole()
    return _load(client, source, topic, key, engine, dry_run=dry_run, tell=tell)


def _load(
    client: Client,
    source: Files,
    topic: str,
    key: str,
    engine: Engine,
    *,
    dry_run: bool,
    tell: Tell,
) -> BulkLoaded:
    """As bulk_load, for files that are known to be complete."""
    tell("reading the source for its digest")
    batch = source.name()
    already = client.has_batch(topic, key, batch)
    is_for_others = source.form == "csv" and engine.name != Local.name
    if dry_run:
        counting = Local() if is_for_others else engine
        messages = 0 if already else counting.count(source)
        return {
            "topic": topic,
            "files": len(source.paths),
            "messages": messages,
            "size_bytes": None,
            "ledgers": None,
            "txn": None,
            "already": already,
        }
    answer = client.bulk(topic, key=key, batch=batch).stored
    if answer is None:
        ready: AbstractContextManager[Files] = nullcontext(source)
        if is_for_others:
            tell("reading the csv files")
            ready = as_parquet(source)
        with ready as rows:
            tell("writing")
            answer = engine.load(client, rows, topic, key, batch)
    return answer_of(answer, len(source.paths))


def answer_of(stored: BulkStored, files: int) -> BulkLoaded:
    """The answer of `bulk-load` from the answer of Bulk.commit; files: of the source."""
    return {
        "topic": stored["topic"],
        "files": files,
        "messages": stored["messages"],
        "size_bytes": stored["size_bytes"],
        "ledgers": stored["files"],
        "txn": stored["txn"],
        "already": stored["already"],
    }


# --- import ----------------------------------------------------------------------------------

DECODED_BYTES: Final = GIB
_OF_MESSAGES: Final = ("key", "event_time", "deliver_at", "properties", "sequence_id")


def import_files(
    client: Client,
    source: Files,
    topic: str,
    *,
    key: str | None = None,
    resume: bool = False,
    create: bool = False,
    decoded_bytes_max: int = DECODED_BYTES,
    dry_run: bool = False,
    tell: Tell = silent,
    chosen: Callable[[Schema, str], None] | None = None,
) -> Imported:
    """Store the rows of files as messages, in their order, once.

    Rows of csv and tsv without a column for the value are records of a typed topic; with `infer`
    rows of Parquet and Arrow, too.

    source:  from loads.files_of, in one of the forms OF_IMPORT
    key:     the transaction key of the batches; by default `import-TOPIC`
    resume:  store each file separately; otherwise all files or none
    create:  create the topic if it is missing, with one partition
    decoded_bytes_max: most bytes that a Parquet row group may decode to
    chosen:  called with the schema that the topic gets from the columns, and with words about
             columns whose names cannot be names of fields
    returns: {topic, files, messages, size_bytes, txn, already} for messages stored now, or before;
             txn None: there were several; already: nothing was stored now
    raises:  TopicNotFound, InvalidArgument, LimitExceeded; BadRecord when a file does not have the
             stated form, InvalidMessage when a row does not fit the topic's schema: nothing of that
             batch was stored; as Bulk.commit, _as_records and _typed
    """
    name = TopicName.parse(topic)
    _check_decoded(source, decoded_bytes_max)
    source.check_whole()
    if source.infer and source.form == "envelope":
        raise InvalidArgument("an envelope has messages, not columns: it implies no schema")
    schema, is_there = _schema_of(client, name, create=create)
    ready: AbstractContextManager[Files] = nullcontext(source)
    if schema is not None:
        ready = nullcontext(_as_records(client, source, name, schema))
    elif source.infer:
        ready = _typed(client, source, name, is_there=is_there, dry_run=dry_run, chosen=chosen)
    elif not is_there and not dry_run:
        ready = _made(client, source, name)
    with ready as rows:
        if dry_run and not is_there:
            return _rehearsed(rows, name)
        return _import(client, rows, name, key, resume=resume, dry_run=dry_run, tell=tell)


def _rehearsed(source: Files, topic: TopicName) -> Imported:
    """The answer of a rehearsal for a topic that the import would create."""
    return {
        "topic": topic.short,
        "files": len(source.paths),
        "messages": Local().count(source),
        "size_bytes": None,
        "txn": None,
        "already": False,
    }


@contextmanager
def _made(client: Client, source: Files, topic: TopicName) -> Iterator[Files]:
    with created(client.store, [topic.full]):
        yield source


def _import(
    client: Client,
    source: Files,
    name: TopicName,
    key: str | None,
    *,
    resume: bool,
    dry_run: bool,
    tell: Tell,
) -> Imported:
    key = key or f"import-{name.short}"
    batches = [replace(source, paths=[path]) for path in source.paths] if resume else [source]
    answers: list[BulkLoaded] = []
    engine = Local()
    for at, part in enumerate(batches, start=1):
        batch = part
        where = f"file {at} of {len(batches)}: " if resume else ""

        def say(text: str, where: str = where) -> None:
            tell(where + text)

        if batch.record and not batch.infer:
            as_bytes = replace(batch, record=())  # stored before the topic had its schema?
            batch = as_bytes if client.has_batch(name.full, key, as_bytes.name()) else batch
        answers.append(_load(client, batch, name.full, key, engine, dry_run=dry_run, tell=say))
    new = [answer for answer in answers if not answer["already"]]
    counted = new or answers
    return {
        "topic": name.short,
        "files": len(counted) if resume else len(source.paths),
        "messages": sum(answer["messages"] for answer in counted),
        "size_bytes": None if dry_run else sum(answer["size_bytes"] or 0 for answer in counted),
        "txn": counted[0]["txn"] if len(counted) == 1 else None,
        "already": not new,
    }


def _check_decoded(source: Files, most: int) -> None:
    """Refuse Parquet that would exhaust memory, before reading any of it."""
    if source.form != "parquet":
        return
    for path in source.paths:
        try:
            with Path(path).open("rb") as file:
                metadata = pq.read_metadata(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise BadRecord(f"{path} is not a Parquet file: {error}", path=path) from error
        sizes = (metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
        largest = max(sizes, default=0)
        if largest > most:
            raise LimitExceeded(
                f"a row group of {path} decodes to {largest} bytes, at most {most}",
                hint="--max-decoded allows more",
                path=path,
                limit=most,
                value=largest,
            )


# --- the schema that the columns of files imply ----------------------------------------------


def _schema_of(client: Client, topic: TopicName, *, create: bool) -> tuple[Schema | None, bool]:
    """The schema of a topic's records, if it has one, and whether there is the topic.

    raises: TopicNotFound, unless the topic is to be created
    """
    try:
        schema = client.topic(topic.full).schemas.get()
    except TopicNotFound as error:
        if not create:
            error.hint = f"{error.hint} (--create makes it here, with --infer-schema a typed one)"
            raise
        return None, False
    except NotFound:
        return None, True
    return (schema if schema.is_record else None), True


def _as_records(client: Client, source: Files, topic: TopicName, schema: Schema) -> Files:
    """The source, its columns as fields of the topic's records, where they are.

    An empty cell is null, but an empty text in a text that cannot be null. Columns of a message
    are fields only if the schema has them.
    raises: IncompatibleSchema: the lines are not values of the topic
    """
    if source.form == "ndjson":
        if source.infer and schema.type != "json":
            raise IncompatibleSchema(
                f"the values of topic {topic.short} are {schema.type}, not lines of JSON",
                hint=command_line("produce", topic.short, "FILE", "--in", "ndjson")
                + " encodes each line",
                topic=topic.short,
            )
        return source
    columns = source.columns
    with telling(source), opened(source) as (session, files):
        names = field_names(session, files)
    if not source.infer:
        policies = client.admin.get_schema_policies(topic.full)["policies"]
        is_text = source.form in ("csv", "tsv")
        has_value = columns.value is not None or (not columns.values and "value" in names)
        if not is_text or has_value or policies["validation"] != "enforce":
            return source
    of_message = {*_OF_MESSAGES, columns.key, columns.event_time}
    record = []
    fields = names_of_columns(names)
    for name in names:
        field = schema.record.field(fields[name])
        if field is None and name in of_message and not columns.values:
            continue
        how = None
        if source.form in ("csv", "tsv") and field is not None:
            is_text = field.type.kind == "string" and not field.type.logical
            how = "nullif({}, '')" if not is_text else None
            if is_text and not field.type.nullable:
                how = "coalesce({}, '')"
        record.append((name, how))
    return replace(source, record=tuple(record))


@contextmanager
def _typed(
    client: Client,
    source: Files,
    topic: TopicName,
    *,
    is_there: bool,
    dry_run: bool,
    chosen: Callable[[Schema, str], None] | None,
) -> Iterator[Files]:
    """A context with the source, its rows as records; the topic gets their schema.

    If the block raises, the topic or schema made here is removed, unless it is in use.
    raises:  InvalidArgument for columns that cannot be fields; BadRecord
    """
    schema, types = _implied(source)
    rows = source if source.form == "ndjson" else replace(source, record=types)
    if chosen is not None:
        names = [] if source.form == "ndjson" else [name for name, _ in types]
        chosen(schema, told_names(names))
    if dry_run:
        yield rows
        return
    if not is_there:
        with created(client.store, [topic.full], schema):
            yield rows
        return
    messages_before = client.describe_topic(topic.full)["messages"]
    client.topic(topic.full).schemas.add(schema)
    try:
        yield rows
    except BaseException:  # also an interrupt: the rows of the schema are not stored
        with suppress(TxlogError):  # report the first error
            if client.describe_topic(topic.full)["messages"] == messages_before:
                client.topic(topic.full).schemas.delete()
        raise


def _implied(source: Files) -> tuple[Schema, tuple[tuple[str, str | None], ...]]:
    """The schema that the columns of a source imply, and their types; it reads all rows."""
    with telling(source), opened(source) as (session, files):
        types = field_types(session, files)
        return of_arrow(record_type(session, files, types)), types


def schema_of_files(paths: Sequence[str], form: Form, fields: Sequence[str]) -> Schema:
    """The schema that columns of csv or tsv files imply, for a topic that does not exist yet.

    fields: the columns that are fields of the record
    raises: BadRecord; InvalidArgument for columns that cannot be fields
    """
    schema, _ = _implied(Files(form, [*paths], Columns(values=tuple(fields))))
    return schema
