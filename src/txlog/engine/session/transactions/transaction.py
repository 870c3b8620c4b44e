"""Owns Transaction: a handle on an open transaction of a client, and its builder.

A caller can defer operations in a transaction (`send_async`, `acknowledge_async`). The handle
queues them and writes them together with the next call that waits for its answer, at the latest
with the commit. A send, an acknowledgement and the commit then take the lock once instead of three
times. `commit_async` hands that write to the thread of `commits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from txlog.base.arguments import checked
from txlog.base.ids import TxnId
from txlog.base.text.html import html_table
from txlog.base.times import DurationLike, duration_ms
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending.send import REFUSALS
from txlog.engine.decide.transactions import transaction as end_txn
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import EndAnswer, NewTxn, Use
from txlog.engine.session.transactions import commits, end
from txlog.engine.store.appender import NOTHING, Call, in_doubt, note_doubt
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import (
    ExpiredTransaction,
    InvalidTxnStatus,
    OutcomeUnknown,
    TransactionConflict,
    TxlogError,
    is_noted,
)

if TYPE_CHECKING:
    from txlog.engine.session.transactions.commits import CommitFuture, CommitQueue, Ending

T = TypeVar("T")
Item: TypeAlias = tuple[Any, ...]  # one message: as in engine/session/sending/message
ROWS_MAX = 1_000  # messages per batch; a queued message has at most 64 KiB, so 64 MB
A = TypeVar("A")
DecideIn = Callable[[View, Instant, Use], Decision[tuple[TxnId, T] | None]]
# The decision of a call whose earlier calls must be repeated first: it has no effect.
AGAIN: Decision[None] = Decision([])


class Together(NamedTuple):
    """The call that writes a batch of one producer's messages.

    decide:   the decision; uses: its scope, for the sweep before it
    answered: turns the answer of `decide` into the answer of the batch
    """

    decide: DecideIn[Any]
    uses: CallScope
    answered: Callable[[Any], object]


Gather = Callable[[list[Item]], Together]


class _Row(Call):
    """A deferred message. It is sent in a batch with its neighbours of the same producer, or alone.

    Its answer is (TxnId, (answer of the batch, its row in the batch)).
    """

    __slots__ = ("gather", "is_alone", "item")

    def __init__(self, gather: Gather, item: Item) -> None:
        super().__init__(_never)
        self.gather, self.item = gather, item
        self.is_alone = False

    def goes_with(self, other: Call) -> bool:
        """True when both can be in one batch."""
        if not isinstance(other, _Row) or self.is_alone or other.is_alone:
            return False
        return self.gather == other.gather


class Commits:
    """The commits in flight of one client; the first one makes the queue."""

    __slots__ = ("_store", "queue")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queue: CommitQueue | None = None

    def make(self) -> CommitQueue:
        """The queue."""
        with _MAKING:  # two threads get the same one
            if self.queue is None:
                self.queue = commits.CommitQueue(self._store)
            return self.queue


_MAKING = Lock()


class _Group(NamedTuple):
    """Calls of a transaction that share a frame.

    batches: each call of the store, with the calls of the transaction that it answers
    use:     the transaction before the frame: a frame that is never written assigns no id
    """

    calls: list[Call]
    batches: list[tuple[Call, list[Call]]]
    use: Use

    @property
    def submitted(self) -> list[Call]:
        """The calls of the store, in their order."""
        return [batch for batch, _ in self.batches]


class _Commit:
    """A commit with the deferred calls before it.

    refused: the deferred operation that was refused or lost, so that the transaction is aborted
    submitted: the calls that are in the queue of the store, if they are
    """

    __slots__ = ("calls", "ended", "future", "group", "refused", "submitted", "txn")

    def __init__(self, txn: Transaction, calls: list[Call], refused: Call | None) -> None:
        self.txn, self.calls, self.refused = txn, calls, refused
        self.ended: Call | None = None
        self.group: _Group | None = None
        self.submitted: list[Call] = []
        self.future: CommitFuture

    @property
    def is_decided(self) -> bool:
        """Whether the commit is decided, so that a later one comes after it."""
        ended = self.ended
        if ended is None or self.future.done():
            return True
        return ended.error is not None or ended.answer is not None

    def finish(self) -> EndAnswer:
        """Finish the commit in the thread of the queue."""
        return self.txn._finish(self)

    def give_up(self, error: TxlogError) -> bool:
        """Fail if no thread decides the commit yet."""
        if not self.submitted or not self.txn._store.take_back(self.submitted):
            return False
        for call in self.submitted:
            call.end(error)
        return True


def _never(view: View, now: Instant) -> Decision[None]:
    raise AssertionError("a row is decided in its batch")


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

    __slots__ = ("_call", "_finish", "_txn")

    def __init__(self, txn: Transaction, call: Call, finish: Callable[[Any], T]) -> None:
        self._txn = txn
        self._call = call
        self._finish = finish

    def done(self) -> bool:
        """True once the operation was written or refused."""
        return self._call.done

    def result(self) -> T:
        """Its answer, after writing the operations deferred so far; raises the error of its own."""
        if not self._call.done:
            self._txn._write_queued()
        if self._call.answer is None and self._call.error is None:
            raise _lost()
        self._txn._tell(self._call)
        return self._finish(_answered(self._call))


@checked
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

    __slots__ = (
        "_after_end",
        "_commits",
        "_failed",
        "_flying",
        "_queue",
        "_status",
        "_store",
        "_takers",
        "outcome",
        "use",
    )

    def __init__(
        self,
        store: Store,
        use: Use,
        after_end: Callable[[], None],
        flights: Commits | None = None,
    ) -> None:
        """after_end: called after its end; flights: of its client; None: it commits at once."""
        self.use = use
        self._store = store
        self._after_end = after_end
        self._commits = flights
        self._flying: _Commit | None = None  # the commit that is in the queue
        self._status = "OPEN"
        # Threads may share a handle, and `__del__` may run at any point, so each change of the
        # dicts is one C call. A deferred call stays in the queue until its outcome is noted, even
        # if its writer is interrupted. `_takers` says which caller writes it: the first to claim.
        self._queue: dict[Call, None] = {}
        self._takers: dict[Call, object] = {}
        self._failed: Call | None = None  # the first refusal not yet reported
        self.outcome: EndAnswer | None = None

    def __repr__(self) -> str:
        return f"<txlog.Transaction {self._id_if_any()} {self._status}>"

    def _repr_html_(self) -> str:
        rows = [("id", self._id_if_any()), ("state", self._status), ("deferred", len(self._queue))]
        return html_table("txlog.Transaction", (), rows)

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
        """The status as this handle knows it: OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED."""
        return self._status

    def commit(self) -> EndAnswer:
        """Write the deferred operations and commit, in one pass; durable when it returns.

        If a deferred operation was refused, or an interrupt came while it was written, the
        transaction is aborted instead. Commits in flight (`commit_async`) come before it.

        raises: InvalidTxnStatus, TransactionTimedOut, ExpiredTransaction, OutcomeUnknown; the
                error that refused a deferred operation
        """
        return self._commit()

    def commit_async(self) -> CommitFuture:
        """Commit without waiting; the future has the answer of `commit`, or its error.

        The commit is durable once the future is done. Commits take effect in the order of these
        calls. One that is refused affects no other. If the outcome of one is unknown, those after
        it fail as well: with OutcomeUnknown, or with TryAgain if they were not tried; then the
        transaction is open again.

        From now on the transaction takes no operation. The thread of the client that commits
        belongs to no caller; `close` and the end of the interpreter wait for it. If the process
        dies, a commit without an answer is done or not, as a whole.

        raises: InvalidTxnStatus; AlreadyClosed, ReadOnlyStore, NoResources: nothing was done

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
        with queue.held():
            self._store.need_writable()
            commit = self._prepared(queue.last)
            commit.future = queue.new_future()
            if commit.refused is None:
                commit.submitted = self._group(commit).submitted
            try:
                queue.put(commit)
                self._flying, self._status = commit, "COMMITTING"
                if commit.submitted:
                    self._store.enqueue(commit.submitted)
            except BaseException as error:
                if commit is queue.last:  # an interrupt: the thread finishes it all the same
                    note_doubt(error)
                else:
                    self._put_back(commit)
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
        except BaseException as error:
            if not future.done():  # a signal handler raised, and the thread goes on
                note_doubt(error)
            raise

    def _prepared(self, previous: Ending | None) -> _Commit:
        """Take the deferred calls for a commit, which comes after `previous`."""
        if self._flying is not None:
            raise InvalidTxnStatus("the transaction is being committed")
        if self._status == "ABORTED" and isinstance(self.use, NewTxn):
            raise InvalidTxnStatus("the transaction was aborted before any of it was written")
        calls = self._take()
        lost = self._lost_beside(calls)
        commit = _Commit(self, calls, self._failed or lost)
        if commit.refused is None:
            if not calls and isinstance(self.use, NewTxn):
                commit.calls = [self._opening()]
            assert previous is None or isinstance(previous, _Commit)
            commit.ended = Call(self._end_of(commit.calls, previous))
        return commit

    def _group(self, commit: _Commit) -> _Group:
        assert commit.ended is not None
        commit.group = self._grouped([*commit.calls, commit.ended])
        return commit.group

    def _put_back(self, commit: _Commit) -> None:
        """The commit was not queued: its deferred calls wait again."""
        for call in commit.calls:
            self._takers.pop(call, None)

    def _finish(self, commit: _Commit) -> EndAnswer:
        """End a commit of `commit_async`, in the thread of the queue."""
        try:
            return self._end(commit)
        finally:
            if self._status == "COMMITTING" and self.outcome is None:
                self._status = "OPEN"
            self._flying = None

    def _end(self, commit: _Commit) -> EndAnswer:
        """Write a commit, and abort the transaction if an operation before it was refused."""
        calls, ended = commit.calls, commit.ended
        if ended is not None:
            self._write([*calls, ended], commit.group)
            if ended.error is None:
                return self._ended(ended)
            if not isinstance(ended.error, _Refused):
                raise self._not_ended(ended.error, calls)
        error = _lost() if self._failed is None else self._failed.error or _lost()
        self._failed = self._failed or commit.refused
        self._drop(calls)
        self._settle(calls)
        try:
            if isinstance(self.use, TxnId):
                self._abort(self.use)
            self._status, self._failed = "ABORTED", None
        except TxlogError:
            pass  # it stays refused: a repeated commit aborts again, or the time-out does
        raise error

    def abort(self) -> EndAnswer:
        """Abort: its messages never become visible, and the messages it acknowledged come again.

        If `__del__` or a signal handler calls this inside another call on the store, the abort
        waits until that call has ended, and the answer has status ABORTING.
        """
        use = self.use
        if isinstance(use, TxnId) and self._store.put_off(self.abort):
            return EndAnswer(use, "ABORTING", False, None, 0, 0, [], 0)
        if (flying := self._flying) is not None:
            flying.future.exception()  # then the store says how it ended
        dropped = self._take()
        self._drop(dropped)
        self._failed = self._failed or next(iter(dropped), None)  # if this fails, no commit without
        answer = self._abort(self.id)
        self._settle(dropped)
        self._failed = None
        return answer

    def _not_ended(self, error: BaseException, before: list[Call]) -> BaseException:
        """The error to raise for a failed commit. If it had no effect, the caller can repeat it."""
        if isinstance(error, OutcomeUnknown):
            self._failed = None
            return end.unknown_end(self.use, error) if isinstance(self.use, TxnId) else error
        for call in before:
            if call.error is error:
                self._queue[call] = None
                call.renew()
        self._failed = None
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
        if kind is None:
            self._commit()
            return
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

    def run(self, decide: DecideIn[T], uses: CallScope) -> T:
        """Write the deferred operations, then this decision; returns its answer."""
        self._check_open()
        call = self._call(decide, uses)
        self._write([*self._take(), call])
        self._tell(call)
        answer: T = _answered(call)
        return answer

    def defer(self, decide: DecideIn[A], uses: CallScope, finish: Callable[[A], T]) -> Later[T]:
        """Defer a decision; `finish` turns its answer into the answer of the caller."""
        self._check_open()
        call = self._call(decide, uses)
        self._queue[call] = None
        return Later(self, call, finish)

    def defer_row(self, gather: Gather, item: Item, finish: Callable[[Any], T]) -> Later[T]:
        """Defer a message. gather: batches messages of its producer; finish: as in `defer`."""
        self._check_open()
        call = _Row(gather, item)
        self._queue[call] = None
        return Later(self, call, finish)

    def _check_open(self) -> None:
        """Raises InvalidTxnStatus once `commit_async` was called."""
        if self._flying is not None:
            raise InvalidTxnStatus(
                "the transaction is being committed", hint="begin another transaction"
            )

    def _write_queued(self) -> None:
        """Write the deferred operations; the first refusal is kept, and the commit raises it."""
        calls = self._take()
        if calls:
            self._write(calls)

    def _take(self) -> list[Call]:
        """Claim the deferred calls that no other caller has claimed; `_settle` dequeues them."""
        if not self._queue:
            return []
        taker = object()
        calls: list[Call] = []
        for call in list(self._queue):
            if self._takers.setdefault(call, taker) is taker:
                if call in self._queue:
                    calls.append(call)
                else:  # another thread settled it between the two lines above
                    self._takers.pop(call, None)
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

    def _tell(self, call: Call) -> None:
        """Note that the caller gets the error of this call: the commit need not fail for it."""
        if self._failed is call:
            self._failed = None

    def _call(self, decide: DecideIn[Any], uses: CallScope) -> Call:
        return Call(lambda view, now: decide(view, now, self.use), uses=uses, then=self._opened)

    def _opening(self) -> Call:
        def decide(view: View, now: Instant) -> Decision[TxnId]:
            assert isinstance(self.use, NewTxn)
            return end_txn.begin(view, self._store.settings, now, self.use)

        return Call(decide, then=self._opened)

    def _opened(self, decision: Decision[Any]) -> None:
        """Take the id from the decision of the call that opened the transaction."""
        if isinstance(self.use, TxnId):
            return
        answer, error = decision.answer, decision.error
        if isinstance(error, TransactionConflict):  # opened and aborted in one frame
            answer = error.fields["txn"]
        if type(answer) is tuple:
            answer = answer[0]
        if isinstance(answer, TxnId):
            self.use = answer

    def _unopen(self, before: Use, calls: list[Call]) -> None:
        """Forget the id if the frame that assigned it was never written."""
        if not any(isinstance(c.error, TransactionConflict | OutcomeUnknown) for c in calls):
            self.use = before

    def _end_of(
        self, before: list[Call], previous: _Commit | None
    ) -> Callable[[View, Instant], Decision[Any]]:
        """The decision to commit. It refuses after a refused call, and waits for repeated calls and
        for the commit before it.
        """
        store = self._store
        uid = store.disk.owner()[0]

        def decide(view: View, now: Instant) -> Decision[EndAnswer | None]:
            is_again = previous is not None and not previous.is_decided
            for call in before:
                if call.error is not None:
                    raise _Refused("an operation before it was refused")
                is_again = is_again or call.answer is None
            if is_again:
                return AGAIN
            assert isinstance(self.use, TxnId)
            return end_txn.end(view, store.settings, now, uid, self.use, commit=True)

        return decide

    def _write(self, calls: list[Call], group: _Group | None = None) -> None:
        """Run calls in order, and repeat those that answer None.

        group: the calls, if they are in the queue of the store already
        """
        while calls:
            use = self.use if group is None else group.use
            self._submit(calls, group)
            group = None
            again: list[Call] = []
            ended: list[Call] = []
            is_refused = use is not self.use and calls[-1].error is not None
            if is_refused and all(call.error is not None for call in calls):
                self._unopen(use, calls)
            for call in calls:
                if call.error is not None:
                    self._failed = self._failed or call
                elif call.answer is None:
                    again.append(call)
                    continue
                ended.append(call)
            self._settle(ended)
            calls = again
            for call in calls:
                call.renew()

    def _submit(self, calls: list[Call], group: _Group | None) -> None:
        try:
            if group is None:
                group = self._grouped(calls)
                self._store.submit(group.submitted)
            else:
                self._store.finish(group.submitted)
            for batch, part in group.batches:
                _pass_on(batch, part)
        except BaseException as error:  # an interrupt, too: every waiting caller needs an outcome
            self._abandon(calls, group, error)
            raise

    def _grouped(self, calls: list[Call]) -> _Group:
        """Calls as one submission, neighbouring messages of a producer as a batch."""
        use = self.use
        if isinstance(use, TxnId):
            for call in calls:
                call.uses = call.uses.in_txn(use.coordinator, use.sequence)
        if _Row not in map(type, calls):
            return _Group(calls, [(call, [call]) for call in calls], use)
        return _Group(calls, [(self._gathered(part), part) for part in _neighbours(calls)], use)

    def _abandon(self, calls: list[Call], group: _Group | None, error: BaseException) -> None:
        """Writing calls failed, or was interrupted: give each an outcome."""
        for batch, part in () if group is None else group.batches:
            _pass_on(batch, part, broken=True)
        for call in calls:
            call.end(error)
        self._failed = self._failed or calls[0]
        self._settle(calls)
        if not in_doubt(calls):
            if group is not None:
                self.use = group.use  # the frame that assigned an id was never written
        elif is_noted(error) and isinstance(self.use, TxnId):
            error.add_note(end.how_to_ask(self.use))

    def _gathered(self, group: list[Call]) -> Call:
        """The call that writes a group: its single call, or a batch of its messages."""
        first = group[0]
        if not isinstance(first, _Row):
            return first
        together = first.gather([call.item for call in group if isinstance(call, _Row)])
        uses, use = together.uses, self.use
        if isinstance(use, TxnId):
            uses = uses.in_txn(use.coordinator, use.sequence)

        def then(decision: Decision[Any]) -> None:
            self._opened(decision)
            answer = decision.answer
            if type(answer) is tuple:
                batch_answer = together.answered(answer[1])
                for row, call in enumerate(group):
                    call.answer = (answer[0], (batch_answer, row))

        return Call(lambda view, now: together.decide(view, now, self.use), uses=uses, then=then)

    def _ended(self, call: Call) -> EndAnswer:
        answer: EndAnswer = _answered(call)
        self.outcome = answer
        self._status = answer.status
        self._after_end()
        return answer


def _neighbours(calls: list[Call]) -> list[list[Call]]:
    """Group neighbouring messages of one producer; every other call is a group of its own."""
    groups: list[list[Call]] = []
    for call in calls:
        last = groups[-1] if groups else None
        if (
            last is not None
            and len(last) < ROWS_MAX
            and isinstance(call, _Row)
            and call.goes_with(last[0])
        ):
            last.append(call)
        else:
            groups.append([call])
    return groups


def _pass_on(batch: Call, group: list[Call], *, broken: bool = False) -> None:
    """Give each message of a batch the outcome of the batch.

    If the batch was refused, each message is sent again alone, so that one bad message does not
    make the others fail.

    broken: writing the batch was interrupted; its messages get its error
    """
    for call in group:
        if call is batch:
            continue
        call.stage, call.done = batch.stage, batch.done
        if batch.error is None:
            continue
        if not broken and len(group) > 1 and isinstance(batch.error, REFUSALS):
            assert isinstance(call, _Row)
            call.is_alone = True
            call.answer, call.done = None, False
        else:
            call.error = batch.error


class _Refused(TxlogError):
    """The commit was not tried: an earlier operation was refused. It never leaves this module."""


def _answered(call: Call) -> Any:
    """The answer of a call, without the transaction id; raises its error."""
    if call.error is not None:
        raise call.error
    answer = call.answer
    return answer[1] if type(answer) is tuple else answer


def _lost() -> InvalidTxnStatus:
    return InvalidTxnStatus(
        "writing a deferred operation was interrupted or is still under way in another thread",
        hint="repeat the transaction",
    )


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

    __slots__ = ("_begin", "_coordinator", "_timeout_ms")

    def __init__(self, begin: Callable[[int | None, int | None], Transaction]) -> None:
        self._begin = begin
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

    def build(self) -> Transaction:
        """Begin it, as `Client.transaction` does.

        raises: InvalidArgument, LimitExceeded, ProducerFenced; CoordinatorNotFound when the id is
                given out
        """
        return self._begin(self._timeout_ms, self._coordinator)


def in_transaction(
    store: Store, txn: Transaction | TxnId, decide: DecideIn[T], uses: CallScope = NOTHING
) -> T:
    """Run a decision in a transaction, opening the transaction if need be; returns its answer.

    decide: answers (TxnId, answer), or None to be run again after a sweep
    uses:   the cursors and topics that the decision works with, which the sweep checks first
    """
    if isinstance(txn, Transaction):
        return txn.run(decide, uses)
    answer = None
    while answer is None:  # again after a sweep that ends an overdue holder
        answer = store.write(
            lambda view, now: decide(view, now, txn),
            uses=uses.in_txn(txn.coordinator, txn.sequence),
        )
    return answer[1]
