"""Spring, Flink's connector and pulsar-perf, unmodified, against `txlog serve`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.clients import bed
from tests.clients.admin_tool import MEMORY

pytestmark = [pytest.mark.clients, pytest.mark.needs("mvn")]
# Modules of Java that Flink's serializers open.
OPENED = ("java.util", "java.lang", "java.nio", "sun.nio.ch", "java.util.concurrent", "java.time")


def built(name: str) -> list[str]:
    """The command of a program of Java, up to its class."""
    try:
        out = bed.built(
            [
                *("mvn", "-q", "-B", "compile", "dependency:build-classpath"),
                f"-Dmdep.outputFile={bed.BUILD}/{name}/classpath",
            ],
            bed.HERE / name,
            bed.BUILD / name,
        )
    except bed.Unavailable as error:
        pytest.skip(str(error))
    libraries = (out / "classpath").read_text().strip()
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return ["java", "-Xmx512m", quiet, "-cp", f"{out}/classes:{libraries}"]


def ran(folder: Path, *command: str) -> str:
    """Run a program, which must succeed, in a folder; returns its output."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=bed.RUN_SECONDS
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def numbers(store: Path, topic: str) -> list[int]:
    with txlog.open(str(store), read_only=True) as client:
        return sorted(int(message.value or b"0") for message in client.reader(topic))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "kills"),
    [pytest.param(20, [], id="undisturbed"), pytest.param(300, [30, 100, 170, 240], id="killed")],
)
def test_spring_sends_and_listens_in_transactions(
    tmp_path: Path, count: int, kills: list[int]
) -> None:
    """PulsarTemplate, @PulsarListener, PulsarTransactionManager.

    Kills: a number that is doubled twice, or never, when the server is killed at some number.
    """
    command = [*built("spring"), "clients.Spring"]
    with bed.serving(tmp_path) as server:
        [line] = bed.lines_of(
            [*command, server.url, str(count), *map(str, kills)], server, tmp_path
        )
        doubles = [*range(2, 2 * count + 1, 2)]
        assert line.endswith(f" {doubles}\n")  # listeners run outside of any transaction
        assert kills or line.startswith(f"heard {count} more null ")
        assert server.restarts == len(kills)
        assert numbers(server.store, "spring-in") == [*range(1, count + 1)]
        assert numbers(server.store, "spring-out") == doubles


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "kills"),
    [
        pytest.param(1_000, [], id="undisturbed"),
        pytest.param(30_000, [5_000, 15_000, 25_000], id="killed"),
    ],
)
def test_flink_reads_and_writes_exactly_once(tmp_path: Path, count: int, kills: list[int]) -> None:
    """PulsarSource, and PulsarSink by transactions, in a cluster within one process.

    Kills: a number that is doubled twice, or never, when the server is killed between checkpoints.
    """
    command = built("flink")
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
    with bed.serving(tmp_path, "--http", "127.0.0.1:0") as server:
        with txlog.open(str(server.store)) as client:
            client.create_topic("flink-in")
            client.create_topic("flink-out")
            values = [b"%d" % number for number in range(1, count + 1)]
            client.producer("flink-in").send_batch(pa.table({"value": values}))
        program = [command[0], *opened, *command[1:], "clients.Flink", server.url, server.http]
        assert [*bed.lines_of([*program, *map(str, kills)], server, tmp_path)] == ["done\n"]
        assert server.restarts == len(kills)
        assert numbers(server.store, "flink-out") == [*range(2, 2 * count + 1, 2)]


def test_pulsar_perf_produces_reads_consumes_and_transacts(tmp_path: Path) -> None:
    try:
        source = bed.HERE / "admin"
        out = bed.built(["mvn", "-q", "-B", "dependency:unpack"], source, bed.BUILD / "admin")
    except bed.Unavailable as error:
        pytest.skip(str(error))
    [home] = out.glob("apache-pulsar-*")
    tool = "org.apache.pulsar.testclient.PulsarPerfTestTool"
    # long names were cut when the archive was unpacked, with their `.jar`
    cut = [str(library) for library in (home / "lib").iterdir() if library.suffix != ".jar"]
    libraries = ":".join([f"{home}/lib/*", *cut])
    memory = ["-Xmx1g", *MEMORY[1:]]  # for its histograms
    perf = ["java", *memory, "-cp", libraries, tool, f"{home}/conf/client.conf"]
    count = 2_000
    with bed.serving(tmp_path) as server:
        at = ["-u", server.url]
        most = ["-m", str(count)]
        ran(tmp_path, *perf, "produce", *at, *most, "-r", "100000", "-s", "100", "perf")
        first = ["-sp", "Earliest"]
        ran(tmp_path, *perf, "consume", *at, *most, *first, "perf")
        ran(tmp_path, *perf, "read", *at, "-n", str(count), "perf")
        topics = ["--topics-c=perf", "--topics-p=perf-out", "-ss", "txns"]
        each = ["-nmc", "1", "-nmp", "1", "-ntxn", "20"]
        ran(tmp_path, *perf, "transaction", *at, *first, *topics, *each)
        with txlog.open(str(server.store), read_only=True) as client:
            assert client.describe_topic("perf")["messages"] >= count
            states = [row["state"] for row in client.transactions(states=["committed"])]
            assert len(states) >= 20
