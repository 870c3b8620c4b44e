"""The live page in a real Chromium, wide and narrow, light and dark, by keyboard.

`chromium-headless-shell` of Debian, which .ci/run installs; without it these tests are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest

import txlog
from tests.harness import Server
from tests.report_kit import KEY, full_store
from tests.serve.chromium import BROWSERS, Page

pytestmark = [pytest.mark.needs(*BROWSERS), pytest.mark.deep]
SECRET = bytes(range(32))
RULES = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[roles.watcher]
look = ["*"]
[roles.reader]
consume = ["refunds"]
"""
ASKED = "document.getElementById('login').open"
STATE = "document.getElementById('state').textContent"
LOOKED = "document.documentElement.dataset.looks"
HEALTH = "document.getElementById('health').textContent"
SAID = "document.getElementById('said').textContent"
FOUND = "document.querySelector('#view .found table')"
VIEW = "document.getElementById('view').innerText"
RESULT = "document.querySelector('#result table, #result .bad')"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("page") / "store")
    full_store(path)
    return path


@pytest.fixture(scope="module")
def url(store: str) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    with at(store) as url:
        yield url


@pytest.fixture(scope="module")
def guarded(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of another server, of the same store, that requires tokens."""
    folder = tmp_path_factory.mktemp("rules")
    (folder / "secret.key").write_bytes(SECRET)
    (folder / "rules.toml").write_text(RULES)
    with at(store, "--auth", str(folder / "rules.toml")) as url:
        yield url


@contextmanager
def at(store: str, *options: str) -> Iterator[str]:
    """The URL of a server."""
    more = ("--pulsar", "off", "--http", "127.0.0.1:0", *options)
    with Server(store, *more) as server:
        yield server.urls[0]


@pytest.fixture
def page(url: str, tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path) as opened:
        yield opened


def visited(page: Page, url: str, width: int, height: int, scheme: str) -> None:
    page.look(width, height, scheme)
    page.tell("Page.navigate", url=url)
    page.until(f"{LOOKED} >= 1 && document.getElementById('history').innerHTML")


def opened(page: Page, topic: str) -> None:
    """Follow the link to a topic."""
    page.ask(f"document.querySelector('#topics [href=\"#/topic?topic={topic}\"]').click()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844), (320, 640)])
def test_page_fits_every_screen_and_keeps_its_policy(
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


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_many_topics_hide_nothing_below_them(
    page: Page, tmp_path: Path, width: int, height: int
) -> None:
    """The list of topics has its own scroll bar, and keeps the position that the user chose."""
    path = str(tmp_path / "many")
    txlog.init(path)
    with txlog.open(path) as client:
        for number in range(120):
            client.create_topic(f"topic-{number:03}")
        client.producer("topic-119").send(b"")
        with at(path) as url:
            visited(page, url, width, height, "light")
            names = page.ask("[...document.querySelectorAll('#topics a')].map((b) => b.innerText)")
            assert len(names) == 100
            assert names == sorted(names)
            assert names[-1] == "topic-119"  # the list leaves out some topics without messages
            assert page.ask("document.querySelector('#topics').offsetHeight") < height
            moved = "document.querySelector('#topics .scroll').scrollTop"
            page.ask(f"{moved} = 700")
            client.producer("topic-119").send(b"")
            page.until(
                "document.querySelector('#topics tbody tr:last-child').innerText.includes('2')"
            )
            assert page.ask(moved) == 700


def test_page_follows_the_store_and_opens_topics(page: Page, url: str, store: str) -> None:
    visited(page, url, 390, 844, "dark")
    before = page.ask("document.querySelector('#topics tbody tr:last-child').innerText")
    with txlog.open(store) as client:
        client.producer("refunds").send(b"a new one")
    page.until(
        "document.querySelector('#topics tbody tr:last-child').innerText !=="
        f" {before!r}.replaceAll('\\\\t', '\\t')"
    )
    opened(page, "refunds")
    page.until(FOUND)
    assert "a new one" in page.ask(f"{FOUND}.innerText")


def test_page_tells_a_stopped_server_from_a_pause(page: Page, tmp_path: Path) -> None:
    """Kills: a page without a server that shows `live`, an old health, or `Failed to fetch`."""
    path = str(tmp_path / "gone")
    txlog.init(path)
    with at(path) as url:
        visited(page, url, 1280, 900, "light")
    page.until(f"{STATE} === 'reconnecting'")
    assert page.ask(HEALTH) == "unknown"
    assert page.ask(SAID).startswith("The server does not answer. It is asked again")
    page.press("p")
    assert page.ask(STATE) == "paused, reconnecting"
    page.press("p")
    assert page.ask(STATE) == "reconnecting"
    page.press("/")
    page.write("SELECT 1")
    page.press("Enter", ctrl=True)
    page.until(RESULT)
    assert page.ask(f"{RESULT}.innerText") == "The server does not answer."
    page.press("Escape")
    page.press("p")
    with at(path, "--http", url.removeprefix("http://")):
        page.until(f"{STATE} === 'paused' && document.body.className === ''")
        page.press("p")
        page.until(f"{STATE} === 'live' && {HEALTH} !== 'unknown'")
        (tmp_path / "gone").rename(tmp_path / "moved")
        page.until(f"{STATE} === 'failing'")
        assert "was moved away" in page.ask(SAID) and page.ask(HEALTH) == "unknown"
        (tmp_path / "moved").rename(tmp_path / "gone")
        page.until(f"{STATE} === 'live' && {HEALTH} !== 'unknown'")


def test_very_long_text_keeps_the_layout(page: Page, tmp_path: Path) -> None:
    """Kills: a long value, query or error that makes the page wider, or endless."""
    path = str(tmp_path / "long")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("long")
        client.producer("long").send(b"x" * 200_000, key="k" * 5_000)
    with at(path) as url:
        visited(page, url, 390, 844, "dark")
        opened(page, "long")
        page.until(FOUND)
        assert "x…" in page.ask(f"{FOUND}.innerText")
        assert page.ask("document.documentElement.scrollWidth") <= 390
        page.ask("document.querySelector('.found a').click()")
        page.until("document.querySelector('#view pre')")
        assert "195.3 KiB, text, the first 64.0 KiB" in page.ask(VIEW)
        assert page.ask("document.documentElement.scrollWidth") <= 390
        page.press("o")
        page.until("document.getElementById('view').hidden")
        page.press("/")
        page.ask("document.getElementById('sql').value = ''")
        page.write(f"SELECT {'y' * 3_000} FROM long")
        page.press("Enter", ctrl=True)
        page.until("document.querySelector('#result .bad')")
        assert page.ask("document.getElementById('browse').offsetHeight") < 1_200
        assert page.ask("document.documentElement.scrollWidth") <= 390


def test_focus_survives_changes_of_the_store(page: Page, tmp_path: Path) -> None:
    """Kills: an update that moves the focus back to the top each second, or scrolls the page."""
    path = str(tmp_path / "store")
    full_store(path)
    with txlog.open(path) as client, at(path) as url:
        visited(page, url, 1280, 900, "light")
        for has, element in (("className", ".scroll"), ("hash", "[href*=refunds]")):
            page.ask(f"document.querySelector('#topics {element}').focus()")
            page.ask("scrollTo({top: 900, behavior: 'instant'})")
            focused = page.ask(f"document.activeElement.{has}")
            text_before = page.ask("document.querySelector('#topics').innerText")
            client.producer("refunds").send(b"another")
            page.until(f"document.querySelector('#topics').innerText !== {json.dumps(text_before)}")
            assert page.ask(f"document.activeElement.{has}") == focused != ""
            assert abs(page.ask("scrollY") - 900) < 10  # the browser keeps what is seen in place


# --- tokens ----------------------------------------------------------------------------------


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET)


def asked_for(page: Page) -> list[dict[str, Any]]:
    """The requests that the browser has made."""
    return [
        event["params"]["request"]
        for event in page.events
        if event["method"] == "Network.requestWillBeSent"
    ]


def test_login_lasts_until_logout(page: Page, guarded: str) -> None:
    """Kills: a token in an address, which logs of proxies have, or in a cookie, which other pages
    can use."""
    page.look(390, 844, "light")
    page.tell("Page.navigate", url=guarded)
    page.until(ASKED)
    assert page.ask("document.activeElement.id") == "token"
    page.write("no.such.token")
    page.press("Enter")
    page.until(f"{ASKED} && document.getElementById('login-why').textContent.includes('token')")
    page.write(token("boss"))
    page.press("Enter")
    page.until(f"{LOOKED} >= 1")
    assert page.ask(STATE) == "live" and not page.ask(ASKED)
    opened(page, "refunds")
    page.until(FOUND)
    page.reload()
    page.until(f"{LOOKED} >= 1 && {STATE} === 'live' && {FOUND}")  # this tab still knows it
    assert page.ask("document.cookie") == ""
    assert page.tell("Network.getCookies")["cookies"] == []
    assert not any(token("boss").split(".")[1] in one["url"] for one in asked_for(page))
    page.ask("document.getElementById('account').click()")
    page.until(ASKED)
    assert "messages" not in page.ask("document.body.innerText")
    page.reload()
    page.until(ASKED)


def test_a_token_behind_the_address_is_not_left_there(page: Page, guarded: str) -> None:
    page.look(1280, 900, "light")
    page.tell("Page.navigate", url=f"{guarded}/#token={token('boss')}")
    page.until(f"{LOOKED} >= 1")
    assert page.ask("location.href") == f"{guarded}/"


def test_role_sees_its_resources_and_why_others_are_refused(page: Page, guarded: str) -> None:
    page.look(1280, 900, "light")
    page.tell("Page.navigate", url=f"{guarded}/#token={token('watcher')}")
    page.until(f"{LOOKED} >= 1")
    opened(page, "refunds")
    page.until(f"{VIEW}.includes('role watcher may not consume from')")
    assert "backlog" in page.ask(VIEW)  # it may see the figures
    page.press("o")
    page.until("document.getElementById('view').hidden")
    page.press("/")
    page.ask("document.getElementById('sql').value = ''")
    page.write("SELECT value FROM invoices")
    page.press("Enter", ctrl=True)
    page.until(RESULT)
    assert page.ask(f"{RESULT}.innerText").startswith("role watcher may not consume from the store")
    page.ask(f"sessionStorage.setItem('token', '{token('reader')}')")
    page.reload()
    page.until(ASKED)
    said = page.ask("document.getElementById('login-why').textContent")
    assert said == "role reader may not look at the store"
    page.press("Escape")
    page.until(f"!{ASKED}")
    page.ask("document.querySelector('#sql').focus()")
    page.write("SELECT value FROM refunds")  # SQL may name any topic, so it needs a rule for all
    page.press("Enter", ctrl=True)
    page.until(RESULT)
    assert page.ask(f"{RESULT}.innerText").startswith("role reader may not consume from the store")


def test_foreign_pages_and_scripts_are_blocked(page: Page, url: str) -> None:
    """Kills: a request of another page (CSRF), a script or a picture from elsewhere (CSP)."""
    page.tell("Page.navigate", url="about:blank")
    page.ask(
        "document.body.innerHTML = '<form method=post enctype=text/plain"
        f" action={url}/topics/persistent/public/default/refunds><input>';"
        "const [field] = document.getElementsByTagName('input');"
        """field.name = '{"messages": [{"payload": "forged"}], "a": "'; field.value = '"}';"""
        "document.forms[0].submit()"
    )
    page.until("document.body.innerText.includes('this request comes from a page of another site')")
    page.tell("Page.navigate", url=url)
    page.until(f"{LOOKED} >= 1")
    body = page.ask(
        "fetch('topics/persistent/public/default/refunds?start=-50').then((a) => a.text())"
    )
    assert "payload" not in body and "forged" not in body
    assert "forged" not in page.ask("document.getElementById('topics').innerText")
    page.ask(
        "window.broken = [];"
        "document.addEventListener('securitypolicyviolation',"
        " (e) => broken.push(e.effectiveDirective));"
        "document.body.insertAdjacentHTML('beforeend',"
        " '<img src=http://127.0.0.1:9/a.png onerror=1>');"
        "const one = document.createElement('script'); one.textContent = 'window.ran = 1';"
        "document.body.append(one);"
        "fetch('http://127.0.0.1:9/').catch(() => 0); 0"
    )
    page.until("broken.length >= 4")
    assert page.ask("window.ran") is None
    kinds = {"img-src", "script-src-elem", "script-src-attr", "connect-src"}
    assert {*page.ask("broken")} == kinds


# --- views -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a server whose page has actions, and its store, with hostile values."""
    path = str(tmp_path_factory.mktemp("acting") / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("orders", partitions=2)
        client.create_topic("empty")
        client.create_subscription("orders", "billing", type="shared")
        producer = client.producer("orders")
        for number in range(60):
            value = b'{"n":%d,"s":"<img src=x onerror=stop>"}' % number
            producer.send(value, key=KEY, properties={KEY: KEY})
        with client.transaction() as txn:
            producer.send(b"of a transaction", key="ana", txn=txn)
    with at(path, "--allow-actions") as url:
        yield url, path


def settled(page: Page, url: str, view: str) -> None:
    """Open a view, and wait for all its parts."""
    page.tell("Page.navigate", url="about:blank")
    page.tell("Page.navigate", url=f"{url}/#/{view}")
    page.until(
        f"{LOOKED} >= 1 && document.querySelector('#view h2')"
        " && [...document.querySelectorAll('#view [data-load]')].every((n) => n.shownHtml != null)"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844), (320, 640)])
def test_views_fit_every_screen_and_keep_the_policy(
    page: Page, acting: tuple[str, str], width: int, height: int, scheme: str
) -> None:
    """Kills: a table that widens a phone's page, a name that becomes markup, an inline style."""
    page.look(width, height, scheme)
    url, path = acting
    with txlog.open(path) as client:
        txn = client.transactions(all=True)[0]["txn"]
    for view in (
        "topic?topic=orders",
        "topic?topic=empty",
        "topic?topic=orders&key=nobody&text=%3Cimg+src%3Dx%3E",
        "subscription?topic=orders&subscription=billing",
        "message?topic=orders&id=1:0",
        f"transaction?id={txn}",
        "transactions",
        "clients",
    ):
        settled(page, url, view)
        needs, has, scripts, images = page.ask(
            "[document.documentElement.scrollWidth, innerWidth, document.scripts.length,"
            " document.images.length]"
        )
        assert needs <= has, view
        assert (scripts, images) == (1, 0), view
    wrong = [e for e in page.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert wrong == []


def test_views_lead_from_a_topic_to_its_transaction(page: Page, acting: tuple[str, str]) -> None:
    page.look(1280, 900, "light")
    settled(page, acting[0], "topic?topic=orders")
    page.ask("document.querySelector('#view [name=key]').focus()")
    page.write("ana")
    page.press("Enter")
    page.until(f"{FOUND} && {FOUND}.rows.length === 2")
    page.ask(f"{FOUND}.querySelector('a').click()")
    page.until("document.querySelector('#view pre')?.innerText === 'of a transaction'")
    page.ask("document.querySelector('#view a[href*=transaction]').click()")
    page.until("document.querySelector('#view .life')")
    assert "COMMITTING to COMMITTED" in page.ask(VIEW)
    page.ask("history.back()")
    page.until("document.querySelector('#view pre')")


def test_tail_and_fields_live_while_the_view_changes(page: Page, acting: tuple[str, str]) -> None:
    """Kills: a view that is drawn again and empties what the user writes, or ends the tail."""
    url, path = acting
    page.look(390, 844, "dark")
    settled(page, url, "topic?topic=orders")
    page.ask("document.querySelector('[data-tail]').click()")
    page.until("document.querySelector('.tail').innerText.startsWith('live: no message yet')")
    page.ask("document.querySelector('#view textarea').focus()")
    page.write("half a message")
    before = page.ask("document.querySelector('#view .tiles').innerText")
    with txlog.open(path) as client:
        client.producer("orders").send(b"<b>live</b>", key="k")
    page.until("document.querySelector('.tail tbody tr')")
    page.until(f"document.querySelector('#view .tiles').innerText !== {json.dumps(before)}")
    assert "<b>live</b>" in page.ask("document.querySelector('.tail').innerText")
    assert page.ask("document.activeElement.value") == "half a message"
    page.ask("document.querySelector('[data-tail]').click()")
    page.until("document.querySelector('[data-tail]').ariaPressed === 'false'")


def test_actions_show_their_plan_first(page: Page, acting: tuple[str, str]) -> None:
    page.look(1280, 900, "light")
    url, path = acting
    settled(page, url, "topic?topic=orders")
    page.ask("document.querySelector('#view textarea').focus()")
    page.write("by hand")
    page.ask("document.querySelector('[data-act=publish] [type=submit]').click()")
    page.until("document.querySelector('.outcome')?.innerText.startsWith('stored as')")
    settled(page, url, "subscription?topic=orders&subscription=billing")
    page.ask("document.querySelector('[name=to]').focus()")
    page.write("end")
    page.press("Enter")
    page.until("document.querySelector('.outcome pre')")
    assert "undo: txlog sub seek billing -t orders" in page.ask(VIEW)
    with txlog.open(path) as client:
        billing = client.subscription("orders", "billing")
        assert billing.describe()["backlog"] > 60
        page.ask("document.querySelector('.outcome form [type=submit]').click()")
        page.until("document.querySelector('.outcome .good')")
        assert billing.describe()["backlog"] == 0
    page.until("document.querySelector('#view .tiles b').innerText === '0'")
    page.ask("document.querySelector('[name=to]').value = 'nowhere'")
    page.ask("document.querySelector('[data-act=seek] [type=submit]').click()")
    page.until("document.querySelector('.outcome .bad')")
