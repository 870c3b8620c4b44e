"""Owns the watermarks that `produce` asserts from its data: --watermark-from, -lag, -every.

    every N messages or DUR, and at the end:   the greatest event time so far minus the lag,
                                               if that is above the last one and above 0

Watermarks go into the transaction of the messages; --txn-every asserts one in each transaction,
unless --watermark-every is given.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.cli.produce.request import NEVER, Request
from txlog.cli.terminal.signals import shielded

if TYPE_CHECKING:
    from txlog.base.ids import TxnId
    from txlog.client.sending.producer import Producer


class Marks:
    """The greatest event time of one run's messages, and the watermarks asserted so far."""

    def __init__(self, request: Request, producer: Producer) -> None:
        self._request = request
        self._producer = producer
        self._greatest: int | None = None
        self._asserted = 0
        self._messages = 0
        self._since = time.monotonic()

    @property
    def last(self) -> int | None:
        """The last asserted watermark; None before the first."""
        return self._asserted or None

    @property
    def room(self) -> int | None:
        """How many messages may be sent before the next watermark is due; None: any number."""
        most = self._request.watermark_every.messages
        return None if most is None else most - self._messages

    def note(self, data: pa.Table, txn: TxnId | None) -> None:
        """Count messages that were sent; assert a watermark if one is due."""
        if self._request.watermark_from is None:
            return
        self._messages += len(data)
        if "event_time" in data.column_names:
            greatest = pc.max(data["event_time"].cast(pa.int64())).as_py()
            if greatest is not None and (self._greatest is None or greatest > self._greatest):
                self._greatest = greatest
        if self.room == 0 or self.wait_s() == 0:
            self.send(txn)

    def wait_s(self) -> float | None:
        """Seconds until a watermark is due by time; None: no watermark is due by time."""
        interval_ms = self._request.watermark_every.ms
        if interval_ms is None or not self._rises():
            return None
        return max(0.0, self._since + interval_ms / 1000 - time.monotonic())

    def commit(self, txn: TxnId) -> None:
        """Assert a watermark in a full transaction of --txn-every."""
        if self._request.watermark_every == NEVER:
            self.send(txn)

    def send_if_due(self, txn: TxnId | None) -> None:
        """Assert a watermark if its time has come, even without a new message."""
        if self.wait_s() == 0:
            self.send(txn)

    def send(self, txn: TxnId | None) -> None:
        """Assert the current watermark if it is higher than the last one."""
        self._messages, self._since = 0, time.monotonic()
        if self._rises():
            event_time = self._value()
            with shielded():
                self._producer.new_watermark(txn).event_time(event_time).send()
            self._asserted = event_time

    def close(self) -> None:
        """With --idle-on-close, declare the producer idle, so that no watermark waits for it.

        In a joined transaction it becomes idle at the commit, when its messages become visible.
        """
        if self._request.idle_on_close:
            with shielded():
                self._producer.new_watermark(self._request.join).mark_idle().send()

    def _rises(self) -> bool:
        return self._request.watermark_from is not None and self._value() > self._asserted

    def _value(self) -> int:
        lag_ms = self._request.watermark_lag_ms or 0
        return 0 if self._greatest is None else self._greatest - lag_ms
