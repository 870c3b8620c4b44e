"""Owns the small stores of tests/format/: makes tests/format/v2/ once, and never again.

    python tests/format/make.py

v2/store.tar.gz is the store, v2/expected.json what it must show; v1 was made by txlog 0.1.0. A
later version of txlog reads these files; it does not make them anew, so this program refuses to
replace them. The clock stands still and every choice is fixed; only the uuid of the store is drawn.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import txlog
from txlog.clock import ManualClock

FOLDER = Path(__file__).resolve().parent / "v2"
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


def show(client: txlog.Client) -> Shown:
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
            for topic in ("orders", "acme/eu/straße.1")
        },
        "transactions": sorted(
            [str(txn["txn"]), txn["state"], txn["reason"]] for txn in client.transactions(all=True)
        ),
        "backlog": [[sub["subscription"], sub["backlog"]] for sub in client.subscriptions()],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


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


def main() -> int:
    """Make what is missing; never replace it."""
    if FOLDER.exists():
        sys.stderr.write(f"{FOLDER} is there: a store of an older version is never made anew\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        make(store)
        packed = pack(store)
        with txlog.open(str(store), clock=ManualClock(START_MS + 3000, boot_id=BOOT)) as client:
            watermark = show(client)
    FOLDER.mkdir()
    (FOLDER / "store.tar.gz").write_bytes(packed)
    text = json.dumps(watermark, ensure_ascii=False)
    text = text.replace("[[", "[\n[").replace("], [", "],\n[")  # a line a message
    (FOLDER / "expected.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
