"""Owns the sections of a page: a function for each one, figures in, HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final

from txlog.base.settings import DAY_MS, EVENT_TIME_MAX, HOUR_MS, MINUTE_MS
from txlog.page.charts import Bar, Line, Series, bars, columns, legend, lines, tone
from txlog.page.words import (
    Link,
    ago,
    count,
    counted,
    duration,
    instant,
    linked,
    rate,
    safe,
    size,
    spans,
    tick,
)

Figures = Mapping[str, Any]
SPANS_MAX: Final = 400  # columns of a chart; it leaves out older ones, with a note
CHARTS_MAX: Final = 12  # charts of single topics
BARS_MAX: Final = 30
TOPICS_MAX: Final = 100  # topics that the live page shows
LINES_MAX: Final = 8  # producers in a chart of watermarks
_CELL_MAX: Final = 24  # longer text in a table wraps
_FILE_BOUNDS: Final = (64 << 10, 1 << 20, 16 << 20, 128 << 20)
_GOOD, _OTHER, _THIRD, _FOURTH = 1, 3, 2, 4  # tones


def problems(figures: Figures) -> str:
    """The problems of the store, and its hanging transactions."""
    rows = [
        (f"{row['code']}: {row['message']}", row["hint"]) for row in figures["problem_list"]
    ] + [
        (
            f"transaction {row['txn']} has been {row['state']} for {duration(row['age_ms'])}:"
            f" {row['cause']}",
            row["repair"],
        )
        for row in figures["hanging_list"]
    ]
    if not rows:
        return section("Problems", '<p class="good">✓ No problems</p>')
    items = "".join(
        f"<li>{safe(text)}" + (f"<br><span>{safe(hint)}</span>" if hint else "") + "</li>"
        for text, hint in rows
    )
    return section(
        "Problems",
        f'<p class="bad">! {counted(len(rows), "problem")}</p><ul class="problems">{items}</ul>',
    )


# --- rows by time ------------------------------------------------------------------------


def throughput(figures: Figures, nothing: str = "no visible messages yet") -> str:
    """Messages by the time they became visible: in total, and topic by topic.

    nothing: the text without any message
    """
    data = figures["throughput"]
    rows, step_ms = data["row_list"], data["by_ms"]
    title = f"Messages by {spans(step_ms)}"
    if not rows:
        return section(title, empty(nothing))
    last = max(row["from_time"] for row in rows)
    first = max(min(row["from_time"] for row in rows), last - (SPANS_MAX - 1) * step_ms)
    starts = range(first, last + 1, step_ms)
    by_topic: dict[str, dict[int, Figures]] = {}
    for row in rows:
        by_topic.setdefault(row["topic"], {})[row["from_time"]] = row
    totals = {at: sum(of[at]["messages"] for of in by_topic.values() if at in of) for at in starts}
    bytes_at = {  # a history of the live page has no sizes, which cost most to read
        at: ", " + size(sum(of[at]["size_bytes"] for of in by_topic.values() if at in of))
        for at in starts
        if "size_bytes" in rows[0]
    }
    everything = Series(
        "messages",
        _GOOD,
        [totals[at] for at in starts],
        [f"{instant(at)}: {counted(totals[at], 'message')}{bytes_at.get(at, '')}" for at in starts],
    )
    ticks = _ticks(starts, step_ms)
    most = max(totals.values())
    note = (
        "By when they became visible, in UTC."
        f" At most {counted(most, 'message')} in {_one(step_ms)}."
    )
    if data["since"] is not None:
        note += f" Since {instant(data['since'])}."
    if len(starts) == SPANS_MAX:
        note += f" Only the last {counted(SPANS_MAX, 'span')}."
    if data["left_out"]:
        note += f" Unavailable and left out: {', '.join(data['left_out'])}."
    body = columns([everything], ticks, f"{title}: {count(sum(totals.values()))} in total")
    if len(by_topic) > 1:
        sums = {name: sum(row["messages"] for row in of.values()) for name, of in by_topic.items()}
        names = sorted(sums, key=lambda name: (-sums[name], name))
        body += (
            '<div class="many">'
            + "".join(_of_topic(name, by_topic[name], starts, ticks) for name in names[:CHARTS_MAX])
            + "</div>"
        )
        body += left_out(len(names) - CHARTS_MAX, "topic")
    return section(title, body, note)


def _of_topic(
    name: str, of: Mapping[int, Figures], starts: Sequence[int], ticks: Sequence[str]
) -> str:
    values = [of[at]["messages"] if at in of else 0 for at in starts]
    titles = [
        f"{instant(at)}: {counted(value, 'message')}"
        for at, value in zip(starts, values, strict=True)
    ]
    drawn = columns([Series(name, _GOOD, values, titles)], (ticks[0], ticks[-1]), name, small=True)
    return f"<div><h3>{safe(name)}</h3>{drawn}</div>"


def _ticks(starts: Sequence[int], step_ms: int) -> list[str]:
    """Labels for the first, middle and last span; a single one is in the middle."""
    if len(starts) < 3:
        return (
            [tick(at, step_ms) for at in starts]
            if len(starts) == 2
            else ["", tick(starts[0], step_ms), ""]
        )
    return [tick(at, step_ms) for at in (starts[0], starts[len(starts) // 2], starts[-1])]


def _one(step_ms: int) -> str:
    name = spans(step_ms)
    return name if name[0].isdigit() else f"{'an' if name == 'hour' else 'a'} {name}"


# --- transactions ----------------------------------------------------------------------------


def open_transactions(figures: Figures, *, is_live: bool = False) -> str:
    """Unfinished transactions, oldest first: their messages, acknowledgements, time-outs.

    is_live: ids lead to views
    """
    rows = figures["transactions"]["open_list"]
    if not rows:
        return section("Open transactions", empty("none are open"))
    txn_table = table(
        ("transaction", "state", "age", "left", "key", "holds", "messages", "acks", "owner"),
        [
            (
                Link(str(row["txn"]), "transaction", {"id": row["txn"]})
                if is_live
                else str(row["txn"]),
                row["state"],
                duration(row["age_ms"]),
                "" if row["expires_in_ms"] is None else duration(row["expires_in_ms"]),
                row["transaction_key"] or "",
                ", ".join([*row["topic_list"], *row["subscription_list"]]),
                count(row["messages"]),
                count(row["acks"]),
                row["owner"],
            )
            for row in rows
        ],
        (2, 3, 6, 7),
    )
    return section("Open transactions", txn_table)


def transactions(figures: Figures) -> str:
    """The number of transactions in each state, and the durations of ended ones."""
    data = figures["transactions"]
    states = data["state_list"]
    if not states:
        return section("Transactions", empty("none yet"))
    tones = {"committed": _GOOD, "aborted": _OTHER, "open": _THIRD}
    rows = []
    for row in states:
        name = row["state"] + (f" ({row['reason']})" if row["reason"] else "")
        number = row["transactions"]
        part = (tones.get(row["state"], _FOURTH), number, f"{name}: {count(number)}")
        rows.append(Bar(name, [part], count(number)))
    by_state = f"<div><h3>By state</h3>{bars(rows, 'transactions by state')}</div>"
    body = f'<div class="pair">{by_state}{_durations(data["duration_list"])}</div>'
    return section("Transactions", body, "Since the store was created.")


def _durations(rows: Sequence[Figures]) -> str:
    used = [at for at, row in enumerate(rows) if row["committed"] or row["aborted"]]
    if not used:
        return ""
    rows_drawn: list[Bar] = []
    bound_before: int | None = rows[used[0] - 1]["up_to_ms"] if used[0] else None
    for row in rows[used[0] : used[-1] + 1]:
        bound = row["up_to_ms"]
        name = f"≤ {duration(bound)}" if bound is not None else f"> {duration(bound_before or 0)}"
        bound_before = bound
        parts = [
            (shade, row[state], f"{name}: {counted(row[state], 'transaction')} {state}")
            for state, shade in (("committed", _GOOD), ("aborted", _OTHER))
        ]
        rows_drawn.append(Bar(name, parts, count(row["committed"] + row["aborted"])))
    key = legend([Series("committed", _GOOD, (), ()), Series("aborted", _OTHER, (), ())])
    drawn = bars(rows_drawn, "transactions by duration")
    return f"<div><h3>From begin to end</h3>{drawn}{key}</div>"


# --- subscriptions and time ------------------------------------------------------------------


def backlog(figures: Figures, *, is_live: bool = False) -> str:
    """The unacknowledged messages of each subscription; is_live: names lead to views."""
    rows = sorted(figures["subscription_list"], key=lambda row: -row["backlog"])
    if not rows:
        return section("Backlog by subscription", empty("no subscriptions"))
    rows_drawn = []
    for row in rows[:BARS_MAX]:
        ready, waits = row["backlog_no_delayed"], row["delayed"]
        name = f"{row['topic']} / {row['subscription']}"
        parts = [
            (_GOOD, ready, f"{name}: {counted(ready, 'message')} ready"),
            (_FOURTH, waits, f"{name}: {counted(waits, 'message')} not due yet"),
        ]
        consumers = row["consumers"]
        live = f", {counted(consumers, 'consumer')}" if consumers else ""
        if row["backlog"] and row["oldest_age_ms"] is not None:
            live += f", oldest {lag(row)[2]}"
        title = _subscription_of(row, name) if is_live else name
        rows_drawn.append(Bar(title, parts, count(row["backlog"]) + live))
    key = legend([Series("ready", _GOOD, (), ()), Series("not due yet", _FOURTH, (), ())])
    body = bars(rows_drawn, "backlog by subscription") + key
    body += left_out(len(rows) - BARS_MAX, "subscription")
    body += _behind(
        "figures",
        (
            *("topic", "subscription", "type", *LAG),
            *("not due", "pending", "consumers", "last acknowledgement"),
        ),
        [
            (
                row["topic"],
                row["subscription"],
                row["type"],
                *lag(row),
                count(row["delayed"]),
                count(row["pending_acks"]),
                count(row["consumers"]),
                instant(row["last_ack_time"]),
            )
            for row in rows
        ],
        (3, 4, 5, 6, 7, 8, 9, 10, 11),
    )
    return section("Backlog by subscription", body)


LAG: Final = ("backlog", "size", "oldest", "in/s", "out/s", "caught up in")


def lag(row: Figures) -> tuple[str, ...]:
    """How far a subscription or a partition of it is behind, as the cells of LAG.

    The rates are averages of the last minute; an empty cell is unknown, or has no meaning.
    """
    oldest, catch_up = row["oldest_age_ms"], row["catch_up_ms"]
    about = "~" if row["oldest_estimated"] else ""
    return (
        count(row["backlog"]),
        size(row["backlog_bytes"]),
        "" if oldest is None else about + duration(oldest),
        *("" if row[name] is None else rate(row[name]) for name in ("rate_in_1m", "rate_out_1m")),
        "" if catch_up is None else duration(catch_up),
    )


def _subscription_of(row: Figures, text: str) -> Link:
    where = {"topic": row["topic"], "subscription": row["subscription"]}
    return Link(text, "subscription", where)


def delayed(figures: Figures) -> str:
    """The times at which delayed messages are due."""
    title = "Delayed messages"
    by_topic: dict[str, list[Figures]] = {}
    for row in figures["delayed_list"]:
        by_topic.setdefault(row["topic"], []).append(row)
    if not by_topic:
        return section(title, empty("no delayed messages"))
    sums = {name: sum(row["messages"] for row in rows) for name, rows in by_topic.items()}
    names = sorted(sums, key=lambda name: (-sums[name], name))
    charts = []
    for name in names[:CHARTS_MAX]:
        rows = by_topic[name]
        labels = _within([row["due_within_ms"] for row in rows])
        values = [row["messages"] for row in rows]
        titles = [
            f"{word}: {counted(value, 'message')}"
            for word, value in zip(labels, values, strict=True)
        ]
        drawn = columns(
            [Series(name, _FOURTH, values, titles)],
            labels,
            f"{name}: delayed messages",
            small=True,
            ordinal=True,
        )
        charts.append(f"<div><h3>{safe(name)}: {count(sums[name])}</h3>{drawn}</div>")
    body = f'<div class="many">{"".join(charts)}</div>{left_out(len(names) - CHARTS_MAX, "topic")}'
    return section(title, body, "By how soon they are due, from the time of this report.")


def _within(bounds_ms: Sequence[int | None]) -> list[str]:
    return ["later" if bound is None else duration(bound) for bound in bounds_ms]


def watermarks(figures: Figures) -> str:
    """The watermarks that producers asserted: a chart for each topic, and a table."""
    title = "Watermarks"
    rows = figures["watermark_list"]
    if not rows:
        return section(title, empty("no producer has asserted a time"))
    several = {row["topic"] for row in figures["topic_list"] if row["partitions"] > 1}
    body = "".join(
        _watermark(row, figures["time"], is_several=row["topic"] in several)
        for row in rows[:CHARTS_MAX]
    )
    rows_shown = table(
        ("topic", "status", "watermark", "behind now", "held by"),
        [
            (
                row["topic"],
                row["status"],
                _event(row["watermark"]),
                "" if row["lag_ms"] is None else duration(row["lag_ms"]),
                row["holder"] or "",
            )
            for row in rows
        ],
        (3,),
    )
    note = "Event time asserted by producers, over the time they asserted it, in UTC."
    return section(title, body + left_out(len(rows) - CHARTS_MAX, "topic") + rows_shown, note)


def _watermark(row: Figures, now_ms: int, *, is_several: bool) -> str:
    """The chart of a topic, or (is_several) of the partition that decides its watermark."""
    moves = [
        move for move in row["move_list"] if move["idle"] or move["event_time"] < EVENT_TIME_MAX
    ]
    times = [move["event_time"] for move in moves if move["event_time"] is not None]
    if not times:
        return ""
    latest = {move["producer"]: move["time"] for move in moves}
    names = sorted(latest, key=lambda name: (name != row["holder"], -latest[name], name))
    drawn_names = names[:LINES_MAX]
    end = max(now_ms, *latest.values())
    y_range, bottom = _range(times), _range([*(move["time"] for move in moves), end])
    drawn = []
    for at, name in enumerate(drawn_names):
        steps = [move for move in moves if move["producer"] == name]
        points = [(move["time"], None if move["idle"] else move["event_time"]) for move in steps]
        if not steps[-1]["idle"]:
            points.append((end, steps[-1]["event_time"]))
        label = name or "unnamed"
        title = (
            f"{label}: {_event(steps[-1]['event_time']) or 'idle'} at {instant(steps[-1]['time'])}"
        )
        drawn.append(Line(label, tone(at), points, title))
    up, across = y_range[1] - y_range[0], bottom[1] - bottom[0]
    scale = [_tick(at, up) for at in (y_range[1], (y_range[0] + y_range[1]) // 2, y_range[0])]
    ticks = [_tick(at, across) for at in (bottom[0], (bottom[0] + bottom[1]) // 2, bottom[1])]
    chart = lines(drawn, y_range, bottom, scale, ticks, f"watermarks of {row['topic']}")
    of = f"{row['topic']}, partition {row['partition']}" if is_several else row["topic"]
    return f"<h3>{safe(of)}</h3>{chart}{left_out(len(names) - LINES_MAX, 'producer')}"


def _range(values: Iterable[int]) -> tuple[int, int]:
    """Lowest and highest, never equal."""
    numbers = [*values]
    least, most = min(numbers), max(numbers)
    return (least, most) if most > least else (least - 1000, most + 1000)


def _tick(at: int, span_ms: int) -> str:
    """A time on an axis of this length."""
    step = 1000 if span_ms < 12 * HOUR_MS else MINUTE_MS if span_ms < 4 * DAY_MS else DAY_MS
    return tick(at, step)


def _event(ms: int | None) -> str:
    return "the end" if ms == EVENT_TIME_MAX else instant(ms)


# --- files -----------------------------------------------------------------------------------


def segments(figures: Figures) -> str:
    """The bytes by topic, and the sizes of files."""
    rows = figures["segment_list"]
    files = [row for row in rows if row.get("file")]
    journal = figures["journal"]["size_bytes"]
    kinds = {"sealed": _GOOD, "open ledgers": _THIRD, "sidecar": _OTHER, "large messages": _FOURTH}
    by_topic: dict[str, dict[str, int]] = {}
    for row in files:
        of = by_topic.setdefault(row["topic"], dict.fromkeys(kinds, 0))
        of[_kind(row)] += row["bytes"]
    names = sorted(by_topic, key=lambda name: (-sum(by_topic[name].values()), name))
    rows_drawn = [
        Bar(
            name,
            [
                (kinds[kind], value, f"{name}, {kind}: {size(value)}")
                for kind, value in by_topic[name].items()
            ],
            size(sum(by_topic[name].values())),
        )
        for name in names[:BARS_MAX]
    ]
    rows_drawn.append(Bar("journal", [(8, journal, f"journal: {size(journal)}")], size(journal)))
    used = [kind for kind in kinds if any(of[kind] for of in by_topic.values())]
    key = legend([Series(kind, kinds[kind], (), ()) for kind in used], always=bool(used))
    by_place = f"<div><h3>By topic</h3>{bars(rows_drawn, 'bytes by topic')}{key}</div>"
    by_size = f"<div><h3>Files by size</h3>{_sizes(files)}</div>" if files else ""
    return section(
        "Segments",
        f'<div class="pair">{by_place}{by_size}</div>'
        + left_out(len(names) - BARS_MAX, "topic")
        + _ledgers(rows),
        f"{counted(len(files), 'file')}, {size(sum(row['bytes'] for row in files))};"
        " rows that no checkpoint has moved yet are in the journal.",
    )


def _kind(row: Figures) -> str:
    if row["form"] == "chunks":
        return "large messages"
    if row["role"] == "sidecar":
        return "sidecar"
    return "sealed" if row["form"] == "sealed" else "open ledgers"


def _sizes(files: Sequence[Figures]) -> str:
    numbers = [0] * (len(_FILE_BOUNDS) + 1)
    for row in files:
        numbers[sum(row["bytes"] >= bound for bound in _FILE_BOUNDS)] += 1
    labels = [f"< {_round(bound)}" for bound in _FILE_BOUNDS] + ["more"]
    titles = [
        f"{word}: {counted(number, 'file')}" for word, number in zip(labels, numbers, strict=True)
    ]
    return columns([Series("files", _GOOD, numbers, titles)], labels, "files by size", ordinal=True)


def _round(value: int) -> str:
    return size(value).replace(".0 ", " ")


def _ledgers(rows: Sequence[Figures]) -> str:
    sums: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        sum_row = sums.setdefault((row["topic"], row["role"]), [0, 0, 0, 0])
        sum_row[0] += 1 if row.get("file") else 0
        sum_row[1] += row["rows"] if row.get("file") else 0
        sum_row[2] += 0 if row.get("file") else row["rows"]
        sum_row[3] += row["bytes"] if row.get("file") else 0
    if not sums:
        return ""
    return _behind(
        "figures",
        ("topic", "role", "files", "rows in files", "rows in the journal", "size"),
        [
            (*key, *map(count, sum_row[:3]), size(sum_row[3]))
            for key, sum_row in sorted(sums.items())
        ],
        (2, 3, 4, 5),
    )


def topics(figures: Figures, rates: Mapping[str, float] | None = None) -> str:
    """A table with a row for each topic.

    rates: messages a second by topic, for the live page, whose user can click a name to open it.
           Of very many topics only the active ones are rows, in the order of their names, so that
           a row does not move while the user reads it.
    """
    rows = figures["topic_list"]
    if not rows:
        return section("Topics", empty("no topics yet"))
    heads = ["backlog", "messages", "hidden", "delayed", "open txns", "size", "last message"]
    chosen, body = rows, ""
    if rates is not None:
        heads.insert(0, "messages/s")

        def life(row: Figures) -> tuple[object, ...]:
            return rates.get(row["topic"], 0.0), row["backlog"], row["last_publish_time"] or 0

        chosen = sorted(nlargest(TOPICS_MAX, rows, key=life), key=itemgetter("topic"))
        body = left_out(len(rows) - len(chosen), "topic")
    head = '<th scope="col">topic</th>' + "".join(
        f'<th scope="col" class="n">{word}</th>' for word in heads
    )
    lines = "".join(_topic(row, figures["time"], rates) for row in chosen)
    return section(
        "Topics",
        f'<div class="scroll" tabindex="0"><table class="topics"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>{body}",
        "Hidden: messages of open transactions. Size: payload.",
    )


def _topic(row: Figures, now_ms: int, rates: Mapping[str, float] | None) -> str:
    last = row["last_publish_time"]
    cells = [
        (count(row["backlog"]), row["backlog"]),
        (count(row["messages"]), row["messages"]),
        (count(row["hidden_messages"]), row["hidden_messages"]),
        (count(row["delayed"]), row["delayed"]),
        (count(row["open_txns"]), row["open_txns"]),
        (size(row["size_bytes"]), row["size_bytes"]),
        (instant(last) if rates is None else ago(now_ms, last), True),
    ]
    name = safe(row["topic"])
    opener = name
    if rates is not None:
        pace = rates.get(row["topic"], 0.0)
        cells.insert(0, (rate(pace), pace))
        opener = linked(Link(row["topic"], "topic", {"topic": row["topic"]}))
    parts = f" <small>{row['partitions']} partitions</small>" if row["partitions"] > 1 else ""
    return (
        f'<tr><th scope="row">{opener}{parts}</th>'
        + "".join(
            f'<td class="n{"" if value else " zero"}">{safe(text)}</td>' for text, value in cells
        )
        + "</tr>"
    )


# --- pieces ----------------------------------------------------------------------------------


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """The figures on top: each value with its label."""
    items = "".join(
        f"<li><b>{safe(value)}</b><span>{safe(name)}</span></li>" for value, name in figures
    )
    return f'<ul class="tiles">{items}</ul>\n'


def section(title: str, body: str, note: str = "") -> str:
    """A section: its heading, a note, and its content."""
    remark = f'<p class="note">{safe(note)}</p>' if note else ""
    return f"<section><h2>{safe(title)}</h2>{remark}{body}</section>\n"


def empty(text: str) -> str:
    """The content of a section without data."""
    return f'<p class="note">{safe(text)}</p>'


def pairs(rows: Sequence[tuple[str, str | Link]]) -> str:
    """Names and their values, which are escaped here."""
    items = "".join(f"<dt>{safe(name)}</dt><dd>{linked(value)}</dd>" for name, value in rows)
    return f'<dl class="pairs">{items}</dl>'


def left_out(number: int, noun: str) -> str:
    """A note with the number of rows not shown; empty for none."""
    return f'<p class="note">and {counted(number, f"more {noun}")}</p>' if number > 0 else ""


def _behind(
    summary: str, headings: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int]
) -> str:
    content = table(headings, rows, numeric)
    return f"<details><summary>{safe(summary)}</summary>{content}</details>"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Link]], numeric: Sequence[int] = ()
) -> str:
    """A table of texts, which are escaped here; numeric: the columns to align on the right."""

    def cells(kind: str, texts: Sequence[str | Link]) -> str:
        out = []
        for at, text in enumerate(texts):
            length = len(text.text if isinstance(text, Link) else text)
            name = "n" if at in numeric else "w" if length > _CELL_MAX else ""
            attribute = f' class="{name}"' if name else ""
            out.append(f"<{kind}{attribute}>{linked(text)}</{kind}>")
        return "".join(out)

    head = f"<thead><tr>{cells('th', headings)}</tr></thead>"
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'
