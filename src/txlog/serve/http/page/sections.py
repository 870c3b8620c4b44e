"""Owns what the live page shows: a function for each section, figures in, HTML out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final, NamedTuple

from txlog.report_html import sections as report
from txlog.report_html.charts import Series, columns
from txlog.report_html.sections import empty, left_out, section, table
from txlog.report_html.words import brief, count, counted, duration, instant, safe, size

Figures = Mapping[str, Any]
ROWS_MAX: Final = 100
HISTORY: Final = 60  # looks that the chart of rates shows
_SECOND_MS: Final = 1000


class Pace(NamedTuple):
    """How fast messages come: when it was looked, how many a second, and by topic."""

    time_ms: int
    rate: float
    by_topic: Mapping[str, float]


def drawn(figures: Figures, paces: Sequence[Pace]) -> dict[str, str]:
    """All sections by the id of their place in the page."""
    return {
        "tiles": tiles(figures, paces),
        "problems": problems(figures),
        "rates": rates(paces),
        "topics": topics(figures, paces),
        "transactions": transactions(figures),
        "keys": keys(figures),
        "backlog": report.backlog(figures),
        "delayed": report.delayed(figures),
        "watermarks": report.watermarks(figures),
        "segments": report.segments(figures),
    }


def tiles(figures: Figures, paces: Sequence[Pace]) -> str:
    """The figures on top."""
    rows, txns = figures["topic_list"], figures["txns"]
    unfinished = txns["open"] + txns["committing"] + txns["aborting"]
    found = [
        (_rate(paces[-1].rate) if paces else "0", "messages/s"),
        (count(sum(row["messages"] for row in rows)), "messages"),
        (count(sum(row["backlog"] for row in rows)), "backlog"),
        (count(unfinished), "open transactions"),
        (count(sum(row["delayed"] for row in rows)), "delayed"),
        (size(figures["store"]["size_bytes"]), "on disk"),
    ]
    items = "".join(
        f"<li><b>{safe(value)}</b><span>{safe(name)}</span></li>" for value, name in found
    )
    return f'<ul class="tiles">{items}</ul>'


def problems(figures: Figures) -> str:
    """What is wrong; nothing if nothing is: the bar on top says so."""
    is_well = not figures["problem_list"] and not figures["hanging_list"]
    return "" if is_well else report.problems(figures)


def rates(paces: Sequence[Pace]) -> str:
    """Messages a second, look by look, the newest on the right."""
    shown = paces[-HISTORY:]
    if not shown:
        return section("Messages per second", empty("measuring"))
    values = [0.0] * (HISTORY - len(shown)) + [one.rate for one in shown]
    titles = [""] * (HISTORY - len(shown)) + [
        f"{instant(one.time_ms)}: {_rate(one.rate)} messages/s" for one in shown
    ]
    span = duration(max(0, shown[-1].time_ms - shown[0].time_ms))
    ticks = ["", "", "now"] if len(shown) < HISTORY else [f"{span} ago", "", "now"]
    chart = columns(
        [Series("messages/s", 1, values, titles)], ticks, "messages per second", small=True
    )
    return section("Messages per second", chart)


def topics(figures: Figures, paces: Sequence[Pace]) -> str:
    """A line for each topic; its name opens it in the browser of messages.

    Of very many those where something happens, and all in order of their names: a line that moves
    while somebody reads it is no use.
    """
    rows = figures["topic_list"]
    if not rows:
        return section("Topics", empty("no topics yet"))
    pace = paces[-1].by_topic if paces else {}

    def life(row: Figures) -> tuple[object, ...]:
        return pace.get(row["topic"], 0.0), row["backlog"], row["last_publish_time"] or 0

    lines = []
    for row in sorted(nlargest(ROWS_MAX, rows, key=life), key=itemgetter("topic")):
        rate = pace.get(row["topic"], 0.0)
        cells = [
            (_rate(rate), rate == 0),
            (count(row["backlog"]), row["backlog"] == 0),
            (count(row["messages"]), row["messages"] == 0),
            (count(row["delayed"]), row["delayed"] == 0),
            (count(row["open_txns"]), row["open_txns"] == 0),
            (size(row["size_bytes"]), row["size_bytes"] == 0),
            (_ago(figures["time"], row["last_publish_time"]), False),
        ]
        name = safe(row["topic"])
        parts = f" <small>{row['partitions']} partitions</small>" if row["partitions"] > 1 else ""
        lines.append(
            f'<tr><th scope="row"><button type="button" class="link" data-topic="{name}">{name}'
            f"</button>{parts}</th>"
            + "".join(
                f'<td class="n{" zero" if is_zero else ""}">{safe(text)}</td>'
                for text, is_zero in cells
            )
            + "</tr>"
        )
    heads = ("messages/s", "backlog", "messages", "delayed", "open txns", "size", "last message")
    head = '<th scope="col">topic</th>' + "".join(
        f'<th scope="col" class="n">{word}</th>' for word in heads
    )
    body = (
        f'<div class="scroll" tabindex="0"><table class="topics"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
    return section("Topics", body + left_out(len(rows) - ROWS_MAX, "topic"))


def transactions(figures: Figures) -> str:
    """Open transactions, what they hold, and when they time out; then how all went."""
    rows = figures["transactions"]["open_list"]
    shown = empty("none are open")
    if rows:
        shown = table(
            ("transaction", "state", "age", "left", "key", "holds", "messages", "acks", "owner"),
            [
                (
                    str(row["txn"]),
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
    return section("Open transactions", shown) + report.transactions(
        {**figures, "transactions": {**figures["transactions"], "open_list": []}}
    )


def keys(figures: Figures) -> str:
    """Transaction keys, and the transaction that each has open."""
    rows = sorted(figures["key_list"], key=lambda row: -row["last_used_time"])
    if not rows:
        return section("Transaction keys", empty("no keys"))
    shown = table(
        ("key", "owner", "epoch", "open transaction", "holds", "last used"),
        [
            (
                row["transaction_key"],
                row["owner"],
                count(row["epoch"]),
                str(row["txn"] or "") if row["txn_state"] == "open" else "",
                ", ".join(row["topic_list"]),
                _ago(figures["time"], row["last_used_time"]),
            )
            for row in rows[:ROWS_MAX]
        ],
        (2, 5),
    )
    said = "A new holder of a key ends what the one before left open."
    return section("Transaction keys", shown + left_out(len(rows) - ROWS_MAX, "key"), said)


def head(figures: Figures) -> dict[str, str]:
    """What the bar on top says."""
    problems = len(figures["problem_list"]) + len(figures["hanging_list"])
    return {
        "path": figures["store"]["path"],
        "health": "ok" if not problems else counted(problems, "problem"),
        "said": (
            f"LSN {count(figures['lsn'])} · {instant(figures['time'])} UTC · checkpoint"
            f" {_ago(figures['time'], figures['checkpoint']['written_time']) or 'none yet'}"
        ),
    }


def _rate(value: float) -> str:
    if value >= 10_000:
        return brief(value)
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _ago(now_ms: int, then_ms: int | None) -> str:
    """How long ago, without tenths: it is written anew each second."""
    if then_ms is None:
        return ""
    past = max(0, now_ms - then_ms)
    if past < _SECOND_MS:
        return "now"
    return f"{duration(past - past % _SECOND_MS)} ago"
