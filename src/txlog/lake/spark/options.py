"""Owns the options of the data source `txlog`, as text, and their checks.

path                 the store, also as `load(path)`
topic                `orders`, or one partition of it, `orders/2`
start, end           bounds of spec/cli 6: `17:4`, `@-1h`, `+100`, `sub=NAME`, …; batches only
atLsn                the topic at this LSN; batches only
isolation            committed, or uncommitted: with a column txn_state; batches only
includeOpen          false: without rows in parts of open ledgers; batches only
includeTail          false: without rows in the journal; batches only
skipUnavailable      true: leave out unavailable partitions instead of failing; batches only
pushdown             once: filters skip files and row groups, and the frame is for one query;
                     never, the default; batches only. It also needs
                     spark.sql.python.filterPushdown.enabled, which `txlog.spark.session` sets
columns              `key,value`: only these columns, in this order; otherwise Spark reads all
startingPosition     a bound: the start of a stream without a checkpoint
subscription         a stream reports its progress to it, so that retention waits for the stream
maxRowsPerTrigger, maxBytesPerTrigger   limits of a stream's batches
failOnDataLoss       false: a stream continues after messages that were trimmed before it read them

A bound may also be `earliest` or `latest`. Options of the source `kafka` with the same meaning
work: subscribe (one topic), startingOffsets, endingOffsets, maxOffsetsPerTrigger. For its other
options, the error has the name to use here. A view is read and written with the same options, so
reading accepts options that only name a batch. Options that Spark passes by itself, such as the
name of a query, are accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from txlog.base.ids import check_name
from txlog.base.ranges import START, Bound, Range, parse_bound, parse_size
from txlog.base.suggest import suggestion
from txlog.clock import SystemClock
from txlog.engine.door.reading import check_isolation
from txlog.engine.door.relation import RelationFilter
from txlog.errors import InvalidArgument

T = TypeVar("T")
WRITTEN = {"path": ".load('STORE')", "topic": ".option('topic', 'TOPIC')"}
"""The way to pass each option to a reader."""
NO_OPTIONS = "of a table created with a list of columns Spark keeps no options: leave out the list"
_POSITIONS = {"earliest": "start", "latest": "end"}
_BOTH = ("path", "topic", "columns")
_BATCH = (
    "start", "end", "atLsn", "isolation", "includeOpen", "includeTail", "skipUnavailable",
    "pushdown",
)  # fmt: skip
_STREAM = (
    "startingPosition",
    "subscription",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
)
SINK = ("path", "topic", "txnKey", "batchId")
STREAM_SINK = ("path", "topic", "txnAppId", "checkpointLocation")
_OF_CALLS = {
    "reader": (*_BOTH, *_BATCH),
    "streamReader": (*_BOTH, *_STREAM),
    "writer": SINK,
    "streamWriter": STREAM_SINK,
}
OF_TABLES = sorted({name for names in _OF_CALLS.values() for name in names})
# Options that Spark passes to every writer: `queryName`, and options of its streaming engine.
_OF_SPARK = frozenset(
    ["queryname", "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"]
)
# Options of the sinks that a reader ignores: options of a table or view may name its batches.
_NAMING = frozenset(name.lower() for name in (*SINK, *STREAM_SINK))
# Options of the source `kafka`: the same under another name, in a batch and in a stream.
_SAME_IN_BATCH = {"subscribe": "topic", "startingoffsets": "start", "endingoffsets": "end"}
_SAME_IN_STREAM = {
    "subscribe": "topic",
    "startingoffsets": "startingPosition",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
}
# Hints for other options of the source `kafka`.
_KAFKA = {
    "assign": "topic 'orders/2' is one partition of orders",
    "subscribepattern": "a frame has one topic; txlog.spark.read takes a list of topics",
    "startingtimestamp": "start '@TIME' in a batch, startingPosition '@TIME' in a stream",
    "startingoffsetsbytimestamp": "start '@TIME' in a batch, startingPosition '@TIME' in a stream",
    "endingtimestamp": "end '@TIME'",
    "endingoffsetsbytimestamp": "end '@TIME'",
    "groupidprefix": "subscription, which retention and backlogs use",
    "kafka.group.id": "subscription, which retention and backlogs use",
    "kafka.bootstrap.servers": "there is no server: path is the directory of the store",
    "includeheaders": "headers are the column properties",
    "minpartitions": "a task reads about 64 MB of files",
    "endingoffsets": "a stream has no end; reading a batch has",
    "maxoffsetspertrigger": "maxRowsPerTrigger, for reading a stream",
}
_ELSEWHERE = {
    **dict.fromkeys([name.lower() for name in _BATCH], "it is for reading a batch"),
    **dict.fromkeys([name.lower() for name in _STREAM], "it is for reading a stream"),
    **dict.fromkeys(["txnkey", "batchid"], "it is for writing a batch"),
    "txnappid": "it is for writing a stream",
}


class BatchOptions(NamedTuple):
    """The options of a batch; prunes: filters may skip files."""

    path: str
    topic: str
    wanted: RelationFilter
    isolation: str
    include_open: bool
    include_tail: bool
    skip_unavailable: bool
    prunes: bool


class StreamOptions(NamedTuple):
    """The options of a stream; starting: by default the subscription's position, or the start."""

    path: str
    topic: str
    starting: Bound
    subscription: str | None
    rows_max: int | None
    bytes_max: int | None
    fail_on_data_loss: bool


def batch_options(options: Mapping[str, str]) -> BatchOptions:
    """The options of a batch. Raises InvalidArgument."""
    parsed = _Given(options, (*_BOTH, *_BATCH), "a batch")
    now_ms = SystemClock().now().wall_ms
    start, end = parsed.bound("start", now_ms), parsed.bound("end", now_ms)
    bounds = Range(START if start is None else start, end)
    return BatchOptions(
        parsed.need("path"),
        parsed.need("topic"),
        RelationFilter(None, bounds, parsed.number("atLsn", 0)),
        check_isolation(parsed.text("isolation", "committed")),
        parsed.flag("includeOpen", True),
        parsed.flag("includeTail", True),
        parsed.flag("skipUnavailable", False),
        _prunes(parsed.text("pushdown", "never")),
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of a stream. Raises InvalidArgument."""
    parsed = _Given(options, (*_BOTH, *_STREAM), "a stream")
    subscription = parsed.text("subscription", None)
    if subscription is not None:
        check_name("subscription", subscription)
    bound = parsed.bound("startingPosition", SystemClock().now().wall_ms)
    if bound is None:
        bound = START if subscription is None else Bound("sub", subscription)
    size = parsed.text("maxBytesPerTrigger", None)
    return StreamOptions(
        parsed.need("path"),
        parsed.need("topic"),
        bound,
        subscription,
        parsed.number("maxRowsPerTrigger", 1),
        None if size is None else max(1, parse_size(size)),
        parsed.flag("failOnDataLoss", True),
    )


def check_reading(options: Mapping[str, str]) -> None:
    """Check options of `load`, before Spark knows whether it reads a batch or a stream.

    Options of a writer come here as well, and pass.
    raises: InvalidArgument: they fit neither a batch nor a stream
    """
    names = {name.lower() for name in options}
    if not names & {"path"} and not names & {"topic", "subscribe"}:
        return  # a table keeps them elsewhere
    try:
        batch_options(options)
    except InvalidArgument as of_batch:
        try:
            stream_options(options)
        except InvalidArgument as of_stream:
            of_streams = [name.lower() for name in _STREAM]
            others = names.difference(name.lower() for name in (*_BOTH, *_BATCH))
            is_stream = any(get_close_matches(name, of_streams, 1) for name in others)
            raise (of_stream if is_stream else of_batch) from None


def kinds_in(columns: str) -> dict[str, str]:
    """The types of columns by name; columns: as `NAME TYPE, …`."""
    return dict(column.split(" ", 1) for column in columns.split(", "))


def some_columns(names: str, columns: str) -> str:
    """The columns of `columns` with these names, as `NAME TYPE, …`. Raises InvalidArgument."""
    kinds = kinds_in(columns)
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in kinds:
            raise InvalidArgument(
                f"a message has no column {name}", hint=suggestion(name, kinds, ", ".join(kinds))
            )
    if len({*chosen}) < len(chosen):
        raise InvalidArgument(f"the option columns is {names!r}, it has a name twice")
    return ", ".join(f"{name} {kinds[name]}" for name in chosen)


def _prunes(text: str) -> bool:
    """Whether filters may skip files, by the option pushdown. Raises InvalidArgument."""
    if text.lower() not in ("once", "never", "false"):
        raise InvalidArgument(
            f"the option pushdown is {text!r}, it must be once or never",
            hint="once: the frame is for one query; Spark would apply its filters to later ones",
        )
    return text.lower() == "once"


def of_call(options: Mapping[str, str], call: str) -> dict[str, str]:
    """The options of a table that apply to a call of the data source."""
    names = {name.lower() for name in _OF_CALLS[call]}
    return {name: value for name, value in options.items() if name.lower() in names}


def check_known(options: Iterable[str], names_known: Iterable[str], subject: str) -> None:
    """Raise InvalidArgument for an option that is neither known nor Spark's own."""
    names = {name.lower(): name for name in names_known}
    for name in map(str.lower, options):
        if name in names or name in _OF_SPARK:
            continue
        near = get_close_matches(name, names, 1)
        hint = _KAFKA.get(name) or _ELSEWHERE.get(name)
        if hint is None and name.startswith("kafka."):
            hint = "there is no client to configure: leave it out"
        if hint is None:
            hint = f"did you mean {names[near[0]]}?" if near else ", ".join(names.values())
        raise InvalidArgument(f"{subject} of txlog has no option {name}", hint=hint)


class _Given:
    """Options as text; an unknown option is an error."""

    def __init__(
        self, options: Mapping[str, str], known_names: tuple[str, ...], subject: str
    ) -> None:
        self._values = {str(name).lower(): str(value) for name, value in options.items()}
        self._take_kafka(_SAME_IN_BATCH if "start" in known_names else _SAME_IN_STREAM)
        names = [name for name in self._values if name not in _NAMING]
        check_known(names, known_names, subject)

    def _take_kafka(self, same: Mapping[str, str]) -> None:
        """Rename options of the source `kafka` with the same meaning to our names."""
        values = self._values
        for name, our_name in same.items():
            value = values.pop(name, None)
            if value is None:
                continue
            if our_name.lower() in values:
                raise InvalidArgument(f"the options {name} and {our_name} are the same")
            if name == "subscribe" and "," in value:
                raise InvalidArgument(
                    "the option subscribe names several topics, a frame has one",
                    hint="union the frames; for batches, txlog.spark.read takes a list",
                )
            if name.endswith("offsets") and value.lower() not in _POSITIONS:
                raise InvalidArgument(
                    f"the option {name} is {value!r}: there are no offsets, a position is L:E",
                    hint=f"earliest or latest, or {our_name} with a bound: L:E, @TIME, -N",
                )
            values[our_name.lower()] = value
        if same is _SAME_IN_BATCH and values.get("failondataloss", "").lower() == "true":
            del values["failondataloss"]  # a batch never skips messages by itself

    def bound(self, name: str, now_ms: int) -> Bound | None:
        """A position, also `earliest` and `latest`."""
        value = self._values.get(name.lower())
        if value is None:
            return None
        return parse_bound(_POSITIONS.get(value.lower(), value), now_ms)

    def text(self, name: str, default: T) -> str | T:
        return self._values.get(name.lower(), default)

    def need(self, name: str) -> str:
        value = self._values.get(name.lower())
        if not value:
            raise InvalidArgument(
                f"the option {name} is missing", hint=f"{WRITTEN[name]}; {NO_OPTIONS}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name.lower(), str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidArgument(f"the option {name} is {value!r}, it must be true or false")
        return value == "true"

    def number(self, name: str, least: int) -> int | None:
        value = self._values.get(name.lower())
        if value is None:
            return None
        if not value.isdecimal() or int(value) < least:
            raise InvalidArgument(
                f"the option {name} is {value!r}, it must be a number, at least {least}"
            )
        return int(value)
