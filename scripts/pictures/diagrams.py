"""Owns the diagrams of the documents: the directory of a store, and the life of a transaction.

A box is a rectangle with lines of text, the first one bold. The colours follow the reader's light
or dark scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import svg

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
LINE = 17
STYLE = """
text{font:13px system-ui,Helvetica,Arial,sans-serif;fill:#1f2328}.bold{font-weight:600}
.code{font-family:ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace}
.faint{fill:#59636e}.box{fill:#f6f8fa;stroke:#8c959f}.good{fill:#dafbe1;stroke:#1a7f37}
.bad{fill:#ffebe9;stroke:#cf222e}.main{fill:#ddf4ff;stroke:#0969da}
.arrow{stroke:#59636e;fill:none;stroke-width:1.5}.head{fill:#59636e}.ground{fill:#ffffff}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.faint{fill:#9da7b3}.box{fill:#161b22;stroke:#6e7681}
.good{fill:#12261e;stroke:#3fb950}.bad{fill:#25171c;stroke:#f85149}.main{fill:#121d2f;stroke:#4493f8}
.arrow{stroke:#9da7b3}.head{fill:#9da7b3}.ground{fill:#0d1117}
}
"""


def write() -> list[Path]:
    """Write both diagrams."""
    FOLDER.mkdir(exist_ok=True)
    files = []
    for name, drawing in (("store", store()), ("transaction", transaction())):
        file = FOLDER / f"{name}.svg"
        file.write_text(f"{drawing}\n", encoding="utf-8")
        files.append(file)
    return files


def store() -> svg.SVG:
    """Who opens a store, and what is in its directory."""
    users = (
        ("a shell", "txlog produce, consume, query"),
        ("a Python program", "import txlog"),
        ("txlog run", "functions, exactly once"),
        ("txlog serve (optional)", "clients of Pulsar, HTTP"),
    )
    parts: list[svg.Element] = []
    for number, lines in enumerate(users):
        top = 50 + number * 76
        parts += _box(10, top, 222, lines)
        parts += _arrow((232, top + 26), (290, top + 26))
    files = (
        ("journal/", "the only file that is appended to: one flush commits all of a transaction"),
        ("topics/…/orders/partition=0/", "messages: Arrow files, Parquet files once they are full"),
        (
            "topics/…/partition=0/_txnlog/",
            "messages of transactions; readers see the committed ones",
        ),
        ("state/  system/", "subscriptions, transactions, keys, as of the last checkpoint"),
        ("manifest/", "the list of all these files at that checkpoint"),
        ("consumers/  lock", "locks: they show which processes live, and who may append"),
    )
    parts.append(svg.Rect(x=290, y=34, width=520, height=326, rx=8, class_=["main"]))
    parts.append(_text(306, 58, "shop/  – one directory is the store", "bold"))
    for number, (name, meaning) in enumerate(files):
        top = 84 + number * 46
        parts += [_text(306, top, name, "code bold"), _text(320, top + LINE, meaning, "faint")]
    for number, engine in enumerate(("DuckDB", "Spark")):
        top = 130 + number * 76
        parts += _box(862, top, 108, (engine, "SQL, in place"))
        parts += _arrow((810, top + 26), (862, top + 26))
    parts.append(_text(10, 22, "Processes open it themselves, many at once", "faint"))
    return _drawing(980, 370, "the directory of a store and the programs that use it", parts)


def transaction() -> svg.SVG:
    """The states of a transaction, and what others see of it."""
    parts: list[svg.Element] = []
    parts += _box(
        20, 92, 280,
        (
            "OPEN", "send to any topics,", "acknowledge on any subscriptions;",
            "its messages are hidden from readers",
        ),
        "main",
    )  # fmt: skip
    parts += _box(
        600, 24, 340,
        ("COMMITTED", "every message is visible, every", "acknowledgement counts: at one moment"),
        "good",
    )  # fmt: skip
    parts += _box(
        600, 186, 340,
        ("ABORTED", "no consumer gets its messages;", "what it acknowledged is delivered again"),
        "bad",
    )  # fmt: skip
    parts += _arrow((300, 118), (600, 60))
    parts += _arrow((300, 152), (600, 220))
    parts += [_text(338, 62, "commit", "bold"), _text(338, 79, "one frame, flushed", "faint")]
    notes = (
        "abort",
        "time-out",
        "its key connects elsewhere (fenced)",
        "power fails before the commit",
    )
    parts.append(_text(338, 196, notes[0], "bold"))
    parts += [
        _text(338, 196 + LINE * number, note, "faint")
        for number, note in enumerate(notes[1:], start=1)
    ]
    parts.append(
        _text(
            20,
            284,
            "A killed process leaves its transaction open; one of the four ends it.",
        )
    )
    return _drawing(960, 300, "the life of a transaction: open, then committed or aborted", parts)


def _drawing(width: int, height: int, title: str, parts: list[svg.Element]) -> svg.SVG:
    triangle = svg.Path(d=[svg.M(0, 0), svg.L(8, 4), svg.L(0, 8), svg.Z()], class_=["head"])
    head = svg.Marker(
        id="head", viewBox=svg.ViewBoxSpec(0, 0, 8, 8), refX=7, refY=4,
        markerWidth=7, markerHeight=7, orient="auto",
        elements=[triangle],
    )  # fmt: skip
    ground = svg.Rect(width=width, height=height, rx=8, class_=["ground"])
    return svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, width, height),
        width=width,
        height=height,
        elements=[svg.Title(text=title), svg.Style(text=STYLE), head, ground, *parts],
    )


def _box(x: int, y: int, width: int, lines: Sequence[str], kind: str = "box") -> list[svg.Element]:
    rectangle = svg.Rect(x=x, y=y, width=width, height=LINE * len(lines) + 18, rx=6, class_=[kind])
    texts = [
        _text(x + 12, y + 21 + LINE * number, line, "bold" if number == 0 else "faint")
        for number, line in enumerate(lines)
    ]
    return [rectangle, *texts]


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> list[svg.Element]:
    line = svg.Line(
        x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=["arrow"], marker_end="url(#head)"
    )
    return [line]


def _text(x: int, y: int, text: str, kind: str = "") -> svg.Text:
    return svg.Text(x=x, y=y, text=text, class_=kind.split() or None)
