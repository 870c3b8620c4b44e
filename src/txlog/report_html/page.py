"""Owns the document of a report: its head, the figures on top, the sections in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from txlog.report_html import sections
from txlog.report_html.style import STYLE
from txlog.report_html.words import count, counted, duration, instant, safe, size

# The page may use its own style, and nothing else of anywhere.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_SECTIONS: Final = (
    sections.problems, sections.throughput, sections.transactions, sections.backlog,
    sections.delayed, sections.watermarks, sections.segments, sections.topics,
)  # fmt: skip


def page(figures: Mapping[str, Any]) -> str:
    """The figures of a store as one document of HTML: no script, nothing to be loaded."""
    body = "".join(section(figures) for section in _SECTIONS)
    return _document(figures, f"{_head(figures)}{_tiles(figures)}{body}")


def page_of_damaged(figures: Mapping[str, Any]) -> str:
    """The same of what can be said of a store that cannot be looked at."""
    store = figures["store"]
    said = (
        f"As of {instant(figures['time'])} UTC this store cannot be looked at. Read were"
        f" {counted(figures['files'], 'file')}, {size(store['size_bytes'])}, with"
        f" {counted(figures['frames'], 'frame')} of the journal. What follows is what is wrong;"
        " txlog admin repair says what can be made good."
    )
    head = f'<header><h1>{safe(store["path"])}</h1><p class="sub">{safe(said)}</p></header>\n'
    return _document(figures, head + sections.problems(figures))


def _document(figures: Mapping[str, Any], body: str) -> str:
    path = figures["store"]["path"]
    title = safe(f"{PurePath(path).name or path}: txlog report")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{body}{_foot(figures)}</main>\n</body>\n</html>\n"
    )


def _head(figures: Mapping[str, Any]) -> str:
    store, journal = figures["store"], figures["journal"]
    written = figures["checkpoint"]["written_time"]
    checkpoint = "none yet"
    if written is not None:
        checkpoint = f"{duration(max(0, figures['time'] - written))} ago"
    said = (
        f"As of {instant(figures['time'])} UTC, LSN {count(figures['lsn'])}."
        f" Durable to LSN {count(journal['durable_lsn'])}, last checkpoint: {checkpoint}."
    )
    return f'<header><h1>{safe(store["path"])}</h1><p class="sub">{safe(said)}</p></header>\n'


def _tiles(figures: Mapping[str, Any]) -> str:
    topics, txns = figures["topic_list"], figures["txns"]
    ended = {"committed": 0, "aborted": 0}
    for row in figures["transactions"]["state_list"]:
        if row["state"] in ended:
            ended[row["state"]] += row["transactions"]
    unfinished = txns["open"] + txns["committing"] + txns["aborting"]
    tiles = [
        (count(sum(row["messages"] for row in topics)), "messages"),
        (size(figures["store"]["size_bytes"]), "on disk"),
        (count(ended["committed"]), "commits"),
        (count(ended["aborted"]), "aborts"),
        (count(unfinished), "unfinished"),
        (count(sum(row["backlog"] for row in topics)), "backlog"),
        (count(sum(row["delayed"] for row in topics)), "delayed"),
    ]
    items = "".join(f"<li><b>{safe(value)}</b><span>{safe(name)}</span></li>"
                    for value, name in tiles)  # fmt: skip
    return f'<ul class="tiles">{items}</ul>\n'


def _foot(figures: Mapping[str, Any]) -> str:
    store = figures["store"]
    if store["uuid"] is None:
        return f"<footer>txlog {safe(figures['txlog'])}</footer>\n"
    return (
        f"<footer>txlog {safe(figures['txlog'])}, store {safe(store['uuid'])}, format"
        f" {safe(store['format'])}, made {safe(instant(store['created_time']))} UTC</footer>\n"
    )
