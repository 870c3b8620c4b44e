"""The layout of values on a terminal (spec/cli 4)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

import txlog
from tests.screen import Screen
from tests.terminal import shown
from tests.tiers import graded
from txlog.cli.commands import status
from txlog.cli.line.command import Command
from txlog.cli.output.output import Output
from txlog.cli.terminal import say, tables
from txlog.cli.terminal import screen as terminal

PERSON = tables.Look(human=True, color=False, utc=True, width=0)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("begin_time", "2026-11-20T09:12:04.123Z", "2026-11-20 09:12:04Z"),
        ("watermark", "2026-11-20T09:12:04.123Z", "2026-11-20 09:12:04Z"),
        ("size_bytes", 2048, "2.0 KiB"),
        ("age_ms", 240_000, "4m"),
        ("messages", 1_180_002, "1,180,002"),
        ("pid", 2257, "2257"),
        ("writer_pid", 2257, "2257"),
        ("rapid", 2257, "2,257"),
        # A query names its columns as it likes.
        ("start_time", "soon", "soon"),
        ("at_time", "so\x1b[2Jon", "so\\x1b[2Jon"),
        ("end_time", "0001-01-01T00:00:00+23:00", "0001-01-01T00:00:00+23:00"),
    ],
)
def test_a_value_for_people(name: str, value: object, expected: str) -> None:
    assert tables.readable(name, value, PERSON) == expected


def test_time_and_bytes_of_one_policy_have_labels_of_their_own() -> None:
    row = {"policies": {"retention_ms": 60_000, "retention_bytes": None}}
    labels = [line.rsplit("  ", 1)[0].strip() for line in tables.pairs(row, PERSON).splitlines()]
    assert labels == ["policies retention time", "policies retention size"]


def test_off_a_terminal_a_value_is_as_in_json() -> None:
    plain = tables.Look(human=False, color=False, utc=True, width=0)
    instant = "2026-11-20T09:12:04.123Z"
    assert tables.readable("watermark", instant, plain) == instant
    assert tables.readable("size_bytes", 2048, plain) == "2048"


def screen(width: int, color: bool = False) -> tables.Look:
    """The look of a terminal."""
    return tables.Look(human=True, color=color, utc=True, width=width)


def test_a_cut_line_is_no_wider_and_costs_its_width() -> None:
    """Characters may take two columns, or none; a line may be a message of megabytes."""
    assert tables.cut("abc", screen(3)) == "abc"
    assert tables.cut("abcd", screen(3)) == "ab…"
    assert cell_len(tables.cut("漢字漢字", screen(5))) <= 5
    assert tables.cut("漢字漢字", screen(5)).startswith("漢字")
    assert tables.cut("e\u0301" * 4, screen(4)) == "e\u0301" * 4
    assert tables.cut("[b]x[/b] :+1:", screen(20)) == "[b]x[/b] :+1:"
    assert tables.cut("x" * 5_000_000, screen(10)) == "x" * 9 + "…"  # quadratic, it would not end
    assert tables.cut("x" * 200, tables.Look(human=False, color=False, utc=True, width=0)) == (
        "x" * 200
    )


ROWS: list[dict[str, object]] = [
    {"topic": "orders", "messages": 1200, "note": "[red]:smile:[/red]", "size_bytes": 2048},
    {"topic": "漢字", "messages": 5, "note": "a\x1b[2Jb\nc", "size_bytes": 3},
    {"topic": "e\u0301te\u0301", "messages": None, "note": None, "size_bytes": 30},
]
NAMES = ["topic", "messages", "note", "size_bytes"]


def test_a_table_on_a_terminal_is_aligned() -> None:
    """Numbers to the right, names to the left, whatever their characters; no colour unasked."""
    lines = tables.table(NAMES, ROWS, screen(80)).splitlines()
    assert [line.split() for line in lines] == [
        ["TOPIC", "MESSAGES", "NOTE", "SIZE"],
        ["orders", "1,200", "[red]:smile:[/red]", "2.0", "KiB"],
        ["漢字", "5", "a\\x1b[2Jb\\nc", "3", "B"],
        ["e\u0301te\u0301", "30", "B"],
    ]
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])}  # the sizes end together
    ends = [cell_len(line[: line.index(word) + len(word)]) for line, word in
            zip(lines, ("MESSAGES", "1,200", " 5"), strict=False)]  # fmt: skip
    assert len({*ends}) == 1


def test_a_narrow_terminal_keeps_names_and_numbers() -> None:
    """Text gives way first, then the last columns; nothing is wider than the terminal."""
    for width in range(1, 50):
        drawn = tables.table(NAMES, ROWS, screen(width))
        assert max(map(cell_len, drawn.splitlines())) <= width
        assert len(drawn.splitlines()) == 4
    shorter = tables.table(NAMES, ROWS, screen(40)).splitlines()
    assert "1,200" in shorter[1] and "2.0 KiB" in shorter[1] and "…" in shorter[1]
    least = tables.table(NAMES, ROWS, screen(20)).splitlines()
    assert least[1].split() == ["orders", "1,200", "…"]


def test_colours_are_used_only_on_request() -> None:
    """Colours do not change the text, on a terminal and off it."""
    for width in (80, 0):
        plain = tables.table(NAMES, ROWS, screen(width))
        colored = tables.table(NAMES, ROWS, screen(width, color=True))
        assert "\x1b" not in plain
        assert "\x1b[1mTOPIC" in colored
        assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert "\x1b" not in tables.pairs(ROWS[1], screen(80))
    assert "\x1b[1m" in tables.pairs(ROWS[1], screen(80, color=True))


def test_an_object_on_a_terminal_has_a_line_a_field() -> None:
    lines = tables.pairs(ROWS[0], screen(20)).splitlines()
    names, values = zip(*((line[:10].rstrip(), line[10:]) for line in lines), strict=True)
    assert names == ("topic", "messages", "note", "", "size")  # a long value goes on below
    assert values == ("orders", "1,200", "[red]:smil", "e:[/red]", "2.0 KiB")
    [_, *more] = tables.pairs({"value": "v" * 1000}, screen(20)).splitlines()
    assert len(more) == 9
    assert more[-1].endswith("…")
    assert tables.pairs({}, screen(20)) in ("", "\n")


def test_the_least_important_columns_leave_first_and_backlog_never() -> None:
    """Columns of zeros leave before others, those after their importance, the first never."""
    names = ["topic", "messages", "delayed", "note", "created_time", "backlog", "backlog_bytes"]
    row: dict[str, object] = {
        "topic": "orders", "messages": 12, "delayed": 0, "note": "some words",
        "created_time": "2026-11-20T09:12:04Z", "backlog": 0, "backlog_bytes": 5,
    }  # fmt: skip
    importance = {"backlog": 3, "created_time": 1}

    def left_out(width: int) -> set[str]:
        drawn = tables.table(names, [row], screen(width), importance=importance)
        shown_headings = re.split(r"  +", drawn.splitlines()[0].strip())
        return {name.replace("_", " ").upper() for name in names} - {
            text.replace("SIZE", "BYTES") for text in shown_headings
        }

    assert left_out(100) == set()
    assert left_out(72) == {"DELAYED"}
    assert left_out(60) == {"DELAYED", "CREATED TIME"}
    assert left_out(20) == {text.upper().replace("_", " ") for text in names} - {"TOPIC", "BACKLOG"}


def test_nested_values_are_lines_and_tables() -> None:
    row: dict[str, object] = {
        "topic": "orders",
        "policies": {"ttl_ms": 60_000, "origins": {"ttl": "topic"}},
        "part_list": [{"partition": 0, "size_bytes": 2048}, {"partition": 1, "size_bytes": 3}],
        "empty_list": [],
    }
    text = tables.pairs(row, screen(80))
    lines = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    assert lines == [
        ["topic", "orders"], ["policies ttl", "1m"], ["policies origins ttl", "topic"],
        ["emptys", "-"], [""], ["parts"], ["PARTITION", "SIZE"], ["0", "2.0 KiB"], ["1", "3 B"],
    ]  # fmt: skip
    assert "k=1" in tables.table(["a"], [{"a": {"k": 1}}], screen(80))
    plain = tables.Look(human=False, color=False, utc=True, width=0)
    assert '{"ttl_ms":60000' in tables.pairs(row, plain)  # for programs as it was


def test_states_have_colours() -> None:
    rows: list[dict[str, object]] = [
        {"txn": "0:1", "state": "aborted"},
        {"txn": "0:2", "state": "committed"},
    ]
    drawn = tables.table(["txn", "state"], rows, screen(80, color=True))
    assert "\x1b[31maborted" in drawn
    assert "\x1b[32mcommitted" in drawn
    assert "\x1b" not in tables.table(["txn", "state"], rows, screen(80))


@pytest.mark.parametrize("columns", graded([80, 200], 1))
def test_tables_on_a_real_terminal(tmp_path: Path, columns: int) -> None:
    """Subscriptions with their backlog; a query's own headings; what to do after an empty list."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("orders")
        client.create_subscription("orders", "billing-of-the-evening")
    env = {"PYTHONPATH": str(Path(txlog.__file__).parents[1]), "TERM": "xterm"}

    def screen_of(*words: str) -> str:
        argv = [sys.executable, "-m", "txlog", "-S", path, *words]
        with Screen(argv, env, columns) as drawn:
            assert drawn.end() == 0
            return drawn.text

    assert "BACKLOG" in screen_of("sub", "list")
    assert "{" not in screen_of("topic", "describe", "orders")
    assert "count_star()" in screen_of("query", "SELECT count(*) FROM orders")
    assert f"txlog -S {path} txn list -h" in screen_of("txn", "list").replace("\n", "")


def test_a_table_without_rows_is_its_headings() -> None:
    assert tables.table(NAMES, [], screen(80)).split() == ["TOPIC", "MESSAGES", "NOTE", "SIZE"]


@pytest.mark.deep
def test_a_real_terminal_has_the_width_that_it_says(tmp_path: Path) -> None:
    """COLUMNS sets the width, 0 cuts nothing; NO_COLOR and a dumb terminal have no colours."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("orders-of-a-very-long-name")
    argv = [sys.executable, "-m", "txlog", "-S", path, "topic", "list"]
    environ = {"PYTHONPATH": str(Path(txlog.__file__).parents[1]), "TERM": "xterm"}
    plain = {**environ, "NO_COLOR": "1"}
    wide = shown(argv, {**plain, "COLUMNS": "120"})
    assert "orders-of-a-very-long-name" in wide and "SUBSCRIPTIONS" in wide and "\x1b" not in wide
    narrow = shown(argv, {**plain, "COLUMNS": "30"}).splitlines()
    assert max(map(cell_len, narrow)) <= 30 and "…" in narrow[1]
    assert shown(argv, {**plain, "COLUMNS": "0"}) == wide
    assert "\x1b[1m" in shown(argv, {**environ, "COLUMNS": "120"})
    assert shown(argv, {**environ, "COLUMNS": "120", "TERM": "dumb"}) == wide


def test_the_head_of_status_fits_the_terminal(tmp_path: Path) -> None:
    """spec/cli 4: nothing wraps; the path has a line of its own where it would."""
    path = tmp_path / ("long" * 20)
    txlog.init(str(path))
    with txlog.open(str(path)) as client:
        client.create_topic("orders")
        client.checkpoint()
        answer = client.status()
    at_ms = answer["checkpoint"]["written_time"] or 0
    call: Any = SimpleNamespace(
        output=SimpleNamespace(look=tables.Look(human=True, color=False, utc=True, width=80)),
        now_ms=lambda: at_ms + 240_000,
    )
    lines = status._text(call, answer).splitlines()
    assert lines[0] == str(path)
    assert lines[1].endswith("   checkpoint 1, 4m ago")
    assert "HIDDEN  DELAYED" in lines[3]
    assert max(map(len, lines[1:])) <= 80
    call.output.look = tables.Look(human=False, color=False, utc=True, width=0)
    assert status._text(call, answer).splitlines()[0].endswith("   checkpoint 1")


# --- what rich draws, to the letter -----------------------------------------------------------

WIDE = [["漢字漢字漢字", "x" * 30, "1,200"], ["ab", "y", "5"]]


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (51, ["TOPIC         NOTE                             SIZE",
              "漢字漢字漢字  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx  1,200",
              "ab            y                                   5"]),
        (33, ["TOPIC         NOTE           SIZE",
              "漢字漢字漢字  xxxxxxxxxxx…  1,200",
              "ab            y                 5"]),
        (32, ["TOPIC         NOTE             …", "漢字漢字漢字  xxxxxxxxxxxxxx…  …",
              "ab            y                …"]),
        (23, ["TOPIC         …", "漢字漢字漢字  …", "ab            …"]),
        (12, ["TOPIC      …", "漢字漢字…  …", "ab         …"]),
    ],
)  # fmt: skip
def test_a_table_is_drawn_in_the_columns_there_are(columns: int, lines: list[str]) -> None:
    """Text shrinks to 12 columns, then the last columns go; widths are as seen on the screen."""
    drawn = terminal.table(["TOPIC", "NOTE", "SIZE"], WIDE, [False, False, True], columns, False)
    assert drawn.splitlines() == lines


def test_the_name_of_a_row_stays_whole_up_to_half_of_the_width() -> None:
    rows = [["a-long-topic-name", "x" * 30, "y" * 30]]
    drawn = terminal.table(["TOPIC", "NOTE", "MORE"], rows, [False] * 3, 40, False)
    assert drawn.splitlines()[1] == f"a-long-topic-name  {'x' * 17}…  …"
    assert drawn.splitlines()[0].split() == ["TOPIC", "NOTE", "…"]


def test_headings_stand_alone_and_no_pairs_are_nothing() -> None:
    assert terminal.table(["A", "B"], [], [False, True], 80, False) == "A  B\n"
    assert terminal.pairs([], 80, False) == ""


def test_rich_gets_only_text_near_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of megabytes of wide characters would take minutes."""
    sizes = []

    def cell(text: str) -> Text:
        sizes.append(len(text))
        return Text(text, no_wrap=True, overflow="ellipsis")

    monkeypatch.setattr(terminal, "cell", cell)
    assert terminal.cut("漢" * 100_000, 10) == "漢" * 4 + " …"
    assert terminal.cut("ab", 0) == "…"
    assert max(sizes) <= 4 * 10 + 1


def test_text_is_never_markup_and_the_environment_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rich must not read its variables or detect a notebook, as txlog decides colour and width."""
    plain, data = terminal.rendered("[b]x[/b] :smile: 12", 40, True), "漢" * 50
    assert plain == "[b]x[/b] :smile: 12\n"
    bold = terminal.rendered(Text("x", "bold #ff0000"), 40, True)
    assert bold == "\x1b[1;31mx\x1b[0m\n"  # of 16 colours, which every terminal has
    for name, value in (
        ("NO_COLOR", "1"), ("TERM", "dumb"), ("FORCE_COLOR", "1"), ("COLUMNS", "7"),
        ("TTY_COMPATIBLE", "1"), ("COLORTERM", "truecolor"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
        assert terminal.rendered(Text("x", "bold #ff0000"), 40, True) == bold
        assert terminal.rendered(Text("x", "bold"), 40, False) == "x\n"
        assert {cell_len(line) for line in terminal.rendered(data, 40, False).splitlines()} == {
            40, 20,
        }  # fmt: skip
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert terminal.rendered("x", 40, False) == "x\n"


@pytest.mark.parametrize("form", ["json", "ndjson", "tsv", "csv", "names", "table", "wide", "md"])
@pytest.mark.parametrize("sizes", [[], [0], [1], [2, 0, 3], [0, 1, 1]])
def test_a_listing_in_batches_is_the_listing(
    form: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(Output, "text", lambda self, text: written.append(text))
    rows = [{"topic": "t", "key": f'a"{at},\t', "messages": at} for at in range(sum(sizes))]
    remaining = iter(rows)
    batches = [list(islice(remaining, size)) for size in sizes]
    output = Output(
        form, Command("topic list", "list topics", rows="topics.TopicRow")(print), PERSON
    )
    output.shown, output.fields = ["topic", "key"], ["topic", "key", "messages"]
    output.rows(rows)
    expected = "".join(written)
    written.clear()
    output.listing(batches)
    assert "".join(written) == expected


@pytest.mark.parametrize(
    ("line", "colors"),
    [
        ("topic list --json", {"cyan", "default"}),
        ("consume orders -n 1 -f ndjson", {"cyan", "default"}),
        ("query 'SELECT 1 AS a' --json", {"cyan", "default"}),
        ("topic list --json --no-color", {"default"}),
        ("topic list --json --color never", {"default"}),
    ],
)
def test_keys_of_json_are_in_colour_on_a_terminal(
    line: str, colors: set[str], tmp_path: Path
) -> None:
    """A text with a quote and a colon in it stays one text; a pipe gets no colour in any case."""
    txlog.init(str(tmp_path / "s"))
    with txlog.open(str(tmp_path / "s")) as client:
        client.create_topic("orders")
        client.producer("orders").send(b'say "amount": 3')
    argv = [sys.executable, "-m", "txlog", "-S", str(tmp_path / "s"), *shlex.split(line)]
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm-256color"}
    with Screen(argv, env, columns=2000, lines=5) as shown:
        assert shown.end() == 0, shown.text
        assert shown.colors() == colors
    forced = {**env, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    piped = subprocess.run(argv, env=forced, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in piped
    assert piped.rstrip() == shown.text
    with Screen(argv, {**env, "NO_COLOR": "1"}, columns=2000, lines=5) as plain:
        assert plain.end() == 0
        assert (plain.colors(), plain.text) == ({"default"}, shown.text)


def test_only_keys_of_json_are_in_colour() -> None:
    text = b'{"a":"b\\":","c":[{"d":"e"}],"f":"\\\\"}'
    marked = re.findall(rb"\x1b\[36m(.*?)\x1b\[0m", say.with_colored_keys(text))
    assert marked == [b'"a"', b'"c"', b'"d"', b'"f"']
