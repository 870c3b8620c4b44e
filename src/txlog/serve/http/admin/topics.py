"""Owns the endpoints of topics: creating, figures, compaction, offload, delayed messages and
watermarks, figures of all topics; and message ids in the admin API.

Pulsar's API has no delayed messages and watermarks: their answers have the fields of the commands
`txlog delay` and `txlog watermark`. Pulsar's figures of its machine, its JVM and Netty are missing:
a store has no beans and no allocators.

Message ids are as in the binary protocol (serve/pulsar/ids). Only internalStats and
delayed messages have the ids of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import txlog
from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import Bound, Range
from txlog.base.rows.consuming import ConsumerRow, SubscriptionPartition
from txlog.base.rows.files import SegmentRow
from txlog.base.rows.topics import TopicDescription, TopicPartition
from txlog.client.client import Client
from txlog.engine.door.store import View
from txlog.errors import InvalidArgument, MessageNotFound, NotAllowed, TopicNotFound
from txlog.lake.sql import segments
from txlog.serve.core.service import ConsumerStats, ProducerStats
from txlog.serve.http.admin.store import BUNDLE, full, names
from txlog.serve.http.core.context import Rates
from txlog.serve.http.core.declared import (
    ADMIN,
    CONSUME,
    LOOK,
    PRODUCE,
    EndpointList,
    integer,
    members,
)
from txlog.serve.limits.shares import check_topic_share
from txlog.serve.pulsar import ids
from txlog.serve.pulsar.messages import MessageIdData, Proto
from txlog.serve.pulsar.topics import count_partitions


def pulsar_id(client: Client, message_id: MessageId | None, partition: int) -> dict[str, object]:
    """An id by Pulsar's names; -1 for none."""
    if message_id is None:
        return {"ledgerId": -1, "entryId": -1, "partitionIndex": partition}
    ledger, entry = client.store.ask(lambda view: _on_wire(view, message_id))
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition}


def pulsar_id_text(client: Client, message_id: MessageId) -> str:
    """An id as `LEDGER:ENTRY`."""
    ledger, entry = client.store.ask(lambda view: _on_wire(view, message_id))
    return f"{ledger}:{entry}"


def _on_wire(view: View, message_id: MessageId) -> tuple[int, int]:
    """Ledger and entry of Pulsar's id of a message alone, without the rest of its batch."""
    alone = message_id.ledger, message_id.entry * ids.STEP
    number = ids.partition_of(view, MessageIdData(ledgerId=message_id.ledger, entryId=0))
    span = None
    if number is not None:
        span = ids.span_at(view, number, message_id.ledger, message_id.entry, message_id.index)
    if span is None or (span.size == 1 and not span.inner):
        return alone
    wire_id = ids.wire_id(span, span.at(message_id), 0, is_alone=True)
    return wire_id.ledgerId, wire_id.entryId


def store_id(client: Client, fields: dict[str, Any], *, is_last: bool) -> MessageId:
    """The message that an id names; for the id of a batch, its first or its last message.

    raises: InvalidArgument, MessageNotFound
    """
    ledger, entry = integer(fields.get("ledgerId")), integer(fields.get("entryId"))
    if not 0 <= ledger < 1 << 63 or not 0 <= entry < 1 << 63:
        raise MessageNotFound(f"there is no message {ledger}:{entry}")
    wire = MessageIdData(ledgerId=ledger, entryId=entry)
    if integer(fields.get("batchIndex", -1)) >= 0:
        wire.batch_index = fields["batchIndex"]
    message_id = client.store.ask(lambda view: _named(view, wire, is_last))
    if message_id is None:
        raise MessageNotFound(
            f"there is no message {ledger}:{entry}",
            hint=f"ids are those that Pulsar's clients get, with steps of {ids.STEP}",
        )
    return message_id


def _named(view: View, wire: Proto, is_last: bool) -> MessageId | None:
    number = ids.partition_of(view, wire)
    target = None if number is None else ids.target_of(view, number, wire)
    if target is None:
        return None
    return target.span.id(target.at if target.is_one or is_last else 0)


TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
TYPES: Final = {
    "exclusive": "Exclusive",
    "shared": "Shared",
    "failover": "Failover",
    "key-shared": "Key_Shared",
    "key_shared": "Key_Shared",
}
T = TypeVar("T")
endpoint = EndpointList()


# --- the topic itself ------------------------------------------------------------------------


@endpoint("PUT", TOPIC, ADMIN)
def create_topic(client: Client, topic: TopicName, body: object = None) -> None:
    """Create a topic that is not partitioned; a body with properties is refused."""
    _bare(members(body))
    check_topic_share(client)
    client.create_topic(topic.full)


@endpoint("PUT", f"{TOPIC}/partitions", ADMIN)
def create_partitioned_topic(client: Client, topic: TopicName, body: object) -> None:
    """Create a topic with partitions; the body is their number, or {partitions, properties}."""
    check_topic_share(client)
    client.create_topic(topic.full, _partitions(body))


@endpoint("POST", f"{TOPIC}/partitions", ADMIN)
def update_partitioned_topic(client: Client, topic: TopicName, body: object) -> None:
    """Add partitions; the body is how many there will be."""
    client.admin.update_topic(topic.full, _partitions(body))


@endpoint("GET", f"{TOPIC}/partitions", LOOK)
@endpoint("GET", "/admin/persistent/{tenant}/{cluster}/{namespace}/{topic}/partitions", LOOK)
def partitions(
    client: Client, topic: TopicName, creates: bool, checkAllowAutoCreation: bool = False
) -> dict[str, object]:
    """How many partitions a topic has; 0: it is not partitioned.

    Clients that look topics up by HTTP set checkAllowAutoCreation where a missing topic may be
    created; without it a missing topic is an error.
    """
    asks = not checkAllowAutoCreation
    count = count_partitions(client, topic, creates=creates, asks=asks)
    return {"partitions": count, "deleted": False}


@endpoint("DELETE", TOPIC, ADMIN)
@endpoint("DELETE", f"{TOPIC}/partitions", ADMIN)
def delete_topic(client: Client, topic: TopicName, force: bool = False) -> None:
    """Delete a topic, with its subscriptions if none has a consumer.

    force: delete it even with consumers and with messages of open transactions
    """
    _whole(client, topic)
    client.admin.delete_topic(topic.full, force=force, unused=True)


@endpoint("DELETE", f"{TOPIC}/truncate", ADMIN)
def truncate(client: Client, topic: TopicName) -> None:
    """Acknowledge everything for all subscriptions, and delete the ledgers that are closed."""
    for row in client.subscriptions(str(topic)):
        client.subscription(str(topic), row["subscription"]).clear_backlog()
    client.admin.trim(str(topic), Bound("end"))


@endpoint("PUT", f"{TOPIC}/unload", ADMIN)
def unload(client: Client, topic: TopicName) -> None:
    """Do nothing: no process owns a topic."""
    client.describe_topic(topic.full)


@endpoint("POST", f"{TOPIC}/createMissedPartitions", ADMIN)
def create_missed_partitions(client: Client, topic: TopicName) -> None:
    """Do nothing: a topic has all its partitions from the beginning."""
    client.describe_topic(topic.full)


@endpoint("POST", f"{TOPIC}/trim", ADMIN)
def trim(client: Client, topic: TopicName) -> None:
    """Delete closed ledgers that the policies no longer keep."""
    client.admin.trim(str(topic), by_policy=True)


@endpoint("POST", f"{TOPIC}/terminate/partitions", ADMIN)
@endpoint("POST", f"{TOPIC}/terminate", ADMIN)
def terminate(client: Client, topic: TopicName) -> None:
    """Refused: a topic cannot be closed for ever."""
    raise NotAllowed("a topic cannot be terminated", topic=topic.short)


def _partitions(body: object) -> int:
    if not isinstance(body, dict):
        return integer(body)
    _bare(body.get("properties") or {})
    return integer(body.get("partitions"))


def _bare(properties: dict[str, Any]) -> None:
    if properties:
        raise NotAllowed("properties: a store has no such setting", hint="see docs/http.md")


def _whole(client: Client, topic: TopicName) -> None:
    """Refuse a partition of a topic with several: it cannot be deleted alone."""
    if topic.partition is not None and client.describe_topic(topic.full)["partitions"] > 1:
        raise NotAllowed(f"{full(topic)} is a partition", hint=f"name {full(topic.topic)}")


# --- figures ---------------------------------------------------------------------------------


class _TopicView:
    """A topic and its subscriptions, read once for all answers about its partitions."""

    def __init__(self, client: Client, topic: TopicName) -> None:
        """Raises TopicNotFound, InvalidArgument: there is no such partition."""
        self.topic: TopicDescription = client.describe_topic(str(topic))
        self._parts = {row["partition"]: row for row in self.topic["partition_list"]}
        names = [row["subscription"] for row in self.topic["subscription_list"]]
        self.subscriptions = {
            name: client.subscription(str(topic), name).describe() for name in names
        }
        self._parts_of = {
            name: {row["partition"]: row for row in described["partition_list"]}
            for name, described in self.subscriptions.items()
        }

    def parts(self, partition: int | None) -> list[TopicPartition]:
        """All partitions, or a single one."""
        return _picked(self._parts, partition)

    def parts_of(self, name: str, partition: int | None) -> list[SubscriptionPartition]:
        """The partitions of a subscription, or a single one."""
        return _picked(self._parts_of[name], partition)


def _picked(rows: Mapping[int, T], partition: int | None) -> list[T]:
    if partition is None:
        return [*rows.values()]
    return [rows[partition]] if partition in rows else []


@endpoint("GET", f"{TOPIC}/stats", LOOK, is_aside=True)
def stats(
    client: Client,
    topic: TopicName,
    rates: Rates,
    now_ms: int,
    publishers: Sequence[ProducerStats],
    subscribers: Sequence[ConsumerStats],
) -> dict[str, Any]:
    """Figures of a topic or a partition, by Pulsar's names.

    Publishers and the addresses of consumers come from stock clients at this server.
    """
    looked = _TopicView(client, topic)
    return _stats(looked, topic, rates, now_ms, publishers, subscribers)


@endpoint("GET", f"{TOPIC}/partitioned-stats", LOOK, is_aside=True)
def partitioned_stats(
    client: Client,
    topic: TopicName,
    rates: Rates,
    now_ms: int,
    publishers: Sequence[ProducerStats],
    subscribers: Sequence[ConsumerStats],
    perPartition: bool = True,
) -> dict[str, Any]:
    """Figures of a partitioned topic, and of each partition."""
    looked = _TopicView(client, topic.topic)
    count = looked.topic["partitions"]
    out = _stats(looked, topic.topic, rates, now_ms, publishers, subscribers)
    out["metadata"] = {"partitions": count, "deleted": False}
    parts: dict[str, object] = {}
    if perPartition:
        for number in range(count):
            partition = TopicName(topic.tenant, topic.namespace, topic.name, number)
            parts[full(partition)] = _stats(
                looked, partition, rates, now_ms, publishers, subscribers
            )
    out["partitions"] = parts
    return out


def _stats(
    looked: _TopicView,
    topic: TopicName,
    rates: Rates,
    now_ms: int,
    publishers: Sequence[ProducerStats],
    subscribers: Sequence[ConsumerStats] = (),
) -> dict[str, Any]:
    here = [
        row
        for row in subscribers
        if row.topic == topic.full and topic.partition in (None, row.partition)
    ]
    parts = looked.parts(topic.partition)
    messages = sum(row["messages"] for row in parts)
    size = sum(row["size_bytes"] for row in parts)
    average = size / messages if messages else 0.0
    subscriptions = {
        name: _subscription(looked, topic.partition, name, here) for name in looked.subscriptions
    }
    for name, figures in subscriptions.items():
        backlog: Any = figures["msgBacklog"]
        figures["backlogSize"] = round(backlog * average)
        done = messages - backlog  # how many it has acknowledged
        figures["msgRateOut"] = pace = rates.of(f"{full(topic)} {name} out", done, now_ms)
        figures["msgThroughputOut"] = pace * average
    out: list[Any] = [figures["msgRateOut"] for figures in subscriptions.values()]
    backlogs: list[Any] = [figures["backlogSize"] for figures in subscriptions.values()]
    return {
        "msgRateIn": rates.of(f"{full(topic)} messages", messages, now_ms),
        "msgThroughputIn": rates.of(f"{full(topic)} bytes", size, now_ms),
        "msgRateOut": sum(out),
        "msgThroughputOut": sum(out) * average,
        "bytesInCounter": size,
        "msgInCounter": messages,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "averageMsgSize": average,
        "msgChunkPublished": False,
        "storageSize": size + sum(row["sidecar_bytes"] for row in parts),
        "backlogSize": max(backlogs, default=0),
        "ongoingTxnCount": sum(row["open_txns"] for row in parts),
        "publishers": [
            _publisher(row, rates, now_ms)
            for row in publishers
            if row.topic == topic.full and topic.partition in (None, row.partition)
        ],
        "waitingPublishers": 0,
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled",
        "delayedMessageIndexSizeInBytes": 0,
        "ownerBroker": "standalone",
    }


def _publisher(producer: ProducerStats, rates: Rates, now_ms: int) -> dict[str, object]:
    key = f"{producer.topic} {producer.partition} {producer.name} {producer.peer} {producer.number}"
    return {
        "accessMode": producer.mode,
        "msgRateIn": rates.of(f"{key} messages", producer.messages, now_ms),
        "msgThroughputIn": rates.of(f"{key} bytes", producer.payload_bytes, now_ms),
        "averageMsgSize": producer.payload_bytes / producer.messages if producer.messages else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.number,
        "producerName": producer.name,
        "address": producer.peer,
        "connectedSince": str(producer.since_ms),
        "clientVersion": producer.version,
        "supportsPartialProducer": False,
        "metadata": dict(producer.metadata),
    }


def _subscription(
    looked: _TopicView, partition: int | None, name: str, subscribers: Sequence[ConsumerStats]
) -> dict[str, object]:
    described, parts = looked.subscriptions[name], looked.parts_of(name, partition)
    leased = sum(row["leased"] for row in parts)
    live = [row for row in described["consumer_list"] if row["alive"]]
    names: dict[int | None, str] = {row["consumer"]: row["name"] for row in live}
    names |= {consumer.consumer: consumer.name for consumer in subscribers}
    return {
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "msgRateRedeliver": 0.0,
        "msgBacklog": sum(row["backlog"] for row in parts),
        "msgBacklogNoDelayed": sum(row["backlog_no_delayed"] for row in parts),
        "msgDelayed": sum(row["delayed"] for row in parts),
        "msgInReplay": 0,
        "unackedMessages": leased,
        "blockedSubscriptionOnUnackedMsgs": False,
        "type": TYPES.get(described["type"], described["type"]),
        "activeConsumerName": next(
            (names[row["consumer"]] for row in live if row["active_list"]), None
        ),
        "msgRateExpired": 0.0,
        "lastAckedTimestamp": described["last_ack_time"] or 0,
        "consumers": [consumer for row in live for consumer in _consumers(row, subscribers)],
        "isDurable": True,
        "isReplicated": False,
        "pendingAcks": sum(row["pending_acks"] for row in parts),
    }


def _consumers(
    row: ConsumerRow, subscribers: Sequence[ConsumerStats]
) -> Iterator[dict[str, object]]:
    """A row for each stock client's consumer that shares this consumer of the store, or its own."""
    usual: dict[str, object] = {
        "consumerName": row["name"],
        "unackedMessages": row["leased"],
        "connectedSince": str(row["since_time"]),
        "availablePermits": 0,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "metadata": {"pid": str(row["pid"])},
    }
    connected = [consumer for consumer in subscribers if consumer.consumer == row["consumer"]]
    if not connected:
        yield usual
    for consumer in connected:
        yield usual | {
            "consumerName": consumer.name,
            "unackedMessages": consumer.unacked,
            "connectedSince": str(consumer.since_ms),
            "availablePermits": consumer.permits,
            "address": consumer.peer,
            "clientVersion": consumer.version,
            "metadata": dict(consumer.metadata),
        }


@endpoint("GET", f"{TOPIC}/lag", LOOK, is_aside=True)
def lag(
    client: Client, topic: TopicName, subscribers: Sequence[ConsumerStats]
) -> list[dict[str, Any]]:
    """How far each subscription of a topic is behind, and its consumers with their addresses."""
    return [
        {
            **(described := client.subscription(str(topic.topic), row["subscription"]).describe()),
            "consumer_list": [
                each for row in described["consumer_list"] for each in addressed(row, subscribers)
            ],
        }
        for row in client.subscriptions(str(topic.topic))
    ]


def addressed(
    row: ConsumerRow, subscribers: Sequence[ConsumerStats]
) -> Iterator[dict[str, object]]:
    """A consumer of the store, or a row for each client that is connected as this consumer."""
    clients = [client for client in subscribers if client.consumer == row["consumer"]]
    if not clients:
        yield {**row}
    for client in clients:
        yield {**row, "name": client.name, "leased": client.unacked, "address": client.peer}


@endpoint("GET", f"{TOPIC}/internalStats", LOOK, is_aside=True)
def internal_stats(client: Client, topic: TopicName) -> dict[str, object]:
    """The ledgers and cursors of a topic or a partition."""
    return _internal(_TopicView(client, topic), topic, segments.listed(client, str(topic)))


@endpoint("GET", f"{TOPIC}/internal-info", LOOK, is_aside=True)
def internal_info(client: Client, topic: TopicName) -> dict[str, object]:
    """The ledgers and cursors of a topic or a partition, as Pulsar's metadata has them."""
    stats_of_topic = internal_stats(client, topic)
    return {
        "version": 0,
        "ledgers": stats_of_topic["ledgers"],
        "cursors": stats_of_topic["cursors"],
    }


@endpoint("GET", f"{TOPIC}/partitioned-internalStats", LOOK, is_aside=True)
def partitioned_internal_stats(client: Client, topic: TopicName) -> dict[str, object]:
    """The ledgers and cursors of each partition."""
    looked = _TopicView(client, topic.topic)
    number = looked.topic["partitions"]
    files: dict[int | None, list[SegmentRow]] = {}
    for row in segments.listed(client, topic.full):
        files.setdefault(row["partition"], []).append(row)
    parts = [TopicName(topic.tenant, topic.namespace, topic.name, at) for at in range(number)]
    return {
        "metadata": {"partitions": number, "deleted": False},
        "partitions": {
            full(partition): _internal(looked, partition, files.get(partition.partition, []))
            for partition in parts
        },
    }


def _internal(
    looked: _TopicView, topic: TopicName, files: Sequence[SegmentRow]
) -> dict[str, object]:
    parts = looked.parts(topic.partition)
    ledgers: dict[int, dict[str, Any]] = {}
    for row in files:
        number = row["ledger"]
        if number is None or row["sidecar"] or row["log"] is not None:
            continue
        ledger = ledgers.setdefault(
            number,
            {
                "ledgerId": number,
                "entries": 0,
                "size": 0,
                "offloaded": False,
                "underReplicated": False,
            },
        )
        ledger["entries"] += row["rows"] or 0
        ledger["size"] += row["size_bytes"] or 0
        ledger["offloaded"] |= "://" in (row["file"] or "")
    last = max((row["last"] for row in parts if row["last"] is not None), default=None)
    entries, size = (sum(row["messages"] for row in parts), sum(row["size_bytes"] for row in parts))
    newest = ledgers[max(ledgers)] if ledgers else {"entries": 0, "size": 0}
    return {
        "entriesAddedCounter": entries,
        "numberOfEntries": entries,
        "totalSize": size,
        "currentLedgerEntries": newest["entries"],
        "currentLedgerSize": newest["size"],
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": "-1:-1" if last is None else f"{last.ledger}:{last.entry}",
        "state": "LedgerOpened",
        "ledgers": [ledgers[number] for number in sorted(ledgers)],
        "cursors": {
            name: _cursor(looked.parts_of(name, topic.partition or 0)[0])
            for name in looked.subscriptions
        },
        "schemaLedgers": [],
    }


def _cursor(part: SubscriptionPartition) -> dict[str, object]:
    position = part["mark_delete"]
    return {
        "markDeletePosition": "-1:-1"
        if position is None
        else f"{position.ledger}:{position.entry}",
        "readPosition": "",
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": 0,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": "[]",
        "state": "Open",
        "numberOfEntriesSinceFirstNotAckedMessage": part["backlog"] + part["acked_beyond"],
        "totalNonContiguousDeletedMessagesRange": part["acked_beyond"],
        "properties": {},
    }


# --- messages --------------------------------------------------------------------------------


@endpoint("GET", f"{TOPIC}/lastMessageId", CONSUME)
def last_message_id(client: Client, topic: TopicName) -> dict[str, object]:
    """The id of the last message of a topic that is not partitioned, or of a partition."""
    described = client.describe_topic(str(topic))
    if topic.partition is None and described["partitions"] > 1:
        raise InvalidArgument(f"{topic.short} is partitioned", hint="name a partition")
    last = described["partition_list"][topic.partition or 0]["last"]
    return pulsar_id(client, last, -1 if topic.partition is None else topic.partition)


@endpoint("GET", f"{TOPIC}/messageid/{{timestamp}}", CONSUME)
def message_id_at(client: Client, topic: TopicName, timestamp: int) -> dict[str, object]:
    """The first message that became visible at an instant or later."""
    bounds = Range(start=Bound("time", timestamp))
    for message in client.reader(str(topic), bounds.start):
        return pulsar_id(client, message.message_id, message.partition)
    return pulsar_id(client, None, topic.partition or 0)


# --- compaction and offload ------------------------------------------------------------------


@endpoint("PUT", f"{TOPIC}/compaction", ADMIN, is_slow=True)
def compact(client: Client, topic: TopicName) -> None:
    """Compact a topic by key; it is done when this returns."""
    client.admin.compact_topic(topic.full)


@endpoint("GET", f"{TOPIC}/compaction", LOOK)
def compaction(client: Client, topic: TopicName) -> dict[str, str]:
    """The state of the compaction: it has always finished."""
    rows = client.describe_topic(topic.full)["partition_list"]
    is_done = any(row["compacted_through"] is not None for row in rows)
    return {"status": "SUCCESS" if is_done else "NOT_RUN", "lastError": ""}


@endpoint("PUT", f"{TOPIC}/offload", ADMIN, is_slow=True)
def offload(
    client: Client, topic: TopicName, places: Mapping[str, str], to: str = "", body: object = None
) -> object:
    """Move sealed files to a place that the operator has named; `to` says which, if there are more.

    An administrator of a topic must not choose directories of this machine, nor addresses that the
    server calls with its own credentials.
    """
    if not places:
        raise NotAllowed(
            "this server offloads nowhere", hint="its operator names places by --offload-to"
        )
    if not to and len(places) > 1:
        raise InvalidArgument("say where to, as to=NAME", hint="see --offload-to")
    address = places.get(to) if to else next(iter(places.values()))
    if address is None:
        raise NotAllowed(
            f"there is no place {to[:80]!r} for offloads",
            hint="its operator names places by --offload-to",
        )
    answer = client.admin.offload(topic.full, address, topic.partition)
    return {**answer, "place": to or next(iter(places))}


@endpoint("GET", f"{TOPIC}/offload", LOOK)
def offload_status(client: Client, topic: TopicName) -> dict[str, str]:
    """The state of the offload: it has always finished."""
    client.describe_topic(topic.full)
    return {"status": "NOT_RUN", "lastError": ""}


@endpoint("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", LOOK)
@endpoint("GET", "/lookup/v2/destination/{domain}/{tenant}/{cluster}/{namespace}/{topic}", LOOK)
def lookup(client: Client, topic: TopicName, addresses: dict[str, str]) -> dict[str, str]:
    """Where clients connect for a topic: here, whether it exists or not.

    Clients of C++ and Python fail where brokerUrl or brokerUrlTls is missing, so both are given;
    the empty one is not served.
    """
    if "nativeUrl" not in addresses:
        raise NotAllowed("this server does not serve clients of Pulsar", hint="see --pulsar")
    return {"brokerUrl": "", "brokerUrlTls": "", **addresses}


# --- delayed messages and watermarks --------------------------------------------------------------


LISTED_MAX = 1000


@endpoint("GET", f"{TOPIC}/delayed", LOOK)
def delayed(
    client: Client, topic: TopicName, subscription: str | None = None, limit: int = 100
) -> list[dict[str, object]]:
    """The next messages that wait for their time."""
    table = client.topic(str(topic)).delayed(subscription, limit=min(limit, LISTED_MAX))
    out: list[dict[str, object]] = []
    for row in table.drop_columns(["txn_most", "txn_least", "key"]).to_pylist():
        message_id = MessageId(row.pop("ledger"), row.pop("entry"), row.pop("index") or 0)
        out.append({"message_id": message_id, **row})
    return out


@endpoint("GET", f"{TOPIC}/delayed/histogram", LOOK)
def delayed_histogram(client: Client, topic: TopicName, subscription: str | None = None) -> object:
    """How many messages are due within a minute, ten, an hour, a day, and later."""
    return client.topic(str(topic)).histogram(subscription)


@endpoint("GET", f"{TOPIC}/delayed/buckets", LOOK)
def delayed_buckets(client: Client, topic: TopicName) -> object:
    """The buckets of the index of delayed messages."""
    return client.topic(str(topic)).buckets()


@endpoint("POST", f"{TOPIC}/delayed/promote", CONSUME)
def promote(client: Client, topic: TopicName, body: object) -> object:
    """Deliver delayed messages now: {ids, before or all, subscription}."""
    return client.topic(str(topic)).promote(**_which(body))


@endpoint("POST", f"{TOPIC}/delayed/cancel", CONSUME)
def cancel(client: Client, topic: TopicName, body: object) -> object:
    """Acknowledge delayed messages before they are due: {ids, before or all, subscription}."""
    return client.topic(str(topic)).cancel(**_which(body))


def _which(body: object) -> dict[str, Any]:
    fields = members(body)
    unknown = fields.keys() - {"ids", "before", "all", "subscription"}
    if unknown:
        raise InvalidArgument(f"the body has an unknown member: {min(unknown)}")
    if fields.get("ids") is not None:
        fields["ids"] = [MessageId.parse(str(text)) for text in fields["ids"]]
    return fields


@endpoint("GET", f"{TOPIC}/watermark", LOOK)
def watermark(client: Client, topic: TopicName, subscription: str | None = None) -> object:
    """The watermark at the end of a topic, or at a subscription's position."""
    return client.topic(str(topic)).watermarks.show(subscription, lateness=False)


@endpoint("GET", f"{TOPIC}/watermark/producers", LOOK)
def watermark_producers(
    client: Client, topic: TopicName, subscription: str | None = None
) -> object:
    """The producers that hold the watermark back."""
    return client.topic(str(topic)).watermarks.producers(subscription)


@endpoint("GET", f"{TOPIC}/watermark/history", LOOK)
def watermark_history(client: Client, topic: TopicName, limit: int = 100) -> object:
    """The changes of the watermark, oldest first."""
    return client.topic(str(topic)).watermarks.history(limit=min(limit, LISTED_MAX))


@endpoint("POST", f"{TOPIC}/watermark/{{producer}}", PRODUCE)
def set_watermark(client: Client, topic: TopicName, producer: str, body: object) -> object:
    """Assert an event time on behalf of a producer; the body is the instant in ms."""
    return client.topic(topic.full).watermarks.set(integer(body), producer)


@endpoint("DELETE", f"{TOPIC}/watermark/{{producer}}", ADMIN)
def set_idle(client: Client, topic: TopicName, producer: str) -> object:
    """Declare a producer idle: it no longer holds the watermark back."""
    return client.topic(topic.full).watermarks.idle(producer)


# --- figures of all topics ------------------------------------------------------------------------


_BROKER_STATS: Final = "/admin/v2/broker-stats"
_SUMS: Final = {
    "brk_in_rate": "msgRateIn",
    "brk_in_tp_rate": "msgThroughputIn",
    "brk_out_rate": "msgRateOut",
    "brk_out_tp_rate": "msgThroughputOut",
    "brk_storage_size": "storageSize",
}


@endpoint("GET", f"{_BROKER_STATS}/topics", LOOK, is_slow=True)
def topics_of_broker(
    client: Client, rates: Rates, now_ms: int, publishers: Sequence[ProducerStats]
) -> dict[str, object]:
    """Figures of all topics, by namespace and bundle."""
    out: dict[str, Any] = {}
    for name, figures in _figures_of_all(client, rates, now_ms, publishers):
        bundles = out.setdefault(f"{name.tenant}/{name.namespace}", {BUNDLE: {"persistent": {}}})
        bundles[BUNDLE]["persistent"][f"persistent://{name.full}"] = figures
    return out


@endpoint("GET", f"{_BROKER_STATS}/metrics", LOOK, is_slow=True)
def metrics_of_broker(
    client: Client, rates: Rates, now_ms: int, publishers: Sequence[ProducerStats]
) -> list[dict[str, object]]:
    """Figures of each namespace; /metrics has more, for Prometheus."""
    sums: dict[str, dict[str, float]] = {}
    for name, figures in _figures_of_all(client, rates, now_ms, publishers):
        into = sums.setdefault(f"{name.tenant}/{name.namespace}", {})
        subscriptions = figures["subscriptions"].values()
        row = {
            **{ours: figures[theirs] for ours, theirs in _SUMS.items()},
            "brk_no_of_producers": len(figures["publishers"]),
            "brk_no_of_subscriptions": len(subscriptions),
            "brk_no_of_consumers": sum(
                len(subscription["consumers"]) for subscription in subscriptions
            ),
            "brk_msg_backlog": sum(subscription["msgBacklog"] for subscription in subscriptions),
        }
        for metric, value in row.items():
            into[metric] = into.get(metric, 0) + value
    return [
        {"metrics": row, "dimensions": {"namespace": namespace}} for namespace, row in sums.items()
    ]


@endpoint("GET", f"{_BROKER_STATS}/load-report", LOOK, is_slow=True)
def load_report(
    client: Client,
    rates: Rates,
    now_ms: int,
    publishers: Sequence[ProducerStats],
    addresses: dict[str, str],
) -> dict[str, object]:
    """The figures that a load balancer needs: the load of this server."""
    all_of = [figures for _, figures in _figures_of_all(client, rates, now_ms, publishers)]
    subscriptions = [
        subscription for figures in all_of for subscription in figures["subscriptions"].values()
    ]
    rate = {theirs: sum(figures[theirs] for figures in all_of) for theirs in _SUMS.values()}
    del rate["storageSize"]
    return {
        "loadReportType": "LocalBrokerData",
        "webServiceUrl": addresses.get("httpUrl"),
        "webServiceUrlTls": addresses.get("httpUrlTls"),
        "pulsarServiceUrl": addresses.get("brokerUrl"),
        "pulsarServiceUrlTls": addresses.get("brokerUrlTls"),
        "brokerVersionString": f"txlog {txlog.__version__}",
        **rate,
        "numTopics": len(all_of),
        "numBundles": 1,
        "numProducers": len(publishers),
        "numConsumers": sum(len(subscription["consumers"]) for subscription in subscriptions),
        "bundles": [BUNDLE],
        "lastUpdate": now_ms,
    }


@endpoint("GET", f"{_BROKER_STATS}/mbeans", LOOK)
def beans(client: Client) -> list[object]:
    """Beans of a JVM: there is none."""
    return []


@endpoint("GET", f"{_BROKER_STATS}/allocator-stats/{{allocator}}", LOOK)
def allocators(client: Client, allocator: str) -> None:
    """Refused: a store has no allocators of Netty."""
    raise NotAllowed("there is no JVM here, and no allocator of Netty", hint="see /metrics")


def _figures_of_all(
    client: Client, rates: Rates, now_ms: int, publishers: Sequence[ProducerStats]
) -> list[tuple[TopicName, dict[str, Any]]]:
    """The figures of each topic, one read of the store each: other calls run in between."""
    of_topic: dict[str, list[ProducerStats]] = {}
    for publisher in publishers:
        of_topic.setdefault(publisher.topic, []).append(publisher)
    out = []
    for name in names(client):
        of_this_topic = of_topic.get(name.full, ())
        with suppress(TopicNotFound):  # it was deleted meanwhile
            out.append((name, stats(client, name, rates, now_ms, of_this_topic, ())))
    return out
