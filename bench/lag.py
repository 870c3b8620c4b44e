"""How far many subscriptions are behind: processor time and memory of one `txlog sub list`.

    python -m bench lag [--topics N] [--partitions N] [--out PATH]

Each topic has one subscription and five messages for each partition; a consumer acknowledged two.
A checkpoint follows, so that nothing is in memory or in the journal. Making the store takes a
minute or two. It prints seconds of processor, MB, and rows of the command, the least of three runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import txlog
from bench.everyday import ran


def main() -> None:
    """Make the store, and run the command three times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--out", help="write the line there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store")
        fill(path, options.topics, options.partitions)
        seconds, memory = min(listed(path) for _ in range(3))
    places = options.topics * options.partitions
    line = f"{options.topics:,} subscriptions on {places:,} partitions: "
    line += f"{seconds:.2f} s, {memory:.0f} MB"
    print(line)
    if options.out:
        Path(options.out).write_text(f"{line}\n", encoding="utf-8")


def fill(path: Path, topics: int, partitions: int) -> None:
    """Make the store."""
    txlog.init(str(path), durability="os")
    keys = [b"%d" % number for number in range(partitions * 5)]
    messages = pa.table({"key": keys, "value": [b"x" * 20] * len(keys)})
    with txlog.open(str(path)) as client:
        for number in range(topics):
            client.create_topic(f"t{number}", partitions=partitions)
            client.create_subscription(f"t{number}", "s")
            client.producer(f"t{number}").send_batch(messages)
            with client.consumer(f"t{number}", "s") as consumer:
                consumer.acknowledge(consumer.receive_batch(partitions * 2, timeout_ms=0))
        client.checkpoint()


def listed(path: Path) -> tuple[float, float]:
    """Seconds of processor and MB of memory of the command."""
    _, memory, processor = ran(
        [sys.executable, "-m", "txlog", "-S", str(path), "sub", "list", "--json"]
    )
    return processor, memory


if __name__ == "__main__":
    main()
