"""Owns the watermarks that `produce` asserts from its data: --watermark-from, -lag, -every.

    every N messages or so often, and at the end:   the greatest event time so far minus the lag,
                                                    if that is above the last one and above 0

They go into the transaction that the messages go into; --txn-every has one in each transaction, if
--watermark-every does not say otherwise.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.cli.produce.request import Request
from txlog.cli.terminal.signals import shielded
from txlog.startup import compute as pc

if TYPE_CHECKING:
    from txlog.api.sending.producer import Producer
    from txlog.ids import TxnId


class Marks:
    """What the messages of one run say about event time, and what was asserted of it."""

    def __init__(self, request: Request, producer: Producer) -> None:
        self._request = request
        self._producer = producer
        self._greatest: int | None = None
        self._asserted = 0
        self._messages = 0
        self._since = time.monotonic()

    @property
    def last(self) -> int | None:
        """What was asserted last, None: nothing yet."""
        return self._asserted or None

    @property
    def room(self) -> int | None:
        """How many messages may go before a watermark is due; None: any number."""
        most = self._request.watermark_every_messages
        return None if most is None else most - self._messages

    def note(self, data: pa.Table, txn: TxnId | None) -> None:
        """Messages were sent; assert what is due."""
        if not self._request.watermarks:
            return
        self._messages += len(data)
        if "event_time" in data.column_names:
            greatest = pc.max(data["event_time"].cast(pa.int64())).as_py()
            if greatest is not None and (self._greatest is None or greatest > self._greatest):
                self._greatest = greatest
        if self.room == 0 or self.wait_s() == 0:
            self.send(txn)

    def wait_s(self) -> float | None:
        """How long it is until a watermark is due by time; None: none is."""
        every = self._request.watermark_every_ms
        if every is None or not self._rises():
            return None
        return max(0.0, self._since + every / 1000 - time.monotonic())

    def commit(self, txn: TxnId) -> None:
        """A transaction of --txn-every is full: what is asserted of it goes into it."""
        request = self._request
        if request.watermark_every_messages is None and request.watermark_every_ms is None:
            self.send(txn)

    def send_if_due(self, txn: TxnId | None) -> None:
        """Assert it when the time is over, though no message came."""
        if self.wait_s() == 0:
            self.send(txn)

    def send(self, txn: TxnId | None) -> None:
        """Assert how far the messages are, if that is further than before."""
        self._messages, self._since = 0, time.monotonic()
        if self._rises():
            event_time = self._value()
            with shielded():
                self._producer.new_watermark(txn).event_time(event_time).send()
            self._asserted = event_time

    def close(self) -> None:
        """With --idle-on-close nobody waits for the producer any more.

        In a transaction of somebody else it is idle when that commits, as its messages are there.
        """
        if self._request.idle_on_close:
            with shielded():
                self._producer.new_watermark(self._request.join).mark_idle().send()

    def _rises(self) -> bool:
        return self._request.watermarks and self._value() > self._asserted

    def _value(self) -> int:
        return 0 if self._greatest is None else self._greatest - self._request.watermark_lag_ms
