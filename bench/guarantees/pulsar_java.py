"""The stock Java client of Apache Pulsar, to Apache Pulsar standalone and to `txlog serve`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import txlog
from bench.guarantees import peer
from bench.guarantees.directory import Directory

VERSION = "4.0.4"
SETTINGS = """
brokerServicePort={port}
webServicePort={http}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
transactionCoordinatorEnabled=true
"""
TOPIC = "persistent://public/default/"


def pulsar() -> Any:
    """The Python client, which makes the input and counts. Raises peer.Unavailable."""
    return peer.package("pulsar", "pulsar-client")


class JavaClient(peer.Peer):
    """What both have: the client, and how the input is made and the outputs are counted."""

    most = 500
    warm_s = 8.0
    patience_s = 14.0  # above the time-out of a transaction
    timeout_s = 30  # of a call of the Python client

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port()}"

    def client(self) -> list[str]:
        bed = peer.package("tests.clients.bed", "txlog's dev extra")
        try:
            command: list[str] = bed.PROGRAMS["java"]()
        except bed.Unavailable as reason:
            raise peer.Unavailable(str(reason)) from None
        command[command.index("clients.Main")] = "clients.Guarantees"
        return [*command, self.url]

    def connect(self) -> Any:
        logger = pulsar().FileLogger(pulsar().LoggerLevel.Error, str(self.folder / peer.LOGS[1]))
        client = pulsar().Client(self.url, None, self.timeout_s, logger=logger)
        try:
            client.create_producer(TOPIC + "first").send(b"")
        except pulsar().PulsarException:
            client.close()
            raise
        return client

    def stored(self) -> list[list[int]]:
        self.timeout_s = 150  # after a kill it recovers the topics and transactions
        return super().stored()

    def make(self, connection: Any, depth: int) -> None:
        place, kind = pulsar().InitialPosition.Earliest, pulsar().ConsumerType.Shared
        connection.subscribe(TOPIC + "input", "s", kind, initial_position=place).close()

    def fill(self, connection: Any, values: Sequence[bytes]) -> None:
        producer = connection.create_producer(
            TOPIC + "input",
            batching_enabled=True,
            batching_max_messages=peer.BATCH,  # a consumer is handed whole batches
            batching_max_publish_delay_ms=10,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )
        for value in values:
            producer.send_async(value, _ignored)
        producer.flush()
        producer.close()

    def read(self, connection: Any, topic: str) -> Iterable[bytes]:
        reader = connection.create_reader(TOPIC + topic, pulsar().MessageId.earliest)
        while reader.has_message_available():
            try:
                yield reader.read_next(5_000).data()
            except pulsar().Timeout:  # the messages behind it are not committed
                break


def _ignored(*_: object) -> None:
    """The flush fails if a send did."""


class Pulsar(JavaClient):
    """Broker, bookie and metadata in one process."""

    is_padded = True
    title = "Apache Pulsar"
    setup = (
        f"{VERSION} standalone, 512 MB, the stock Java client; "
        "`transactionCoordinatorEnabled=true`, BookKeeper's `journalSyncData=true`; a Shared "
        "consumer and a thread for each transaction in flight"
    )
    claims = (
        "yes: transactions (PIP-31)",
        "yes: transactions (PIP-31), single messages",
        "partly: exclusive producers only; a transaction has none (PIP-31)",
        "yes: `brokerDeduplicationEnabled`, off by default and here",
        "no: readers stop at the first open transaction of a topic",
        "yes: `journalSyncData=true`, BookKeeper's default",
    )

    def command(self) -> Sequence[object]:
        home = peer.WORK / f"apache-pulsar-{VERSION}"
        if not home.exists():
            artifact = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
            copy = ["-q", "-B", "dependency:copy", f"-DoutputDirectory={peer.WORK}"]
            archive = peer.WORK / f"pulsar-server-distribution-{VERSION}-bin.tar.gz"
            peer.fetched(archive, "Debian's maven", "mvn", *copy, f"-Dartifact={artifact}")
            shutil.unpack_archive(archive, peer.WORK, filter="tar")
        configuration = self.folder / "standalone.conf"
        text = (home / "conf" / "standalone.conf").read_text()  # later lines win
        ports = {"port": self.port(), "http": self.port("http")}
        configuration.write_text(text + SETTINGS.format(**ports))
        self.settings = {
            "PULSAR_MEM": "-Xms512m -Xmx512m -XX:MaxDirectMemorySize=512m",
            "PULSAR_GC": "-XX:+UseG1GC",
            "PULSAR_GC_LOG": " ",
            "PULSAR_LOG_DIR": str(self.folder),
            "PULSAR_STANDALONE_CONF": str(configuration),
        }
        return (
            *(home / "bin" / "pulsar", "standalone", "-nfw", "-nss", "-c", configuration),
            # the metadata name the bookie by its port
            f"--bookkeeper-port={self.port('bookkeeper')}",
            f"--bookkeeper-dir={self.folder}/bookkeeper",
            f"--metadata-dir={self.folder}/metadata",
        )


class Serve(JavaClient):
    """`txlog serve` on a store of its own."""

    title = "txlog serve"
    setup = (
        f"{txlog.__version__}, the same stock Java client; `durability = sync`; a Shared consumer "
        "and a thread for each transaction in flight"
    )
    claims = (
        *Directory.claims[:2],
        "partly: exclusive producers only, as in Pulsar; not `transaction_key`",
        *Directory.claims[3:],
    )

    def command(self) -> Sequence[object]:
        store = str(self.folder / "store")
        txlog.init(store, if_not_exists=True)
        self.settings = {"PYTHONDONTWRITEBYTECODE": ""}  # pip compiles the packages it installs
        command = [sys.executable, "-m", "txlog", "--store", store, "serve", "--http", "off"]
        return [*command, "--pulsar", f"127.0.0.1:{self.port()}"]
