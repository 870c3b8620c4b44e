"""Owns Transaction: a handle on an open transaction of a client, and the builder of one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

from txlog.clock import Instant
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.end_txn import EndAnswer
from txlog.engine.flow.enter import NewTxn, Use
from txlog.engine.flow.sweep import Uses
from txlog.engine.store import Store
from txlog.engine.view import View
from txlog.errors import ExpiredTransaction, InvalidTxnStatus, TransactionConflict
from txlog.ids import TxnId

Begin = Callable[[NewTxn], TxnId]
End = Callable[[TxnId, bool], EndAnswer]
DecideIn = Callable[[View, Instant, Use], Decision]


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

    __slots__ = ("_begin", "_end", "_status", "outcome", "use")

    def __init__(self, use: Use, begin: Begin, end: End) -> None:
        self.use = use
        self._begin = begin
        self._end = end
        self._status = "OPEN"
        self.outcome: EndAnswer | None = None

    @property
    def id(self) -> TxnId:
        """Its id; a transaction that nothing happened in yet is opened now."""
        if isinstance(self.use, NewTxn):
            self.use = self._begin(self.use)
        return self.use

    @property
    def state(self) -> str:
        """The status as this handle knows it: OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED."""
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
        except (InvalidTxnStatus, ExpiredTransaction):
            return  # conflict, time-out or fence ended it before; the first error is the cause


class TransactionBuilder:
    """Builds a transaction as PIP-31 writes it.

    >>> import tempfile, txlog
    >>> from datetime import timedelta
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         txn = client.new_transaction().with_timeout(timedelta(minutes=5)).build()
    ...         before = txn.state
    ...         _ = txn.abort()
    ...         before, txn.state
    ('OPEN', 'ABORTED')
    """

    __slots__ = ("_begin", "_coordinator", "_timeout_ms")

    def __init__(self, begin: Callable[[int | None, int | None], Transaction]) -> None:
        self._begin = begin
        self._timeout_ms: int | None = None
        self._coordinator: int | None = None

    def with_timeout(self, timeout: int | timedelta) -> TransactionBuilder:
        """Abort it when it is open for longer: milliseconds, or a timedelta."""
        if isinstance(timeout, timedelta):
            timeout = timeout // timedelta(milliseconds=1)
        self._timeout_ms = timeout
        return self

    def with_coordinator(self, number: int) -> TransactionBuilder:
        """Let this coordinator number it; without, they take turns."""
        self._coordinator = number
        return self

    def build(self) -> Transaction:
        """Begin it, as `Client.transaction` does.

        raises: InvalidArgument, LimitExceeded, ProducerFenced; CoordinatorNotFound when the id is
                given out
        """
        return self._begin(self._timeout_ms, self._coordinator)


def in_transaction(
    store: Store, txn: Transaction | TxnId, decide: DecideIn, uses: Uses | None = None
) -> object:
    """Run a decision in a transaction, which it may open; returns what it answers.

    uses: what else it works with, for the sweep before it
    The decision's answer is (TxnId, answer), or None for a call to be made again.
    """
    use = txn if isinstance(txn, TxnId) else txn.use
    uses = uses or Uses()
    if isinstance(use, TxnId):
        uses = uses.in_txn(use.coordinator, use.sequence)
    try:
        answer = store.write(lambda view, now: decide(view, now, use), uses=uses)
    except TransactionConflict as error:
        opened = error.fields["txn"]
        if isinstance(txn, Transaction) and isinstance(opened, TxnId):
            txn.use = opened
        raise
    if answer is None:
        return None
    assert isinstance(answer, tuple)
    if isinstance(txn, Transaction):
        txn.use = answer[0]
    return answer[1]
