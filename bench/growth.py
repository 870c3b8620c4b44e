"""A long-lived store: whether anything grows that no policy keeps.

    python -m bench growth [--transactions N] [--keep] [--out PATH]

One process commits transactions of a message and an acknowledgement. The scenario advances a manual
clock by a tenth of a second each time, so 100,000 transactions are three hours. Each hundredth has
one of twenty keys, each fiftieth is aborted. The topic keeps its newest MiB (with --keep all
messages). After each tenth the scenario prints a line: KiB of each directory and of each kind of
dump (d:) in the newest manifest, files, dropped files in their grace period, and the processor ms
of opening the store and showing topic, subscription and a transaction (least of five).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import txlog
from txlog.client.client import Client
from txlog.client.open import open_store
from txlog.clock import ManualClock

STEP_MS = 100
KEYS = 2000
KINDS = ("catalog", "coordinator", "key", "topic", "buffer", "cursor", "watermark")
DIRECTORIES = ("journal", "manifest", "state", "system", "topics")


def main() -> None:
    """Fill, and print a line for each tenth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--keep", action="store_true", help="no retention: every message stays")
    parser.add_argument("--out", help="write the lines there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = report(Path(folder, "store"), options.transactions, keep=options.keep)
        if options.out:
            Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(path: Path, transactions: int, *, keep: bool) -> list[str]:
    """Run the transactions; returns the lines of the table."""
    clock = ManualClock(1_700_000_000_000)
    txlog.init(
        str(path), clock=clock, durability="os", checkpoint_frames=2048, ledger_entries_max=4000
    )
    names = [*DIRECTORIES, *(f"d:{kind}" for kind in KINDS), "files", "dropped", "open ms"]
    lines = [" ".join(f"{name:>13}" for name in ("transactions", *names))]
    print(lines[0])
    with open_store(str(path), clock=clock) as client:
        client.create_topic("t", partitions=2)
        client.create_subscription("t", "s")
        if not keep:
            client.set_policies("t", retention_bytes=1 << 20)
        for tenth in range(10):
            fill(client, clock, range(tenth * transactions // 10, (tenth + 1) * transactions // 10))
            found = measured(client, path, clock)
            done = (tenth + 1) * transactions // 10
            lines.append(" ".join(f"{value:>13}" for value in (done, *found)))
            print(lines[-1], flush=True)
    return lines


def fill(client: Client, clock: ManualClock, numbers: range) -> None:
    """Commit transactions that each send a message and acknowledge one."""
    producer = client.producer("t")
    consumer = client.consumer("t", "s")
    for number in numbers:
        clock.advance(STEP_MS)
        key = f"job{number % KEYS}" if number % 100 == 0 else None
        if key:
            client.connect(key)
        txn = client.begin(key=key)["txn"]
        producer.send(b"m" * 200, txn=txn)
        batch = consumer.receive_batch(2)
        if batch.num_rows:
            consumer.acknowledge(batch, txn=txn)
        (client.abort if number % 50 == 7 else client.commit)(txn)
    consumer.close()
    print(end="", flush=True)


def measured(client: Client, path: Path, clock: ManualClock) -> list[str]:
    """The figures of a line."""
    txn = client.begin()["txn"]
    client.commit(txn)
    client.checkpoint()
    sizes = {name: _kib(path / name) for name in DIRECTORIES}
    manifest = client.store.read(lambda view: view.manifest)
    dumps = Counter[str]()
    for ref in manifest.dumps:
        dumps[ref.kind] += ref.length
    files = sum(1 for file in path.rglob("*") if file.is_file())
    took = min(_opened(path, clock, txn) for _ in range(5))
    return [
        *(str(sizes[name]) for name in DIRECTORIES),
        *(f"{dumps[kind] / 1024:.1f}" for kind in KINDS),
        str(files),
        str(len(manifest.dropped)),
        f"{took:.1f}",
    ]


def _opened(path: Path, clock: ManualClock, txn: txlog.TxnId) -> float:
    began = time.process_time()
    with open_store(str(path), clock=clock, read_only=True) as client:
        client.describe_topic("t")
        client.subscriptions("t")
        client.show_transaction(txn)
        return (time.process_time() - began) * 1000


def _kib(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) >> 10
