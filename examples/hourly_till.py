"""A till of examples/hourly_revenue.py: a process that sends its list, and may be killed.

    python examples/hourly_till.py STORE NAME LIST BOUND_MS BATCH

It sends what came until an instant, at most BATCH lines a transaction, each with a watermark: the
greatest event time it sent, less BOUND_MS. What a till of its name has committed is not sent again,
and what that one has open is aborted. It is told what to do by lines on its standard input, and
says by lines on its output what it did, the wall clock first:

    start         ready WATERMARK   it has joined: no watermark passes its first line
    again         ready             it is the successor of a till, and joins with its first commit
    to INSTANT    committed WATERMARK, once a transaction; then done
    hold          held              a transaction is open with lines in it: to be killed there
    idle, end     idle, ended       nothing is to come from it for now, for good
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
    """One till: where it is in its list."""

    def __init__(
        self, client: txlog.Client, name: str, share: pa.Table, bound_ms: int, batch: int
    ) -> None:
        self.client, self.share, self.bound_ms, self.batch = client, share, bound_ms, batch
        self.key = f"till:{name}"
        self.epoch = client.connect(self.key)["epoch"]  # what a dead one has open is aborted
        self.producer = client.producer(TOPIC, name)
        self.clock = SystemClock()
        self.newest = 0  # the greatest event time sent by this process
        self.at = self._done()

    def _done(self) -> int:
        """How many lines of the list are committed: always the first ones."""
        mine = pa.array(numbers(self.client, TOPIC), pa.int64())
        return pc.sum(pc.is_in(self.share["line"], value_set=mine)).as_py() or 0

    def say(self, *words: object) -> None:
        """Tell whoever reads the output."""
        sys.stdout.write(" ".join(str(word) for word in (self.clock.now().wall_ms, *words)) + "\n")
        sys.stdout.flush()

    def announce(self) -> None:
        """Join before the first line: the watermark waits for this till from here on."""
        first = pc.min(self.share["event_time"].cast(pa.int64())).as_py()
        value = first - self.bound_ms
        self.producer.new_watermark().event_time(value).send()
        self.say("ready", value)

    def send_until(self, instant: int) -> None:
        """Send what came before an instant."""
        behind = pc.sum(pc.less(self.share["arrival"], instant)).as_py() or 0
        while self.at < behind:
            rows = self.share.slice(self.at, min(self.batch, behind - self.at))
            with self.client.transaction(key=self.key, epoch=self.epoch) as txn:
                watermark = self._put(rows, txn)
            self.at += rows.num_rows
            self.say("committed", watermark)
        self.say("done")

    def _put(self, rows: pa.Table, txn: txlog.Transaction) -> int:
        """A list of lines and the watermark behind them; both take effect with the commit."""
        self.producer.send_batch(rows.select(["key", "value", "event_time"]), txn=txn)
        newest = pc.max(rows["event_time"].cast(pa.int64())).as_py()
        self.newest = max(self.newest, newest)
        watermark = self.newest - self.bound_ms
        self.producer.new_watermark(txn).event_time(watermark).send()
        return watermark

    def hold(self) -> None:
        """Send what comes next, but do not commit: the process is to be killed here."""
        txn = self.client.transaction(key=self.key, epoch=self.epoch)
        self._put(self.share.slice(self.at, self.batch), txn)
        self.say("held")
        sys.stdin.read()
        raise SystemExit("nobody is left to kill this till")

    def leave(self, *, is_end: bool) -> None:
        """Say that nothing is to come: for now, or for good."""
        if is_end:
            self.producer.new_watermark().event_time(END).send()
            self.say("ended", END)
        else:
            self.producer.new_watermark().mark_idle().send()
            self.say("idle")


def main() -> None:
    """Do what is said on standard input."""
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
