"""Owns Transaction: a handle on an open transaction of a client, and its builder.

The handle queues sends (`buffer`) and the operations that a caller defers (`send_batch_async`,
`acknowledge_async`). It writes them together with the next call that needs them in the store, at
the latest with the commit. A send, an acknowledgement and the commit then take the lock once
instead of three times. `commit_async` hands that write to the thread of `commits`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from threading import Event, RLock, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from txlog.base.arguments import checked
from txlog.base.ids import TxnId
from txlog.base.text.html import html_table
from txlog.base.times import DurationLike, duration_ms
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions import transaction as end_txn
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import EndAnswer, NewTxn, Use
from txlog.engine.folds.coordinator import PREPARED
from txlog.engine.session.transactions import commits, end
from txlog.engine.session.transactions.buffer import (
    AGAIN,
    Buffer,
    DecideIn,
    Item,
    Lane,
    Run,
    lost_write,
)
from txlog.engine.store.appender import NOTHING, Call, in_doubt, note_doubt
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import (
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnStatus,
    OutcomeUnknown,
    StoreLocked,
    TransactionConflict,
    TxlogError,
    is_noted,
)

if TYPE_CHECKING:
    from txlog.engine.session.transactions.commits import CommitFuture, CommitQueue, Ending

T = TypeVar("T")
A = TypeVar("A")
LOOK_AGAIN_S: Final = 0.005  # while another thread writes the call that this thread waits for


class Later(Generic[T]):
    """The answer of a deferred operation.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         producer = client.producer("orders")
    ...         with client.transaction() as txn:
    ...             sent = producer.send_async(b"one", txn=txn)
    ...         sent.result().txn_index
    1
    """

    __slots__ = ("_is_done", "_result")

    def __init__(self, is_done: Callable[[], bool], result: Callable[[], T]) -> None:
        self._is_done = is_done
        self._result = result

    def done(self) -> bool:
        """True once the operation was written or refused."""
        return self._is_done()

    def result(self) -> T:
        """Its answer, after writing the operations deferred so far; raises the error of its own."""
        return self._result()


class Commits:
    """The commits in flight of one client; the first commit makes the queue."""

    __slots__ = ("_store", "queue")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queue: CommitQueue | None = None

    def make(self) -> CommitQueue:
        """The queue."""
        with _MAKING:  # two threads get the same queue
            if self.queue is None:
                self.queue = commits.CommitQueue(self._store)
            return self.queue

    @property
    def last(self) -> Ending | None:
        """The newest commit without an outcome."""
        return None if self.queue is None else self.queue.last


_MAKING = RLock()  # a signal handler may commit, too


class _Group(NamedTuple):
    """Calls of a transaction that share a frame.

    submitted: the calls that the store gets for them; runs: the runs among them
    use:       the transaction before the frame: a frame that is never written assigns no id
    """

    submitted: list[Call]
    runs: list[Run]
    use: Use

    def settle(self, *, broken: bool = False) -> None:
        """Give the messages their outcomes; broken: the write was interrupted."""
        for run in self.runs:
            run.settle(broken=broken)


class _Commit:
    """A commit with the deferred calls before it.

    refused: the deferred operation that was refused or lost, so that the transaction is aborted
    group:   the calls that are in the queue of the store, if they are
    """

    __slots__ = ("calls", "ended", "future", "group", "is_over", "refused", "txn")

    def __init__(self, txn: Transaction, calls: list[Call], refused: Call | None) -> None:
        self.txn, self.calls, self.refused = txn, calls, refused
        self.is_over = False
        self.ended: Call | None = None
        self.group: _Group | None = None
        self.future: CommitFuture

    @property
    def is_decided(self) -> bool:
        """Whether the commit is decided, so that a later one comes after it."""
        ended = self.ended
        if ended is None or self.is_over:
            return True
        return ended.error is not None or ended.answer is not None

    @property
    def failure(self) -> BaseException | None:
        """The error of the commit, as soon as any thread knows it."""
        if self.refused is not None:
            return self.refused.error or lost_write()
        return None if self.ended is None else self.ended.error

    def finish(self) -> EndAnswer:
        """Finish the commit in the thread of the queue."""
        return self.txn._finish(self)

    def give_up(self, error: TxlogError) -> bool:
        """Fail if no thread decides the commit yet."""
        if self.group is None or not self.txn._store.take_back(self.group.submitted):
            return False
        for call in self.group.submitted:
            call.end(error)
        return True


@checked
class Transaction:
    """A transaction; as a context manager it commits at the end, and aborts when the block raises.

    Everything sent and acknowledged in it takes effect at the commit, in every partition and
    subscription, or not at all. Source: PIP-31. If the commit at the end fails and had no effect
    (StoreLocked, NoResources), the transaction is aborted as well: the block can be repeated.

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

    __slots__ = (
        "_after_end",
        "_commits",
        "_first",
        "_flying",
        "_is_ending",
        "_opened_by",
        "_queue",
        "_refused",
        "_status",
        "_store",
        "_takers",
        "buffer",
        "is_write_through",
        "outcome",
    )

    def __init__(
        self,
        store: Store,
        use: Use,
        after_end: Callable[[], None],
        *,
        write_through: bool = False,
        flights: Commits | None = None,
    ) -> None:
        """write_through: a send is written when it returns, as sends by id are.

        after_end: called after its end; flights: of its client; None: it never commits without
                   waiting
        """
        # with the call that assigned the id, until its group is settled
        self._opened_by: tuple[Use, Call | None] = (use, None)
        self._commits = flights
        self._flying: _Commit | None = None  # the commit that is in the queue
        self.is_write_through = write_through
        self.buffer: Buffer | None = None  # made by the first send
        self._store = store
        self._after_end = after_end
        self._status = "OPEN"
        # Threads may share a handle, and `__del__` may run at any point, so each change of the
        # dicts is one C call. A deferred call stays in the queue until its outcome is noted, even
        # if its writer is interrupted. `_takers` says which caller writes it: the first to claim.
        self._queue: dict[Call, None] = {}
        self._takers: dict[Call, list[int]] = {}  # a list of its own, with the thread
        self._refused: list[Call] = []  # refusals that no caller has seen, the first in front
        self._first: set[Call] = set()  # calls that wait again: they come before the others
        self._is_ending = False  # a commit has begun: it takes no more sends, unless repeated
        self.outcome: EndAnswer | None = None

    @property
    def use(self) -> Use:
        """Its id, or how it begins."""
        return self._opened_by[0]

    def __repr__(self) -> str:
        return f"<txlog.Transaction {self._id_if_any()} {self._status}>"

    def _repr_html_(self) -> str:
        rows = [("id", self._id_if_any()), ("state", self._status), ("deferred", self._waiting())]
        return html_table("txlog.Transaction", (), rows)

    @property
    def has_waiting(self) -> bool:
        """True while messages or other operations wait, or their commit is in flight."""
        return bool(self._queue) and (self._status == "OPEN" or self._flying is not None)

    def _waiting(self) -> int:
        """How many messages and other operations wait."""
        return sum(call.count if isinstance(call, Run) else 1 for call in list(self._queue))

    def _id_if_any(self) -> str:
        """The id, without assigning one as `id` does."""
        return str(self.use) if isinstance(self.use, TxnId) else "without an id yet"

    @property
    def id(self) -> TxnId:
        """Its id. Writes the deferred operations; a transaction without operations is opened."""
        self._write_queued()
        if isinstance(self.use, NewTxn):
            opening = self._opening()
            self._write([opening])
            _answered(opening)
        assert isinstance(self.use, TxnId)
        return self.use

    @property
    def state(self) -> str:
        """The status as this handle knows it: OPEN, PREPARED, COMMITTING, COMMITTED, ABORTING or
        ABORTED.
        """
        return self._status

    def commit(self) -> EndAnswer:
        """Write the deferred operations and commit, in one pass; durable when it returns.

        If a deferred operation was refused, or an interrupt came while it was written, the
        transaction is aborted instead. Commits in flight (`commit_async`) come before it.

        raises: InvalidTxnStatus, TransactionTimedOut, ExpiredTransaction, OutcomeUnknown; the
                error that refused a deferred operation
        """
        return self._commit()

    def commit_async(self, after: CommitFuture | None = None) -> CommitFuture:
        """Commit without waiting; the future has the answer of `commit`, or its error.

        The commit is durable once the future is done. Commits take effect in the order of the
        calls. A refused commit affects no other. If the outcome of a commit is unknown, later
        commits fail as well: with OutcomeUnknown, or with TryAgain if they were not tried; then
        their transactions are open again.

        From now on the transaction takes no operation. The thread of the client that commits
        belongs to no caller; `close` and the end of the interpreter wait for it. If the process
        dies, a commit without an answer is done or not, as a whole.

        after:  a commit of this client that must succeed first: if it fails, this call fails with
                TryAgain, and the transaction is open again
        raises: InvalidTxnStatus; InvalidArgument (after); AlreadyClosed, ReadOnlyStore,
                NoResources: nothing was done

        >>> import tempfile, txlog
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = txlog.init(folder)
        ...     with txlog.open(folder) as client:
        ...         _ = client.create_topic("orders")
        ...         producer = client.producer("orders")
        ...         futures = []
        ...         for number in range(3):
        ...             txn = client.transaction()
        ...             _ = producer.send_async(b"%d" % number, txn=txn)
        ...             futures.append(txn.commit_async())
        ...         [future.result().status for future in futures]
        ['COMMITTED', 'COMMITTED', 'COMMITTED']
        """
        assert self._commits is not None
        if (flying := self._flying) is not None:
            return flying.future
        queue = self._commits.make()
        given: object = after  # of any type, from a caller without type checks
        if given is not None and not (
            isinstance(given, commits.CommitFuture) and given.is_of(queue)
        ):
            raise InvalidArgument("after is not a future of commit_async of this client", code=202)
        with queue.held():
            self._store.need_writable()
            commit = self._prepared(queue.last, after)
            commit.future = queue.new_future(commit)
            try:
                if commit.ended is not None:
                    commit.group = self._grouped([*commit.calls, commit.ended])
                queue.put(commit)
                self._flying, self._status = commit, "COMMITTING"
                if commit.group is not None:
                    self._store.enqueue(commit.group.submitted)
            except BaseException as error:  # of a signal handler, too
                if queue.has(commit):  # an interrupt: the thread finishes it all the same
                    note_doubt(error)
                else:
                    self._unclaim(commit)
                raise
        return commit.future

    def _commit(self) -> EndAnswer:
        queue = None if self._commits is None else self._commits.queue
        if queue and not queue.is_own_thread():
            return self._commit_behind()
        return self._end(self._prepared(None))

    def _commit_behind(self) -> EndAnswer:
        """Commit after the commits in flight, and wait."""
        future = self.commit_async()
        try:
            return future.result()
        except BaseException as error:  # the error of the commit, or of a signal handler
            if not future.is_over:  # the thread goes on
                note_doubt(error)
            raise

    def _prepared(self, previous: Ending | None, after: CommitFuture | None = None) -> _Commit:
        """Take the deferred calls for a commit, which comes after `previous`.

        after: as in `commit_async`
        """
        if self._flying is not None:
            raise InvalidTxnStatus("the transaction is being committed")
        if self._status == "ABORTED" and isinstance(self.use, NewTxn):
            raise InvalidTxnStatus("the transaction was aborted before any of it was written")
        self._is_ending = True
        calls = self._take()
        lost = self._lost_beside(calls)
        commit = _Commit(self, calls, self._refusal() or lost)
        if commit.refused is None:
            if not calls and isinstance(self.use, NewTxn):
                commit.calls = [self._opening()]
            commit.ended = Call(self._end_of(commit.calls, previous, after))
        return commit

    def _unclaim(self, commit: _Commit) -> None:
        """The commit was not queued: its deferred calls wait again."""
        for call in commit.calls:
            self._takers.pop(call, None)
        self._is_ending = False

    def _finish(self, commit: _Commit) -> EndAnswer:
        """End a commit of `commit_async`, in the thread of the queue."""
        failure: BaseException | None = None
        try:
            return self._end(commit)
        except BaseException as error:  # commits that depend on it fail, too
            failure = error
            raise
        finally:
            commit.future.over(failure)
            if self._status == "COMMITTING" and self.outcome is None:
                self._status = "OPEN"
            self._flying = None
            commit.is_over = True
            # the next commit refers to `commit`: it must not keep messages, or its predecessor
            commit.ended, commit.calls, commit.group = None, [], None

    def _end(self, commit: _Commit) -> EndAnswer:
        """Write a commit, and abort the transaction if an operation before it was refused."""
        calls, ended = commit.calls, commit.ended
        if ended is not None:
            self._write([*calls, ended], commit.group)
            if ended.error is None:
                return self._ended(ended)
            if not isinstance(ended.error, _Refused):
                raise self._not_ended(ended.error, calls)
        refused = self._refusal()
        error = lost_write() if refused is None else refused.error or lost_write()
        self._keep(commit.refused)
        self._drop(calls)
        self._settle(calls)
        try:
            if isinstance(self.use, TxnId):
                self._abort(self.use)
            self._status, self._refused = "ABORTED", []
        except TxlogError:
            pass  # it stays refused: a repeated commit aborts again, or the time-out does
        raise error

    def abort(self) -> EndAnswer:
        """Abort: its messages never become visible, and the messages it acknowledged come again.

        If `__del__` or a signal handler calls this inside another call on the store, the abort
        waits until that call has ended, and the answer has status ABORTING.
        """
        if self._store.put_off(self.abort):
            txn_id = self.use if isinstance(self.use, TxnId) else None
            return EndAnswer(txn_id, "ABORTING", False, None, 0, 0, [], 0)
        if (flying := self._flying) is not None:
            flying.future.wait()  # then the store says how it ended
        dropped = self._take()
        self._drop(dropped)
        self._keep(next(iter(dropped), None))  # if this fails, no commit without
        answer = self._abort(self.id)
        self._settle(dropped)
        self._refused = []
        return answer

    def _not_ended(self, error: BaseException, before: list[Call]) -> BaseException:
        """The error to raise for a failed commit. If it had no effect, the caller can repeat it."""
        if isinstance(error, OutcomeUnknown):
            self._refused = []
            return end.unknown_end(self.use, error) if isinstance(self.use, TxnId) else error
        for call in before:
            if call.error is error:
                self._queue[call] = None
                call.renew()
        self._refused, self._is_ending = [], False
        return error

    @staticmethod
    def _drop(calls: list[Call]) -> None:
        """Mark deferred operations as refused: the transaction was aborted before their write."""
        for call in calls:
            if call.answer is None and call.error is None:
                call.error = InvalidTxnStatus("the transaction was aborted before this was written")
            call.done = True

    def _abort(self, txn_id: TxnId) -> EndAnswer:
        self.outcome = end.end(self._store, txn_id, commit=False)
        self._status = self.outcome.status
        self._after_end()
        return self.outcome

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status != "OPEN":
            return
        if error is not None:
            self._leave(error)
            return
        try:
            self._commit()
        except TxlogError as failure:
            if self._status == "OPEN" and not isinstance(failure, OutcomeUnknown):
                with contextlib.suppress(TxlogError):  # then it is open until its time-out
                    self._leave(failure)
            raise

    def _leave(self, error: BaseException) -> None:
        """Abort: the block has raised an error."""
        if isinstance(self.use, NewTxn):  # it was never opened: there is nothing to abort
            dropped = self._take()
            self._drop(dropped)
            self._status = "ABORTED"
            self._settle(dropped)
            return
        try:
            self.abort()
        except (InvalidTxnStatus, ExpiredTransaction):
            return  # a conflict, time-out or fence has already ended it; raise the block's error

    # --- operations in it --------------------------------------------------------------------

    def flush(self) -> None:
        """Write the messages that wait; with the commit they become durable and visible.

        raises: the first refusal that no caller has seen, with a note that names the message: the
                commit would raise it, too. StoreLocked: nothing was written, call it again
        """
        calls = list(self._queue)
        self._write_queued()
        if any(not call.done for call in calls):
            raise lost_write()
        if (refused := self._refusal()) is not None:
            raise refused.error or lost_write()

    def run(self, decide: DecideIn[T], uses: CallScope, *, is_ordered: bool = True) -> T:
        """Write the deferred operations, then this decision; returns its answer.

        is_ordered: False for an acknowledgement: waiting operations stay in the queue
        """
        if self._flying is not None:
            raise self._has_ended()
        call = self._call(decide, uses)
        if is_ordered and self._takers:
            self._write_queued()  # another thread's write comes first
        self._write([*self._take(), call] if is_ordered else [call])
        self._tell(call)
        answer: T = _answered(call)
        return answer

    def defer(
        self,
        decide: DecideIn[A],
        uses: CallScope,
        finish: Callable[[A], T],
        *,
        is_ordered: bool = True,
    ) -> Later[T]:
        """Defer a decision; `finish` turns its answer into the answer of the caller.

        is_ordered: as in `run`
        """
        call = self._call(decide, uses)

        def result() -> T:
            self._await(call)
            if call.answer is None and call.error is None:
                raise lost_write()
            self._tell(call)
            return finish(_answered(call))

        if is_ordered and self.buffer is not None:
            self.buffer.runs = {}  # the next messages come after it
        self._queue[call] = None
        if self._is_ending or self._status != "OPEN":
            self.refuse(call)
        return Later(lambda: call.done, result)

    def put(
        self, lane: Lane, item: Item, size: int, sequence: int | None = None
    ) -> tuple[Run, int]:
        """Let a message wait; returns its run and row, as `Buffer.put`."""
        buffer = self.buffer
        if buffer is None:
            buffer = self.buffer = Buffer(self)
        return buffer.put(lane, item, size, sequence)

    def number_of(self, messages: int) -> int:
        """The number in the transaction of the first of so many messages, from 1.

        raises: InvalidArgument (no message of it waits, or has waited)
        """
        if self.buffer is None:
            raise InvalidArgument("no message of the transaction waits")
        first = self.buffer.sealed + 1
        self.buffer.sealed += messages
        return first

    def enqueue(self, run: Run) -> None:
        """Queue a run with its first message. Raises InvalidTxnStatus, as `refuse`."""
        self._queue[run] = None
        if self._is_ending or self._status != "OPEN":
            self.refuse(run)

    def refuse(self, call: Call) -> None:
        """Raise InvalidTxnStatus for a call that was queued after the commit took its calls."""
        taker = [get_ident()]
        if self._takers.setdefault(call, taker) is taker:
            self._settle([call])
            raise self._has_ended()

    def has_room(self, size: int) -> bool:
        """True if a message of this size can wait; False: its send writes the waiting messages."""
        if self.is_write_through:
            return False
        return self.buffer is None or self.buffer.has_room(size)

    def _has_ended(self) -> InvalidTxnStatus:
        how = (
            "is being committed, or its commit failed"
            if self._status == "OPEN"
            else f"is {self._status.lower()}"
        )
        return InvalidTxnStatus(f"transaction {self._id_if_any()} {how}", hint="begin another")

    def _await(self, call: Call) -> None:
        """Write the waiting calls, unless `call` is written."""
        if not call.done:
            self._write_queued()

    def _write_queued(self) -> None:
        """Write the deferred operations so far, and wait for those that other threads write.

        The first refusal is kept, and the commit raises it.
        A commit in flight writes them all.
        raises: StoreLocked; they wait again. NotAllowed in a callback of a commit
        """
        if (flying := self._flying) is not None:
            flying.future.wait()
            return
        for last in list(self._queue)[-1:]:
            while not last.done and last in self._queue:
                calls = self._take()
                if calls:
                    self._write(calls)
                    self._put_back(calls)
                elif not self._wait_for_others():
                    return

    def _put_back(self, calls: list[Call]) -> None:
        """Queue calls again for which the store was locked, before all others. Raises its error."""
        locked = [call for call in calls if isinstance(call.error, StoreLocked)]
        if not locked:
            return
        error = locked[0].error
        assert error is not None
        self._refused = [call for call in self._refused if call not in locked]
        self._first.update(locked)
        for call in locked:
            self._queue[call] = None
            call.renew()
            if isinstance(call, Run) and self.buffer is not None:
                self.buffer.messages += call.count
        raise error

    def _wait_for_others(self) -> bool:
        """Wait until another thread has written the call that it took first; False: it did not.

        At most as long as for a lock: a thread that was interrupted between two steps never ends
        its write.
        """
        limit = time.monotonic() + self._store.lock_timeout_ms / 1000
        call = next((call for call in list(self._queue) if call in self._takers), None)
        while call is not None and not call.done and call in self._queue:
            taker = self._takers.get(call)
            if (taker is not None and taker[0] == get_ident()) or time.monotonic() > limit:
                return False
            Event().wait(LOOK_AGAIN_S)
        return True

    def _take(self) -> list[Call]:
        """Claim the deferred calls up to one that another caller has claimed, which comes first.

        `_settle` dequeues them.
        """
        if not self._queue:
            return []
        if self.buffer is not None:
            self.buffer.messages = self.buffer.bytes = 0
        taker = [get_ident()]
        calls: list[Call] = []
        for call in list(self._queue):
            if self._takers.setdefault(call, taker) is not taker:
                if call in self._queue:
                    break
            elif call in self._queue:
                calls.append(call)
            else:  # another thread settled it between the two lines above
                self._takers.pop(call, None)
        if self._first:
            calls.sort(key=lambda call: call not in self._first)
        return calls

    def _settle(self, calls: Iterable[Call]) -> None:
        """Dequeue calls whose outcome is noted, or which their caller is going to repeat."""
        for call in calls:
            if call in self._queue:
                self._queue.pop(call, None)
                self._takers.pop(call, None)

    def _lost_beside(self, calls: list[Call]) -> Call | None:
        """A deferred call, not among `calls`, that was refused or has no outcome; None: no such.

        Its writer was interrupted, or is a thread that is still writing.
        """
        if len(self._queue) == len(calls):
            return None
        ours = set(calls)
        for call in list(self._queue):
            if call not in ours and (not call.done or call.error or call.answer is None):
                return call
        return None

    def _refusal(self) -> Call | None:
        """The first refusal that no caller has seen."""
        return next(iter(self._refused), None)

    def _keep(self, call: Call | None) -> None:
        """Keep a call as the reason for an abort, unless there is one."""
        if call is not None and not self._refused:
            self._refused = [call]

    def _note_refused(self, call: Call) -> None:
        """Keep a refusal, for the commit to raise it unless a caller sees it first."""
        if call not in self._refused:
            self._refused.append(call)

    def _tell(self, call: Call) -> None:
        """Note that the caller gets the error of this call: the commit need not fail for it."""
        is_first = self._refusal() is call
        self._refused = [
            other
            for other in self._refused
            if other is not call and not (is_first and other.error is None)
        ]

    def _call(self, decide: DecideIn[Any], uses: CallScope) -> Call:
        return Call(lambda view, now: decide(view, now, self.use), uses=uses, then=self._opened)

    def _opening(self) -> Call:
        def decide(view: View, now: Instant) -> Decision[TxnId]:
            if isinstance(self.use, TxnId):  # another thread was faster
                return Decision([], answer=self.use)
            return end_txn.begin(view, self._store.settings, now, self.use)

        return Call(decide, then=self._opened)

    def _opened(self, call: Call, decision: Decision[Any]) -> None:
        """Take the id from the decision of the call that opened the transaction."""
        if isinstance(self.use, TxnId):
            return
        answer, error = decision.answer, decision.error
        if isinstance(error, TransactionConflict):  # opened and aborted in one frame
            answer = error.fields["txn"]
        if type(answer) is tuple:
            answer = answer[0]
        if isinstance(answer, TxnId):
            self._opened_by = answer, call

    def _note_opened(self, group: _Group, *, is_written: bool) -> None:
        """After a group: forget the id if the group assigned it, and its frame was never written.

        Another thread may have opened the transaction meanwhile, in a frame of its own.
        """
        use, opener = self._opened_by
        if opener is not None and any(call is opener for call in group.submitted):
            self._opened_by = use if is_written else group.use, None

    def _end_of(
        self, before: list[Call], previous: Ending | None, after: CommitFuture | None
    ) -> Callable[[View, Instant], Decision[Any]]:
        """The decision to commit. It refuses after a refused call and after a failed commit on
        which it depends, and waits for repeated calls and for the commit before it.
        """

        def decide(view: View, now: Instant) -> Decision[EndAnswer | None]:
            is_again = previous is not None and not previous.is_decided
            for call in before:
                if call.error is not None:
                    raise _Refused("an operation before it was refused")
                is_again = is_again or call.answer is None
            if after is not None and (failure := after.failure) is not None:
                raise commits.not_tried(failure)
            if is_again:
                return AGAIN
            return self._decided(view, now)

        return decide

    def _decided(self, view: View, now: Instant) -> Decision[EndAnswer]:
        """The decision that the calls before it lead to: the commit."""
        assert isinstance(self.use, TxnId)
        uid = self._store.disk.owner()[0]
        return end_txn.end(view, self._store.settings, now, uid, self.use, commit=True)

    def _write(self, calls: list[Call], group: _Group | None = None) -> None:
        """Run calls in order, and repeat those that answer None.

        group: the calls, if they are in the queue of the store already
        """
        while calls:
            submitted = self._submit(calls, group)
            group = None
            repeated: list[Call] = []
            ended: list[Call] = []
            is_written = any(
                call.error is None or isinstance(call.error, TransactionConflict | OutcomeUnknown)
                for call in calls
            )
            self._note_opened(submitted, is_written=is_written)
            for call in calls:
                if call.error is not None:
                    self._note_refused(call)
                elif call.answer is None:
                    repeated.append(call)
                    continue
                ended.append(call)
            self._settle(ended)
            calls = repeated
            for call in calls:
                call.renew()

    def _submit(self, calls: list[Call], group: _Group | None) -> _Group:
        is_queued = group is not None
        try:
            if group is None:
                group = self._grouped(calls)
            if is_queued:
                self._store.finish(group.submitted)
            else:
                self._store.submit(group.submitted)
            group.settle()
            return group
        except BaseException as error:  # an interrupt, too: every waiting caller needs an outcome
            if group is not None:
                group.settle(broken=True)
            for call in calls:
                call.end(error)
            self._keep(calls[0])
            self._settle(calls)
            if not in_doubt(calls):
                if group is not None:
                    self._note_opened(group, is_written=False)
            elif is_noted(error) and isinstance(self.use, TxnId):
                error.add_note(end.how_to_ask(self.use))
            raise

    def _grouped(self, calls: list[Call]) -> _Group:
        """Calls as one submission to the store."""
        use = self.use
        if isinstance(use, TxnId):
            for call in calls:
                call.uses = call.uses.in_txn(use.coordinator, use.sequence)
        if Run not in map(type, calls):
            return _Group(calls, [], use)
        runs = [call for call in calls if isinstance(call, Run)]
        return _Group(self._expanded(calls), runs, use)

    @staticmethod
    def _expanded(calls: list[Call]) -> list[Call]:
        """The calls that the store gets: a batch instead of each run, or its messages."""
        expanded: list[Call] = []
        newest: dict[int, Run] = {}  # by topic
        for call in calls:
            if isinstance(call, Run):
                expanded += call.calls(newest.get(call.lane.topic))
                newest[call.lane.topic] = call
            else:
                expanded.append(call)
        return expanded

    def _uses_of(self, uses: CallScope) -> CallScope:
        """The scope of a call, with this transaction if it has an id."""
        use = self.use
        return uses.in_txn(use.coordinator, use.sequence) if isinstance(use, TxnId) else uses

    def _ended(self, call: Call) -> EndAnswer:
        answer: EndAnswer = _answered(call)
        self.outcome = answer
        self._status = answer.status
        if answer.status != PREPARED:
            self._after_end()
        return answer


class _Refused(TxlogError):
    """The commit was not tried: an earlier operation was refused. It never leaves this module."""


def _answered(call: Call) -> Any:
    """The answer of a call, without the transaction id; raises its error."""
    if call.error is not None:
        raise call.error
    answer = call.answer
    return answer[1] if type(answer) is tuple else answer


@checked
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

    __slots__ = ("_begin", "_coordinator", "_is_write_through", "_timeout_ms")

    def __init__(self, begin: Callable[[int | None, int | None, bool], Transaction]) -> None:
        self._begin = begin
        self._is_write_through = False
        self._timeout_ms: int | None = None
        self._coordinator: int | None = None

    def __repr__(self) -> str:
        return f"<txlog.TransactionBuilder, timeout_ms {self._timeout_ms}>"

    def with_timeout(self, timeout: DurationLike) -> TransactionBuilder:
        """Abort it if it stays open longer than this: milliseconds, or a timedelta."""
        self._timeout_ms = duration_ms(timeout)
        return self

    def with_coordinator(self, number: int) -> TransactionBuilder:
        """Use this coordinator; by default they take turns."""
        self._coordinator = number
        return self

    def with_write_through(self) -> TransactionBuilder:
        """Write each send at once, as `Client.transaction(write_through=True)` does."""
        self._is_write_through = True
        return self

    def build(self) -> Transaction:
        """Begin it, as `Client.transaction` does.

        raises: InvalidArgument, LimitExceeded, ProducerFenced; CoordinatorNotFound when the id is
                given out
        """
        return self._begin(self._timeout_ms, self._coordinator, self._is_write_through)


def in_transaction(
    store: Store,
    txn: Transaction | TxnId,
    decide: DecideIn[T],
    uses: CallScope = NOTHING,
    *,
    is_ordered: bool = True,
) -> T:
    """Run a decision in a transaction, opening the transaction if need be; returns its answer.

    decide: answers (TxnId, answer), or None to be run again after a sweep
    uses:   the cursors and topics that the decision works with, which the sweep checks first
    is_ordered: as in `Transaction.run`
    """
    if isinstance(txn, Transaction):
        return txn.run(decide, uses, is_ordered=is_ordered)
    answer = None
    while answer is None:  # again after a sweep that ends an overdue holder
        answer = store.write(
            lambda view, now: decide(view, now, txn),
            uses=uses.in_txn(txn.coordinator, txn.sequence),
        )
    return answer[1]
