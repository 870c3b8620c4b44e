"""Owns the options of the data source `txlog` for reading, as text, and their checks.

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
startingPosition     a bound: where a stream without a checkpoint begins
subscription         a stream reports its progress to it, so that retention waits
maxRowsPerTrigger, maxBytesPerTrigger   limits of a stream's batches
failOnDataLoss       false: a stream continues where messages were trimmed before it read them
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple, TypeVar

from txlog.clock import SystemClock
from txlog.engine.plan.reading.uncommitted import check_isolation
from txlog.errors import InvalidArgument
from txlog.ids import check_name
from txlog.ranges import START, Bound, Range, parse_bound, parse_size
from txlog.relation.spans import Wanted

T = TypeVar("T")
_BOTH = ("path", "topic")
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
    start, end = (given.text(name, None) for name in ("start", "end"))
    wanted = Range(
        START if start is None else parse_bound(start, now_ms),
        None if end is None else parse_bound(end, now_ms),
    )
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
    starting = given.text("startingPosition", None)
    if starting is not None:
        bound = parse_bound(starting, SystemClock().now().wall_ms)
    else:
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


def _prunes(text: str) -> bool:
    """Whether filters may leave files out."""
    if text.lower() not in ("once", "never", "false"):
        raise InvalidArgument(
            f"the option pushdown is {text!r}, it must be once or never",
            hint="once: the frame is for one query; Spark would apply its filters to later ones",
        )
    return text.lower() == "once"


class _Given:
    """Options as text; one without a meaning here is an error, not ignored."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {str(name).lower(): str(value) for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._values:
            if name not in names:
                near = get_close_matches(name, names, 1)
                raise InvalidArgument(
                    f"{what} of txlog has no option {name}",
                    hint=f"{names[near[0]]}?" if near else ", ".join(known),
                )

    def text(self, name: str, default: T) -> str | T:
        return self._values.get(name.lower(), default)

    def need(self, name: str) -> str:
        found = self._values.get(name.lower())
        if not found:
            raise InvalidArgument(f"the option {name} is missing")
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
