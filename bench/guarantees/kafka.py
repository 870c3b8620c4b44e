"""Apache Kafka: one KRaft node; transactions of a producer with the offsets of a consumer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from bench.guarantees import peer

VERSION = "4.0.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>txlog</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{VERSION}</version></dependency><dependency><groupId>org.slf4j</groupId>
<artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>"""
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
log.flush.interval.messages=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
SCRIPT = """[ -e logs ] || "$@" kafka.tools.StorageTool format -t "$0" -c server.properties \
    --standalone && exec "$@" kafka.Kafka server.properties"""


def client(kind: str, port: int, **settings: Any) -> Any:
    """A client of the broker: Producer, Consumer or AdminClient. Raises peer.Unavailable."""
    kafka = peer.package(f"confluent_kafka{'.admin' * (kind == 'AdminClient')}", "confluent-kafka")
    named = {name.replace("_", "."): value for name, value in settings.items()}
    address = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
    return getattr(kafka, kind)({**address, **named})


def partition(topic: str, number: int, *offset: int) -> Any:
    """A place in a partition."""
    return peer.package("confluent_kafka", "confluent-kafka").TopicPartition(topic, number, *offset)


class KafkaSession(peer.Session):
    """A producer with a transactional.id, and a consumer of one partition of the input."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        name = {"transactional_id": f"worker-{self.number}", "transaction_timeout_ms": 30_000}
        self._producer = client("Producer", self.peer.port(), **name, linger_ms=1)
        self._producer.init_transactions(60)  # fences the one before it, ends its transaction
        self._place = partition("input", self.number)
        (kept,) = self.connection.committed([self._place], 60)
        self._place.offset = max(0, kept.offset)
        self.connection.assign([self._place])

    def step(self, ended: peer.Ended) -> int:
        began = time.perf_counter()
        messages = self.connection.consume(peer.BATCH, peer.RECEIVE_S)
        rows = [message for message in messages if message.error() is None]
        if not rows:
            return 0
        self._producer.begin_transaction()
        for topic in peer.OUTPUTS:
            for row in rows:
                self._producer.produce(topic, row.value())
        self._place.offset = rows[-1].offset() + 1
        group = self.connection.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([self._place], group)
        self._producer.commit_transaction(60)
        ended(began, len(rows))
        return len(rows)


class Kafka(peer.Peer):
    """A broker that is its own controller."""

    title = "Apache Kafka"
    setup = (
        f"{VERSION}, KRaft, one node, jars by Maven, confluent-kafka; "
        "`log.flush.interval.messages=1`, `acks=all`; a partition, a consumer and a producer with "
        "`transactional.id` for each transaction in flight"
    )
    claims = (
        "yes: transactions, read with `isolation.level=read_committed`",
        "yes: `sendOffsetsToTransaction`: up to an offset",
        "yes: epoch of the `transactional.id`",
        "yes: idempotent producer, for retries of a session",
        "no: `read_committed` ends at the last stable offset",
        "yes: `log.flush.interval.messages=1`; the default leaves it to the replicas' page caches",
    )
    kind = KafkaSession
    most = 400
    warm_s = 8.0
    patience_s = 8.0

    def command(self) -> Sequence[object]:
        kept = peer.WORK / f"kafka-{VERSION}" / "classpath"
        pom = kept.with_name("pom.xml")
        pom.parent.mkdir(parents=True, exist_ok=True)
        pom.write_text(POM)
        build = ("-q", "-B", "-f", pom, "dependency:build-classpath", f"-Dmdep.outputFile={kept}")
        jars = peer.fetched(kept, "Debian's maven", "mvn", *build).read_text().strip()
        java = [peer.program("java", "Debian's openjdk-17-jre-headless"), "-Xmx512m", "-cp", jars]
        ports = {"port": self.port(), "controller": self.port("controller")}
        text = SETTINGS.format(folder=self.folder, **ports)
        (self.folder / "server.properties").write_text(text)
        return ["sh", "-c", SCRIPT, uuid.uuid4(), *java]

    def connect(self) -> Any:
        """A committed reader that waits little for the next messages."""
        reader = client(
            "Consumer",
            self.port(),
            group_id="group",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_wait_max_ms=50,
        )
        reader.list_topics(timeout=5)
        return reader

    def make(self, connection: Any, depth: int) -> None:
        admin = peer.package("confluent_kafka.admin", "confluent-kafka")
        topics = [admin.NewTopic(name, depth if name == "input" else 1, 1) for name in peer.TOPICS]
        owner = client("AdminClient", self.port())  # its calls end with it
        for future in owner.create_topics(topics).values():
            future.result(60)
        self._depth = depth

    def fill(self, connection: Any, values: Sequence[bytes]) -> None:
        producer = client("Producer", self.port(), linger_ms=50)
        for value in values:
            number = peer.number_of(value) % self._depth
            producer.produce("input", value, partition=number)
        if producer.flush(120):
            raise RuntimeError("Kafka did not take the input")

    def read(self, connection: Any, topic: str) -> Iterable[bytes]:
        place = partition(topic, 0, 0)
        _, end = connection.get_watermark_offsets(place, 60)
        connection.assign([place])
        while connection.position([place])[0].offset < end:
            rows = connection.consume(10_000, 2.0)
            yield from (row.value() for row in rows if row.error() is None)
