"""Owns TransactionClient: the calls of a client that concern transactions and their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from txlog.answers import keys, topics_and_txns
from txlog.api.transactions import end, keyed
from txlog.api.transactions import transaction as transaction_handle
from txlog.arguments import checked
from txlog.engine.decide.transactions import end as end_txn
from txlog.engine.decide.transactions import enter
from txlog.engine.decide.transactions.sweep import Uses
from txlog.engine.model.ops import NEW_HOLDER
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.store import ask
from txlog.engine.store.store import Store
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.engine.upkeep.service import Checkpoints
from txlog.engine.view.view import View
from txlog.errors import InvalidArgument, OutcomeUnknown, TxlogError
from txlog.ids import TxnId
from txlog.relation.reader import RelationReader

if TYPE_CHECKING:
    from txlog.api.transactions.transaction import Transaction, TransactionBuilder
    from txlog.engine.decide.transactions.end import EndAnswer
    from txlog.engine.decide.transactions.enter import NewTxn

Answer = dict[str, Any]


@checked
class TransactionClient(RelationReader):
    """The part of Client that begins, ends and shows transactions."""

    __slots__ = ("_checkpoints", "epoch", "transaction_key")

    def __init__(self, store: Store, disk: Disk) -> None:
        super().__init__(store, disk)
        self._checkpoints = store.upkeep = Checkpoints(is_on=not store.dry_run)
        self.transaction_key: str | None = None
        self.epoch: int | None = None  # of the connection of transaction_key

    @property
    def checkpoint_automatically(self) -> bool:
        """Whether a write that finds the journal long begins a checkpoint; may be set."""
        return self._checkpoints.is_on

    @checkpoint_automatically.setter
    def checkpoint_automatically(self, is_on: bool) -> None:
        self._checkpoints.is_on = is_on

    def connect(
        self, key: str, epoch: int = NEW_HOLDER, *, owner: str | int | None = None
    ) -> Answer:
        """Take a transaction key; its open transaction is aborted. The fields of `txn connect`.

        epoch:  the one that this holder was given last; -1 always takes over, also after an
                OutcomeUnknown. The key that this client was opened with is renewed
        owner:  name or number of another user, for root
        raises: NotAllowed (an old epoch, another's key), InvalidArgument
        """
        answer = keyed.connect(self._store, key, epoch, owner)
        if owner is None and key == self.transaction_key:
            self.epoch = answer.epoch
        return keys.connected(answer)

    def transaction(
        self, timeout_ms: int | None = None, *, key: str | None = None, epoch: int | None = None
    ) -> Transaction:
        """Begin a transaction; its id is given out by its first send, ack or look at the id.

        key:    run it under this transaction key; the client's when left out. Then it begins now
        epoch:  of the connection of `key`; connects when left out
        raises: InvalidArgument, LimitExceeded (time-out), ProducerFenced; LimitExceeded (too many
                unfinished transactions) when the id is given out
        """
        return self._transaction(timeout_ms, None, key, epoch)

    def new_transaction(self) -> TransactionBuilder:
        """A builder of a transaction, as in PIP-31: `.with_timeout(...).build()`."""
        return transaction_handle.TransactionBuilder(
            lambda timeout_ms, coordinator: self._transaction(timeout_ms, coordinator, None, None)
        )

    def _transaction(
        self, timeout_ms: int | None, coordinator: int | None, key: str | None, epoch: int | None
    ) -> Transaction:
        key, epoch = self._held(key, epoch, coordinator)
        if key is not None:
            opened = keyed.begin(self._store, timeout_ms, key, epoch, None)
            return transaction_handle.Transaction(self._store, opened.txn_id, self._tend)
        self._store.need_writable()
        return transaction_handle.Transaction(
            self._store, self._new(timeout_ms, coordinator), self._tend
        )

    def begin(
        self, timeout_ms: int | None = None, coordinator: int | None = None, *,
        key: str | None = None, epoch: int | None = None, owner: str | int | None = None,
    ) -> Answer:  # fmt: skip
        """Begin a transaction that any process may use by its id; the fields of `txn begin`.

        key, epoch: as for `transaction`; the key decides the coordinator
        owner:      of the key, for root
        raises:     InvalidArgument, LimitExceeded (time-out, unfinished transactions),
                    CoordinatorNotFound, ProducerFenced (the epoch), NotAllowed (another's key)
        """
        if owner is not None and key is None:
            raise InvalidArgument("an owner belongs to a transaction key: name the key")
        key, epoch = self._held(key, epoch, coordinator)
        if key is not None:
            opened = keyed.begin(self._store, timeout_ms, key, epoch, owner)
            return self._tell(opened.txn_id, lambda view: keys.opened(view, opened, self._store))
        txn_id = self._begin(self._new(timeout_ms, coordinator))
        return self._tell(txn_id, lambda view: topics_and_txns.begun(view, txn_id, self._store))

    def _held(
        self, key: str | None, epoch: int | None, coordinator: int | None
    ) -> tuple[str | None, int | None]:
        """The key to begin under: the one that is named, else the client's."""
        if key is None and epoch is not None:
            raise InvalidArgument("an epoch belongs to a transaction key: name the key")
        if key is None:
            key, epoch = self.transaction_key, self.epoch
        if key is not None and coordinator is not None:
            raise InvalidArgument("the transaction key decides the coordinator: leave it out")
        return key, epoch

    def _new(self, timeout_ms: int | None, coordinator: int | None) -> NewTxn:
        settings = self._store.settings
        return enter.NewTxn(
            self._disk.owner(), self._store.clock.now(), enter.check_timeout(settings, timeout_ms),
            coordinator,
        )  # fmt: skip

    def _begin(self, new: NewTxn) -> TxnId:
        txn_id = self._store.write(
            lambda view, now: end_txn.begin(view, self._store.settings, now, new),
            () if new.coordinator is None else (new.coordinator,),
        )
        assert isinstance(txn_id, TxnId)
        return txn_id

    def commit(self, txn_id: TxnId, wait_ms: int = 0) -> Answer:
        """Commit by id; the fields of `txn commit`.

        wait_ms: how long to wait for partitions that are not available; the state stays
                 `committing` when they do not come back, and the decision stands
        raises:  TransactionNotFound, NotAllowed (another's), TransactionTimedOut,
                 ExpiredTransaction (fenced), InvalidTxnStatus (ended the other way),
                 OutcomeUnknown: ask by the id
        """
        answer = self._end(txn_id, True)
        if answer.waiting and wait_ms > 0:
            end.await_end(self._store, txn_id, wait_ms)
            answer = self._end(txn_id, True)
        return self._tell(txn_id, lambda view: topics_and_txns.ended(view, answer))

    def abort(self, txn_id: TxnId) -> Answer:
        """Abort by id; the fields of `txn abort`. Raises as commit; a time-out is one already."""
        answer = self._end(txn_id, False)
        return self._tell(txn_id, lambda view: topics_and_txns.ended(view, answer))

    def _end(self, txn_id: TxnId, commit: bool) -> EndAnswer:
        answer = end.end(self._store, txn_id, commit=commit)
        self._tend()
        return answer

    def transactions(self, all: bool = False, states: Sequence[str] | None = None) -> list[Answer]:
        """Unfinished transactions, or all that are remembered; the fields of `txn list`."""
        self._store.sweep_if_due()
        return ask.look(
            self._store, lambda view: topics_and_txns.transactions(view, self._store, all, states)
        )

    def show_transaction(self, txn_id: TxnId) -> Answer:
        """One transaction; the fields of `txn show`. Raises TransactionNotFound."""
        self._store.sweep_if_due(Uses(txn=(txn_id.coordinator, txn_id.sequence)))
        return ask.look(
            self._store, lambda view: topics_and_txns.transaction(view, self._store, txn_id)
        )

    def expire(self) -> Answer:
        """End everything that is overdue, in the whole store; the fields of `txn expire`.

        returns: {expired, rolled_forward, rolled_back, forgotten, waiting_list}
        """
        return end.expire(self._store)

    def _tend(self) -> None:
        tend_due(self._store)

    def _tell(self, txn_id: TxnId, question: Callable[[View], Answer]) -> Answer:
        """Describe what was just done; that it cannot be read does not mean it was not done.

        Nothing is flushed for it: what this process wrote, its own view shows.
        """
        try:
            return self._store.read(question)
        except TxlogError as error:
            raise OutcomeUnknown(
                f"transaction {txn_id} was changed, but cannot be shown: {error}",
                hint=f"txlog txn show {txn_id}", txn=txn_id,
            ) from error  # fmt: skip
