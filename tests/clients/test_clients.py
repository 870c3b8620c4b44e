"""Stock clients of Apache Pulsar against `txlog serve`, feature by feature."""

from __future__ import annotations

import subprocess
from decimal import Decimal
from operator import mul
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from tests.clients import bed, features

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
        found = bed.tried(client, server, "t")
    not_yet = features.NOT_YET[client]
    assert {name: error for name, error in found.items() if error and name not in not_yet} == {}
    assert found.keys() == features.expected(client)


def test_table_of_clients_is_in_the_documents() -> None:
    assert features.DOCUMENT.read_text(encoding="utf-8") == features.written()


KILLS = 10  # of the server, and of the client
LINES = 541_909


@pytest.mark.clients
@pytest.mark.slow
@pytest.mark.needs("mvn")
def test_invoice_lines_are_added_up_while_everything_is_killed(tmp_path: Path) -> None:
    """Kills: a line that is counted twice, or not at all, when client or server dies."""
    try:
        command = bed.PROGRAMS["java"]()
    except bed.Unavailable as error:
        pytest.skip(str(error))
    command[command.index("clients.Main")] = "clients.Invoices"
    table = pq.read_table(bed.ROOT / "data" / "online-retail.parquet")
    quantities = [int(text) for text in table["Quantity"].to_pylist()]
    prices = [int(Decimal(text) * 1000) for text in table["UnitPrice"].to_pylist()]
    lines = list(zip(quantities, map(mul, quantities, prices), strict=True))
    server = bed.Server(tmp_path)
    with txlog.open(str(server.store)) as client:
        for name in ("lines", "totals"):
            client.create_topic(name)
        client.create_subscription("lines", "adder", type="shared", position="earliest")
        producer = client.producer("lines")
        for start in range(0, LINES, 10_000):
            values = [b"%d,%d" % line for line in lines[start : start + 10_000]]
            producer.send_batch(pa.table({"value": values}))
        server.start()
        try:
            _killed_over_and_over([*command, server.url, "lines", "totals"], server, client)
        finally:
            server.stop()
        sums = [
            [int(number) for number in message.value.split(b",")]
            for message in client.reader("totals")
            if message.value is not None
        ]
    expected = [LINES, *map(sum, zip(*lines, strict=True))]
    assert [sum(column) for column in zip(*sums, strict=True)] == expected


def _killed_over_and_over(command: list[str], server: bed.Server, client: txlog.Client) -> None:
    """Run a program to its end; kill it and the server in turns, at each twentieth of its work."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for kill in range(2 * KILLS):
            due = LINES * (kill + 1) // (2 * KILLS + 2)
            client.wait(["lines"], backlogs={"adder": LINES - due}, timeout_ms=120_000)
            if kill % 2:
                server.restart()
            else:
                process.kill()
                process.wait()
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
