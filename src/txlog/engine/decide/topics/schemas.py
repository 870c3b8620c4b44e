"""Schemas of topics: a version is added if it is compatible with the earlier ones.

Deleting removes all.

A deleted version's number is not used again, and its definition stays: messages name it.
Source: spec/schemas 1; Pulsar's schema registry and its compatibility strategies.
"""

from __future__ import annotations

from collections.abc import Mapping

from txlog.base.ids import TopicName
from txlog.base.schemas import compatibility
from txlog.base.schemas.schema import Schema
from txlog.base.settings import CHOICES, SCHEMAS_MAX, Settings
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import SchemaVersion, Topic, policies_of
from txlog.engine.model.ops import Op, PolicySet, SchemaAdded, SchemasDeleted
from txlog.engine.plan.records import COMPATIBILITY, ENFORCE, MARK, VALIDATION, schema_in, word
from txlog.engine.view import View
from txlog.errors import IncompatibleSchema, LimitExceeded


def add_schema(
    view: View, settings: Settings, topic: Topic, schema: Schema, *, marks: bool = False
) -> Decision[int]:
    """Decide a new version; answers its number, or that of an existing equal schema.

    marks: values that do not fit are stored, too, and counted: the topic gets this policy with its
           first schema, unless it or its namespace has set one
    raises: IncompatibleSchema, LimitExceeded
    """
    existing = find(topic, schema)
    if existing is not None:
        return Decision([], None, True, existing.version)
    check(view, settings, topic, schema)
    if len(topic.schemas) >= SCHEMAS_MAX:
        raise LimitExceeded(
            f"topic {_short(topic)} has had {SCHEMAS_MAX} schemas, the most there may be",
            hint="make another topic",
            limit=SCHEMAS_MAX,
            value=SCHEMAS_MAX + 1,
        )
    version = len(topic.schemas) + 1
    ops: list[Op] = [SchemaAdded(topic.number, version, schema.type, schema.definition)]
    is_said = VALIDATION in policies_of(view.catalog, topic)
    is_first = all(version_.deleted for version_ in topic.schemas)
    if (
        marks
        and schema.is_record
        and is_first
        and not is_said
        and settings.schema_validation == ENFORCE
    ):
        ops.append(PolicySet(topic.number, VALIDATION, CHOICES[VALIDATION].index(MARK)))
    return Decision(ops, None, True, version)


def find(topic: Topic, schema: Schema) -> SchemaVersion | None:
    """The version of the topic that is this schema, if it is not deleted."""
    for existing in reversed(topic.schemas):
        if (
            not existing.deleted
            and existing.kind == schema.type
            and _is_same(schema_in(existing), schema)
        ):
            return existing
    return None


def _is_same(existing: Schema, schema: Schema) -> bool:
    """Whether two schemas of one type are the same.

    For a declared schema only properties that name types count, such as key.schema.type: clients
    change the others when they send a schema back.
    """
    if schema.is_record or existing.definition == schema.definition:
        return existing.definition == schema.definition
    existing_parts, parts = existing.declaration, schema.declaration
    return existing_parts[1] == parts[1] and _types_in(existing_parts[2]) == _types_in(parts[2])


def _types_in(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in properties.items() if name.endswith(".type")}


def check(view: View, settings: Settings, topic: Topic, schema: Schema) -> None:
    """Raise IncompatibleSchema unless the schema may follow the topic's schemas."""
    strategy = word(view, settings, topic, COMPATIBILITY)
    older = [schema_in(version) for version in topic.schemas if not version.deleted]
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


def delete_schemas(topic: Topic) -> Decision[int]:
    """Decide that a topic takes bytes; answers how many schemas it had."""
    count = sum(not version.deleted for version in topic.schemas)
    return Decision([SchemasDeleted(topic.number)] if count else [], None, True, count)


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short
