"""Schemas of topics: a version is added if it fits those before it, and all go together.

A deleted version's number is not used again, and its definition stays: messages name it.
Source: spec/schemas 1; Pulsar's schema registry and its compatibility strategies.
"""

from __future__ import annotations

from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import SchemaVersion, Topic, schema_of
from txlog.engine.model.ops import SchemaAdded, SchemasDeleted
from txlog.engine.plan.records import COMPATIBILITY, schema_in, word
from txlog.engine.view.view import View
from txlog.errors import IncompatibleSchema, LimitExceeded
from txlog.ids import TopicName
from txlog.schemas import compatibility
from txlog.schemas.schema import Schema
from txlog.settings import SCHEMAS_MAX, Settings


def add_schema(view: View, settings: Settings, topic: Topic, schema: Schema) -> Decision:
    """Decide a new version; answers its number, that of the same schema if there is one.

    raises: IncompatibleSchema, LimitExceeded
    """
    known = find(topic, schema)
    if known is not None:
        return Decision([], None, True, known.version)
    check(view, settings, topic, schema)
    if len(topic.schemas) >= SCHEMAS_MAX:
        raise LimitExceeded(
            f"topic {_short(topic)} has had {SCHEMAS_MAX} schemas, the most there may be",
            hint="make another topic",
            limit=SCHEMAS_MAX,
            value=SCHEMAS_MAX + 1,
        )
    version = len(topic.schemas) + 1
    op = SchemaAdded(topic.number, version, schema.type, schema.definition)
    return Decision([op], None, True, version)


def find(topic: Topic, schema: Schema) -> SchemaVersion | None:
    """The version of the topic that is this schema, if it is not deleted."""
    for one in reversed(topic.schemas):
        if not one.deleted and (one.kind, one.definition) == (schema.type, schema.definition):
            return one
    return None


def check(view: View, settings: Settings, topic: Topic, schema: Schema) -> None:
    """Raise IncompatibleSchema unless the schema may follow those that the topic has."""
    strategy = word(view, settings, topic, COMPATIBILITY)
    older = [schema_in(one) for one in topic.schemas if not one.deleted]
    why = compatibility.check(strategy.upper(), schema, older)
    if why is not None:
        raise IncompatibleSchema(
            f"the schema does not fit those of topic {_short(topic)}, which must stay {strategy}"
            f" compatible: {why}",
            hint="give a new field a default; or txlog policy schema set --compatibility"
            if why.endswith("has no default")
            else "txlog policy schema set --compatibility says what may follow",
            topic=_short(topic),
        )


def delete_schemas(topic: Topic) -> Decision:
    """Decide that a topic takes bytes; answers how many schemas it had."""
    count = sum(not one.deleted for one in topic.schemas)
    ops = [SchemasDeleted(topic.number)] if schema_of(topic) is not None else []
    return Decision([*ops], None, True, count)


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short
