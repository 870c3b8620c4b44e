"""The live page: its stream, its SQL, and the headers that protect it in a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import txlog.aio
from tests.serve.http_kit import Talk, serving
from tests.tiers import graded
from txlog.errors import NoResources, SqlError
from txlog.page import live as drawing
from txlog.serve.http.core.context import HttpContext
from txlog.serve.http.page import browser, live
from txlog.serve.http.page.browser import ROWS_MAX, QueryRunner, cell

pytestmark = pytest.mark.usefixtures("quick_disk")


async def filled(client: txlog.aio.Client) -> None:
    await client.create_topic("orders")
    async with client.producer("orders") as producer:
        await producer.send(b'{"n":1}', key="k")
        await producer.send(b"\xff")


def test_page_has_no_inline_script_and_loads_nothing_foreign(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        page = await http.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        named = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
        assert named == ["page.css", "page.js"]
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", page.text)
        for name in named:
            found = await http.get(f"/{name}")
            assert found.is_success and not re.search(r"https?://|@import", found.text)

    serving(path, program)


def test_stream_sends_everything_and_then_changes(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(live, "SHARE", 0)

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        await client.run(lambda it: it.begin(key='<b>"key"'))
        talk = Talk(http.app, "/page/stream")  # type: ignore[attr-defined]
        first = looked(await talk.get())
        assert {"tiles", "topics", "keys", "transactions", "segments"} <= first["sections"].keys()
        assert first["head"]["health"] == "ok"
        assert "&lt;b&gt;&quot;key&quot;" in first["sections"]["keys"]
        assert 'href="#/topic?topic=orders"' in first["sections"]["topics"]
        producer = await client.producer("orders")
        await producer.send(b"more")
        while "topics" not in (second := looked(await talk.get()))["sections"]:
            pass
        assert '<td class="n">3</td>' in second["sections"]["topics"]
        assert "watermarks" not in second["sections"]
        await talk.close()

    serving(path, program)


def test_stream_reports_failures_and_goes_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a page that stops updating after one failed look at the store."""
    monkeypatch.setattr(live, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(live, "SHARE", 0)
    right = drawing.figures_of
    fails = iter([NoResources("no memory"), ValueError("a bug")])

    def figures(client: txlog.Client) -> dict[str, object]:
        for error in fails:
            raise error
        return right(client)

    monkeypatch.setattr(drawing, "figures_of", figures)

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        talk = Talk(http.app, "/page/stream")  # type: ignore[attr-defined]
        assert b'"reason":"no memory"' in (first := await talk.get()) and b"failure" in first
        assert b"TXL-101" in await talk.get()
        assert looked(await talk.get())["head"]["health"] == "ok"
        await talk.close()

    serving(path, program)


def looked(data: bytes) -> dict[str, dict[str, str]]:
    name, text = data.decode().strip().split("\ndata: ")
    assert name == "event: look"
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def test_sql_of_the_page_reads_the_store(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        sql = "SELECT text(key) AS k, value, 1 AS k FROM orders ORDER BY message_id"
        found = (await http.post("/page/query", json={"sql": sql})).json()
        assert [one["name"] for one in found["columns"]] == ["k", "value", "k"]
        assert found["rows"] == [["k", '{"n":1}', 1], [None, "0xff", 1]]
        many = (await http.post("/page/query", json={"sql": "SELECT * FROM range(5000)"})).json()
        assert (len(many["rows"]), many["is_cut"]) == (ROWS_MAX, True)
        for wrong in ("", "SELECT", "SELECT * FROM nothing", "SELECT 1; SELECT 2", 5, "x" * 30_000):
            answer = await http.post("/page/query", json={"sql": wrong})
            assert answer.status_code in (400, 404) and answer.json()["reason"], wrong

    serving(path, program)


HOSTILE = (
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
    "SELECT (SELECT content FROM read_text('{file}'))",
    "WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "ATTACH '{folder}/other.db'",
    "CREATE TABLE t AS SELECT 1",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "EXPORT DATABASE '{folder}/all'",
    "SELECT * FROM read_text('http://127.0.0.1:1/x')",
    "SELECT getenv('HOME')",
)


@pytest.mark.parametrize("statements", graded([[*HOSTILE[:3]], [*HOSTILE[3:]]], 1))
def test_sql_of_the_page_cannot_leave_the_store_or_change_it(
    statements: list[str], path: str, tmp_path: Path
) -> None:
    """Kills: a statement that gets past the gate to a file, a variable, the network."""
    secret = tmp_path / "secret.csv"
    secret.write_text("hidden-words\n")

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        for statement in statements:
            sql = statement.format(file=secret, folder=tmp_path)
            answer = await http.post("/page/query", json={"sql": sql})
            assert answer.status_code in (400, 404), statement
            assert "hidden-words" not in answer.text
        assert {one.name for one in tmp_path.iterdir()} == {"store", "secret.csv"}

    serving(path, program)


def test_sql_that_does_not_end_is_ended(path: str) -> None:
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        with pytest.raises(SqlError, match="longer than"):
            await QueryRunner(HttpContext(client), seconds=0.05).run(endless)

    serving(path, program)


def test_sql_has_a_bound_of_memory(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "MEMORY_BYTES", 16 << 20)

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        for sql in (
            "SELECT list(i) FROM range(20_000_000) AS t(i)",
            "SELECT length(repeat('a', 4000000000))",  # DuckDB does not count it
        ):
            answer = await http.post("/page/query", json={"sql": sql})
            assert answer.status_code == 400 and "memory" in answer.json()["reason"].lower()

    serving(path, program)


def test_a_cell_is_text_that_a_browser_can_hold() -> None:
    assert [cell(one) for one in (1, True, None, 1 << 60, 0.5)] == [
        1,
        True,
        None,
        str(1 << 60),
        "0.5",
    ]
    assert cell(b"\xff\x00") == "0xff00"
    assert cell({"a": [1, None]}) == "{a: [1, null]}"
    assert cell([("k", "v")]) == "{k: v}"
    long = cell("x" * 10_000)
    assert isinstance(long, str) and len(long) == 2000


@pytest.mark.deep
def test_a_server_starts_without_duckdb() -> None:
    """Kills: an import that delays each start for a library that only queries need."""
    program = (
        "import sys, txlog.aio\n"
        "from txlog.serve.http.application import application\n"
        "from txlog.serve.http.core.context import HttpContext\n"
        "application(HttpContext(None))\n"
        "print({'duckdb', 'pyarrow.compute', 'pyarrow.dataset'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
