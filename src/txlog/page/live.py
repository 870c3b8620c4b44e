"""Owns the live page: its figures, its sections, its document, style and script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from txlog.client.client import Client
from txlog.errors import TxlogError
from txlog.page import sections
from txlog.page.charts import Series, columns
from txlog.page.report import STYLE
from txlog.page.sections import empty, left_out, section, table
from txlog.page.words import Link, ago, count, counted, duration, instant, linked, rate, safe, size

Figures = Mapping[str, Any]
ROWS_MAX: Final = 100
HISTORY: Final = 60  # samples that the chart of rates shows
_STATIC: Final = Path(__file__).parent / "static"


@cache
def asset(name: str) -> str:
    """The text of page.html, page.css or page.js; the style begins with a report's style."""
    text = (_STATIC / name).read_text(encoding="utf-8")
    return STYLE + text if name.endswith(".css") else text


class Pace(NamedTuple):
    """A sample of the rate: its time, and messages a second in total and by topic."""

    time_ms: int
    rate: float
    by_topic: Mapping[str, float]


def figures_of(client: Client) -> dict[str, Any]:
    """The figures of the live page: the fields of Client.overview, and hanging_list and key_list.

    They are of one moment, except keys and hanging transactions.
    """
    hanging = client.admin.find_hanging()
    keys = client.admin.transaction_keys()
    return {**client.overview(), "hanging_list": hanging, "key_list": keys}


def drawn(figures: Figures, paces: Sequence[Pace]) -> dict[str, str]:
    """All sections by the id of their element in the page."""
    return {
        "tiles": tiles(figures, paces),
        "problems": problems(figures),
        "rates": rates(paces),
        "topics": sections.topics(figures, paces[-1].by_topic if paces else {}),
        "transactions": sections.open_transactions(figures, is_live=True)
        + sections.transactions(figures),
        "keys": keys(figures),
        "backlog": sections.backlog(figures, is_live=True),
        "delayed": sections.delayed(figures),
        "watermarks": sections.watermarks(figures),
        "segments": sections.segments(figures),
    }


def tiles(figures: Figures, paces: Sequence[Pace]) -> str:
    """The figures on top."""
    rows, txns = figures["topic_list"], figures["txns"]
    unfinished = txns["open"] + txns["prepared"] + txns["committing"] + txns["aborting"]
    values = [
        (rate(paces[-1].rate) if paces else "0", "messages/s"),
        (count(sum(row["messages"] for row in rows)), "messages"),
        (count(sum(row["backlog"] for row in rows)), "backlog"),
        (count(unfinished), "open transactions"),
        (count(sum(row["delayed"] for row in rows)), "delayed"),
        (size(figures["store"]["size_bytes"]), "on disk"),
    ]
    return sections.tiles(values)


def problems(figures: Figures) -> str:
    """The section of problems; empty without any, because the bar on top then shows `ok`."""
    is_well = not figures["problem_list"] and not figures["hanging_list"]
    return "" if is_well else sections.problems(figures)


def rates(paces: Sequence[Pace]) -> str:
    """The section with messages a second, sample by sample, the newest on the right."""
    recent = paces[-HISTORY:]
    if not recent:
        return section("Messages per second", empty("measuring"))
    values = [0.0] * (HISTORY - len(recent)) + [pace.rate for pace in recent]
    titles = [""] * (HISTORY - len(recent)) + [
        f"{instant(pace.time_ms)}: {rate(pace.rate)} messages/s" for pace in recent
    ]
    span = duration(max(0, recent[-1].time_ms - recent[0].time_ms))
    ticks = ["", "", "now"] if len(recent) < HISTORY else [f"{span} ago", "", "now"]
    chart = columns(
        [Series("messages/s", 1, values, titles)], ticks, "messages per second", small=True
    )
    return section("Messages per second", chart)


_SPANS: Final = {"hour": "1 hour", "day": "24 hours", "week": "7 days", "quarter": "90 days"}


def history(
    topic: str | None,
    span: str,
    rows: Sequence[Sequence[int]],
    by_ms: int,
    since_ms: int,
    now_ms: int,
) -> str:
    """The section with messages by time, also from before the page was opened.

    topic: None: of all topics
    rows:  (begin of a column, messages)
    """
    name = topic or "messages"
    ends = {at - at % by_ms: 0 for at in (since_ms, now_ms)} if rows else {}
    points = {**ends, **{row[0]: row[1] for row in rows}}
    throughput: Figures = {
        "by_ms": by_ms,
        "since": None,
        "left_out": (),
        "row_list": [
            {"topic": name, "from_time": at, "messages": number} for at, number in points.items()
        ],
    }
    nothing = f"no message in the last {_SPANS[span]}"
    drawn = sections.throughput({"throughput": throughput}, nothing)
    return _with_spans(topic, span, drawn)


def history_failed(topic: str | None, span: str, error: TxlogError) -> str:
    """The section of a history that could not be read."""
    return _with_spans(topic, span, section("Messages by time", empty(error.message)))


def _with_spans(topic: str | None, span: str, drawn: str) -> str:
    """A section of history, with links to the other spans."""
    view, about = ("", {}) if topic is None else ("topic", {"topic": topic})
    links = " ".join(
        f"<b>{safe(text)}</b>"
        if word == span
        else linked(Link(text, view, {**about, "span": word}))
        for word, text in _SPANS.items()
    )
    return drawn.replace("</section>", f'<p class="spans">{links}</p></section>')


def keys(figures: Figures) -> str:
    """The section of transaction keys, and the transaction that each has open."""
    rows = sorted(figures["key_list"], key=lambda row: -row["last_used_time"])
    if not rows:
        return section("Transaction keys", empty("no keys"))
    key_table = table(
        ("key", "owner", "epoch", "open transaction", "holds", "last used"),
        [
            (
                row["transaction_key"],
                row["owner"],
                count(row["epoch"]),
                Link(str(row["txn"]), "transaction", {"id": row["txn"]})
                if row["txn"] is not None and row["txn_state"] == "open"
                else "",
                ", ".join(row["topic_list"]),
                ago(figures["time"], row["last_used_time"]),
            )
            for row in rows[:ROWS_MAX]
        ],
        (2, 5),
    )
    note = "A new holder of a key aborts the open transaction of the previous one."
    return section("Transaction keys", key_table + left_out(len(rows) - ROWS_MAX, "key"), note)


def head(figures: Figures) -> dict[str, str]:
    """The texts of the bar on top, by the id of their element."""
    problems = len(figures["problem_list"]) + len(figures["hanging_list"])
    return {
        "path": figures["store"]["path"],
        "health": "ok" if not problems else counted(problems, "problem"),
        "said": (
            f"LSN {count(figures['lsn'])} · {instant(figures['time'])} UTC · checkpoint"
            f" {ago(figures['time'], figures['checkpoint']['written_time']) or 'none yet'}"
        ),
    }
