"""Owns importing files: `import` and the job `bulk-load`; rows become messages of a topic, once.

All rows of a batch are stored or none. The topic and the bytes of the files identify it: importing
them again gives the first answer and writes nothing, and with other options it is refused. A
transaction key that the caller names makes them another batch, and a job has always one. With
`resume` each file is a batch of its own, so a killed import continues with the missing files.

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
from txlog.client.topics.schemas import without_records
from txlog.engine.door.topics import import_key, names_of
from txlog.errors import (
    BadRecord,
    IncompatibleSchema,
    InvalidArgument,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TopicNotFound,
    TxlogError,
)
from txlog.lake.jobs.engine import Engine, Tell, silent
from txlog.lake.jobs.local import Local, as_parquet, opened
from txlog.lake.jobs.sources.loads import Columns, Files, Form, Identity, telling
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
    raises:  InvalidArgument, TopicNotFound, PartitionUnavailable, NotAllowed (also if the key has
             stored the bytes in another form or with other columns); BadRecord, CommandFailed when
             a file does not have the stated form: nothing was stored
    """
    source.check_whole()
    tell("reading the source for its digest")
    identity = source.identity()
    stored = _stored(client, source, identity, topic, key, records=False)
    batch = stored or (key, identity.name(has_records=False))
    already = stored is not None
    return _load(client, source, topic, batch, engine, already=already, dry_run=dry_run, tell=tell)


def _stored(
    client: Client,
    source: Files,
    identity: Identity,
    topic: str,
    key: str | None,
    *,
    records: bool,
) -> tuple[str, str] | None:
    """The key and the name of the batch that has stored the bytes of a source; None: no batch has.

    key:     only batches under this key; None: under any
    records: only a batch whose rows are records
    raises:  NotAllowed: they were stored with other options, so that a new batch would double them
    """
    under = key or import_key(topic)
    batches = [
        batch for batch in client.batches_named(topic, identity.prefix) if key in (None, batch[0])
    ]
    name_of_topic = TopicName.parse(topic)
    former = client.store.read(lambda view: names_of(view, name_of_topic))
    older = [under] if key else [import_key(name) for name in former]
    batches += [
        (each, name)
        for each in older
        for name in identity.older
        if client.has_batch(topic, each, name)
    ]
    for batch in sorted(batches, key=lambda batch: batch[0] != under):
        if identity.is_same(batch[1], records=records):
            return batch
    if not batches:
        return None
    short = TopicName.parse(topic).short
    what = source.paths[0] if len(source.paths) == 1 else f"these {len(source.paths)} files"
    raise NotAllowed(
        f"{what}: the rows are in topic {short} already, stored with other options (form, columns "
        f"or --infer-schema) under transaction key {batches[0][0]}",
        hint="import into another topic, or store the rows again with --transaction-key NEW",
        topic=short,
        transaction_key=batches[0][0],
    )


def _load(
    client: Client,
    source: Files,
    topic: str,
    name: tuple[str, str],
    engine: Engine,
    *,
    already: bool,
    dry_run: bool,
    tell: Tell,
) -> BulkLoaded:
    """As bulk_load, for files that are known to be complete, and the key and name of their batch.

    already: the batch is stored
    """
    key, batch = name
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
    warn: Tell = silent,
) -> Imported:
    """Store the rows of files as messages, in their order, once.

    If the topic has a file's bytes already, under any key, the answer is the one of the first
    import; without a key, the import refuses options that differ from the first one.

    Rows of csv and tsv without a column for the value are records of a typed topic; with `infer`
    rows of Parquet and Arrow, too.

    source:  from loads.files_of, in one of the forms OF_IMPORT
    key:     only batches under this transaction key count as stored; by default those under any,
             and the key of new ones is `import-TOPIC`
    resume:  store each file separately; otherwise all files or none
    create:  create the topic if it is missing, with one partition
    decoded_bytes_max: most bytes that a Parquet row group may decode to
    chosen:  called with the schema from the columns, and words about names that no field can have
    warn:    called with a warning
    returns: {topic, files, messages, size_bytes, txn, already} for messages stored now, or before;
             txn None: there were several; already: nothing was stored now
    raises:  TopicNotFound, InvalidArgument, LimitExceeded; BadRecord when a file does not have the
             stated form, InvalidMessage when a row does not fit the topic's schema: nothing of that
             batch was stored; NotAllowed (stored with other options); as Bulk.commit, _as_records
             and _typed
    """
    name = TopicName.parse(topic)
    _check_source(source, decoded_bytes_max)
    schema, is_there = _schema_of(client, name, create=create)
    tell("reading the source for its digest")
    parts = [replace(source, paths=[path]) for path in source.paths] if resume else [source]
    identities = [part.identity() for part in parts]
    # lines of JSON are the same values with a schema and without one
    records = source.infer and (source.form != "ndjson" or schema is None)
    stored = [
        _stored_or_warned(client, part, identity, name, key, records=records, warn=warn)
        if is_there
        else None
        for part, identity in zip(parts, identities, strict=True)
    ]
    ready: AbstractContextManager[Files] = nullcontext(source)
    if not all(stored):  # otherwise nothing is written: neither rows nor a schema
        ready = _prepared(client, source, name, schema, is_there, dry_run, chosen, warn)
    with ready as rows:
        if dry_run and not is_there:
            return _rehearsed(rows, name)
        own = _own_names(key or import_key(topic), identities, rows)
        names = [(old or new, old is not None) for old, new in zip(stored, own, strict=True)]
        return _import(client, rows, name, names, resume=resume, dry_run=dry_run, tell=tell)


def _prepared(
    client: Client,
    source: Files,
    topic: TopicName,
    schema: Schema | None,
    is_there: bool,
    dry_run: bool,
    chosen: Callable[[Schema, str], None] | None,
    warn: Tell,
) -> AbstractContextManager[Files]:
    """A context with the source as the topic takes it; the topic is made, or gets a schema."""
    if schema is not None:
        return nullcontext(_as_records(client, source, topic, schema))
    if source.infer:
        return _typed(
            client, source, topic, is_there=is_there, dry_run=dry_run, chosen=chosen, warn=warn
        )
    return nullcontext(source) if is_there or dry_run else _made(client, source, topic)


def _own_names(key: str, identities: Sequence[Identity], rows: Files) -> list[tuple[str, str]]:
    """The keys and names of new batches."""
    return [(key, each.name(has_records=bool(rows.record))) for each in identities]


def _stored_or_warned(
    client: Client,
    source: Files,
    identity: Identity,
    topic: TopicName,
    key: str | None,
    *,
    records: bool,
    warn: Tell,
) -> tuple[str, str] | None:
    """As _stored; warns of rows that a new key stores again."""
    stored = _stored(client, source, identity, topic.full, key, records=records)
    if stored is None and key is not None:
        for other, _ in client.batches_named(topic.full, identity.prefix)[:1]:
            warn(
                f"topic {topic.short} has these rows already, under transaction key {other}: this "
                "stores them again"
            )
    return stored


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
    names: Sequence[tuple[tuple[str, str], bool]],
    *,
    resume: bool,
    dry_run: bool,
    tell: Tell,
) -> Imported:
    """Store each batch; names: its key and name, and whether it is stored."""
    batches = [replace(source, paths=[path]) for path in source.paths] if resume else [source]
    answers: list[BulkLoaded] = []
    engine = Local()
    for at, (batch, (batch_name, already)) in enumerate(zip(batches, names, strict=True), start=1):
        where = f"file {at} of {len(batches)}: " if resume else ""

        def say(text: str, where: str = where) -> None:
            tell(where + text)

        answers.append(
            _load(
                client,
                batch,
                name.full,
                batch_name,
                engine,
                already=already,
                dry_run=dry_run,
                tell=say,
            )
        )
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


def _check_source(source: Files, most: int) -> None:
    """Refuse what cannot be imported, before anything is read for the topic."""
    _check_decoded(source, most)
    source.check_whole()
    if source.infer and source.form == "envelope":
        raise InvalidArgument("an envelope has messages, not columns: it implies no schema")


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
    warn: Tell,
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
        if messages_before:
            warn(without_records(topic.short, messages_before))
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
