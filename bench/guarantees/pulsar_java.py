"""The stock Java client of Apache Pulsar, to Apache Pulsar standalone and to `txlog serve`."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import txlog
from bench.guarantees import peer
from bench.guarantees.directory import Directory

TOPIC = "persistent://public/default/"


class JavaClient(peer.Peer):
    """What both have: the client, and how the input is made and the outputs are counted."""

    most = 500
    warm_s = 8.0
    patience_s = 14.0  # above the time-out of a transaction

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port()}"

    def client(self, depth: int, seconds: float, warm_up: float, patience_s: float) -> list[str]:
        bed = peer.package("tests.clients.bed", "txlog's dev extra")
        try:
            command: list[str] = bed.PROGRAMS["java"]()
        except bed.Unavailable as reason:
            raise peer.Unavailable(str(reason)) from None
        command[command.index("clients.Main")] = "clients.Guarantees"
        return [*command, self.url, str(depth), str(seconds), str(warm_up), str(patience_s)]

    def _connected(self) -> Any:
        pulsar = peer.package("pulsar", "pulsar-client")
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(self.folder / "service.log"))
        return pulsar.Client(self.url, logger=logger, operation_timeout_seconds=30)

    def _await_answer(self) -> None:
        def send() -> None:
            client = self._connected()
            try:
                client.create_producer(TOPIC + "first").send(b"")
            finally:
                client.close()

        peer.eventually(send, (peer.package("pulsar", "pulsar-client").PulsarException,))

    def produce(self, count: int, depth: int) -> None:
        pulsar = peer.package("pulsar", "pulsar-client")
        client = self._connected()
        earliest = pulsar.InitialPosition.Earliest
        kind = pulsar.ConsumerType.Shared
        client.subscribe(TOPIC + "input", "s", kind, initial_position=earliest).close()
        producer = client.create_producer(
            TOPIC + "input",
            batching_enabled=True,
            batching_max_messages=10,  # a consumer is handed whole batches
            batching_max_publish_delay_ms=10,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )
        for number in range(count):
            producer.send_async(peer.payload(number), _ignored)
        producer.flush()
        client.close()

    def stored(self) -> list[list[int]]:
        client = self._connected()
        found = []
        for topic in ("a", "b"):
            reader = client.create_reader(
                TOPIC + topic, peer.package("pulsar", "").MessageId.earliest
            )
            numbers = []
            while reader.has_message_available():
                try:
                    numbers.append(peer.number_of(reader.read_next(5_000).data()))
                except peer.package("pulsar", "").Timeout:  # what is left is not committed
                    break
            found.append(numbers)
        client.close()
        return found


def _ignored(*_: object) -> None:
    """The flush fails if a send did."""


class Pulsar(JavaClient):
    """Broker, bookie and metadata in one process."""

    is_padded = True
    title = "Apache Pulsar"
    setup = (
        "4.0.4 standalone, 512 MB, the stock Java client; `transactionCoordinatorEnabled=true`, "
        "BookKeeper's `journalSyncData=true`; a Shared consumer and a thread for each transaction "
        "in flight"
    )
    guarantees: ClassVar = {
        "topics together": ("yes", "transactions (PIP-31)"),
        "with acknowledgements": ("yes", "transactions (PIP-31), single messages"),
        "fencing": ("partly", "exclusive producers only; a transaction has none (PIP-31)"),
        "duplicates dropped": ("yes", "`brokerDeduplicationEnabled`, off by default and here"),
        "readers not held up": ("no", "readers stop at the first open transaction of a topic"),
        "survives power loss": ("yes", "`journalSyncData=true`, BookKeeper's default"),
    }

    def start(self) -> None:
        serving = peer.package("bench.serving", "pulsar-client")
        self.service = serving.apache_pulsar(self.folder, self.port(), self.port("http"))
        self._await_answer()


class Serve(JavaClient):
    """`txlog serve` on a store of its own."""

    title = "txlog serve"
    setup = (
        f"{txlog.__version__}, the same stock Java client; `durability = sync`; a Shared consumer "
        "and a thread for each transaction in flight"
    )
    guarantees: ClassVar = {
        **Directory.guarantees,
        "fencing": ("partly", "exclusive producers only, as in Pulsar; not `transaction_key`"),
    }

    def start(self) -> None:
        store = str(self.folder / "store")
        txlog.init(store, if_not_exists=True)
        address = f"127.0.0.1:{self.port()}"
        command = [sys.executable, "-m", "txlog", "--store", store, "serve", "--http", "off"]
        self.launch([*command, "--pulsar", address], {"PYTHONPATH": str(peer.ROOT / "src")})
        self._await_answer()
