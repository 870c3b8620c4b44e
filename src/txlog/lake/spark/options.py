"""Owns the options of the data source `txlog`, as text, and their checks.

path                 the store, also as `load(path)`
topic                `orders`, or one partition of it, `orders/2`
start, end           bounds as in spec/cli 6: `17:4`, `@-1h`, `+100`, `sub=NAME`, …; batches only
atLsn                as the topic was at this LSN; batches only
isolation            committed, or uncommitted: with a column txn_state; batches only
includeOpen          false: without what is in parts of open ledgers; batches only
includeTail          false: without what is in the journal; batches only
skipUnavailable      true: leave out unavailable partitions instead of failing; batches only
pushdown             once: filters leave out files and row groups, and the frame is for one query;
                     never, the default; batches only. It also needs
                     spark.sql.python.filterPushdown.enabled, which `txlog.spark.session` sets
columns              `key,value`: only these columns, in this order; Spark reads all there are
startingPosition     a bound: where a stream without a checkpoint begins
subscription         a stream reports its progress to it, so that retention waits
maxRowsPerTrigger, maxBytesPerTrigger   limits of a stream's batches
failOnDataLoss       false: a stream continues where messages were trimmed before it read them

Bounds are also `earliest` and `latest`. Options of the source `kafka` that mean the same are taken:
subscribe (of one topic), startingOffsets, endingOffsets, maxOffsetsPerTrigger; the error for
another one says what it is called here. A view is read and written with the same options, so
those that only name a batch are no error in reading. Spark hands on some options of its own, such
as the name of a query; these are taken and have no meaning here.
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
from txlog.engine.door.relation import Wanted
from txlog.errors import InvalidArgument

T = TypeVar("T")
WRITTEN = {"path": ".load('STORE')", "topic": ".option('topic', 'TOPIC')"}
"""How an option is given to a reader."""
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
# What Spark hands on of its own writers: `queryName`, and what only its streaming engine reads.
_OF_SPARK = frozenset(
    ["queryname", "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"]
)
# Names of the sinks that a reader passes over: those of a table or view name its batches.
_NAMING = frozenset(name.lower() for name in (*SINK, *STREAM_SINK))
# Of the source `kafka`: the same under another name, in a batch and in a stream.
_SAME_IN_BATCH = {"subscribe": "topic", "startingoffsets": "start", "endingoffsets": "end"}
_SAME_IN_STREAM = {
    "subscribe": "topic",
    "startingoffsets": "startingPosition",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
}
# What an option of the source `kafka` is here.
_KAFKA = {
    "assign": "topic 'orders/2' is one partition of orders",
    "subscribepattern": "a frame is of one topic; txlog.spark.read takes a list of them",
    "startingtimestamp": "start '@TIME' in a batch, startingPosition '@TIME' in a stream",
    "startingoffsetsbytimestamp": "start '@TIME' in a batch, startingPosition '@TIME' in a stream",
    "endingtimestamp": "end '@TIME'",
    "endingoffsetsbytimestamp": "end '@TIME'",
    "groupidprefix": "subscription: what retention and backlogs go by",
    "kafka.group.id": "subscription: what retention and backlogs go by",
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
    """What a batch reads."""

    path: str
    topic: str
    wanted: Wanted
    isolation: str
    include_open: bool
    include_tail: bool
    skip_unavailable: bool
    prunes: bool


class StreamOptions(NamedTuple):
    """What a stream reads; starting: None with a subscription means its position."""

    path: str
    topic: str
    starting: Bound
    subscription: str | None
    rows_max: int | None
    bytes_max: int | None
    fail_on_data_loss: bool


def batch_options(options: Mapping[str, str]) -> BatchOptions:
    """The options of a batch. Raises InvalidArgument."""
    given = _Given(options, (*_BOTH, *_BATCH), "a batch")
    now_ms = SystemClock().now().wall_ms
    start, end = given.bound("start", now_ms), given.bound("end", now_ms)
    wanted = Range(START if start is None else start, end)
    return BatchOptions(
        given.need("path"),
        given.need("topic"),
        Wanted(None, wanted, given.number("atLsn", 0)),
        check_isolation(given.text("isolation", "committed")),
        given.flag("includeOpen", True),
        given.flag("includeTail", True),
        given.flag("skipUnavailable", False),
        _prunes(given.text("pushdown", "never")),
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of a stream. Raises InvalidArgument."""
    given = _Given(options, (*_BOTH, *_STREAM), "a stream")
    subscription = given.text("subscription", None)
    if subscription is not None:
        check_name("subscription", subscription)
    bound = given.bound("startingPosition", SystemClock().now().wall_ms)
    if bound is None:
        bound = START if subscription is None else Bound("sub", subscription)
    size = given.text("maxBytesPerTrigger", None)
    return StreamOptions(
        given.need("path"),
        given.need("topic"),
        bound,
        subscription,
        given.number("maxRowsPerTrigger", 1),
        None if size is None else max(1, parse_size(size)),
        given.flag("failOnDataLoss", True),
    )


def check_reading(options: Mapping[str, str]) -> None:
    """Check options as `load` gives them: nobody says yet whether a batch or a stream is read.

    Those of a writer come here as well, and pass.
    raises: InvalidArgument: neither a batch nor a stream can be read with them
    """
    names = {name.lower() for name in options}
    if not names & {"path"} and not names & {"topic", "subscribe"}:
        return  # of a table, which keeps them elsewhere
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
    """The types of columns, `NAME TYPE, …`, by their names."""
    return dict(column.split(" ", 1) for column in columns.split(", "))


def some_columns(names: str, known: str) -> str:
    """Those of the columns that are wanted, as `NAME TYPE, …`. Raises InvalidArgument."""
    kinds = kinds_in(known)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in kinds:
            raise InvalidArgument(
                f"a message has no column {name}", hint=suggestion(name, kinds, ", ".join(kinds))
            )
    if len({*wanted}) < len(wanted):
        raise InvalidArgument(f"the option columns is {names!r}, it has a name twice")
    return ", ".join(f"{name} {kinds[name]}" for name in wanted)


def _prunes(text: str) -> bool:
    """Whether filters may leave files out."""
    if text.lower() not in ("once", "never", "false"):
        raise InvalidArgument(
            f"the option pushdown is {text!r}, it must be once or never",
            hint="once: the frame is for one query; Spark would apply its filters to later ones",
        )
    return text.lower() == "once"


def of_call(options: Mapping[str, str], call: str) -> dict[str, str]:
    """Those options of a table that a call of the data source takes."""
    known = {name.lower() for name in _OF_CALLS[call]}
    return {name: value for name, value in options.items() if name.lower() in known}


def check_known(options: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InvalidArgument for an option without a meaning here: none is ignored."""
    names = {name.lower(): name for name in known}
    for name in map(str.lower, options):
        if name in names or name in _OF_SPARK:
            continue
        near = get_close_matches(name, names, 1)
        hint = _KAFKA.get(name) or _ELSEWHERE.get(name)
        if hint is None and name.startswith("kafka."):
            hint = "there is no client to configure: leave it out"
        if hint is None:
            hint = f"did you mean {names[near[0]]}?" if near else ", ".join(names.values())
        raise InvalidArgument(f"{what} of txlog has no option {name}", hint=hint)


class _Given:
    """Options as text; one without a meaning here is an error, not ignored."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {str(name).lower(): str(value) for name, value in options.items()}
        self._take_kafka(_SAME_IN_BATCH if "start" in known else _SAME_IN_STREAM)
        given = [name for name in self._values if name not in _NAMING]
        check_known(given, known, what)

    def _take_kafka(self, same: Mapping[str, str]) -> None:
        """Give options of the source `kafka` that mean the same the names they have here."""
        values = self._values
        for name, own in same.items():
            found = values.pop(name, None)
            if found is None:
                continue
            if own.lower() in values:
                raise InvalidArgument(f"the options {name} and {own} are the same")
            if name == "subscribe" and "," in found:
                raise InvalidArgument(
                    "the option subscribe names several topics, a frame has one",
                    hint="union the frames; for batches, txlog.spark.read takes a list",
                )
            if name.endswith("offsets") and found.lower() not in _POSITIONS:
                raise InvalidArgument(
                    f"the option {name} is {found!r}: there are no offsets, a position is L:E",
                    hint=f"earliest or latest, or {own} with a bound: L:E, @TIME, -N",
                )
            values[own.lower()] = found
        if same is _SAME_IN_BATCH and values.get("failondataloss", "").lower() == "true":
            del values["failondataloss"]  # a batch leaves out nothing unasked

    def bound(self, name: str, now_ms: int) -> Bound | None:
        """A position, also `earliest` and `latest`."""
        found = self._values.get(name.lower())
        if found is None:
            return None
        return parse_bound(_POSITIONS.get(found.lower(), found), now_ms)

    def text(self, name: str, default: T) -> str | T:
        return self._values.get(name.lower(), default)

    def need(self, name: str) -> str:
        found = self._values.get(name.lower())
        if not found:
            raise InvalidArgument(
                f"the option {name} is missing", hint=f"{WRITTEN[name]}; {NO_OPTIONS}"
            )
        return found

    def flag(self, name: str, default: bool) -> bool:
        found = self._values.get(name.lower(), str(default)).lower()
        if found not in ("true", "false"):
            raise InvalidArgument(f"the option {name} is {found!r}, it must be true or false")
        return found == "true"

    def number(self, name: str, least: int) -> int | None:
        found = self._values.get(name.lower())
        if found is None:
            return None
        if not found.isdecimal() or int(found) < least:
            raise InvalidArgument(
                f"the option {name} is {found!r}, it must be a number, at least {least}"
            )
        return int(found)
