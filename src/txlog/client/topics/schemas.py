"""Owns TopicSchemas: the schemas of a topic, and the records of its messages.

A schema is an Avro record; values are JSON objects or Avro. Versions count from 1, and a new one
has to fit those before it by the policy `schema_compatibility`. Source: Pulsar's schema registry.
"""

from __future__ import annotations

from txlog.base.arguments import checked
from txlog.base.ids import TopicName
from txlog.base.rows.topics import SchemaRow
from txlog.base.schemas import classes
from txlog.base.schemas.schema import Schema
from txlog.engine.door import topics as deciding
from txlog.engine.door.catalog import SchemaVersion, live_topic
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.store import Decision, Store, View
from txlog.engine.door.topics import schema_in
from txlog.errors import NotFound


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

    __slots__ = ("_name", "_store")

    def __init__(self, store: Store, name: TopicName) -> None:
        self._store = store
        self._name = name

    def list(self, *, deleted: bool = False) -> list[SchemaRow]:
        """The versions, oldest first; deleted: also those that were deleted. Raises TopicNotFound.

        returns: [{topic, version, type, fields, fingerprint, created_time, deleted, definition}]
        """
        short = self._name.topic.short
        found = self._store.ask(lambda view: find_topic(view, self._name).schemas)
        return [_row(short, one) for one in found if deleted or not one.deleted]

    def get(self, version: int | None = None) -> Schema:
        """A schema; None: the newest. Raises NotFound (308) for a topic or version without one."""
        found = self._store.ask(lambda view: find_topic(view, self._name).schemas)
        for one in reversed(found):
            if one.version == version or (version is None and not one.deleted):
                return schema_in(one)
        what = "no schema" if version is None else f"no schema {version}"
        raise NotFound(
            f"topic {self._name.topic.short} has {what}",
            hint="txlog schema upload gives it one",
            topic=self._name.topic.short,
        )

    def add(self, schema: object, *, type: str = "json") -> int:
        """Add a version, and return its number; that of the same schema if the topic has it.

        schema: a Schema, a dataclass, msgspec.Struct or pydantic model, or a pyarrow.Schema
        type:   json or avro: how values are written, where the schema does not say
        raises: IncompatibleSchema, InvalidArgument, TopicNotFound, LimitExceeded
        """
        return self._add(classes.schema_of(schema, type))

    def _add(self, schema: Schema, *, marks: bool = False) -> int:
        """Add a version; marks: as decide/topics/catalog has it."""
        number = self._store.read(lambda view: find_topic(view, self._name)).number

        def decide(view: View, now: object) -> Decision[int]:
            topic = live_topic(view, number, self._name.topic.short)
            return deciding.add_schema(view, self._store.settings, topic, schema, marks=marks)

        version = self._store.write(decide)
        return version

    def test(self, schema: object, *, type: str = "json") -> None:
        """Raise IncompatibleSchema unless the schema could be added."""
        wanted = classes.schema_of(schema, type)

        def look(view: View) -> None:
            topic = find_topic(view, self._name)
            if deciding.find(topic, wanted) is None:
                deciding.check(view, self._store.settings, topic, wanted)

        self._store.ask(look)

    def delete(self) -> int:
        """Delete all versions, and return how many there were; the topic takes bytes from then on.

        Messages that were checked keep the version, and can still be decoded.
        """
        number = self._store.read(lambda view: find_topic(view, self._name)).number
        deleted = self._store.write(
            lambda view, now: deciding.delete_schemas(
                live_topic(view, number, self._name.topic.short)
            )
        )
        return deleted


def _row(topic: str, one: SchemaVersion) -> SchemaRow:
    schema = schema_in(one)
    return {
        "topic": topic,
        "version": one.version,
        "type": one.kind,
        "fields": [field.name for field in schema.arrow],
        "fingerprint": schema.fingerprint,
        "created_time": one.time_ms,
        "deleted": one.deleted,
        "definition": one.definition,
    }
