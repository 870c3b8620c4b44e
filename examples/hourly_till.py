"""A till of examples/hourly_revenue.py: a process that sends its list, and may be killed.

    python examples/hourly_till.py STORE NAME LIST BOUND_MS BATCH

It sends the lines that arrive until an instant, at most BATCH lines per transaction, each with a
watermark: the greatest event time it sent, less BOUND_MS. It does not repeat lines that a till of
its name has committed, and aborts that till's open transaction. It reads commands as lines from its
standard input, and reports its actions as lines on its output, the wall clock first:

    start         ready WATERMARK   it has joined: no watermark passes its first line
    again         ready             it is the successor of a till, and joins with its first commit
    to INSTANT    committed WATERMARK, once a transaction; then done
    hold          held              a transaction is open with lines in it: to be killed there
    idle, end     idle, ended       it sends nothing for now, or ever again
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import txlog
from txlog.clock import SystemClock

TOPIC = "lines"
END = (1 << 63) - 1
NUMBER = r'^\{"Line":(?P<number>[0-9]+),'


def numbers(client: txlog.Client, topic: str) -> list[int]:
    """The numbers of the lines in a topic."""
    found: list[int] = []
    for table in client.read(topic):
        text = table["value"].cast(pa.string())
        number = pc.struct_field(pc.extract_regex(text, NUMBER), "number")
        found += pc.cast(number, pa.int64()).to_pylist()
    return found


class Till:
    """One till, and its position in its list."""

    def __init__(
        self, client: txlog.Client, name: str, share: pa.Table, bound_ms: int, batch: int
    ) -> None:
        self.client, self.share, self.bound_ms, self.batch = client, share, bound_ms, batch
        self.key = f"till:{name}"
        self.epoch = client.connect(self.key)["epoch"]  # aborts the transaction of a dead till
        self.producer = client.producer(TOPIC, name)
        self.clock = SystemClock()
        self.newest = 0  # the greatest event time sent by this process
        self.at = self._done()

    def _done(self) -> int:
        """The number of committed lines of the list: always the first lines."""
        mine = pa.array(numbers(self.client, TOPIC), pa.int64())
        return pc.sum(pc.is_in(self.share["line"], value_set=mine)).as_py() or 0

    def say(self, *words: object) -> None:
        """Report to the reader of the output."""
        sys.stdout.write(" ".join(str(word) for word in (self.clock.now().wall_ms, *words)) + "\n")
        sys.stdout.flush()

    def announce(self) -> None:
        """Join before the first line: the watermark waits for this till from here on."""
        first = pc.min(self.share["event_time"].cast(pa.int64())).as_py()
        value = first - self.bound_ms
        self.producer.new_watermark().event_time(value).send()
        self.say("ready", value)

    def send_until(self, instant: int) -> None:
        """Send the lines that arrived before an instant."""
        behind = pc.sum(pc.less(self.share["arrival"], instant)).as_py() or 0
        while self.at < behind:
            rows = self.share.slice(self.at, min(self.batch, behind - self.at))
            with self.client.transaction(key=self.key, epoch=self.epoch) as txn:
                watermark = self._put(rows, txn)
            self.at += rows.num_rows
            self.say("committed", watermark)
        self.say("done")

    def _put(self, rows: pa.Table, txn: txlog.Transaction) -> int:
        """Send lines and a watermark after them; both take effect with the commit."""
        self.producer.send_batch(rows.select(["key", "value", "event_time"]), txn=txn)
        newest = pc.max(rows["event_time"].cast(pa.int64())).as_py()
        self.newest = max(self.newest, newest)
        watermark = self.newest - self.bound_ms
        self.producer.new_watermark(txn).event_time(watermark).send()
        return watermark

    def hold(self) -> None:
        """Send the next lines, but do not commit: the process is to be killed here."""
        txn = self.client.transaction(key=self.key, epoch=self.epoch)
        self._put(self.share.slice(self.at, self.batch), txn)
        self.say("held")
        sys.stdin.read()
        raise SystemExit("nobody is left to kill this till")

    def leave(self, *, is_end: bool) -> None:
        """Declare that nothing will come: for now, or ever."""
        if is_end:
            self.producer.new_watermark().event_time(END).send()
            self.say("ended", END)
        else:
            self.producer.new_watermark().mark_idle().send()
            self.say("idle")


def main() -> None:
    """Run the commands on standard input."""
    store, name, path, bound_ms, batch = sys.argv[1:]
    with txlog.open(store) as client:
        till = Till(client, name, pq.read_table(path), int(bound_ms), int(batch))
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "start":
                till.announce()
            elif word == "again":
                till.say("ready")
            elif word == "to":
                till.send_until(int(number))
            elif word == "hold":
                till.hold()
            else:
                till.leave(is_end=word == "end")


if __name__ == "__main__":
    main()
