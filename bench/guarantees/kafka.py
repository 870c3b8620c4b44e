"""Apache Kafka: one KRaft node; transactions of a producer with the offsets of a consumer."""

from __future__ import annotations

import subprocess
import uuid
from typing import Any, ClassVar

from bench.guarantees import peer

VERSION = "4.0.0"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>txlog</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{}</version></dependency><dependency><groupId>org.slf4j</groupId>
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


def classpath() -> str:
    """The jars of the broker, which Maven fetches once. Raises peer.Unavailable."""
    kept = peer.WORK / f"kafka-{VERSION}" / "classpath"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        pom = kept.with_name("pom.xml")
        pom.write_text(POM.format(VERSION))
        maven = [peer.program("mvn", "Debian's maven"), "-q", "-B", "-f", str(pom)]
        fetched = subprocess.run(
            [*maven, "dependency:build-classpath", f"-Dmdep.outputFile={kept}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode != 0:
            raise peer.Unavailable(f"Maven did not fetch Kafka: {fetched.stdout.strip()[-200:]}")
    return kept.read_text().strip()


class KafkaSession(peer.Session):
    """A producer with a transactional.id, and a consumer of one partition of the input."""

    def __init__(self, url: str, number: int) -> None:
        kafka = peer.package("confluent_kafka", "confluent-kafka")
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": url,
                "log_level": 0,
                "transactional.id": f"worker-{number}",
                "transaction.timeout.ms": 30_000,
                "linger.ms": 1,
            }
        )
        self._producer.init_transactions(60)  # fences the one before it, ends its transaction
        self._consumer = consumer(url, "group")
        self._place = kafka.TopicPartition("input", number)
        (kept,) = self._consumer.committed([self._place], 60)
        self._place.offset = max(0, kept.offset)
        self._consumer.assign([self._place])

    def move(self) -> int:
        messages = self._consumer.consume(peer.BATCH, peer.RECEIVE_S)
        rows = [message for message in messages if message.error() is None]
        if not rows:
            return 0
        self._producer.begin_transaction()
        for topic in ("a", "b"):
            for row in rows:
                self._producer.produce(topic, row.value())
        self._place.offset = rows[-1].offset() + 1
        self._producer.send_offsets_to_transaction(
            [self._place], self._consumer.consumer_group_metadata()
        )
        self._producer.commit_transaction(60)
        return len(rows)

    def close(self) -> None:
        self._consumer.close()


def consumer(url: str, group: str) -> Any:
    """A committed reader that waits little for the next messages."""
    return peer.package("confluent_kafka", "confluent-kafka").Consumer(
        {
            "bootstrap.servers": url,
            "log_level": 0,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": False,
            "fetch.wait.max.ms": 50,
        }
    )


class Kafka(peer.Peer):
    """A broker that is its own controller."""

    title = "Apache Kafka"
    setup = (
        f"{VERSION}, KRaft, one node, jars by Maven, confluent-kafka; "
        "`log.flush.interval.messages=1`, `acks=all`; a partition, a consumer and a producer with "
        "`transactional.id` for each transaction in flight"
    )
    guarantees: ClassVar = {
        "topics together": ("yes", "transactions, read with `isolation.level=read_committed`"),
        "with acknowledgements": ("yes", "`sendOffsetsToTransaction`: up to an offset"),
        "fencing": ("yes", "epoch of the `transactional.id`"),
        "duplicates dropped": ("yes", "idempotent producer, for retries of a session"),
        "readers not held up": ("no", "`read_committed` ends at the last stable offset"),
        "survives power loss": (
            "yes",
            "`log.flush.interval.messages=1`; the default leaves it to the replicas' page caches",
        ),
    }
    most = 400
    warm_s = 8.0
    patience_s = 8.0

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port()}"

    def start(self) -> None:
        java = [peer.program("java", "Debian's openjdk-17-jre-headless"), "-cp", classpath()]
        settings = self.folder / "server.properties"
        if not settings.exists():
            ports = {"port": self.port(), "controller": self.port("controller")}
            settings.write_text(SETTINGS.format(folder=self.folder, **ports))
            tool = [*java, "kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4())]
            self.launch([*tool, "-c", settings, "--standalone"])
            assert self.service is not None
            if self.service.wait() != 0:
                raise RuntimeError((self.folder / "service.log").read_text()[-300:])
        self.launch([java[0], "-Xmx512m", *java[1:], "kafka.Kafka", settings])
        error = peer.package("confluent_kafka", "confluent-kafka").KafkaException
        peer.eventually(lambda: self._admin().list_topics(timeout=5), (error,))

    def _admin(self) -> Any:
        return peer.package("confluent_kafka.admin", "confluent-kafka").AdminClient(
            {"bootstrap.servers": self.url, "log_level": 0}
        )

    def produce(self, count: int, depth: int) -> None:
        admin = peer.package("confluent_kafka.admin", "confluent-kafka")
        topics = [("input", depth), ("a", 1), ("b", 1)]
        owner = self._admin()
        made = owner.create_topics([admin.NewTopic(*topic, 1) for topic in topics])
        for future in made.values():
            future.result(60)
        kafka = peer.package("confluent_kafka", "confluent-kafka")
        settings = {"bootstrap.servers": self.url, "log_level": 0, "linger.ms": 50}
        producer = kafka.Producer({**settings, "queue.buffering.max.messages": 1_000_000})
        for number in range(count):
            producer.produce("input", peer.payload(number), partition=number % depth)
        if producer.flush(120):
            raise RuntimeError("Kafka did not take the input")

    def session(self, number: int, depth: int) -> peer.Session:
        return KafkaSession(self.url, number)

    def stored(self) -> list[list[int]]:
        return [self._read(topic) for topic in ("a", "b")]

    def _read(self, topic: str) -> list[int]:
        place = peer.package("confluent_kafka", "confluent-kafka").TopicPartition(topic, 0, 0)
        reader = consumer(self.url, "count")
        _, end = reader.get_watermark_offsets(place, 60)
        reader.assign([place])
        numbers: list[int] = []
        while reader.position([place])[0].offset < end:
            rows = reader.consume(10_000, 2.0)
            numbers += [peer.number_of(row.value()) for row in rows if row.error() is None]
        reader.close()
        return numbers
