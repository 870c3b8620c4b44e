"""Owns the commands of topics and of their schemas, which are Pulsar's `schemas`."""

from __future__ import annotations

import importlib
import re
import shlex
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from txlog.base.ids import TopicName
from txlog.base.ranges import parse_range, parse_size
from txlog.base.suggest import command_line
from txlog.base.times import parse_duration
from txlog.cli.call.call import Call, confirm, each_target, say_when_it_applies
from txlog.cli.input.names import names
from txlog.cli.line.command import Argument, Duration, Option, Time, command
from txlog.cli.terminal.tables import counted, size
from txlog.errors import InvalidArgument, StillInUse, Usage

if TYPE_CHECKING:
    from txlog.base.rows.topics import SchemaRow
    from txlog.base.schemas.schema import Schema

TYPES = ("json", "avro")
SOURCE = "FILE|arrow:FILE"
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]
File = Annotated[
    str,
    Argument(
        metavar=SOURCE,
        show_default=False,
        help="an Avro record as JSON, or the columns of a Parquet or Arrow file",
    ),
]
Type = Annotated[
    str | None,
    Option(
        "--schema-type",
        metavar="|".join(TYPES),
        help="encoding of records in values; default: avro for .avsc, else json",
    ),
]


# --- create and show ---------------------------------------------------------------------------


@command(
    "topic create",
    "create topics",
    examples=(
        "txlog topic create orders",
        "txlog topic create orders --partitions 4",
        "txlog topic create audit --retention 7d",
        "txlog topic create drives --schema trip.avsc --schema-type json",
    ),
    rows="topics.TopicCreated",
    changes=True,
    dry_run=True,
)
def create(
    call: Call,
    names: Annotated[list[str], Argument(metavar="NAME", show_default=False)],
    partitions: Annotated[int, Option("--partitions", "-p", metavar="N")] = 1,
    retention: Annotated[
        int | None, Duration("--retention", help="how long messages are kept")
    ] = None,
    retention_bytes: Annotated[
        str | None, Option("--retention-bytes", metavar="SIZE", help="how many bytes are kept")
    ] = None,
    ttl: Annotated[int | None, Duration("--ttl", help="acknowledge older messages")] = None,
    schema: Annotated[
        str | None, Option("--schema", metavar=SOURCE, help="schema of the records in its values")
    ] = None,
    schema_type: Type = None,
    if_not_exists: Annotated[bool, Option("--if-not-exists")] = False,
) -> None:
    """Create topics.

    A schema is an Avro record as JSON (.avsc or .json), or the columns of a Parquet or Arrow file.
    """
    if schema_type is not None and schema is None:
        raise Usage("--schema-type needs --schema")
    typed = None if schema is None else schema_in(call, schema, schema_type)
    options = {
        "ttl_ms": ttl,
        "retention_ms": retention,
        "retention_bytes": None if retention_bytes is None else parse_size(retention_bytes),
    }
    policies: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    client = call.client(write=True)

    def one(name: str) -> None:
        topic = TopicName.parse(name).short
        created = client.create_topic(
            name, partitions, if_not_exists=if_not_exists, schema=typed, **policies
        )
        counted = f"{partitions} partition{'s' if partitions != 1 else ''}"
        call.summary(
            f"created topic {topic}, {counted}" if created else f"topic {topic} exists already"
        )
        if not created:
            partition_count = client.describe_topic(name)["partitions"]
            call.output.result({"topic": topic, "partitions": partition_count, "created": False})
        else:
            call.output.result({"topic": topic, "partitions": partitions, "created": True})

    each_target(names, one)
    if policies:
        say_when_it_applies(call)


@command(
    "topic list",
    "list topics with counts and sizes",
    examples=("txlog topic list", "txlog topic list --regex '^in-' -f names"),
    rows="topics.TopicRow",
    until="subscriptions",
)
def list_topics(
    call: Call,
    regex: Annotated[str | None, Option("--regex", metavar="RE", help="names that match")] = None,
    sort: Annotated[str, Option("--sort", metavar="name|size|backlog")] = "name",
) -> None:
    """List topics."""
    call.check_choice("--sort", sort, ("name", "size", "backlog"))
    pattern = compile_regex(regex)
    rows = [
        row
        for row in call.client().topics()
        if pattern is None or pattern.search(str(row["topic"]))
    ]

    def order(row: Mapping[str, object]) -> tuple[int, str]:
        measure = {"size": "size_bytes", "backlog": "backlog"}.get(sort, "")
        value = row.get(measure)
        return (-value if isinstance(value, int) else 0, str(row["topic"]))

    call.output.rows(sorted(rows, key=order))


@command(
    "topic describe",
    "one topic, its partitions and subscriptions",
    examples=("txlog topic describe orders", "txlog topic describe orders --json"),
    rows="topics.TopicDescription",
    until="subscriptions",
)
def describe(
    call: Call, name: Annotated[str, Argument(metavar="NAME", show_default=False)]
) -> None:
    """Describe one topic: its partitions and subscriptions."""
    call.output.single(call.client().describe_topic(name))


@command(
    "topic stats",
    "messages that became visible, by time",
    examples=(
        "txlog topic stats orders",
        "txlog topic stats orders --by 1m --since -2h --json",
        "txlog topic stats orders/0 --by 1d --since 2026-11-01",
    ),
    rows="topics.Throughput",
    times=True,
)
def stats(
    call: Call,
    name: Annotated[str, Argument(metavar="NAME", show_default=False)],
    by_ms: Annotated[int, Duration("--by", help="the span of time of a row", default="1h")],
    since_ms: Annotated[
        int, Time("--since", help="from the span with this time onwards", default="-1d")
    ],
) -> None:
    """Show how much became visible in a topic or partition, one row for each span of time."""
    call.output.rows(call.client().topic(name).stats(by_ms, since_ms))


def compile_regex(text: str | None) -> re.Pattern[str] | None:
    """Return the compiled pattern.

    raises: InvalidArgument (201)
    """
    if text is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other Python versions may warn about the pattern
            return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidArgument(f"not a regular expression: {error}") from error


# --- change and delete -----------------------------------------------------------------------

OFF = "off"


def _or_off(text: str) -> int | str:
    return OFF if text == OFF else parse_duration(text)


@command(
    "topic update",
    "add partitions, change policies",
    examples=(
        "txlog topic update orders --partitions 8",
        "txlog topic update orders --ttl 7d --retention off",
    ),
    rows="topics.TopicUpdated",
    changes=True,
    dry_run=True,
)
def update(
    call: Call,
    name: Annotated[str, Argument(metavar="NAME", show_default=False)],
    partitions: Annotated[
        int | None, Option("--partitions", metavar="N", help="a higher number")
    ] = None,
    retention: Annotated[
        int | str | None,
        Option("--retention", metavar="DUR|off", reads=_or_off, help="how long messages are kept"),
    ] = None,
    retention_bytes: Annotated[
        str | None, Option("--retention-bytes", metavar="SIZE|off", help="how many bytes are kept")
    ] = None,
    ttl: Annotated[
        int | str | None,
        Option("--ttl", metavar="DUR|off", reads=_or_off, help="acknowledge older messages"),
    ] = None,
) -> None:
    """Give a topic more partitions or other policies; open producers and consumers notice it.

    A key goes to crc32(key) mod partitions: with more partitions most keys move.
    """
    policies: dict[str, int | None] = {}
    for policy, value in (("retention_ms", retention), ("ttl_ms", ttl)):
        if value is not None:
            policies[policy] = None if isinstance(value, str) else value
    if retention_bytes is not None:
        retention_bytes_max = None if retention_bytes == OFF else parse_size(retention_bytes)
        policies["retention_bytes"] = retention_bytes_max
    if partitions is None and not policies:
        raise Usage("the change is missing: --partitions, --retention, --retention-bytes or --ttl")
    answer = call.client(write=True).admin.update_topic(name, partitions, **policies)
    have = counted(answer["partitions"], "partition")
    how = "updated topic" if answer["changed"] else "nothing to change in topic"
    call.summary(f"{how} {answer['topic']}, {have}")
    if answer["changed"] and any(value is not None for value in policies.values()):
        say_when_it_applies(call)
    call.output.result(answer)


@command(
    "topic delete",
    "delete topics with their messages",
    examples=(
        "txlog topic delete orders",
        "txlog topic delete orders audit --force --yes",
        "txlog topic list --regex '^tmp-' --json | txlog topic delete - --yes",
    ),
    rows="topics.TopicDeleted",
    changes=True,
    dry_run=True,
    loses="data",
    asks=True,
)
def delete(
    call: Call,
    topics: Annotated[list[str], Argument(metavar="NAME|-", show_default=False)],
    force: Annotated[
        bool, Option("--force", help="even with subscriptions and unfinished transactions")
    ] = False,
) -> None:
    """Delete topics with their messages. It cannot be undone."""
    client = call.client(write=True)

    def one(name: str) -> None:
        try:
            answer = plan = client.admin.delete_topic(name, force=force, dry_run=not call.dry_run)
        except StillInUse as error:
            if not (call.flags.yes or call.dry_run):
                line = command_line("topic delete", name, "--force", "--yes")
                error.hint = f"{error.hint}, and needs consent, too: {line}"
            raise
        topic = str(plan["topic"])
        contents = (
            f"{counted(plan['messages'], 'message')} ({size(plan['size_bytes'])}) in "
            f"{counted(plan['partitions'], 'partition')}, "
            f"{counted(plan['subscriptions'], 'subscription')}"
        )
        if not call.dry_run:
            confirm(call, f"delete topic {topic}: {contents}", word=topic)
            answer = client.admin.delete_topic(name, force=force)
        call.summary(f"deleted topic {topic}: {contents}")
        call.output.result(answer)

    each_target(names(call, topics, "topic", "topic"), one)


@command(
    "topic rename",
    "give a topic another name",
    examples=(
        "txlog topic rename orders sales",
        "txlog topic rename orders sales --dry-run --json",
    ),
    rows="topics.TopicRenamed",
    changes=True,
    dry_run=True,
)
def rename(
    call: Call,
    topic: Topic,
    name: Annotated[str, Argument(metavar="NEW", show_default=False, help="the name it gets")],
) -> None:
    """Rename a topic in one step; its namespace stays.

    Messages, subscriptions, open transactions, policies and schemas stay with it, and programs that
    have it open go on. Programs that open it later need the new name, and another topic may get
    the old one. Topics of dead letters, retries and open windows with names as
    TOPIC-SUBSCRIPTION-DLQ are renamed, too, and policies that name one of these topics. Files stay
    in the directory of the old name.
    """
    answer = call.client(write=True).admin.rename_topic(topic, name, dry_run=call.dry_run)
    if answer["changed"]:
        call.summary(f"renamed topic {answer['before']} to {answer['topic']}")
    else:
        call.summary(f"topic {answer['topic']} has that name")
    for along in answer["renamed_list"]:
        call.note(f"renamed topic {along['before']} to {along['topic']}, too")
    if answer["subscription_list"]:
        call.note(f"changed policies of {', '.join(answer['subscription_list'])}")
    derived = importlib.import_module("txlog.engine.door.topics")
    for key in answer["still_named"]:
        function = derived.function_of_key(key)
        call.note(
            f"the function {function} gets another transaction key from the names of its inputs; "
            f"to keep its key, run it with --name {shlex.quote(function)}"
        )
    call.output.result(answer)


@command(
    "topic copy",
    "copy a topic, also to another store, each message once",
    examples=(
        "txlog topic copy orders --to-store /backup/shop",
        "txlog topic copy orders --as orders-2026",
        "txlog topic copy orders --to-store /backup/shop --as orders-2025 -o @-1d..",
    ),
    rows="topics.TopicCopied",
    changes=True,
)
def copy(
    call: Call,
    topic: Topic,
    to_store: Annotated[
        str | None, Option("--to-store", metavar="PATH", help="the other store; else this one")
    ] = None,
    name: Annotated[
        str | None, Option("--as", metavar="NAME", help="its name there; else the same")
    ] = None,
    range_: Annotated[
        str | None, Option("--offset", "-o", metavar="RANGE", help="default: all of it")
    ] = None,
) -> None:
    """Copy what is visible in TOPIC and not copied yet: exactly once, in order in each partition.

    After an interruption, or for newer messages, run it again: it goes on behind the last message
    that the other store has. The topic is made there with its partitions and schema. Key, value,
    properties, event and delivery time are kept; ids, producers and policies are not. A later
    copy does not fill in messages that -o left out before a copied message. Refused: a range that
    ends within a transaction, TOPIC onto itself, and TOPIC restored from a copy that lacks messages
    which the other store has.
    """
    range_read = None if range_ is None else parse_range(range_, call.now_ms())
    bars = importlib.import_module("txlog.cli.call.progress")
    open_store = importlib.import_module("txlog.client.open").open_store
    there = open_store(to_store or call.store_path(), clock=call.clock)
    with there as target, bars.Count(call, "copy") as tell:
        answer = importlib.import_module("txlog.client.topic_copy").copy_topic(
            call.client(),
            target,
            topic,
            name,
            range=range_read,
            tell=tell,
        )
    verb = "continued: copied" if answer["continued"] else "copied"
    messages = counted(answer["messages"], "message")
    where = "" if to_store is None else f" in {to_store}"
    call.summary(f"{verb} {messages} of {answer['topic']} to {answer['to']}{where}")
    call.output.result(answer)


# --- schemas --------------------------------------------------------------------------------


@command(
    "schema get",
    "a schema of a topic",
    examples=(
        "txlog schema get trips",
        "txlog schema get trips --schema-version 1 --json --columns definition",
    ),
    rows="topics.SchemaShown",
)
def get_schema(
    call: Call,
    topic: Topic,
    schema_version: Annotated[
        int | None, Option("--schema-version", metavar="N", help="default: the newest")
    ] = None,
) -> None:
    """Show a schema of a topic."""
    schemas = call.client().topic(topic).schemas
    if schema_version is None:
        rows = schemas.list()[-1:]
    else:
        rows = [row for row in schemas.list(deleted=True) if row["version"] == schema_version]
    if not rows:
        schemas.get(schema_version)  # raises the error for a missing schema
    call.output.single(_shown(rows[0]))


@command(
    "schema versions",
    "the schemas of a topic",
    examples=("txlog schema versions trips", "txlog schema versions trips --deleted -f names"),
    rows="topics.SchemaVersion",
    until="deleted",
)
def schema_versions(
    call: Call,
    topic: Topic,
    deleted: Annotated[bool, Option("--deleted", help="include deleted schemas")] = False,
) -> None:
    """List the schemas of a topic, oldest first."""
    rows = call.client().topic(topic).schemas.list(deleted=deleted)
    call.output.rows([_shown(row) for row in rows])


@command(
    "schema upload",
    "give a topic its first or next schema",
    examples=(
        "txlog schema upload trips trip.avsc",
        "txlog schema get trips --json | txlog schema upload again -",
        "txlog schema upload trips trip.avsc --dry-run",
    ),
    rows="topics.SchemaUploaded",
    changes=True,
    dry_run=True,
)
def upload_schema(call: Call, topic: Topic, file: File, schema_type: Type = None) -> None:
    """Give a topic its first schema, or a new version of it.

    A schema that the topic already has is not added again. Messages that are older than the first
    schema have no record; a warning and `mismatched` in `topic describe` count them. The policy
    that `txlog policy schema get` shows decides whether the schema may follow; if not, exit 4
    (410), and nothing changes.
    """
    schema = schema_in(call, file, schema_type)
    client = call.client(write=True)
    schemas = client.topic(topic).schemas
    versions_before = {row["version"] for row in schemas.list(deleted=True)}
    messages_before = 0 if versions_before else client.describe_topic(topic)["messages"]
    version = schemas.add(schema)
    changed = version not in versions_before
    short = TopicName.parse(topic).short
    if messages_before:
        texts = importlib.import_module("txlog.client.topics.schemas")
        call.warn(texts.without_records(short, messages_before))
    done = f"added schema {version} to topic" if changed else f"this is schema {version} of topic"
    call.summary(f"{done} {short}")
    call.output.result({**_told(short, schema), "version": version, "changed": changed})


@command(
    "schema test",
    "check whether a schema would be accepted",
    examples=("txlog schema test trips trip.avsc", "txlog schema test trips trip.avsc --json"),
    rows="topics.SchemaTested",
)
def test_schema(call: Call, topic: Topic, file: File, schema_type: Type = None) -> None:
    """Check whether a schema would be accepted for a topic: exit 0, otherwise 4 (410)."""
    schema = schema_in(call, file, schema_type)
    call.client().topic(topic).schemas.test(schema)
    short = TopicName.parse(topic).short
    call.summary(f"the schema could be added to topic {short}")
    call.output.result(_told(short, schema))


@command(
    "schema delete",
    "let a topic take any bytes again",
    examples=("txlog schema delete trips --dry-run", "txlog schema delete trips --yes"),
    rows="topics.SchemasDeleted",
    changes=True,
    dry_run=True,
    loses="data",
    asks=True,
)
def delete_schemas(call: Call, topic: Topic) -> None:
    """Delete all schemas of a topic: from then on it takes any bytes.

    Messages that were checked keep their schema version, and can still be decoded.
    """
    schemas = call.client(write=True).topic(topic).schemas
    short = TopicName.parse(topic).short
    count = len(schemas.list())
    if not call.dry_run and count:
        confirm(call, f"delete {counted(count, 'schema')} of topic {short}", word=short)
        count = schemas.delete()
    if count:
        call.summary(f"deleted {counted(count, 'schema')} of topic {short}")
    else:
        call.summary(f"topic {short} has no schema")
    call.output.result({"topic": short, "versions": count, "deleted": count > 0})


def schema_in(call: Call, source: str, type: str | None) -> Schema:
    """Read the schema that a flag or an argument names; raises Usage, InvalidArgument."""
    word = None if type is None else type.lower()
    call.check_choice("--schema-type", word, TYPES)
    [source] = call.spooled([source])
    schema: Schema = importlib.import_module("txlog.base.schemas.schema").read_schema(source, word)
    return schema


def _shown(row: SchemaRow) -> dict[str, object]:
    return {**row, "field_list": row["fields"]}


def _told(topic: str, schema: Schema) -> dict[str, object]:
    names = [field.name for field in schema.fields]
    return {"topic": topic, "type": schema.type, "field_list": names}
