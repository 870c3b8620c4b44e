"""Owns the schema that the columns of files imply, and a topic that is made typed by it.

Nothing is inferred from a sample: a column of a CSV is of a type if every text in it is written as
values of that type are, so that `007` stays a text. An ndjson value stays its line; what looks like
an instant there is a text, as the schema of a line says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import pyarrow as pa

from txlog.api.client import Client
from txlog.api.topics.created import created
from txlog.errors import IncompatibleSchema, InvalidArgument, TopicNotFound, TxlogError
from txlog.ids import TopicName
from txlog.jobs.local import opened
from txlog.jobs.sources.loads import Files
from txlog.jobs.sources.refused import telling
from txlog.jobs.sources.rows import field_types, record_type
from txlog.schemas.schema import Schema, of_arrow


@contextmanager
def typed(
    client: Client, source: Files, topic: TopicName, *, create: bool, dry_run: bool
) -> Iterator[Files]:
    """The source with its rows as records, and the topic with their schema.

    If the block raises, the topic or the schema that was made for it goes again.
    create:  make the topic if it is missing
    raises:  IncompatibleSchema when the topic has another schema; InvalidArgument for columns that
             are no fields, or an envelope; TopicNotFound; BadRecord
    """
    if source.form == "envelope":
        raise InvalidArgument("an envelope has messages, not columns: it implies no schema")
    with telling(source), opened(source) as (session, files):
        types = field_types(session, files)
        schema = of_arrow(record_type(session, files, types))
    rows = source if source.form == "ndjson" else replace(source, record=types)
    try:
        found = client.topic(topic.full).schemas.list()
    except TopicNotFound:
        if not create:
            raise
        with nullcontext() if dry_run else created(client._store, [topic.full], schema):
            yield rows
        return
    if found and found[-1]["fingerprint"] != schema.fingerprint:
        has = Schema(found[-1]["type"], found[-1]["definition"])
        raise IncompatibleSchema(
            f"topic {topic.short} has another schema: {_difference(has, schema)}",
            hint="without --infer-schema the rows are written by the schema that the topic has",
            topic=topic.short,
        )
    if dry_run or found:
        yield rows
        return
    before = client.describe_topic(topic.full)["messages"]
    client.topic(topic.full).schemas.add(schema)
    try:
        yield rows
    except BaseException:  # an interrupt, too: the schema is of rows that are not stored
        with suppress(TxlogError):  # the first error is the cause
            if client.describe_topic(topic.full)["messages"] == before:
                client.topic(topic.full).schemas.delete()
        raise


def _difference(has: Schema, wanted: Schema) -> str:
    """The first thing that is not the same."""
    ours = {field.name: field.type for field in has.arrow}
    theirs = {field.name: field.type for field in wanted.arrow}
    for name in (*theirs, *ours):
        if ours.get(name) != theirs.get(name):
            return (
                f"{name} is {_said(theirs.get(name))} in the files, {_said(ours.get(name))} there"
            )
    if [*ours] != [*theirs]:
        return "its fields have another order"
    return f"it is {has.type}, or has other defaults or nulls"


def _said(kind: pa.DataType | None) -> str:
    return "missing" if kind is None else str(kind)
