"""Owns the document of a report: its style, head, the figures on top, and the sections in order.

It is readable in light and dark mode, on a phone, on a desktop and on paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from txlog.page import sections
from txlog.page.words import count, counted, duration, instant, safe, size

STYLE: Final = """
:root{color-scheme:light dark;--page:#f6f6f3;--card:#fff;--ink:#14140f;--muted:#5c5b55;
--line:#e2e1da;--good:#0b7a0b;--bad:#c22f2f;--t1:#2a78d6;--t2:#14936a;--t3:#d08700;--t4:#7a5bd0;
--t5:#e0567f;--t6:#1f9fb8;--t7:#9a6a3a;--t8:#7d7c74}
@media (prefers-color-scheme:dark){:root{--page:#111110;--card:#1c1c1a;--ink:#f4f3ee;
--muted:#b3b2a9;--line:#34342f;--good:#5fc65f;--bad:#f08080;--t1:#5a9ff0;--t2:#3fbd90;--t3:#e0a030;
--t4:#a78bf0;--t5:#f080a0;--t6:#55c2d8;--t7:#c79a6a;--t8:#9a998f}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px 40px}
h1{font-size:1.5rem;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:0 0 2px}
h3{font-size:.86rem;font-weight:600;margin:14px 0 4px;overflow-wrap:anywhere}
p{margin:0}
.sub,.note,footer{color:var(--muted);font-size:.86rem;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:10px;
margin:18px 0 14px;padding:0;list-style:none}
.tiles li,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tiles li{padding:10px 14px}
.tiles b{display:block;font-size:1.35rem;line-height:1.25;font-weight:650;white-space:nowrap}
.tiles span{color:var(--muted);font-size:.82rem}
section{padding:14px 16px 16px;margin:0 0 14px;break-inside:avoid}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:0 28px}
.pair>div{min-width:0}
.many{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:0 24px}
.plot{--gutter:3.2em;--high:190px;display:grid;grid-template-columns:var(--gutter) minmax(0,1fr);
margin-top:12px;font-size:.76rem;color:var(--muted);font-variant-numeric:tabular-nums}
.plot.small{--high:84px}
.plot.wide{--gutter:7.6em}
.plot>svg{width:100%;height:var(--high);display:block;overflow:visible}
.scale{height:var(--high);display:flex;flex-direction:column;justify-content:space-between;
text-align:right;padding-right:7px}
.scale span{line-height:0;white-space:nowrap}
.ticks span{white-space:nowrap}
.ticks{grid-column:2;display:flex;justify-content:space-between;padding-top:5px;gap:6px}
.ticks.ordinal span{flex:1 1 0;min-width:0;text-align:center;line-height:1.2;white-space:normal}
.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke;fill:none}
.line{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.bars{list-style:none;margin:12px 0 0;padding:0}
.bars li{display:grid;grid-template-columns:minmax(7em,26%) minmax(0,1fr) minmax(6em,auto);
gap:4px 12px;align-items:center;padding:3px 0}
.bars svg{width:100%;height:14px;display:block;background:var(--line);border-radius:3px}
.bars .name{overflow-wrap:anywhere}
.bars .value{text-align:right;font-variant-numeric:tabular-nums}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:8px 0 0;padding:0;
font-size:.82rem;color:var(--muted)}
.legend li{overflow-wrap:anywhere}
.chip{width:10px;height:10px;margin-right:6px}
.scroll{overflow-x:auto;margin-top:8px}
table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums;min-width:100%}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--line);
vertical-align:top;white-space:nowrap}
th{color:var(--muted);font-weight:600}
.n{text-align:right}
.topics th[scope=row]{font-weight:500;color:var(--ink)}
.topics td,.topics th{vertical-align:middle}
.topics th[scope=row]{min-width:9.5em;white-space:normal}
.topics small{color:var(--muted);font-size:.78rem;margin-left:4px}
.w{white-space:normal;overflow-wrap:anywhere;min-width:16em}
details{margin-top:12px;font-size:.86rem}
summary{cursor:pointer;color:var(--muted)}
.problems{list-style:none;margin:8px 0 0;padding:0}
.problems li{padding:6px 0 6px 12px;border-left:3px solid var(--bad);margin-bottom:6px;
overflow-wrap:anywhere}
.problems span{color:var(--muted)}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;
overflow-wrap:anywhere}
@media (max-width:560px){main{padding:16px 10px 30px}section{padding:12px 12px 14px}
.tiles{grid-template-columns:1fr 1fr}
.bars li{grid-template-columns:minmax(0,1fr) auto}.bars svg{grid-row:2;grid-column:1/3}}
@media (max-width:420px){.ticks.spread span:nth-child(2):nth-last-child(2){display:none}}
@media print{:root{color-scheme:light;--page:#fff;--card:#fff;--ink:#000;--muted:#444;--line:#bbb;
--good:#060;--bad:#900;--t1:#2a78d6;--t2:#14936a;--t3:#d08700;--t4:#7a5bd0;--t5:#e0567f;
--t6:#1f9fb8;--t7:#9a6a3a;--t8:#7d7c74}
html{font-size:12px}body{font-size:1rem}main{max-width:none;padding:0}
svg,.bars svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}.scroll{overflow:visible}
details::details-content{content-visibility:visible;height:auto}}
""" + "".join(f".t{n}{{fill:var(--t{n})}}.s{n}{{stroke:var(--t{n})}}\n" for n in range(1, 9))


# The page may use its own style, and load nothing.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_SECTIONS: Final = (
    sections.problems, sections.throughput, sections.open_transactions, sections.transactions,
    sections.backlog, sections.delayed, sections.watermarks, sections.segments, sections.topics,
)  # fmt: skip


# --- the document ----------------------------------------------------------------------------


def page(figures: Mapping[str, Any]) -> str:
    """The figures of a store as one HTML document: no script, nothing to load."""
    body = "".join(section(figures) for section in _SECTIONS)
    return _document(figures, f"{_head(figures)}{_tiles(figures)}{body}")


def page_of_damaged(figures: Mapping[str, Any]) -> str:
    """The document for a store that cannot be opened."""
    store = figures["store"]
    intro = (
        f"As of {instant(figures['time'])} UTC this store cannot be opened. It contains"
        f" {counted(figures['files'], 'file')}, {size(store['size_bytes'])}, with"
        f" {counted(figures['frames'], 'frame')} of the journal. The problems are listed below;"
        " txlog admin repair shows which ones it can repair."
    )
    head = f'<header><h1>{safe(store["path"])}</h1><p class="sub">{safe(intro)}</p></header>\n'
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
    intro = (
        f"As of {instant(figures['time'])} UTC, LSN {count(figures['lsn'])}."
        f" Durable to LSN {count(journal['durable_lsn'])}, last checkpoint: {checkpoint}."
    )
    return f'<header><h1>{safe(store["path"])}</h1><p class="sub">{safe(intro)}</p></header>\n'


def _tiles(figures: Mapping[str, Any]) -> str:
    topics, txns = figures["topic_list"], figures["txns"]
    ended = {"committed": 0, "aborted": 0}
    for row in figures["transactions"]["state_list"]:
        if row["state"] in ended:
            ended[row["state"]] += row["transactions"]
    unfinished = txns["open"] + txns["prepared"] + txns["committing"] + txns["aborting"]
    tiles = [
        (count(sum(row["messages"] for row in topics)), "messages"),
        (size(figures["store"]["size_bytes"]), "on disk"),
        (count(ended["committed"]), "commits"),
        (count(ended["aborted"]), "aborts"),
        (count(unfinished), "unfinished"),
        (count(sum(row["backlog"] for row in topics)), "backlog"),
        (count(sum(row["delayed"] for row in topics)), "delayed"),
    ]
    return sections.tiles(tiles)


def _foot(figures: Mapping[str, Any]) -> str:
    store = figures["store"]
    if store["uuid"] is None:
        return f"<footer>txlog {safe(figures['txlog'])}</footer>\n"
    return (
        f"<footer>txlog {safe(figures['txlog'])}, store {safe(store['uuid'])}, format"
        f" {safe(store['format'])}, created {safe(instant(store['created_time']))} UTC</footer>\n"
    )
