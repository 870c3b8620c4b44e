"""Owns TopicSchemas: the schemas of a topic, and the records of its messages.

A schema is an Avro record; values are JSON objects or Avro. Versions count from 1. The policy
`schema_compatibility` decides whether a new version fits the earlier ones.
Source: Pulsar's schema registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.base.arguments import checked
from txlog.base.choices import SchemaType
from txlog.base.ids import TopicName
from txlog.base.schemas import classes
from txlog.base.schemas.schema import Schema
from txlog.base.suggest import command_line
from txlog.engine.door import topics as deciding
from txlog.engine.door.catalog import SchemaVersion, Topic, live_topic
from txlog.engine.door.store import Decision, Store, View
from txlog.engine.door.topics import schema_in
from txlog.errors import NotFound

if TYPE_CHECKING:
    from txlog.base.rows.topics import SchemaRow


@checked
class TopicSchemas:
    """The schemas of one topic.

    >>> import dataclasses, tempfile, txlog
    >>> @dataclasses.dataclass
    ... class Order:
    ...     cups: int
    ...     who: str = "nobody"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders", schema=Order)
    ...         _ = client.producer("orders").send(Order(3, "ana"))
    ...         [message] = client.reader("orders")
    ...         message.value, message.decode(), message.decode(Order), message.schema_version
    (b'{"cups":3,"who":"ana"}', {'cups': 3, 'who': 'ana'}, Order(cups=3, who='ana'), 1)
    """

    __slots__ = ("_name", "_number", "_store")

    def __init__(self, store: Store, name: TopicName, number: int) -> None:
        self._store = store
        self._name, self._number = name, number

    def __repr__(self) -> str:
        return f"<txlog schemas of {self._name}>"

    def _topic(self, view: View) -> Topic:
        return live_topic(view, self._number, self._name.topic.short)

    def list(self, *, deleted: bool = False) -> list[SchemaRow]:
        """The versions, oldest first.

        deleted: also deleted versions
        returns: [{topic, version, type, fields, fingerprint, created_time, deleted, definition}]
        raises:  TopicNotFound
        """
        short = self._name.topic.short
        versions = self._store.ask(lambda view: self._topic(view).schemas)
        return [_row(short, version) for version in versions if deleted or not version.deleted]

    def get(self, version: int | None = None) -> Schema:
        """The schema with this version; None: the newest.

        raises: TopicNotFound; NotFound (308): the topic has no such version, or no schema
        """
        records = self._store.ask(lambda view: self._topic(view).schemas)
        for record in reversed(records):
            if record.version == version or (version is None and not record.deleted):
                return schema_in(record)
        what = "no schema" if version is None else f"no schema {version}"
        raise NotFound(
            f"topic {self._name.topic.short} has {what}",
            hint=f"to give it one: {command_line('schema upload', self._name.topic.short, 'FILE')}",
            topic=self._name.topic.short,
        )

    def add(self, schema: object, *, type: SchemaType = "json") -> int:
        """Add a version; returns its number. If the topic has the schema already, adds nothing.

        schema: a Schema, a dataclass, msgspec.Struct or pydantic model, or a pyarrow.Schema
        type:   json or avro: the encoding of values, if `schema` is not a Schema
        raises: IncompatibleSchema, InvalidArgument, TopicNotFound, LimitExceeded
        """
        return self._add(classes.schema_of(schema, type))

    def _add(self, schema: Schema, *, marks: bool = False) -> int:
        """Add a version; marks: as in engine/decide/topics/catalog."""

        def decide(view: View, now: object) -> Decision[int]:
            return deciding.add_schema(
                view, self._store.settings, self._topic(view), schema, marks=marks
            )

        version = self._store.write(decide)
        return version

    def test(self, schema: object, *, type: SchemaType = "json") -> None:
        """Check whether a schema would be accepted; raises IncompatibleSchema if not."""
        candidate = classes.schema_of(schema, type)

        def look(view: View) -> None:
            topic = self._topic(view)
            if deciding.find(topic, candidate) is None:
                deciding.check(view, self._store.settings, topic, candidate)

        self._store.ask(look)

    def delete(self) -> int:
        """Delete all versions; returns how many there were. The topic then accepts any bytes.

        Existing messages keep their version and can still be decoded.
        """
        deleted = self._store.write(lambda view, now: deciding.delete_schemas(self._topic(view)))
        return deleted


def without_records(topic: str, messages: int) -> str:
    """The report that a topic with messages has got its first schema."""
    which = "1 message, which is" if messages == 1 else f"{messages:,} messages, which are"
    return f"topic {topic} had {which} older than its schema: no records, and bytes in column value"


def _row(topic: str, record: SchemaVersion) -> SchemaRow:
    schema = schema_in(record)
    return {
        "topic": topic,
        "version": record.version,
        "type": record.kind,
        "fields": [field.name for field in schema.arrow],
        "fingerprint": schema.fingerprint,
        "created_time": record.time_ms,
        "deleted": record.deleted,
        "definition": record.definition,
    }
