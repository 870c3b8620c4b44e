"""No figure of the shape rises: the tree is compared with a commit that is a day older.

`rises.txt` names the figures that may rise for once, a line each: a date, the figure, a colon and
the reason. A line counts for two days from its date, so none becomes a bound that stays.
"""

from __future__ import annotations

import re
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest

from scripts import rooms, shape, trips

RISES = Path(__file__).with_name("rises.txt")
DAYS = 2
LINE = re.compile(r"(\d{4}-\d{2}-\d{2}) ([^:]+): (\S.{19,})")


def excused(text: str, today: date) -> set[str]:
    """The figures that may rise today. Raises AssertionError for a line of another form."""
    figures = set()
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, f"not `DATE FIGURE: REASON`: {line}"
        if today - date.fromisoformat(match[1]) < timedelta(days=DAYS):
            figures.add(match[2])
    return figures


def today() -> date:
    """The date of HEAD, so that a commit passes or fails for good."""
    words = ["git", "-C", str(shape.ROOT), "log", "-1", "--format=%cs"]
    return date.fromisoformat(
        subprocess.run(words, capture_output=True, check=True).stdout.decode().strip()
    )


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of a commit that is more than a day older."""
    try:
        commit = shape.base()
    except subprocess.CalledProcessError:
        pytest.skip("this is no checkout, so there is no earlier commit")
    if not commit:
        pytest.skip("the history has no commit that is a day older")
    return shape.unpack(commit, tmp_path_factory.mktemp("before"))


def check(before: dict[str, float], now: dict[str, float]) -> None:
    """Fail for a figure that rose without a reason."""
    rises = shape.risen(before, now)
    for name in excused(RISES.read_text(encoding="utf-8"), today()):
        rises.pop(name, None)
    assert not rises, f"lower these, or say why in {RISES.name}: {rises}"


def test_no_figure_of_the_shape_rises(before: Path) -> None:
    check(shape.Tree(before).figures(), shape.Tree(shape.ROOT).figures())


def test_no_trip_gets_longer(before: Path) -> None:
    now = trips.counts()
    assert all(count > 10 for count in now.values()), now
    check(trips.counts(before), now)


def test_the_diagram_of_the_rooms_is_drawn_from_the_imports() -> None:
    """Kills: an arrow that ARCHITECTURE.md does not show."""
    text = rooms.ARCHITECTURE.read_text(encoding="utf-8")
    assert re.search(r"^\d+  cli +-> ", text, re.MULTILINE)
    assert text == rooms.architecture(), "run python -m scripts.rooms"


def test_a_diagram_shows_floors_and_the_arrows_that_no_other_arrow_implies() -> None:
    arrows = {
        "cli": {"jobs", "api", "base"},
        "jobs": {"cli", "api"},
        "api": {"base"},
        "base": set(),
    }
    assert rooms.diagram(arrows).splitlines() == [
        " 3  cli   -> jobs  api",
        "    jobs  -> cli  api",
        " 2  api   -> base",
        " 1  base",
    ]


def test_a_rise_is_found_unless_a_line_gives_the_reason() -> None:
    before, now = {"modules": 10.0, "% of x": 1.0}, {"modules": 11.0, "% of x": 1.04}
    assert shape.risen(before, now) == {"modules": "10 -> 11"}
    line = "2026-01-02 modules: the new format needs a module of its own"
    assert excused(line, date(2026, 1, 3)) == {"modules"}
    assert excused(line, date(2026, 1, 4)) == set()
    with pytest.raises(AssertionError, match="not `DATE FIGURE"):
        excused("2026-01-02 modules: short", date(2026, 1, 2))


def test_figures_count_a_small_tree(tmp_path: Path) -> None:
    """A small tree with one of each."""
    files = {
        "src/txlog/engine/store.py": '"""Who is told of what."""\ndef _hidden() -> None: ...\n',
        "src/txlog/client.py": "from txlog.engine import store\nfound = store._hidden()\n",
        "tests/test_store.py": "import txlog.client\ntxlog.client._call()\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    figures = shape.Tree(tmp_path).figures()
    assert figures == {
        "entries in src/txlog": 2,
        "modules": 2,
        "lines in src": 4,
        "modules with one importer": 1,
        "engine modules imported from outside": 1,
        "private names across packages": 1,
        "lines of tests with private names": 1,
        "% of sentences with the idiom in src": 100.0,
        "% of sentences with the idiom in tests": 0.0,
        "% of sentences with the idiom in documents": 0.0,
        "% of locals with the idiom": 100.0,
    }
