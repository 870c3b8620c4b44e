"""The live page in a real Chromium, wide and narrow, light and dark, by keyboard.

`chromium-headless-shell` of Debian, which .ci/run installs; without it these tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from tests.report_kit import KEY, full_store
from tests.serve.chromium import BROWSERS, Page

pytestmark = [pytest.mark.needs(*BROWSERS), pytest.mark.deep]
LOOKED = "document.documentElement.dataset.looks"
RESULT = "document.querySelector('#result table, #result .bad')"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("page") / "store")
    full_store(path)
    return path


@pytest.fixture(scope="module")
def url(store: str) -> Iterator[str]:
    """A server of its own process."""
    command = ["-m", "txlog", "serve", "-S", store, "--pulsar", "off", "--http", "127.0.0.1:0"]
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = next(line for line in process.stderr if "http://" in line)
    yield "http://" + said.split("http://")[1].split()[0]
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.fixture
def page(url: str, tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path) as opened:
        yield opened


def visited(page: Page, url: str, width: int, height: int, scheme: str) -> None:
    page.look(width, height, scheme)
    page.tell("Page.navigate", url=url)
    page.until(f"{LOOKED} >= 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844), (320, 640)])
def test_it_fits_every_screen_and_breaks_none_of_its_rules(
    page: Page, url: str, width: int, height: int, scheme: str
) -> None:
    """Kills: a table that widens a phone's page, a style that the policy refuses, an error in the
    script, a name that becomes markup."""
    visited(page, url, width, height, scheme)
    needs, has, ground, text, scripts = page.ask(
        "[document.documentElement.scrollWidth, innerWidth,"
        " getComputedStyle(document.body).backgroundColor, document.body.innerText,"
        " document.scripts.length]"
    )
    assert needs <= has
    assert (sum(int(one) for one in ground[4:-1].split(",")) < 200) == (scheme == "dark")
    assert KEY.split("\u202e")[0] in text and scripts == 1
    small = page.ask(
        "[...document.querySelectorAll('button, nav a, textarea')]"
        ".filter((b) => b.getClientRects().length && b.getBoundingClientRect().height < 24)"
        ".map((b) => b.outerHTML).slice(0, 3)"
    )
    assert small == [] or width > 600
    wrong = [e for e in page.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert wrong == []
    asked = {
        e["params"]["request"]["url"]
        for e in page.events
        if e["method"] == "Network.requestWillBeSent"
    }
    assert all(one.startswith(url) for one in asked)


def test_a_keyboard_is_enough(page: Page, url: str) -> None:
    visited(page, url, 1280, 900, "light")
    page.press("/")
    assert page.ask("document.activeElement.id") == "sql"
    page.write("SELECT count(*) AS n FROM refunds")
    page.press("Enter", ctrl=True)
    page.until(RESULT)
    assert page.ask(f"{RESULT}.innerText") == "n\n5"
    page.write(" WHERE")
    page.press("Enter", ctrl=True)
    page.until("document.querySelector('#result .bad')")
    page.press("Escape")
    assert page.ask("document.activeElement.id") == ""
    page.press("?")
    assert page.ask("document.getElementById('help').open") is True
    page.press("Escape")
    page.until("!document.getElementById('help').open")
    page.press("7")
    page.until("scrollY > 500")
    page.press("p")
    assert page.ask("document.getElementById('state').textContent") == "paused"


def test_it_follows_the_store_and_a_topic_is_one_click_away(
    page: Page, url: str, store: str
) -> None:
    visited(page, url, 390, 844, "dark")
    before = page.ask("document.querySelector('#topics tbody tr:last-child').innerText")
    with txlog.open(store) as client:
        client.producer("refunds").send(b"a new one")
    page.until(
        "document.querySelector('#topics tbody tr:last-child').innerText !=="
        f" {before!r}.replaceAll('\\\\t', '\\t')"
    )
    page.ask("document.querySelector('[data-topic=refunds]').click()")
    page.until(RESULT)
    assert "a new one" in page.ask(f"{RESULT}.innerText")
