"""Stock clients of Apache Pulsar against `txlog serve`, feature by feature."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from operator import mul
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from tests.clients import bed, features
from tests.clients.secured import Secured

clients = [
    pytest.param("java", marks=pytest.mark.needs("mvn")),
    pytest.param("go", marks=pytest.mark.needs("go")),
    "python",
    "asyncio",
]


@pytest.mark.clients
@pytest.mark.parametrize("client", clients)
def test_stock_client_finds_every_feature(client: str, tmp_path: Path) -> None:
    try:
        bed.PROGRAMS[client]()
    except bed.Unavailable as error:
        pytest.skip(str(error))
    with bed.serving(tmp_path) as server:
        outcomes = bed.tried(client, server, "t")
    not_yet = features.NOT_YET[client]
    assert {name: error for name, error in outcomes.items() if error and name not in not_yet} == {}
    assert outcomes.keys() == features.expected(client)


# By HTTP a client asks for partitions, for the broker, and for where coordinators are.
BY_HTTP = ("send", bed.PARTITIONED, "schema_json", "txn_commit")


@pytest.mark.clients
@pytest.mark.parametrize("client", clients[:3])
def test_stock_client_looks_topics_up_by_http(client: str, tmp_path: Path) -> None:
    try:
        command = bed.PROGRAMS[client]()
    except bed.Unavailable as error:
        pytest.skip(str(error))
    names = [name for name in BY_HTTP if name in features.expected(client)]
    with bed.serving(tmp_path, "--http", "127.0.0.1:0") as server:
        server.prepare("t")
        lines = bed.lines_of([*command, server.http, "t", *names], server)
        outcomes = [json.loads(line) for line in lines if line.startswith("{")]
    assert {outcome["scenario"]: outcome["error"] for outcome in outcomes} == dict.fromkeys(
        names, ""
    )


@pytest.mark.clients
@pytest.mark.parametrize("client", clients)
def test_stock_client_with_tls_tokens_and_certificates(client: str, tmp_path: Path) -> None:
    try:
        bed.PROGRAMS[client]()
    except bed.Unavailable as error:
        pytest.skip(str(error))
    with bed.running(Secured(tmp_path)) as server:
        outcomes = bed.tried(client, server, "t")
    assert {name: error for name, error in outcomes.items() if error} == {}
    assert outcomes.keys() == features.expected(client, features.SECURED)


def test_table_of_clients_is_in_the_documents() -> None:
    assert features.DOCUMENT.read_text(encoding="utf-8") == features.written()


@pytest.mark.clients
def test_first_steps_in_the_documents_run(tmp_path: Path) -> None:
    text = (bed.ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    programs = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    (program,) = [one for one in programs if '"orders", "billing"' in one]
    with bed.serving(tmp_path) as server:
        completed = subprocess.run(
            [sys.executable, "-c", program.replace("pulsar://127.0.0.1:6650", server.url)],
            capture_output=True,
            text=True,
            check=True,
            timeout=bed.RUN_SECONDS,
        )
        printed = [
            line for line in completed.stdout.splitlines() if line.startswith("ana ")
        ]  # it logs there
        assert printed == ["ana 1 cups", "ana 2 cups", "ana 3 cups"]


LINES = 541_909
# For each acknowledgement in a transaction Java names the rest of the batch: with so large batches,
# 4,000 acknowledgements would need a frame above the server's limit, if batches were not cut.
BATCH = 10_000


@pytest.mark.clients
@pytest.mark.needs("mvn")
@pytest.mark.parametrize(
    ("count", "kills", "number"),
    [
        pytest.param(60_000, 2, 1, id="a server"),
        pytest.param(60_000, 2, 2, id="two servers of one store"),
        pytest.param(LINES, 10, 1, id="all lines", marks=pytest.mark.slow),
        pytest.param(LINES, 10, 2, id="all lines, two servers", marks=pytest.mark.slow),
    ],
)
def test_invoice_lines_are_added_up_while_everything_is_killed(
    tmp_path: Path, count: int, kills: int, number: int
) -> None:
    """Kills: a line that is counted twice, or not at all, when client or server dies.

    kills:  how often the client is killed, and as often a server
    number: how many servers the client may use
    """
    try:
        command = bed.PROGRAMS["java"]()
    except bed.Unavailable as error:
        pytest.skip(str(error))
    command[command.index("clients.Main")] = "clients.Invoices"
    lines = _lines()[:count]
    servers = [bed.Server(tmp_path) for _ in range(number)]
    with txlog.open(str(servers[0].store)) as client:
        for name in ("lines", "totals"):
            client.create_topic(name)
        client.create_subscription("lines", "adder", type="shared", position="earliest")
        producer = client.producer("lines")
        for start in range(0, count, BATCH):
            values = [b"%d,%d" % line for line in lines[start : start + BATCH]]
            producer.send_batch(pa.table({"value": values}))
        try:
            for server in servers:
                server.start()
            places = ",".join(server.url.removeprefix("pulsar://") for server in servers)
            dues = [count * (kill + 1) // (2 * kills + 2) for kill in range(2 * kills)]
            program = [*command, f"pulsar://{places}", "lines", "totals"]
            _killed_over_and_over(program, servers, client, [count - due for due in dues])
        finally:
            for server in servers:
                server.stop()
        sums = [
            [int(number) for number in message.value.split(b",")]
            for message in client.reader("totals")
            if message.value is not None
        ]
    expected = [count, *map(sum, zip(*lines, strict=True))]
    assert [sum(column) for column in zip(*sums, strict=True)] == expected


def _lines() -> list[tuple[int, int]]:
    """Quantity and amount, in thousandths, of each invoice line."""
    table = pq.read_table(bed.ROOT / "data" / "online-retail.parquet")
    quantities = [int(text) for text in table["Quantity"].to_pylist()]
    prices = [int(Decimal(text) * 1000) for text in table["UnitPrice"].to_pylist()]
    lines = list(zip(quantities, map(mul, quantities, prices), strict=True))
    assert len(lines) == LINES
    return lines


def _killed_over_and_over(
    command: list[str], servers: list[bed.Server], client: txlog.Client, backlogs: list[int]
) -> None:
    """Run a program until all is done; kill it and a server in turns, when so much is left."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for kill, backlog in enumerate(backlogs):
            client.wait(["lines"], backlogs={"adder": backlog}, timeout_ms=300_000)
            if kill % 2:
                servers[kill // 2 % len(servers)].restart()
            else:
                process.kill()
                process.wait()
                process = subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
        client.wait(["lines"], backlogs={"adder": 0}, timeout_ms=300_000)
    finally:
        process.kill()
        process.wait()
