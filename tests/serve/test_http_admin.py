"""Pulsar's admin API over a store: the requests of `pulsar-admin` and of Java's admin client, and
the fields of the answers that they need."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import txlog.aio
from tests.serve.http_kit import BASE, serving
from txlog.base.ids import TxnId
from txlog.errors import NotAllowed
from txlog.serve.core.service import ProducerStats
from txlog.serve.http.application import ENDPOINTS
from txlog.serve.http.core.declared import LOOK, Action, openapi
from txlog.serve.pulsar.ids import STEP

pytestmark = pytest.mark.usefixtures("quick_disk")
ORDERS = "persistent://public/default/orders"


def test_topics_are_made_listed_changed_and_deleted(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        assert (await http.put(f"{BASE}/orders")).status_code == 204
        assert (await http.put(f"{BASE}/orders")).status_code == 409
        assert (await http.put(f"{BASE}/wide/partitions", json=2)).status_code == 204
        assert (await http.get(BASE)).json() == [
            ORDERS,
            "persistent://public/default/wide-partition-0",
            "persistent://public/default/wide-partition-1",
        ]
        assert (await http.get(f"{BASE}/partitioned")).json() == [
            "persistent://public/default/wide"
        ]
        assert (await http.get(f"{BASE}/orders/partitions")).json()["partitions"] == 0
        assert (await http.post(f"{BASE}/wide/partitions", content="3")).status_code == 204
        assert (await http.get(f"{BASE}/wide/partitions")).json()["partitions"] == 3
        fewer = await http.post(f"{BASE}/wide/partitions", content="1")
        assert (fewer.status_code, fewer.json()["code"]) == (405, "TXL-406")
        part = await http.delete(f"{BASE}/wide-partition-0")
        assert part.status_code == 405
        consumer = await client.consumer("orders", "s", create=True)
        refused = await http.delete(f"{BASE}/orders")
        assert (refused.status_code, refused.json()["code"]) == (412, "TXL-408")
        assert (await http.delete(f"{BASE}/orders", params={"force": "true"})).status_code == 204
        await consumer.close()
        await client.create_topic("orders")
        await client.create_subscription("orders", "nobody")
        assert (await http.delete(f"{BASE}/orders")).status_code == 204
        assert [row["topic"] for row in await client.topics()] == ["wide"]
        assert (await http.delete("/admin/v2/namespaces/public/default")).status_code == 412
        response = await http.delete("/admin/v2/namespaces/public/default?force=true")
        assert (response.status_code, await client.topics()) == (204, [])

    serving(path, program)


ASSIGN = "pulsar/system/transaction_coordinator_assign"
EVERYWHERE = {
    "httpUrl": "http://0.0.0.0:81",
    "brokerUrl": "pulsar://0.0.0.0:80",
    "nativeUrl": "pulsar://0.0.0.0:80",
}


def test_clients_look_topics_up_by_http(path: str) -> None:
    """Clients whose service URL begins with http:// ask these three questions."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        asks = {"checkAllowAutoCreation": "true"}
        missing = await http.get(f"{BASE}/none/partitions")
        assert (missing.status_code, missing.json()["code"]) == (404, "TXL-302")
        assert (await http.get(f"{BASE}/none/partitions", params=asks)).json()["partitions"] == 0
        assert await client.topics() == []
        await client.run(lambda store: store.admin.set_setting("default_num_partitions", 3))
        assert (await http.get(f"{BASE}/none/partitions")).status_code == 404
        assert (await http.get(f"{BASE}/wide/partitions", params=asks)).json()["partitions"] == 3
        assert [row["topic"] for row in await client.topics()] == ["wide"]
        old = await http.get("/admin/persistent/p/use/ns/old/partitions", params=asks)
        assert old.json()["partitions"] == 3
        assert "p/use~ns/old" in [row["topic"] for row in await client.topics()]
        response = await http.get("/lookup/v2/destination/persistent/p/use/ns/old")
        assert response.json()["brokerUrl"] == "pulsar://here:80"
        coordinators = await http.get(f"/admin/v2/persistent/{ASSIGN}/partitions", params=asks)
        assert coordinators.json()["partitions"] == 1
        for topic in ("persistent/public/default/none", f"persistent/{ASSIGN}-partition-0"):
            response = (await http.get(f"/lookup/v2/topic/{topic}")).json()
            # a client of C++ ends its process without brokerUrlTls
            assert (response["brokerUrl"], response["brokerUrlTls"]) == ("pulsar://here:80", "")

    serving(path, program, creates_topics=True, addresses=EVERYWHERE)


def test_role_that_may_only_look_creates_no_topic(path: str) -> None:
    async def gate(connection: object, action: Action) -> None:
        if action.operation != LOOK:
            raise NotAllowed("look only")

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.run(lambda store: store.admin.set_setting("default_num_partitions", 3))
        asks = {"checkAllowAutoCreation": "true"}
        assert (await http.get(f"{BASE}/wide/partitions", params=asks)).json()["partitions"] == 0
        assert await client.topics() == []

    serving(path, program, creates_topics=True, gate=gate)


def test_a_server_without_the_protocol_of_pulsar_refuses_lookups(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        response = await http.get("/lookup/v2/topic/persistent/public/default/t")
        assert (response.status_code, response.json()["code"]) == (405, "TXL-406")

    serving(path, program)


def test_an_error_is_json_with_reason_code_and_hint(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        for method, where, status, code in (
            ("GET", f"{BASE}/orders/stats", 404, "TXL-302"),
            ("GET", "/admin/v2/nothing", 404, "TXL-308"),
            ("PATCH", f"{BASE}/orders/stats", 405, "TXL-201"),
            ("PUT", f"{BASE}/orders/partitions", 400, "TXL-201"),
            ("GET", f"{BASE}/x%20y/stats", 400, "TXL-202"),
            ("POST", f"{BASE}/orders/subscription/s/skip/many", 400, "TXL-201"),
            ("GET", "/admin/v3/transactions/transactionMetadata/0/99", 404, "TXL-304"),
            ("GET", "/admin/v2/transactions/transaction-keys/none", 404, "TXL-306"),
            ("GET", "/lookup/v2/topic/non-persistent/public/default/t", 405, "TXL-406"),
        ):
            response = await http.request(method, where)
            body = response.json()
            assert (response.status_code, body["code"]) == (status, code), where
            assert body["reason"] and "hint" in body
        response = await http.put(f"{BASE}/orders/partitions", content=b"{nonsense")
        assert (response.status_code, response.json()["code"]) == (400, "TXL-201")
        response = await http.put(f"{BASE}/orders/partitions", content=b"1" * (9 << 20))
        assert (response.status_code, response.json()["code"]) == (412, "TXL-204")

    serving(path, program)


def test_a_subscription_is_skipped_moved_peeked_and_deleted(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        billing = f"{BASE}/orders/subscription/billing"
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        assert (await http.put(billing, json=earliest)).status_code == 204
        producer = await client.producer("orders")
        sent = [await producer.send(b"%d" % n, key="k", properties={"n": str(n)}) for n in range(5)]
        assert (await http.post(f"{billing}/skip/2")).status_code == 204
        peeked = await http.get(f"{billing}/position/2")
        place = sent[3].message_id
        assert place is not None
        assert peeked.content == b"3"
        assert peeked.headers["X-Pulsar-Message-ID"] == f"{place.ledger}:{3 * STEP}"
        assert peeked.headers["X-Pulsar-PROPERTY-n"] == "3"
        assert peeked.headers["X-Pulsar-partition-key"] == "k"
        assert (await http.get(f"{billing}/position/4")).status_code == 404
        message_id = {"ledgerId": place.ledger, "entryId": STEP, "partitionIndex": -1}
        assert (await http.post(f"{billing}/resetcursor", json=message_id)).status_code == 204
        assert (await http.get(f"{billing}/position/1")).content == b"1"
        excluded = {**message_id, "isExcluded": True}
        assert (await http.post(f"{billing}/resetcursor", json=excluded)).status_code == 204
        assert (await http.get(f"{billing}/position/1")).content == b"2"
        stats = (await http.get(f"{BASE}/orders/stats")).json()
        assert stats["msgInCounter"] == 5
        assert stats["subscriptions"]["billing"]["msgBacklog"] == 3
        last = (await http.get(f"{BASE}/orders/lastMessageId")).json()
        assert (last["ledgerId"], last["entryId"]) == (place.ledger, 4 * STEP)
        entry = await http.get(f"{BASE}/orders/ledger/{place.ledger}/entry/{4 * STEP}")
        assert entry.content == b"4"
        assert (
            await http.get(f"{BASE}/orders/ledger/{place.ledger}/entry/{9 * STEP}")
        ).status_code == 404
        inside = (await http.get(f"{BASE}/orders/internalStats")).json()
        assert inside["lastConfirmedEntry"] == f"{place.ledger}:4"
        assert inside["cursors"]["billing"]["markDeletePosition"] == f"{place.ledger}:1"
        assert [row["entries"] for row in inside["ledgers"]] == [5]
        assert (await http.post(f"{billing}/skip_all")).status_code == 204
        assert (await http.get(f"{BASE}/orders/stats")).json()["subscriptions"]["billing"][
            "msgBacklog"
        ] == 0
        assert (await http.delete(billing)).status_code == 204
        assert (await http.get(f"{BASE}/orders/subscriptions")).json() == []

    serving(path, program)


def test_ids_match_the_binary_protocol(path: str) -> None:
    """The id in a header finds its message again, by ledger and entry and after a reset to it."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        await client.create_subscription("orders", "s")
        async with client.transaction() as txn:
            producer = await client.producer("orders")
            for n in range(3):
                await producer.send(b"%d" % n, txn=txn)
        base = f"{BASE}/orders/subscription/s"
        seen = [await http.get(f"{base}/position/{n + 1}") for n in range(3)]
        places = [answer.headers["X-Pulsar-Message-ID"].split(":") for answer in seen]
        assert [int(entry) % STEP for _, entry in places] == [1, 2, 3]
        for n, (ledger, entry) in enumerate(places):
            message = await http.get(f"{BASE}/orders/ledger/{ledger}/entry/{entry}")
            assert message.content == b"%d" % n
            body = {"ledgerId": int(ledger), "entryId": int(entry), "partitionIndex": -1}
            assert (await http.post(f"{base}/resetcursor", json=body)).status_code == 204
            assert (await http.get(f"{base}/position/1")).content == b"%d" % n
        whole = {"ledgerId": int(places[0][0]), "entryId": int(places[0][1]) - 1}
        assert (await http.post(f"{base}/resetcursor", json=whole)).status_code == 204
        assert (await http.get(f"{base}/position/1")).content == b"0"
        answer = {**whole, "batchIndex": 1, "isExcluded": True}
        assert (await http.post(f"{base}/resetcursor", json=answer)).status_code == 204
        assert (await http.get(f"{base}/position/1")).content == b"2"
        exclusive = {**whole, "isExcluded": True}
        assert (await http.post(f"{base}/resetcursor", json=exclusive)).status_code == 204
        assert (await http.get(f"{base}/position/1")).status_code == 404
        nowhere = {"ledgerId": 99, "entryId": 0}
        assert (await http.post(f"{base}/resetcursor", json=nowhere)).status_code == 404

    serving(path, program)


def test_policies_of_topics_and_namespaces(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        namespace = "/admin/v2/namespaces/public/default"
        topic = f"{BASE}/orders"
        retention = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 512}
        assert (await http.post(f"{namespace}/retention", json=retention)).status_code == 204
        assert (await http.get(f"{namespace}/retention")).json() == retention
        assert (await http.get(f"{topic}/retention")).status_code == 204  # nothing of its own
        assert (await http.get(f"{topic}/retention?applied=true")).json() == retention
        assert (await http.post(f"{topic}/messageTTL", params={"messageTTL": 5})).is_success
        assert (await http.get(f"{topic}/messageTTL")).json() == 5
        assert (await http.delete(f"{topic}/messageTTL")).status_code == 204
        assert (await http.get(f"{topic}/messageTTL?applied=true")).json() == 0
        delayed = {"tickTime": 500, "active": False, "maxDeliveryDelayInMillis": 0}
        assert (await http.post(f"{topic}/delayedDelivery", json=delayed)).is_success
        assert (await http.get(f"{topic}/delayedDelivery")).json() == delayed
        strategy = f"{namespace}/schemaCompatibilityStrategy"
        assert (await http.put(strategy, json="BACKWARD_TRANSITIVE")).status_code == 204
        everything = (await http.get(namespace)).json()
        assert everything["retention_policies"] == retention
        assert everything["schema_compatibility_strategy"] == "BACKWARD_TRANSITIVE"
        assert (await http.put(f"{namespace}/compactionThreshold", json=1 << 20)).is_success
        assert (await http.get(f"{topic}/compactionThreshold?applied=true")).json() == 1 << 20
        off = await http.post(f"{namespace}/deduplication", json=False)
        assert (off.status_code, off.json()["code"]) == (405, "TXL-406")
        wrong = await http.post(f"{namespace}/retention", json={"retentionTimeInMinutes": 0})
        assert wrong.status_code == 400

    serving(path, program)


def test_schemas_have_the_versions_of_the_store(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        base = "/admin/v2/schemas/public/default/orders"
        assert (await http.get(f"{base}/schema")).status_code == 404
        cups = '{"type":"record","name":"R","fields":[{"name":"cups","type":"int"}]}'
        body = {"type": "JSON", "schema": cups, "properties": {}}
        assert (await http.post(f"{base}/schema", json=body)).json() == {"version": {"version": 1}}
        schema = (await http.get(f"{base}/schema")).json()
        assert (schema["version"], schema["type"]) == (1, "JSON")
        assert (await http.post(f"{base}/version", json=body)).json() == {"version": 1}
        other = {**body, "schema": cups.replace("int", "string")}
        compatibility = (await http.post(f"{base}/compatibility", json=other)).json()
        assert compatibility["compatibility"] is False
        refused = await http.post(f"{base}/schema", json=other)
        assert (refused.status_code, refused.json()["code"]) == (409, "TXL-410")
        assert len((await http.get(f"{base}/schemas")).json()["getSchemaResponses"]) == 1
        assert (await http.delete(f"{base}/schema")).json() == {"version": 1}

    serving(path, program)


def test_transactions_and_keys_by_both_paths(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        await client.create_subscription("orders", "s")
        v3 = "/admin/v3/transactions"
        txn: TxnId = await client.run(lambda it: it.begin(key="night ly")["txn"])
        producer = await client.producer("orders")
        await producer.send(b"hidden", txn=txn)
        halves = f"{txn.most}/{txn.least}"
        found = (await http.get(f"{v3}/transactionMetadata/{halves}")).json()
        assert (found["status"], found["transactionKey"]) == ("OPEN", "night ly")
        slow = (await http.get(f"{v3}/slowTransactions/0")).json()
        assert list(slow) == [f"({txn.most},{txn.least})"]
        inside = await http.get(f"{v3}/transactionInBufferStats/public/default/orders/{halves}")
        assert inside.json()["messages"] == 1
        pending = await http.get(f"{v3}/pendingAckStats/public/default/orders/s")
        assert pending.json()["ongoingTxnSize"] == 0
        count = len((await http.get(f"{v3}/coordinators")).json())
        assert len((await http.get(f"{v3}/coordinatorStats")).json()) == count
        one = {"coordinatorId": txn.most >> 48}
        stats = (await http.get(f"{v3}/coordinatorStats", params=one)).json()
        assert stats["ongoingTxnSize"] == 1
        assert list(found["producedPartitions"]) == [ORDERS]
        for base in ("/admin/v2/transactions", v3):
            [row] = (await http.get(f"{base}/transaction-keys")).json()
            assert (row["transaction_key"], row["txn"]) == ("night ly", str(txn))
            one = (await http.get(f"{base}/transaction-keys/night%20ly")).json()
            assert one["epoch"] == 0
        gone = (await http.delete(f"{v3}/transaction-keys/night%20ly")).json()
        assert gone["aborted_list"] == [str(txn)]
        ended = (await http.get(f"{v3}/transactionMetadata/{halves}")).json()
        assert ended["status"] == "ABORTED"
        other: TxnId = await client.run(lambda it: it.begin()["txn"])
        done = await http.post(f"{v3}/abortTransaction/{other.most}/{other.least}")
        assert done.status_code == 204
        scale = await http.post(f"{v3}/transactionCoordinator/replicas", content=str(count + 1))
        assert scale.status_code == 204

    serving(path, program)


def test_broker_stats_name_open_producers_and_subscriptions(path: str) -> None:
    till = ProducerStats(
        "public/default/orders", 0, 7, "till", "10.0.0.9:1", "v", "Shared", 5, 4, 40
    )

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        for name in ("orders", "quiet"):
            await client.create_topic(name)
            await client.create_subscription(name, "s", type="shared")
        producer = await client.producer("orders")
        await producer.send(b"12345")
        [publisher] = (await http.get(f"{BASE}/orders/stats")).json()["publishers"]
        assert (publisher["producerId"], publisher["producerName"], publisher["address"]) == (
            7,
            "till",
            till.peer,
        )
        assert (publisher["averageMsgSize"], publisher["connectedSince"]) == (10.0, "5")
        assert (await http.get(f"{BASE}/quiet/stats")).json()["publishers"] == []
        stats = "/admin/v2/broker-stats"
        [bundles] = (await http.get(f"{stats}/topics")).json().values()
        [topics] = bundles.values()
        assert topics["persistent"][ORDERS]["msgInCounter"] == 1
        [row] = (await http.get(f"{stats}/metrics")).json()
        assert row["metrics"]["brk_no_of_subscriptions"] == 2
        assert row["metrics"]["brk_storage_size"] == 5
        report = (await http.get(f"{stats}/load-report")).json()
        assert (report["numTopics"], report["numProducers"]) == (2, 1)
        await http.post("/admin/v2/namespaces/public/default/unsubscribe/s")
        assert await client.subscriptions() == []

    serving(path, program, publishers=lambda: [till])


def test_delayed_messages_and_watermarks(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        await client.create_subscription("orders", "s", type="shared")
        producer = await client.producer("orders", "till")
        sent = await producer.send(b"x", deliver_after=3_600_000)
        [row] = (await http.get(f"{BASE}/orders/delayed")).json()
        assert row["message_id"] == str(sent.message_id)
        counted = (await http.get(f"{BASE}/orders/delayed/histogram")).json()
        assert sum(one["messages"] for one in counted) == 1
        assert (await http.get(f"{BASE}/orders/delayed/buckets")).is_success
        done = await http.post(
            f"{BASE}/orders/delayed/promote", json={"ids": [str(sent.message_id)]}
        )
        assert done.json()["promoted"] == 1
        wrong = await http.post(f"{BASE}/orders/delayed/promote", json={"all": "yes", "x": 1})
        assert wrong.status_code == 400
        assert (await http.post(f"{BASE}/orders/watermark/till", content="5000")).is_success
        shown = (await http.get(f"{BASE}/orders/watermark")).json()
        assert (shown["watermark"], shown["holder"]) == (5000, "till")
        assert (await http.delete(f"{BASE}/orders/watermark/till")).json()["was_active"]

    serving(path, program)


def test_each_request_passes_the_gate_with_its_action(path: str) -> None:
    """Kills: an endpoint that bypasses the gate, a topic that the gate checks by another name."""
    actions: list[Action] = []

    async def gate(request: object, action: Action) -> None:
        actions.append(action)
        if action.operation == "admin":
            raise NotAllowed("role x may not")

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        assert (await http.delete(f"{BASE}/orders")).status_code == 405
        assert (await http.get(f"{BASE}/orders-partition-0/stats")).is_success
        assert (await http.get("/metrics")).is_success
        assert (await http.get("/admin/v2/persistent/public/default")).is_success
        assert len(await client.topics()) == 1

    serving(path, program, gate=gate)
    assert [action_asked[:2] for action_asked in actions] == [
        ("admin", "public/default/orders"),
        ("look", "public/default/orders"),
        ("look", ""),
        ("look", "public/default"),
    ]


def test_a_page_of_another_site_can_do_nothing(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
        ):
            refused = await http.put(f"{BASE}/orders", headers=headers)
            assert refused.status_code == 403, headers
        ours = {"Origin": "http://here", "Sec-Fetch-Site": "same-origin"}
        assert (await http.put(f"{BASE}/orders", headers=ours)).status_code == 204
        found = await http.get(f"{BASE}/orders/stats", headers={"Sec-Fetch-Site": "cross-site"})
        assert found.status_code == 403

    serving(path, program)


def test_health_metrics_and_openapi(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        found = await http.get("/metrics")
        assert "txlog_" in found.text and found.headers["content-type"].startswith("text/plain")
        assert (await http.get("/health")).json()["status"] in ("ok", "warning")
        assert (await http.get("/ready")).text == "ok"
        assert (await http.get("/admin/v2/brokers/health")).text == "ok"
        described = (await http.get("/openapi.json")).json()
        skip = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}"
        rows = described["paths"][f"{skip}/skip/{{messages}}"]["post"]["parameters"]
        assert rows[-1] == {
            "name": "messages",
            "in": "path",
            "required": True,
            "schema": {"type": "integer"},
        }

    serving(path, program)


def test_every_endpoint_is_explained_and_has_a_path_of_its_own() -> None:
    seen = set()
    for one in ENDPOINTS:
        assert (one.act.__doc__ or "").strip(), one.path
        assert (one.method, one.path) not in seen, one.path
        seen.add((one.method, one.path))
    document = openapi(ENDPOINTS, "1")
    assert len(seen) > 120 and document["openapi"] == "3.1.0"


def test_offloads_go_where_the_operator_said(tmp_path: Path) -> None:
    """Kills: an administrator of one topic who writes into any directory of the machine."""
    cold, other = tmp_path / "cold", tmp_path / "other"
    cold.mkdir()
    other.mkdir()

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        places = http.app.state.serving.places  # type: ignore[attr-defined]
        path = f"{BASE}/orders/offload"
        for to in (str(other), f"file://{other}", "s3://bucket/x", "../other", "hot"):
            answer = await http.put(path, params={"to": to})
            assert answer.status_code == 405, to
            assert str(cold) not in answer.text
        for params in (None, {"to": "cold"}):
            answer = await http.put(path, params=params)
            assert (answer.status_code, answer.json()["place"]) == (200, "cold")
        places["hot"] = str(other)
        assert (await http.put(path)).status_code == 400
        places.clear()
        assert (await http.put(path)).status_code == 405
        assert [*other.iterdir()] == []

    serving(str(tmp_path / "store"), program, places={"cold": str(cold)})


def test_hints_do_not_name_hidden_topics(tmp_path: Path) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("acme/hidden/orders")
        base = "/admin/v2/persistent/acme/hidden"
        answer = await http.get(f"{base}/order/stats")
        assert answer.status_code == 404
        assert "orders" not in answer.text

    serving(str(tmp_path / "store"), program, hides_names=True)


@pytest.mark.parametrize("base", [f"{BASE}/orders", "/admin/v2/namespaces/public/default"])
def test_a_negative_policy_is_no_policy_for_ever(tmp_path: Path, base: str) -> None:
    """Kills: a mistyped sign that keeps messages for ever; numbers that no answer can hold."""
    wrong: list[tuple[str, str, object]] = [
        ("POST", "messageTTL", -5),
        ("POST", "messageTTL", 1 << 62),
        ("PUT", "compactionThreshold", -1),
        ("POST", "retention", {"retentionTimeInMinutes": -5, "retentionSizeInMB": -7}),
        ("POST", "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -2}),
        ("POST", "retention", {"retentionTimeInMinutes": 1 << 60, "retentionSizeInMB": 1}),
        ("POST", "delayedDelivery", {"tickTime": -5, "active": True}),
    ]

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        for method, name, body in wrong:
            before = (await http.get(f"{base}/{name}")).content
            answer = await http.request(method, f"{base}/{name}", json=body)
            assert answer.status_code in (400, 412), (name, body)
            assert (await http.get(f"{base}/{name}")).content == before
        kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert (await http.post(f"{base}/retention", json=kept)).is_success

    serving(str(tmp_path / "store"), program)
