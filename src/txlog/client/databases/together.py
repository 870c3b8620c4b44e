"""A block that commits a database and the log together, and the question how one ended.

The end of the block: the outcome row, the log prepares, the database commits, the log commits. Each
step is one call, so an exception of any kind between two steps leaves a state that the table of
docs/design/transactions, "Prepared transactions", has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import RLock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from txlog.base.arguments import checked
from txlog.base.ids import TxnId
from txlog.base.suggest import address_of, command_line
from txlog.client.databases.kinds import Database, database_of
from txlog.engine.door import transactions as end
from txlog.engine.door.transactions import (
    PREPARED,
    Commits,
    EndAnswer,
    OutcomeRow,
    Prepared,
    Transaction,
    Use,
)
from txlog.errors import (
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnStatus,
    NotAllowed,
    OutcomeUnknown,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.clock import Instant
    from txlog.engine.door.store import Decision, Store, View

# Outcomes that nobody deleted are deleted at this age: their client did not come back.
LEFT_MS: Final = 3_600_000
# The tokens of blocks whose transaction in the database may still be open, with their threads; a
# forked child has none of them. In DuckDB, whose connections are all of one process, the fence does
# not wait for such a transaction.
_ENDING: dict[str, Thread] = {}


class Resolved(NamedTuple):
    """A transaction that was prepared; status: COMMITTED, ABORTED, a decided one, or PREPARED."""

    txn_id: TxnId
    prepared: Prepared
    status: str


class Outcomes:
    """The outcome rows that a client deletes, and its questions to databases.

    blocks:   those of the client, as long as anybody has them
    finished: tokens by database, whose transactions have ended durably
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = RLock()
        self._surveyed: set[str] = set()
        self._identities: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self.blocks: WeakSet[DatabaseTransaction] = WeakSet()
        self.finished: dict[str, list[str]] = {}

    def check_commit(self, txn_id: TxnId) -> None:
        """Raises NotAllowed for the transaction of a block, which the log cannot commit alone."""
        if any(block.use == txn_id and block.state == "OPEN" for block in set(self.blocks)):
            raise NotAllowed(
                f"transaction {txn_id} commits together with a database",
                hint="end its block, or call commit() of the transaction",
            )

    def open(self, database: Database) -> None:
        """Find the identity of a database, once for each connection that can be remembered.

        `Database.record` checks it again.
        """
        try:
            identity = self._identities.get(database.connection)
        except TypeError:  # sqlite3 allows no weak references
            database.open(self._store.disk.random_bytes(16).hex())
            return
        if identity is None:
            database.open(self._store.disk.random_bytes(16).hex())
            identity = self._identities[database.connection] = database.identity
        database.identity = identity

    def tend(self, database: Database) -> None:
        """Resolve what other processes left prepared; find rows that they left."""
        with self._lock:
            is_new = database.identity not in self._surveyed
            self._surveyed.add(database.identity)
        old: list[str] = []
        if is_new:  # rows first, then the log: a row is younger than the op that prepared
            old = database.rows_before(self._store.identity.uuid, self._now_ms() - LEFT_MS)
        look = self._store.ask if is_new else self._store.read  # the dead may have flushed nothing
        txns = look(lambda view: end.prepared(view, database.identity))
        waiting = {txn.prepared.token for txn in txns.values() if txn.prepared is not None}
        self._finish(database, [token for token in old if token not in waiting])
        uid = self._store.disk.owner()[0]
        for txn_id, txn in txns.items():
            assert txn.prepared is not None
            if uid in (0, txn.owner_uid):
                with suppress(InvalidTxnStatus):  # an operator was faster, and decided otherwise
                    self.ask(database, txn_id, txn.prepared)

    def ask(self, database: Database, txn_id: TxnId, prepared: Prepared) -> Resolved:
        """Resolve a prepared transaction of this database.

        raises: InvalidTxnStatus if somebody has decided against the database
        """
        outcome, owner = None, _ENDING.get(prepared.token)
        if database.fence_waits or owner is None or not owner.is_alive():
            outcome = database.outcome(prepared.token, self._store.identity.uuid, self._now_ms())
        if outcome is None:
            return Resolved(txn_id, prepared, PREPARED)
        answer = end.resolve(self._store, txn_id, commit=outcome)
        if outcome or database.fence_waits:
            self._finish(database, [prepared.token])
        return Resolved(txn_id, prepared, answer.status)

    def _finish(self, database: Database, tokens: list[str]) -> None:
        self.finished.setdefault(database.identity, []).extend(tokens)

    def take(self, database: Database) -> list[str]:
        """The rows that the next commit to this database deletes."""
        with self._lock:
            return self.finished.pop(database.identity, [])

    def put_back(self, database: Database, tokens: list[str]) -> None:
        """The commit that should have deleted rows has failed."""
        self._finish(database, tokens)

    def clean(self, database: Database) -> None:
        """Delete the rows of ended transactions now, in a commit of its own."""
        tokens = self.take(database)
        if tokens:
            with database.own(writes=True):
                database.delete(tokens)

    def _now_ms(self) -> int:
        return self._store.clock.now().wall_ms


def begin(
    store: Store,
    outcomes: Outcomes,
    connection: object,
    make_use: Callable[[], Use],
    after_end: Callable[[], None],
    flights: Commits,
    *,
    write_through: bool,
) -> DatabaseTransaction:
    """Begin a transaction of the log and one of a database.

    make_use: begins that of the log, after what others left prepared was resolved
    raises:   InvalidArgument, NotAllowed, as `database_of`; AlreadyClosed in a forked child; what
              make_use raises; errors of the driver
    """
    store.check_process()
    store.need_writable()
    database = database_of(connection)
    outcomes.open(database)
    outcomes.tend(database)
    use = make_use()
    txn = DatabaseTransaction(
        store, use, after_end, database, outcomes, flights, write_through=write_through
    )
    try:
        database.begin_block()
    except BaseException as error:  # an interrupt, too
        txn._give_up(error)
        raise
    return txn


def resolve(
    store: Store, outcomes: Outcomes, connection: object, txn_id: TxnId | None = None
) -> list[Resolved]:
    """Ask a database for the outcomes of its prepared transactions, or of one.

    raises: InvalidArgument: as `database_of`, or another database decides it; TransactionNotFound;
            InvalidTxnStatus: the one is not prepared, or was decided against the database;
            NotAllowed, AlreadyClosed: as `begin`
    """
    store.check_process()
    store.need_writable()
    database = database_of(connection)
    records = {other: txn.prepared for other, txn in store.ask(end.prepared).items()}
    record = None if txn_id is None else records.get(txn_id)
    if txn_id is not None and record is None:
        status = end.recorded(store, txn_id).status
        raise InvalidTxnStatus(
            f"transaction {txn_id} is {status}, not prepared",
            hint=f"prepared ones: {command_line('txn list', '--state', 'prepared')}",
            txn=txn_id,
        )
    database.open()
    if txn_id is not None and record is not None:
        if record.database != database.identity:
            raise InvalidArgument(
                f"{record.kind} {record.label} decides transaction {txn_id}, not {database.label}"
            )
        records = {txn_id: record}
    resolved = [
        outcomes.ask(database, other, record)
        for other, record in records.items()
        if record is not None and record.database == database.identity
    ]
    outcomes.clean(database)
    return resolved


def originals(store: Store, connection: object) -> list[str]:
    """The database files of prepared transactions, of which this database is a copy.

    raises: as `database_of`
    """
    database = database_of(connection)
    prepared = [txn.prepared for txn in store.ask(end.prepared).values() if txn.prepared]
    suspects = [record for record in prepared if database.is_copy_of(record.label)]
    if suspects:
        database.open()
    return sorted({each.label for each in suspects if each.database == database.identity})


@checked
class DatabaseTransaction(Transaction):
    """A transaction that commits together with a database; see `Client.transaction`."""

    __slots__ = ("__weakref__", "_database", "_outcomes", "_token")

    def __init__(
        self,
        store: Store,
        use: Use,
        after_end: Callable[[], None],
        database: Database,
        outcomes: Outcomes,
        flights: Commits,
        *,
        write_through: bool,
    ) -> None:
        super().__init__(store, use, after_end, write_through=write_through, flights=flights)
        self._database, self._outcomes = database, outcomes
        self._token = store.disk.random_bytes(16).hex()
        outcomes.blocks.add(self)

    def commit_async(self, after: end.CommitFuture | None = None) -> end.CommitFuture:
        """Not with a database: its commit needs the connection, which belongs to one thread."""
        raise NotAllowed(
            "a transaction with a database cannot commit without waiting", hint="use commit()"
        )

    def abort(self) -> EndAnswer:
        """Roll back both.

        raises: NotAllowed, AlreadyClosed: nothing was done, the owner of the connection can end it
        """
        self._check_caller()
        if self._status != "OPEN":
            raise self._has_ended()
        self._give_up(None)
        none = EndAnswer(None, "ABORTED", False, "user", 0, 0, [], 0)
        return none if self.outcome is None else self.outcome

    def _leave(self, error: BaseException) -> None:
        try:
            self._check_caller()
        except TxlogError as refused:
            _note(error, refused, "neither the database nor the log was rolled back")
        else:
            self._give_up(error)

    def _check_caller(self) -> None:
        """Before the connection is used. Raises AlreadyClosed in a forked child, whose parent still
        uses it, and NotAllowed in a thread that cannot use it.
        """
        self._store.check_process()
        self._database.check_thread()

    # --- the end -----------------------------------------------------------------------------

    def _commit(self) -> EndAnswer:
        self._check_caller()
        if self._status != "OPEN":
            raise self._has_ended()
        database, finished = self._database, self._outcomes.take(self._database)
        try:
            now_ms = self._store.clock.now().wall_ms
            database.record(self._token, self._store.identity.uuid, now_ms, finished)
            _ENDING[self._token] = current_thread()
            self._end(self._prepared(None))
        except BaseException as error:  # an interrupt, too
            self._outcomes.put_back(database, finished)
            self._give_up(error)
            raise
        try:
            database.commit()
        except BaseException as error:  # an interrupt, too
            self._outcomes.put_back(database, finished)
            self._find_out(error)
            raise
        return self._commit_log()

    def _commit_log(self) -> EndAnswer:
        """Commit in the log what the database has committed."""
        assert isinstance(self.use, TxnId)
        _ENDING.pop(self._token, None)
        try:
            self.outcome = end.resolve(self._store, self.use, commit=True)
        except TxlogError as error:
            raise self._unknown("the database has committed, and the log will", error) from error
        self._settled(self.outcome)
        return self.outcome

    def _decided(self, view: View, now: Instant) -> Decision[EndAnswer]:
        """The decision of the last step in the log before the database commits."""
        assert isinstance(self.use, TxnId)
        database, uid = self._database, self._store.disk.owner()[0]
        row = OutcomeRow(self._token, database.kind, database.identity, database.label)
        return end.prepare(view, self._store.settings, now, uid, self.use, row)

    def _settled(self, answer: EndAnswer) -> None:
        self._status = answer.status
        self._outcomes.put_back(self._database, [self._token])
        self._after_end()

    def _unknown(self, what: str, error: BaseException) -> OutcomeUnknown:
        assert isinstance(self.use, TxnId)
        database = self._database
        address = address_of(database.kind, database.label)
        asking = command_line("txn resolve", self.use, "--database", address)
        return OutcomeUnknown(
            f"{what}: transaction {self.use} is prepared until it is resolved: {error}",
            hint=f"do not repeat it; {asking}",
            txn=self.use,
        )

    # --- errors ------------------------------------------------------------------------------

    def _give_up(self, error: BaseException | None) -> None:
        """Roll back both: the database was never told to commit."""
        dropped = self._take()
        self._drop(dropped)
        self._settle(dropped)
        try:
            self._roll_back()
        except Exception as failed:  # of the driver
            _note(error, failed, "the database was not rolled back: close the connection")
            return
        self._abort_log(error)

    def _roll_back(self) -> None:
        """Roll back the database; a lost connection rolls back by itself."""
        try:
            self._database.rollback()
        except Exception:  # of the driver
            if not self._database.is_gone:
                raise
        _ENDING.pop(self._token, None)

    def _abort_log(self, error: BaseException | None) -> None:
        if isinstance(self.use, TxnId):
            try:
                self.outcome = end.resolve(self._store, self.use, commit=False)
                self._after_end()
            except (InvalidTxnStatus, ExpiredTransaction):
                pass  # a conflict, time-out or fence has ended it
            except TxlogError as failed:
                _note(error, failed, f"transaction {self.use} is not aborted yet")
        self._status = "ABORTED"

    def _find_out(self, error: BaseException) -> None:
        """The commit of the database failed, or was interrupted: it knows what happened.

        raises: OutcomeUnknown if it cannot be asked now
        """
        assert isinstance(self.use, TxnId)
        database, store = self._database, self._store
        outcome = None
        try:
            self._roll_back()  # what it has not committed
            now_ms = store.clock.now().wall_ms
            outcome = database.outcome(self._token, store.identity.uuid, now_ms)
            if outcome is not None:
                self.outcome = end.resolve(store, self.use, commit=outcome)
                self._settled(self.outcome)
        except Exception as failed:  # of the driver
            error.add_note(f"the question how it went failed, too: {failed}")
        if outcome:
            error.add_note(f"the database has committed, and so has transaction {self.use}")
        if outcome is None and isinstance(error, Exception):
            raise self._unknown("the commit of the database failed", error) from error


def _note(error: BaseException | None, failed: Exception, text: str) -> None:
    """Add a second failure to an error; raise it if there is none."""
    if error is None:
        raise failed
    error.add_note(f"{text}: {failed}")
