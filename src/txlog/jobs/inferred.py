"""Owns the schema that the columns of files imply, and a topic that is made typed by it.

Nothing is inferred from a sample: a column of a CSV is of a type if every text in it is written as
values of that type are, so that `007` stays a text. An ndjson value stays its line; what looks like
an instant there is a text, as the schema of a line says it.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from txlog.api.client import Client
from txlog.errors import IncompatibleSchema, InvalidArgument, TopicNotFound
from txlog.ids import TopicName
from txlog.jobs.local import opened
from txlog.jobs.sources.loads import Files
from txlog.jobs.sources.refused import telling
from txlog.jobs.sources.rows import field_types, record_type
from txlog.schemas.schema import Schema, of_arrow


def typed(client: Client, source: Files, topic: TopicName, *, create: bool, dry_run: bool) -> Files:
    """The source with its rows as records, and the topic with their schema.

    create:  make the topic if it is missing
    raises:  IncompatibleSchema when the topic has another schema; InvalidArgument for columns that
             are no fields, or an envelope; TopicNotFound; BadRecord
    """
    if source.form == "envelope":
        raise InvalidArgument("an envelope has messages, not columns: it implies no schema")
    with telling(source), opened(source) as session:
        types = field_types(session, source)
        schema = of_arrow(record_type(session, source, types))
    try:
        found = client.topic(topic.full).schemas.list()
    except TopicNotFound:
        if not create:
            raise
        found = []
        if not dry_run:
            client.create_topic(topic.full, schema=schema, if_not_exists=True)
    if found and found[-1]["fingerprint"] != schema.fingerprint:
        has = Schema(found[-1]["type"], found[-1]["definition"])
        raise IncompatibleSchema(
            f"topic {topic.short} has another schema: {_difference(has, schema)}",
            hint="without --infer-schema the rows are written by the schema that the topic has",
            topic=topic.short,
        )
    if not dry_run:  # whoever made the topic or gave it a schema meanwhile
        client.topic(topic.full).schemas.add(schema)
    return source if source.form == "ndjson" else replace(source, record=types)


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
