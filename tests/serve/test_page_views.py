"""The views and actions of the live page: contents, rights, and log entries of actions."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

import httpx
import pytest
from starlette.requests import HTTPConnection

import txlog.aio
from tests.serve.http_kit import Talk, serving
from txlog.client.search import SearchBudget
from txlog.errors import NotAllowed
from txlog.page.views import pretty_json, preview, value_block
from txlog.serve.core.service import ConsumerStats, ProducerStats
from txlog.serve.http.core.context import Grant
from txlog.serve.http.core.declared import Action
from txlog.serve.http.page import fragments

pytestmark = pytest.mark.usefixtures("quick_disk")
HOSTILE = '<script>alert("x")</script>\u202e'
OWN = {"Origin": "http://here"}


async def filled(client: txlog.aio.Client) -> None:
    await client.create_topic("orders", partitions=2)
    await client.create_topic("empty")
    await client.run(lambda it: it.create_subscription("orders", "billing", type="shared"))

    def fill(it: txlog.Client) -> None:
        producer = it.producer("orders")
        for number in range(20):
            properties = {HOSTILE: HOSTILE}
            producer.send(b'{"n":%d,"s":"<b>"}' % number, key=HOSTILE, properties=properties)
        with it.transaction() as txn:
            producer.send(b"in a transaction", key="ana", txn=txn)

    await client.run(fill)


async def shown(http: httpx.AsyncClient, view: str, **where: object) -> str:
    answer = await http.get(f"/page/{view}?{urlencode(where)}")
    assert answer.is_success, answer.text
    html: str = answer.json()["html"]
    return html


# --- views -----------------------------------------------------------------------------------


def test_views_show_a_topic_a_subscription_a_message_and_a_transaction(path: str) -> None:
    """Each leads to the next one by a link, and no text of the store becomes markup."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        topic = await shown(http, "topic", topic="orders")
        assert 'href="#/subscription?topic=orders&amp;subscription=billing"' in topic
        assert 'data-load="page/search?topic=orders"' in topic
        assert 'data-load="page/actions' not in topic
        found = await shown(http, "search", topic="orders", key="ana")
        assert "in a transaction" in found and found.count("#/message?") == 1
        txn = (await client.run(lambda it: it.transactions(all=True)))[0]["txn"]
        assert urlencode({"id": txn}) in found
        life = await shown(http, "transaction", id=txn)
        assert "status updated: COMMITTING to COMMITTED" in life and 'class="life"' in life
        assert "#/message?topic=orders" in life
        assert str(txn) in await shown(http, "transactions")
        of_billing = await shown(http, "subscription", topic="orders", subscription="billing")
        assert "<b>21</b>" in of_billing
        assert "opened" in await shown(http, "changes", topic="orders", subscription="billing")
        async with client.consumer("orders", "billing"):
            clients = await shown(http, "clients")
            assert "no producer is connected" in clients and "orders / billing" in clients
            of_billing = await shown(http, "subscription", topic="orders", subscription="billing")
            assert "alive" in of_billing and "last 15 minutes" in of_billing
        assert "no messages yet" in await shown(http, "search", topic="empty")

    serving(path, program)


def test_hostile_values_stay_text(path: str) -> None:
    """Kills: a key, property or search word that ends an attribute or begins an element."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        found = await shown(http, "search", topic="orders", key=HOSTILE, text='"><img src=x>')
        every = await shown(http, "search", topic="orders")
        message = await shown(http, "message", topic="orders", id="1:0")
        wrong = await shown(http, "search", topic="orders", **{"from": "<i>"})
        for html in (found, every, message, wrong):
            assert "<script" not in html and "<img" not in html and "<i>" not in html
            assert "\u202e" not in html
        assert "&lt;script&gt;" in message and '<span class="name">&quot;n&quot;</span>' in message
        assert "&quot;&gt;&lt;img src=x&gt;" in found

    serving(path, program)


def test_a_message_belongs_to_its_topic(path: str) -> None:
    """Kills: a role that may read one topic and names a message of another one."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        for where in ({"topic": "empty", "id": "1:0"}, {"topic": "orders", "id": "1:999"}):
            assert (await http.get(f"/page/message?{urlencode(where)}")).status_code == 404
        for query in ("topic=orders", "topic=orders&id=x", "id=1:0", "topic=a/b&id=1:0"):
            assert (await http.get(f"/page/message?{query}")).status_code == 400
        for view in ("topic?topic=nope", "subscription?topic=orders&subscription=nope"):
            assert (await http.get(f"/page/{view}")).status_code == 404

    serving(path, program)


def test_a_search_has_a_budget_and_goes_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "BUDGET", SearchBudget(hits=4, rows=1000))

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        seen, where = 0, {"topic": "orders"}
        for _ in range(9):
            html = await shown(http, "search", **where)
            seen += html.count("#/message?")
            if "before=" not in html:
                break
            text = html.split("before=")[1].split('"')[0].replace("%3D", "=")
            where = {"topic": "orders", "before": text.replace("%3A", ":").replace("%2C", ",")}
        assert seen == 21
        monkeypatch.setattr(fragments, "BUDGET", SearchBudget(rows=1))
        html = await shown(http, "search", topic="orders", text="nothing like it")
        assert "Stopped after" in html and "Search older messages" in html
        for wrong in ("x", "0=1:99999999999999999999", "7=3:3"):
            answer = await http.get(f"/page/search?{urlencode({**where, 'before': wrong})}")
            assert answer.status_code in (200, 404), answer.text

    serving(path, program)


def test_history_is_from_before_the_page(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        for where in ({}, {"topic": "orders", "span": "week"}):
            html = await shown(http, "history", **where)
            assert "21 in total" in html and "<b>" in html
        assert "no message in the last" in await shown(http, "history", topic="empty")
        assert (await http.get("/page/history?topic=nope")).status_code == 404

    serving(path, program)


def test_clients_of_streams_are_listed(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        talk = Talk(http.app, "/page/stream")  # type: ignore[attr-defined]
        await talk.get()
        assert "/page/stream" in await shown(http, "clients")
        await talk.close()

    serving(path, program)


def test_clients_of_pulsar_are_listed_with_their_addresses(path: str) -> None:
    topic = "public/default/orders"
    producers = [ProducerStats(topic, 0, 1, "till", "10.0.0.7:1", "Go", "Shared", 5, 12, 2048)]
    consumers = list[ConsumerStats]()

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        async with client.consumer("orders", "billing") as consumer:
            number = consumer.sync.id
            one = ConsumerStats(
                topic, 0, "billing", number, HOSTILE, "10.0.0.8:2", "J", 5, 9, 3, {}
            )
            consumers.append(one)
            clients = await shown(http, "clients")
            assert "10.0.0.7:1" in clients and "2.0 KiB" in clients and "<script" not in clients
            assert clients.count("10.0.0.8:2") == 2  # of the protocol, and of the store
            billing = await shown(http, "subscription", topic="orders", subscription="billing")
            assert "10.0.0.8:2" in billing and "<script" not in billing

    serving(path, program, publishers=lambda: producers, subscribers=lambda: consumers)


# --- rights ----------------------------------------------------------------------------------


def test_each_view_asks_for_the_right_of_its_contents(path: str) -> None:
    asked = list[Action]()

    async def gate(connection: HTTPConnection, action: Action) -> Grant | None:
        asked.append(action)
        return None

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        needs = {
            "topic?topic=orders": ("look", "public/default/orders"),
            "subscription?topic=orders&subscription=billing": ("look", "public/default/orders"),
            "changes?topic=orders&subscription=billing": ("look", "public/default/orders"),
            "search?topic=orders": ("consume", "public/default/orders"),
            "message?topic=orders&id=1:0": ("consume", "public/default/orders"),
            "history?topic=orders": ("look", "public/default/orders"),
            "history": ("look", ""),
            "transactions": ("look", ""),
            "transaction?id=0:0": ("look", ""),
            "clients": ("look", ""),
            "letters?topic=orders": ("consume", "public/default/orders"),
            "actions?topic=orders": ("look", "public/default/orders"),
        }
        for query, need in needs.items():
            asked.clear()
            await http.get(f"/page/{query}")
            assert asked[0][:2] == need, query

    serving(path, program, gate=gate)


def test_actions_are_shown_to_those_who_may_use_them(path: str) -> None:
    async def gate(connection: HTTPConnection, action: Action) -> Grant | None:
        return Grant(lambda: None, None, lambda operation, topic: operation == "look")

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        assert await shown(http, "actions", topic="orders") == ""
        assert await shown(http, "actions", topic="orders", subscription="billing") == ""

    serving(path, program, gate=gate, allows_actions=True)


# --- actions ---------------------------------------------------------------------------------


def test_rights_are_judged_before_the_query(path: str) -> None:
    """Kills: a caller without rights who learns from an error what the server has."""

    async def refuse(connection: HTTPConnection, action: Action) -> Grant | None:
        raise NotAllowed("role idle may not", role="idle")

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        views = ("topic", "subscription", "message", "search", "letters", "changes", "actions")
        for view in (*views, "history", "transaction", "transactions", "clients"):
            for query in ("", "?topic=a/b", "?topic=orders&id=x"):
                assert (await http.get(f"/page/{view}{query}")).status_code == 403, view
        answer = await http.post("/page/act/publish", content=b"{", headers=OWN)
        assert answer.status_code == 403

    serving(path, program, gate=refuse)


async def acted(http: httpx.AsyncClient, name: str, **fields: str) -> str:
    answer = await http.post(f"/page/act/{name}", json=fields, headers=OWN)
    assert answer.is_success, answer.text
    html: str = answer.json()["html"]
    return html


def test_actions_publish_seek_redeliver_and_abort(path: str) -> None:
    log = list[tuple[str, Mapping[str, object]]]()

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        assert 'data-act="publish"' in await shown(http, "actions", topic="orders")
        about = {"topic": "orders", "subscription": "billing"}
        assert 'data-act="seek"' in await shown(http, "actions", **about)
        assert "stored as" in await acted(http, "publish", topic="orders", key="new", payload="é")
        assert "é" in await shown(http, "search", topic="orders", key="new")

        async def backlog() -> int:
            handle = await client.run(lambda it: it.subscription("orders", "billing"))
            return (await client.run(lambda it: handle.describe()))["backlog"]

        plan = await acted(http, "seek", **about, to="end", plan="yes")
        assert "undo: txlog sub seek billing -t orders --to" in plan and await backlog() == 22
        assert 'name="to" value="end"' in plan and 'name="plan"' not in plan
        done = await acted(http, "seek", **about, to="end")
        assert "billing moved" in done and "undo:" in done and await backlog() == 0
        assert "already there" in await acted(http, "seek", **about, to="end", plan="yes")
        await acted(http, "seek", **about, to="start")

        async with client.consumer("orders", "billing") as consumer:
            await consumer.receive()
            assert "1 message in the hands" in await acted(http, "redeliver", **about, plan="yes")
            assert "1 message will be" in await acted(http, "redeliver", **about)
        txn = str((await client.run(lambda it: it.begin()))["txn"])
        assert 'data-act="abort"' in await shown(http, "actions", id=txn)
        assert "discards 0 messages" in await acted(http, "abort", id=txn, plan="yes")
        assert "is aborted" in await acted(http, "abort", id=txn)

    serving(path, program, allows_actions=True, tell=lambda word, facts: log.append((word, facts)))
    acts = [(facts["action"], facts["outcome"]) for word, facts in log if word == "action"]
    assert acts[:3] == [("publish", "done"), ("seek", "planned"), ("seek", "done")]
    assert acts[-1] == ("abort", "done") and len(acts) == 9
    assert "é" not in str(log) and "new" not in str(log)  # no message, no key


def test_dead_letters_go_back_to_topics_that_the_caller_may_produce_to(path: str) -> None:
    """Kills: a role that moves a message into a topic that it may not write to."""
    produce = list[str]()

    async def gate(connection: HTTPConnection, action: Action) -> Grant | None:
        may = lambda word, topic: word != "produce" or topic.name in produce  # noqa: E731
        return Grant(lambda: None, None, may)

    def die(it: txlog.Client) -> None:
        it.subscription("orders", "billing").set_policies(max_redeliver_count=0)
        with it.consumer("orders", "billing") as consumer:
            for _ in range(3):
                message = consumer.receive()
                assert message is not None
                consumer.negative_acknowledge(message, 0)
            consumer.receive()

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        await client.run(die)
        dead = "orders-billing-DLQ"
        assert "orders / billing" in await shown(http, "letters", topic=dead)
        assert await shown(http, "letters", topic="orders") == ""
        assert 'data-act="retry"' in await shown(http, "actions", topic=dead)
        body = {"topic": dead, "plan": "yes"}
        answer = await http.post("/page/act/retry", json=body, headers=OWN)
        assert answer.status_code == 403 and "go back to orders" in answer.json()["reason"]
        produce.append("orders")
        assert "will go back" in await acted(http, "retry", **body)
        assert "went back" in await acted(http, "retry", topic=dead)
        assert "none that nobody" in await shown(http, "letters", topic=dead)
        assert "no message goes back" in await acted(http, "retry", **body)
        answer = await http.post("/page/act/retry", json={"topic": "orders"}, headers=OWN)
        assert answer.status_code == 400

    serving(path, program, gate=gate, allows_actions=True)


def test_actions_are_refused(path: str) -> None:
    """Kills: an action of a server that allows none, of another site, of a plain form, by GET."""
    fields = {"topic": "orders", "payload": "forged"}
    log = list[Mapping[str, object]]()

    async def none(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await filled(client)
        answer = await http.post("/page/act/publish", json=fields, headers=OWN)
        assert answer.status_code == 405 and "--allow-actions" in answer.json()["hint"]
        assert await shown(http, "actions", topic="orders") == ""

    async def foreign(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        for headers in (
            {},
            {"Origin": "null"},
            {"Origin": "null", "Host": ""},
            {"Origin": "http://here:81"},
            {"Origin": "http://evil"},
            {"Origin": "http://here.evil"},
            {**OWN, "Sec-Fetch-Site": "cross-site"},
            {**OWN, "Sec-Fetch-Site": "same-site"},
        ):
            answer = await http.post("/page/act/publish", json=fields, headers=headers)
            assert answer.status_code in (403, 405), headers
        answer = await http.post("/page/act/publish", data=fields, headers=OWN)
        assert answer.status_code == 405
        assert (await http.get("/page/act/publish")).status_code == 405
        wrong: object
        for wrong in ([], {"topic": 5}, {"topic": "a/b"}, {}):
            answer = await http.post("/page/act/publish", json=wrong, headers=OWN)
            assert answer.status_code == 400, wrong
        answer = await http.post("/page/act/seek", json={"topic": "orders"}, headers=OWN)
        assert answer.status_code == 400
        answer = await http.post("/page/act/publish", json={"topic": "new"}, headers=OWN)
        assert answer.status_code == 404  # a topic is not created by a slip
        assert "forged" not in await shown(http, "search", topic="orders")

    async def refuse(connection: HTTPConnection, action: Action) -> Grant | None:
        if action.operation != "look":
            raise NotAllowed("role reader may not", role="reader")
        return None

    async def unallowed(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        for name, body in (
            ("publish", fields),
            ("seek", {"topic": "orders", "subscription": "billing", "to": "end"}),
            ("redeliver", {"topic": "orders", "subscription": "billing"}),
            ("retry", {"topic": "orders"}),
            ("abort", {"id": "0:0"}),
        ):
            answer = await http.post(f"/page/act/{name}", json=body, headers=OWN)
            assert answer.status_code == 403, name

    serving(path, none)
    serving(path, foreign, allows_actions=True)
    told = lambda word, facts: log.append(facts)  # noqa: E731
    serving(path, unallowed, allows_actions=True, gate=refuse, tell=told)
    assert [facts["outcome"] for facts in log] == ["refused by TXL-406"] * 5


# --- values ----------------------------------------------------------------------------------


def test_json_is_indented_and_otherwise_as_written() -> None:
    pretty = pretty_json('{"a":[1.50,{}, [],1e400],"a":"x:,{\\"<"}')
    assert pretty is not None
    text = pretty.replace('<span class="name">', "").replace('<span class="string">', "")
    text = text.replace('<span class="number">', "").replace("</span>", "")
    assert text == (
        "{\n  &quot;a&quot;: [\n    1.50,\n    {},\n    [],\n    1e400\n  ],\n"
        "  &quot;a&quot;: &quot;x:,{\\&quot;&lt;&quot;\n}"
    )
    assert pretty_json("{") is None and pretty_json("[" * 100_000) is None


def test_values_are_shown_by_their_form() -> None:
    assert preview(None, 5) == "" and preview(b"\xff\x00", 20) == "0xff00"
    assert preview("é".encode() * 100, 10) == "é" * 9 + "…"
    assert "deletes its key" in value_block(None) and "empty" in value_block(b"")
    assert "ff 00" in value_block(b"\xff\x00") and "2 B, bytes" in value_block(b"\xff\x00")
    assert "\\x1b" in value_block(b"a\x1b[31m\nb") and "\n" in value_block(b"a\nb")
    assert "by its schema" in value_block(b"\x00", {"n": 1})
