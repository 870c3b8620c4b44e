"""Owns the small stores of tests/format/: makes the stores of a new format once, and never again.

    python -m tests.format.make

vN/store.tar.gz is a store of format N, vN/expected.json what it must show; v1 was made by txlog
0.1.0. From v2 on vN/full.tar.gz is a store with everything that the last program of that format
stored: it was made before the change to the next format. A later version of txlog reads these
files; it does not make them anew, so this program refuses to replace them. The clock stands still
and every choice is fixed; only the uuid of the store is drawn.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import txlog
from tests.engine_kit import prepare
from txlog.clock import ManualClock
from txlog.engine.store.identity import FORMAT

FOLDER = Path(__file__).resolve().parent / f"v{FORMAT}"
START_MS = 1_795_219_200_000  # 2026-11-21T00:00:00Z
BOOT = "7f3c1f2e-52f0-4c58-9d58-0c3a6a1b2c3d"
Shown = dict[str, object]


def make(folder: Path) -> None:
    """Write the store: sealed ledgers, parts and a journal tail, each with every kind of row."""
    clock = ManualClock(START_MS, boot_id=BOOT)
    txlog.init(str(folder), coordinators=2, txn_ids_reserved=8, clock=clock)
    with txlog.open(str(folder), clock=clock) as client:
        client.create_topic("orders", partitions=2)
        client.create_topic("acme/eu/straße.1")
        client.create_subscription("orders", "billing")
        for step, roll in enumerate((True, False, None)):
            clock.advance(1000)
            _fill(client, step)
            if roll is not None:
                client.checkpoint(roll_all=roll)
        with client.transaction(timeout_ms=3_600_000) as aborted:
            client.producer("orders").send(b"never seen", txn=aborted, partition=0)
            aborted.abort()
        open_txn = client.begin(timeout_ms=3_600_000)["txn"]
        client.producer("orders").send(b"left open", txn=open_txn, partition=1)
        client.create_subscription("orders", "audit")  # its flush carries what is open


def _fill(client: txlog.Client, step: int) -> None:
    producer = client.producer("orders", name="till")
    for number in range(3):
        producer.send(
            b"plain %d.%d" % (step, number),
            key=b"k%d" % number,
            partition=number % 2,
            properties={"step": str(step)},
            event_time=START_MS - 1,
            sequence_id=10 * step + number,
        )
    other = client.producer("acme/eu/straße.1")
    with client.transaction() as txn:
        for number in range(2):
            client.producer("orders").send(b"txn %d.%d" % (step, number), txn=txn, partition=number)
        other.send(None, key=b"tomb", txn=txn)
        with client.consumer("orders", "billing") as consumer:
            message = consumer.receive(timeout_ms=0)
            assert message is not None
            consumer.acknowledge(message, txn=txn)


def show(client: txlog.Client, topics: Sequence[str] = ("orders", "acme/eu/straße.1")) -> Shown:
    """The content of a store, as a reader and `txlog` show it, in plain values."""
    return {
        "topics": {
            topic: [
                [
                    message.partition,
                    str(message.message_id),
                    _text(message.key),
                    _text(message.value),
                    dict(message.properties),
                    message.publish_time,
                    message.event_time,
                    None if message.txn is None else str(message.txn),
                ]
                for message in client.reader(topic)
            ]
            for topic in topics
        },
        "transactions": sorted(
            [str(txn["txn"]), txn["state"], txn["reason"]] for txn in client.transactions(all=True)
        ),
        "backlog": [[sub["subscription"], sub["backlog"]] for sub in client.subscriptions()],
    }


def make_full(folder: Path) -> None:
    """Write a store with the data that the later features of a format store."""
    clock = ManualClock(START_MS, boot_id=BOOT)
    txlog.init(str(folder), coordinators=2, max_message_bytes=1000, clock=clock)
    with txlog.open(str(folder), clock=clock) as client:
        client.create_topic("flights", partitions=2, schema=_flights(), retention_ms=10**12)
        client.create_topic("acme/eu/keys", partitions=2)
        client.create_topic("gone")
        client.create_topic("moved")
        client.producer("gone").send(b"deleted with its topic")
        client.admin.set_retention_policies(namespace="acme/eu", ttl_ms=10**12)
        client.admin.set_alert_policies("flights", backlog_messages=100)
        client.create_subscription("flights", "shared", type="shared")
        client.create_subscription("flights", "ordered", type="key-shared")
        client.subscription("flights", "shared").set_policies(max_redeliver_count=1)
        for step in range(3):
            clock.advance(1000)
            _fill_full(client, step)
            if step < 2:
                client.checkpoint(roll_all=step == 0)
            if step == 1:
                client.admin.update_topic("acme/eu/keys", 3)
                client.admin.compact_topic("acme/eu/keys")
                client.admin.delete_topic("gone")
                client.producer("moved").send(b"before it was renamed")
                client.admin.rename_topic("moved", "renamed")
                client.create_topic("moved")
                client.producer("moved").send(b"of the new topic")
                client.producer("renamed").send(b"after it was renamed")
                client.admin.rename_topic("flights-shared-RETRY", "later")
        epoch = client.connect("worker")["epoch"]
        left_open = client.begin(3_600_000, key="worker", epoch=epoch)["txn"]
        client.producer("acme/eu/keys").send(b"left open", txn=left_open, partition=0)
        with client.consumer("flights", "ordered") as consumer:
            message = consumer.receive(timeout_ms=0)
            assert message is not None
            consumer.acknowledge(message, txn=left_open)
        prepared = client.begin(3_600_000)["txn"]
        client.producer("renamed").send(b"prepared", txn=prepared, partition=0)
        prepare(client, prepared)
        client.create_topic("away")
        client.admin.set_offline("away", 0)
        client.flush()


def _flights() -> pa.Schema:
    return pa.schema([pa.field("plane", pa.string()), pa.field("seats", pa.int64())])


def _fill_full(client: txlog.Client, step: int) -> None:
    """Typed, delayed, keyed, large and staged messages; watermarks; a dead letter; holders."""
    flights = client.producer("flights", name="gate")
    for number in range(4):
        flights.send(
            {"plane": f"D-{step}{number}", "seats": 100 + number},
            key=b"plane %d" % number,
            partition=number % 2,
            sequence_id=10 * step + 2 * number,
            event_time=START_MS + step,
            deliver_after=3_600_000 if number == 3 else None,
        )
    client.topic("flights").watermarks.set(START_MS + step, producer="gate")
    keys = client.producer("acme/eu/keys", chunking=True)
    keys.send(b"large %d " % step + b"-" * 2500, key=b"big", properties={"step": str(step)})
    for number in range(3):
        keys.send(b"%d.%d" % (step, number) if number else None, key=b"key %d" % number)
    bulk = client.bulk("acme/eu/keys", key="loader", batch=step)
    bulk.commit(bulk.stage([pa.table({"value": [b"staged %d" % step] * 3})]))
    with client.transaction() as txn:
        flights.send({"plane": f"txn {step}", "seats": None}, txn=txn, partition=0)
        keys.send(b"txn %d" % step, txn=txn, key=b"txn")
    with client.consumer("flights", "shared", name="desk") as consumer:
        for number in range(3):
            message = consumer.receive(timeout_ms=0)
            assert message is not None
            if number == 0:
                consumer.acknowledge(message)
            elif number == 1:
                consumer.negative_acknowledge(message, delay_ms=0)
            else:
                consumer.reconsume_later(message, delay_ms=1000)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def show_full(client: txlog.Client) -> Shown:
    """The content of a store that `make_full` made."""
    topics = sorted(str(row["topic"]) for row in client.topics())
    shown = show(client, [topic for topic in topics if topic != "away"])
    shown["described"] = {topic: client.describe_topic(topic) for topic in topics}
    shown["subscriptions"] = client.subscriptions()
    shown["delayed"] = client.topic("flights").delayed().to_pylist()
    shown["watermarks"] = client.topic("flights").watermarks.show()
    shown["compacted"] = [
        [message.message_id, message.key, message.value]
        for message in client.reader("acme/eu/keys", read_compacted=True)
    ]
    shown["keys"] = [
        [key["transaction_key"], key["epoch"], key["txn_state"]]
        for key in client.admin.transaction_keys()
    ]
    if prepared := client.transactions(states=["prepared"]):
        shown["prepared"] = prepared
    shown["alerts"] = client.admin.get_alert_policies("flights")
    return {name: _plain(value) for name, value in shown.items()}


def _plain(value: object) -> object:
    """The value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.decode() if isinstance(value, bytes) else str(value)


def pack(folder: Path) -> bytes:
    """The directory as a compressed archive without owners and times."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            if path.is_file():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return out.getvalue()


KINDS: Mapping[str, tuple[Callable[[Path], None], Callable[[txlog.Client], Shown], str, int]] = {
    # of the archive -> how to make it, how to show it, the name of the result, ms after START_MS
    "store": (make, show, "expected", 3000),
    "full": (make_full, show_full, "full", 4000),
}


def main(folder: Path = FOLDER) -> int:
    """Make what is missing; never replace it."""
    missing = [kind for kind in KINDS if not (folder / f"{kind}.tar.gz").exists()]
    if not missing:
        sys.stderr.write(f"{folder} is there: a store of an older version is never made anew\n")
        return 1
    folder.mkdir(exist_ok=True)
    for kind in missing:
        _make_kind(folder, kind)
    return 0


def _make_kind(folder: Path, kind: str) -> None:
    maker, shower, shown_name, after_ms = KINDS[kind]
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        maker(store)
        packed = pack(store)
        clock = ManualClock(START_MS + after_ms, boot_id=BOOT)
        with txlog.open(str(store), clock=clock) as client:
            shown = shower(client)
    (folder / f"{kind}.tar.gz").write_bytes(packed)
    text = json.dumps(shown, ensure_ascii=False)
    for before, after in (("[[", "[\n["), ("], [", "],\n["), ("}, ", "},\n")):  # a line a message
        text = text.replace(before, after)
    (folder / f"{shown_name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
