"""Owns the input side of a run: one consumer per topic, read in turn, and acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.base.times import duration_ms
from txlog.client.client import Client
from txlog.client.consuming.consumer import Consumer
from txlog.engine.door.reading import Waiting
from txlog.engine.door.transactions import Transaction
from txlog.functions.committing import Work, joined
from txlog.functions.context import Context
from txlog.functions.handlers import Handled
from txlog.functions.options import FunctionOptions, Hooks

_NAME_MAX: Final = 100
_PARTITION: Final = ["topic", "partition"]
_PLACE: Final = ["ledger", "entry", "index"]


class Inputs:
    """The consumers of a run.

    watermarks: the consumers deliver watermarks, and a receive ends at a new one
    received:   number of messages so far, for the limit; one that comes again counts once
    has_moved:  the last receive ended at a new watermark
    """

    __slots__ = (
        "_client",
        "_consumers",
        "_context",
        "_hooks",
        "_options",
        "_settled",
        "_topics",
        "_watermarks",
        "has_moved",
        "received",
    )

    def __init__(
        self,
        client: Client,
        topics: Sequence[str],
        context: Context,
        options: FunctionOptions,
        hooks: Hooks,
        *,
        watermarks: bool,
    ) -> None:
        self._client, self._options, self._hooks = client, options, hooks
        self._topics = topics
        self._context = context
        self._watermarks = watermarks
        self._consumers: list[Consumer] = []
        self.received = self._settled = 0
        self.has_moved = False

    def open(self, work: Work) -> None:
        """Subscribe; wait up to take_over_ms for an older instance to release a subscription."""
        until = time.monotonic() + duration_ms(self._options.take_over_ms) / 1000
        for topic in self._topics:

            def make(topic: str = topic) -> Consumer:
                return self._client.consumer(
                    topic,
                    self._context.subscription,
                    isolation="committed",
                    name=consumer_name(self._context, self._options),
                    enable_watermarking=self._watermarks,
                )

            details = {"topic": topic, "subscription": self._context.subscription}
            self._consumers.append(work.take_over(make, until, details))

    def close(self) -> None:
        """Release the subscriptions; unacknowledged messages will come again."""
        with self._hooks.guard():
            for consumer in self._consumers:
                consumer.close()
            self._consumers = []

    @property
    def kinds(self) -> set[str]:
        """The types of the subscriptions."""
        return {consumer.kind for consumer in self._consumers}

    @property
    def is_blocked(self) -> bool:
        """Whether a consumer holds as many messages as it may."""
        return any(consumer.blocked for consumer in self._consumers)

    @property
    def is_full(self) -> bool:
        """Whether the limit of messages is reached."""
        return self._options.limit is not None and self.received >= self._options.limit

    @property
    def watermark(self) -> int | None:
        """The lowest watermark of the topics; idle topics count only if all are; None: unknown."""
        watermarks = [
            (consumer.watermark_status == "idle", consumer.get_last_watermark())
            for consumer in self._consumers
        ]
        counted = [last for is_idle, last in watermarks if not is_idle] or [
            last for _, last in watermarks
        ]
        times = [last.event_time for last in counted if last is not None]
        return min(times) if times and len(times) == len(counted) else None

    def receive(self) -> tuple[pa.Table, bool]:
        """(the next messages, whether there were fewer than asked for: the input is drained)."""
        batch_max = self._options.txn_size
        if self._options.limit is not None:
            batch_max = min(batch_max, self._options.limit - self.received)
        remaining, tables = batch_max, []
        self.has_moved = False
        for consumer in self._consumers:
            if remaining <= 0:
                break
            last_watermark = consumer.get_last_watermark()
            with self._hooks.guard():
                table = consumer.receive_batch(remaining, 0)
            if table.num_rows:
                tables.append(table.drop_columns("is_late") if self._watermarks else table)
                remaining -= table.num_rows
            if consumer.get_last_watermark() != last_watermark:
                self.has_moved = True  # close its windows before receiving more
                break
        if len(self._consumers) > 1:  # a busy topic must not starve the others
            self._consumers.append(self._consumers.pop(0))
        rows = joined(*tables)
        self.received += rows.num_rows
        return rows, remaining > 0

    def still_held(self, held: pa.Table, rows: pa.Table) -> pa.Table | None:
        """The held rows that do not come again after these new rows; None: no rows.

        An operator may have sent the consumer back. Behind a subscription that keeps the order, all
        held rows of a partition come again that are not before its first new row.
        """
        places = _places(held).append_column("at", pa.array(range(held.num_rows), pa.int64()))
        if self.kinds <= {"exclusive", "failover"}:
            by_partition = _places(rows).group_by(_PARTITION, use_threads=False)
            firsts = by_partition.aggregate([(name, "first") for name in _PLACE])
            kept = places.join(firsts, _PARTITION)
            kept = kept.filter(pc.fill_null(_is_before(kept, *_PLACE), True))
        else:
            ids = _places(rows).select(_PLACE)
            kept = places.join(ids, _PLACE, join_type="left anti")
        if kept.num_rows == held.num_rows:
            return held
        return held.take(kept["at"].sort()) if kept.num_rows else None

    def waiting(self) -> Waiting:
        """A wait for the consumers' next messages."""
        return self._client.waiting(*self._consumers)

    # --- as a source -------------------------------------------------------------------------

    def settle(self, handled: Handled, txn: Transaction) -> None:
        """Acknowledge the handled rows in the transaction."""
        rows = handled.done
        if len(self._consumers) == 1:
            self._consumers[0].acknowledge_async(rows, txn=txn)
            return
        for consumer in self._consumers:
            topic_rows = rows.filter(pc.equal(rows["topic"], consumer.short))
            if topic_rows.num_rows:
                consumer.acknowledge_async(topic_rows, txn=txn)

    def settled(self, handled: Handled, txn: Transaction) -> int:
        """How many inputs the committed transaction consumed: all handled rows."""
        rows: int = handled.done.num_rows
        self._settled += rows
        return rows

    def renew(self) -> None:
        """Receive the remaining messages again."""
        self.received = self._settled
        for consumer in self._consumers:
            consumer.redeliver_unacknowledged_messages()


def consumer_name(context: Context, options: FunctionOptions) -> str:
    """The name of the consumers of an instance."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in context.function_name)
    return f"{name.lstrip('-_')[:_NAME_MAX]}-{options.instance}".lstrip("-")


def _places(rows: pa.Table) -> pa.Table:
    """The columns of partitions and ids; a join takes no two nulls for equal."""
    index = pc.fill_null(rows["index"], -1)
    return rows.select([*_PARTITION, *_PLACE]).set_column(4, "index", index)


def _is_before(rows: pa.Table, name: str, *names: str) -> pa.ChunkedArray:
    """Where the columns are less than those that end in _first, in the order of their names."""
    column, first = rows[name], rows[f"{name}_first"]
    if not names:
        return pc.less(column, first)
    is_later = pc.and_kleene(pc.equal(column, first), _is_before(rows, *names))
    return pc.or_kleene(pc.less(column, first), is_later)
