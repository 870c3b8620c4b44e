"""Owns Transaction: a handle on an open transaction of a client."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from txlog.engine.flow.end_txn import EndAnswer
from txlog.errors import InvalidTxnStatus
from txlog.ids import TxnId

End = Callable[[TxnId, bool], EndAnswer]


class Transaction:
    """A transaction; as a context manager it commits at the end, and aborts when the block raises.

    Everything sent and acknowledged in it takes effect at the commit, in every partition and
    subscription, or not at all. Source: PIP-31.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         producer = client.producer("orders")
    ...         with client.transaction() as txn:
    ...             _ = producer.send(b"one", txn=txn)
    ...             _ = producer.send(b"two", txn=txn)
    ...         [message.value for message in client.reader("orders")]
    [b'one', b'two']
    """

    __slots__ = ("_end", "_status", "id", "outcome")

    def __init__(self, txn_id: TxnId, end: End) -> None:
        self.id = txn_id
        self._end = end
        self._status = "OPEN"
        self.outcome: EndAnswer | None = None

    @property
    def state(self) -> str:
        """The status as this handle knows it: OPEN, COMMITTING, COMMITTED, ABORTED."""
        return self._status

    def commit(self) -> EndAnswer:
        """Commit; durable when it returns. Raises InvalidTxnStatus and its kin."""
        self.outcome = self._end(self.id, True)
        self._status = self.outcome.status
        return self.outcome

    def abort(self) -> EndAnswer:
        """Abort: nothing of it is ever visible, what it acknowledged comes again."""
        self.outcome = self._end(self.id, False)
        self._status = self.outcome.status
        return self.outcome

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._status != "OPEN":
            return
        if kind is None:
            self.commit()
            return
        try:
            self.abort()
        except InvalidTxnStatus:
            return  # a conflict or the time-out ended it before; the first error is the cause
