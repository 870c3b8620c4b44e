"""The report of a store: its figures agree with other answers, its page is safe and whole."""

from __future__ import annotations

import html.parser
import json
import re
import xml.etree.ElementTree as Tree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.report_kit import HOURS, KEY, LONG, START_MS, full_store
from txlog.base.settings import DAY_MS, EVENT_TIME_MAX, HOUR_MS, MINUTE_MS
from txlog.cli.main import main
from txlog.clock import ManualClock
from txlog.errors import InvalidArgument
from txlog.page import charts, sections, words
from txlog.page.figures import COLUMNS_MAX, figures, step_ms, throughput
from txlog.page.report import page

pytestmark = pytest.mark.usefixtures("quick_disk")
Figures = Mapping[str, Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ManualClock]:
    path = str(tmp_path_factory.mktemp("report") / "full")
    return path, full_store(path)


@pytest.fixture(scope="module")
def found(store: tuple[str, ManualClock]) -> Figures:
    path, clock = store
    with txlog.open(path, clock=clock) as client:
        return figures(client)


# --- figures ---------------------------------------------------------------------------------


def test_messages_by_hour_count_by_visible_time(found: Figures) -> None:
    """Kills: time of publication, a span that is shifted, messages of an open transaction."""
    figures_by_hour = found["throughput"]
    assert (figures_by_hour["by_ms"], figures_by_hour["since"], figures_by_hour["left_out"]) == (
        HOUR_MS,
        None,
        [],
    )
    counted: dict[str, dict[int, int]] = {}
    for row in figures_by_hour["row_list"]:
        counted.setdefault(row["topic"], {})[row["from_time"]] = row["messages"]
    starts = [START_MS + hour * HOUR_MS for hour in range(HOURS)]
    expected = {start: 2 + hour % 5 for hour, start in enumerate(starts)}
    end = START_MS + HOURS * HOUR_MS
    assert counted["orders"] == {**expected, end: 5}  # delayed messages count as visible
    assert counted["invoices"] == dict.fromkeys(starts, 1)
    assert counted["refunds"] == {start: 1 for at, start in enumerate(starts) if at % 7 == 0}
    assert LONG not in counted


def test_figures_agree_with_the_other_answers(
    store: tuple[str, ManualClock], found: Figures
) -> None:
    path, clock = store
    with txlog.open(path, clock=clock) as client:
        status = client.status()
        assert [{**row} for row in found["topic_list"]] == [
            {**row, "last_publish_time": listed["last_publish_time"]}
            for row, listed in zip(status["topic_list"], client.topics(), strict=True)
        ]
        for name in ("store", "journal", "checkpoint", "txns", "problem_list"):
            assert found[name] == status[name]
        assert found["subscription_list"] == client.lag()
        assert found["segment_list"] == client.segments()
        assert found["delayed_list"] == [
            {"topic": "orders", **row} for row in client.topic("orders").histogram()
        ]
        assert found["transactions"]["open_list"] == client.transactions()
        watermark_list = client.topic("orders").watermarks.show(lateness=False)
        (row,) = found["watermark_list"]
        assert {name: row[name] for name in ("status", "watermark", "lag_ms", "holder")} == {
            name: watermark_list[name] for name in ("status", "watermark", "lag_ms", "holder")
        }
        for name in ("orders", "invoices", "refunds"):
            counts = {
                bucket["from_time"]: bucket
                for bucket in client.topic(name).stats(since_ms=START_MS)
            }
            for span in found["throughput"]["row_list"]:
                if span["topic"] == name:
                    assert counts.pop(span["from_time"]).items() >= span.items()
            assert not [bucket for bucket in counts.values() if bucket["messages"]]
        history = client.topic("orders").watermarks.history(partition=0)
        assert [(move["time"], move["event_time"]) for move in row["move_list"]] == [
            (move["publish_time"], move["event_time"])
            for move in history
            if move["marker_type"] != "snapshot"
        ]
    sums: dict[str, int] = {}
    for row in found["throughput"]["row_list"]:
        sums[row["topic"]] = sums.get(row["topic"], 0) + row["messages"]
    assert sums == {
        row["topic"]: row["messages"] for row in status["topic_list"] if row["messages"]
    }


def test_transactions_are_counted_by_state_and_duration(found: Figures) -> None:
    """Kills: a cumulative histogram, or one with two states mixed up."""
    aborted = (HOURS + 6) // 7
    assert found["transactions"]["state_list"] == [
        {"state": "committed", "reason": None, "transactions": HOURS},
        {"state": "aborted", "reason": "user", "transactions": aborted},
        {"state": "open", "reason": None, "transactions": 1},
    ]
    durations = found["transactions"]["duration_list"]
    used = [row for row in durations if row["committed"] or row["aborted"]]
    assert used == [
        {"up_to_ms": 10, "committed": 0, "aborted": aborted},
        {"up_to_ms": 50, "committed": HOURS, "aborted": 0},
    ]
    assert durations[-1]["up_to_ms"] is None
    assert [row["up_to_ms"] for row in durations[:-1]] == sorted(
        row["up_to_ms"] for row in durations[:-1]
    )


def test_throughput_ends_at_the_moment_of_the_overview(tmp_path: Path) -> None:
    """Kills: a chart that counts messages newer than the tables of the same page."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t")
        client.producer("t").send(b"1")
        lsn = client.overview()["lsn"]
        client.producer("t").send(b"2")
        with client.transaction() as txn:
            client.producer("t").send(b"3", txn=txn)
        rows_before = throughput(client, lsn)[0]["row_list"]
        rows_after = throughput(client, client.overview()["lsn"])[0]["row_list"]
    assert sum(row["messages"] for row in rows_before) == 1
    assert sum(row["messages"] for row in rows_after) == 3


def test_a_message_counts_when_its_transaction_was_committed(tmp_path: Path) -> None:
    """Kills: a count by the time at which the message was sent."""
    path, clock = str(tmp_path / "store"), ManualClock(START_MS)
    txlog.init(path, clock=clock, durability="os")
    with txlog.open(path, clock=clock) as client:
        client.create_topic("t")
        with client.transaction(timeout_ms=3 * HOUR_MS) as txn:
            client.producer("t").send(b"x", txn=txn)
            clock.advance(2 * HOUR_MS)
        rows = figures(client, by_ms=HOUR_MS)["throughput"]["row_list"]
    assert [row["from_time"] for row in rows] == [START_MS + 2 * HOUR_MS]


def test_a_time_that_falls_moves_no_watermark(tmp_path: Path) -> None:
    """A falling time is stored without effect, so the producer's line does not fall."""
    path, clock = str(tmp_path / "store"), ManualClock(START_MS)
    txlog.init(path, clock=clock, durability="os")
    with txlog.open(path, clock=clock) as client:
        client.create_topic("t")
        for time in (5000, 3000, 7000):
            client.topic("t").watermarks.set(time, "p")
        (row,) = client.overview()["watermark_list"]
    assert [move["event_time"] for move in row["move_list"]] == [5000, 7000]


def test_a_time_to_begin_and_a_span_are_kept(store: tuple[str, ManualClock]) -> None:
    path, clock = store
    since = START_MS + 24 * HOUR_MS
    with txlog.open(path, clock=clock) as client:
        throughput_figures = figures(client, since, DAY_MS)["throughput"]
        with pytest.raises(InvalidArgument):
            figures(client, by_ms=999)
    invoices = [row for row in throughput_figures["row_list"] if row["topic"] == "invoices"]
    assert invoices == [
        {
            "topic": "invoices",
            "from_time": since,
            "messages": HOURS - 24,
            "size_bytes": 7 * (HOURS - 24),
        }
    ]


def test_unavailable_partition_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        for name in ("here", "away"):
            client.create_topic(name)
            client.producer(name).send(b"x")
        client.admin.set_offline("away", 0)
        report = figures(client)
    assert report["throughput"]["left_out"] == ["away/0"]
    assert [row["topic"] for row in report["throughput"]["row_list"]] == ["here"]
    drawn = page(report)
    assert "Unavailable and left out: away/0." in drawn
    assert "1 problem<" in drawn
    assert "txlog admin online away/0" in drawn


def test_damage_is_a_problem_and_hides_no_other_figures(tmp_path: Path) -> None:
    """Users need a report most when a file is damaged: here a real file has one wrong byte."""
    path = str(tmp_path / "store")
    clock = full_store(path, hours=12)
    folder = tmp_path / "store/topics/public/default/orders/partition=0"
    file = min(folder.glob("ledger-*.parquet"))
    data = bytearray(file.read_bytes())
    data[200] ^= 1
    file.write_bytes(data)
    with txlog.open(path, clock=clock, read_only=True) as client:
        report = figures(client)
    (wrong,) = report["problem_list"]
    assert wrong["code"] == "corruption"
    assert file.name in wrong["message"]
    assert report["throughput"]["left_out"] == ["orders"]
    assert report["watermark_list"] == []
    counted = {row["topic"] for row in report["throughput"]["row_list"]}
    assert counted == {"invoices", "refunds"}
    assert report["throughput"]["by_ms"] == HOUR_MS
    text = page(report)
    assert "1 problem<" in text
    assert "Unavailable and left out: orders." in text


def test_unreadable_store_has_a_page_of_its_problems(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Damage of the state, or of txlog.toml: exit code 6, as for verify and status, and a page."""
    path, out = tmp_path / "store", tmp_path / "out.html"
    clock = full_store(str(path), hours=1)
    with txlog.open(str(path), clock=clock) as client:
        client.checkpoint()
    for file in (max((path / "state").iterdir()), path / "txlog.toml"):
        data = bytearray(file.read_bytes())
        data[60] ^= 1
        file.write_bytes(data)
        for more in ([], ["--json"]):
            assert main(["report", "-S", str(path), str(out), "--force", *more]) == 6
        output, errors = capfd.readouterr()
        answer = json.loads(output)
        assert (answer["topics"], answer["problems"] > 0) == (None, True)
        assert "the store cannot be read, " in errors
        text = out.read_text()
        assert "Problems" in text
        assert file.name in text
        assert ("store " in text.rpartition("<footer>")[2]) == (file.name != "txlog.toml")


@pytest.mark.parametrize(
    ("span_ms", "step"),
    [(0, 1000), (119_000, 1000), (120_000, 10_000), (5 * HOUR_MS, 10 * MINUTE_MS),
     (6 * HOUR_MS, HOUR_MS), (10 * DAY_MS - 1, HOUR_MS), (10 * DAY_MS, 6 * HOUR_MS),
     (365 * DAY_MS, 7 * DAY_MS)],
)  # fmt: skip
def test_a_span_is_an_hour_unless_that_shows_nothing(span_ms: int, step: int) -> None:
    assert step_ms(START_MS, START_MS + span_ms) == step
    assert span_ms < COLUMNS_MAX * step
    assert step_ms(None, None) == HOUR_MS


# --- the page --------------------------------------------------------------------------------


class Parsed(html.parser.HTMLParser):
    """Parses a page; collects all tags and attributes, and the tags still open."""

    VOID = frozenset(("meta", "br", "rect", "path"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID or tag == "rect" or (tag == "path" and "line" in str(attrs)):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(found: Figures) -> None:
    """Kills: a tag that is not closed, a script, a font, an image, a link to anywhere."""
    text = page(found)
    parsed = Parsed(text)
    assert parsed.open == []
    assert not {"script", "link", "img", "iframe", "a", "form", "object"} & parsed.tags
    assert not {"src", "href", "srcset", "action"} & parsed.attributes
    assert not [name for name in parsed.attributes if name.startswith("on")]
    assert not re.search(r"https?:|//|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text


def test_names_of_a_store_are_text(found: Figures) -> None:
    """Kills: a key that becomes markup, or a character that turns the line around."""
    text = page(found)
    assert "<script" not in text
    assert "&lt;script&gt;alert(&quot;k&quot;)&lt;/script&gt;\\u202eyek" in text
    assert "\u202e" not in text
    assert words.safe('"<a\n\x1b') == "&quot;&lt;a\\n\\x1b"


def test_every_mark_lies_in_its_chart_and_has_a_title(found: Figures) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page(found), re.DOTALL)
    marks = 0
    for drawing in drawings:
        root = Tree.fromstring(drawing)
        _, _, wide, high = map(float, root.attrib["viewBox"].split())
        for rect in root.findall("rect"):
            if root.attrib.get("class") == "chip":
                continue
            marks += 1
            x, y = float(rect.attrib["x"]), float(rect.attrib["y"])
            assert 0 <= x <= x + float(rect.attrib["width"]) <= wide + 2.01
            assert -0.01 <= y <= y + float(rect.attrib["height"]) <= high + 0.01
            title = rect.find("title")
            assert title is not None and title.text
    # a column for each hour and topic, and one for all topics; bars, delays, file sizes
    assert marks > 3 * HOURS


def test_a_column_is_as_high_as_its_number() -> None:
    """Kills: overlapping series, a scale that does not fit the marks."""
    first = charts.Series("one", 1, [1, 5], ["a", "b"])
    second = charts.Series("two", 2, [1, 0], ["c", "d"])
    drawn = charts.columns([first, second], ["x", "y"], "test")
    rects = re.findall(
        r'class="t(\d)" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn
    )
    assert rects == [("1", "80", "20"), ("2", "60", "20"), ("1", "0", "100")]
    assert re.findall(r"<span>(.*?)</span>", drawn) == ["5", "", "0", "x", "y"]


def test_a_watermark_is_level_until_the_next_and_ends_when_idle() -> None:
    """Kills: a slope between two watermarks, a line that continues after the producer is idle."""
    points = [(0.0, 0.0), (50.0, 10.0), (80.0, None), (90.0, 5.0), (100.0, 5.0)]
    drawn = charts.lines(
        [charts.Line("p", 1, points, "p")], (0, 10), (0, 100), ["10", "0"], ["a", "b"], "test"
    )
    assert re.findall(r'class="line s1" d="(.*?)"', drawn) == ["M0 100H500V0H800M900 50H1000V50"]


def test_a_store_with_nothing_has_a_page(tmp_path: Path) -> None:
    path = str(tmp_path / "empty")
    txlog.init(path)
    with txlog.open(path, read_only=True) as client:
        text = page(figures(client))
    assert Parsed(text).open == []
    for said in ("No problems", "no visible messages yet", "no topics", "none yet"):
        assert said in text


def test_a_producer_that_is_done_does_not_stretch_the_chart() -> None:
    """A finished producer asserts the end of time; an axis up to there would show nothing."""
    moves = [
        {"time": START_MS + at, "producer": "p", "event_time": event, "idle": False}
        for at, event in ((0, START_MS), (1000, START_MS + 500), (2000, EVENT_TIME_MAX))
    ]
    row: Mapping[str, Any] = {
        "topic": "t",
        "status": "active",
        "watermark": EVENT_TIME_MAX,
        "lag_ms": None,
        "holder": "p",
        "partition": 0,
        "move_list": moves,
    }
    report = {"time": START_MS + 3000, "watermark_list": [row]}
    text = sections.watermarks({**report, "topic_list": [{"topic": "t", "partitions": 1}]})
    assert "<h3>t</h3>" in text
    of_several = sections.watermarks({**report, "topic_list": [{"topic": "t", "partitions": 2}]})
    assert "<h3>t, partition 0</h3>" in of_several
    assert "the end" in text
    assert "later" not in text
    assert words.instant(START_MS) == "2026-11-20 00:00:00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.size(0), "0 B"),
        (words.size(1023), "1023 B"),
        (words.size(1 << 20), "1.0 MiB"),
        (words.brief(999), "999"),
        (words.brief(1_234_000), "1.23M"),
        (words.duration(999), "999 ms"),
        (words.duration(90_000), "1.5 min"),
        (words.duration(-HOUR_MS), "−1 h"),
        (words.spans(HOUR_MS), "hour"),
        (words.spans(10_000), "10 seconds"),
        (words.spans(1500), "1500 ms"),
        (words.tick(START_MS, 1000), "00:00:00"),
        (words.tick(START_MS, HOUR_MS), "20 Nov 00:00"),
        (words.tick(EVENT_TIME_MAX, HOUR_MS), "later"),
        (words.instant(None), ""),
    ],
)
def test_values_read_well(text: str, expected: str) -> None:
    assert text == expected


# --- the command -----------------------------------------------------------------------------


def test_the_command_writes_one_file_and_replaces_none(
    store: tuple[str, ManualClock], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, clock = store
    now = ["--now", str(clock.now().wall_ms)]
    target = tmp_path / "shop.html"
    target.write_text("mine")
    assert main(["report", "-S", path, str(target), *now, "--json"]) == 4
    assert json.loads(capfd.readouterr().err)["error"]["code"] == "TXL-401"
    assert target.read_text() == "mine"
    assert main(["report", "-S", path, "--out", str(target), "--force", *now, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    data = target.read_bytes()
    assert answer == {
        "path": str(target),
        "topics": 4,
        "messages": answer["messages"],
        "problems": 0,
        "size_bytes": len(data),
    }
    assert sorted(file.name for file in tmp_path.iterdir()) == ["shop.html"]
    assert main(["report", "-S", path, "-", "--read-only", *now]) == 0
    assert capfd.readouterr().out.encode() == data


def test_a_file_that_comes_meanwhile_is_not_replaced(
    store: tuple[str, ManualClock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "shop.html"

    def slow(*arguments: Any) -> Figures:
        target.write_text("theirs")
        return figures(*arguments)

    monkeypatch.setattr("txlog.page.figures.figures", slow)
    assert main(["report", "-S", store[0], str(target), "-q"]) == 4
    assert target.read_text() == "theirs"
    assert [file.name for file in tmp_path.iterdir()] == ["shop.html"]


@pytest.mark.parametrize(
    ("args", "code"),
    [(["a.html", "--out", "b.html"], 2), (["-", "--json"], 2), (["--by", "10ms"], 2),
     (["--out", ""], 2)],
)  # fmt: skip
def test_command_refuses_impossible_arguments(
    args: list[str],
    code: int,
    store: tuple[str, ManualClock],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "-S", store[0], *args]) == code
    assert capfd.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_key_of_the_kit_is_hostile() -> None:
    """The tests above need a key that would break a page without escapes."""
    assert "<script>" in KEY and "\u202e" in KEY
