"""Owns the error tree: one class for each case that a caller would handle differently.

The exit code of an error is its TXL code without the last two digits. The page exit-codes,
the man pages and `txlog help exit-codes` are generated from the table of this module
(`error_table`).

    TxlogError               exit  the caller should
    ├─ Usage                   2   fix the call
    │  ├─ InvalidArgument          201 flags, arguments; 202 name; 203 id, range, time, size;
    │  │                           205 ambiguous name
    │  ├─ LimitExceeded            204, with setting, value and limit
    │  └─ InvalidMessage           206; 104 when it is a record of an input, with line
    ├─ NotFound                3   check the name (308: file, producer, setting, help topic)
    │  ├─ StoreNotFound            301
    │  ├─ TopicNotFound            302 topic or partition
    │  ├─ SubscriptionNotFound     303
    │  ├─ TransactionNotFound      304 never issued; 305 ended and forgotten
    │  ├─ TransactionKeyNotFound   306
    │  ├─ MessageNotFound          307
    │  └─ CoordinatorNotFound      308
    ├─ WrongState              4   look, then choose
    │  ├─ AlreadyExists            401
    │  ├─ AlreadyClosed            402 a closed handle, or one inherited by fork
    │  ├─ InvalidTxnStatus         402 also: ended the other way; aborted_by_recovery: begin again
    │  │  └─ TransactionTimedOut   403 begin again
    │  ├─ ExpiredTransaction       404 fenced: stop
    │  ├─ NotAllowed               406
    │  │  ├─ ProducerFenced        405 fenced: stop
    │  │  └─ NotAuthenticated      411 log in
    │  ├─ TransactionConflict      407 the transaction was aborted: begin again
    │  ├─ StillInUse               408 name --force
    │  ├─ ReadOnlyStore            409
    │  └─ IncompatibleSchema       410
    ├─ TryAgain                5   wait, repeat (502; 509 a server has too many requests)
    │  ├─ StoreLocked              501, with pid and command
    │  ├─ StoreFull                503 nothing was written
    │  ├─ SnapshotExpired          504
    │  ├─ NoResources              504 no descriptors or memory
    │  ├─ ConsumerBusy             505
    │  ├─ PartitionUnavailable     506
    │  ├─ ProducerQueueIsFull      507 wait for the answer to an earlier message
    │  └─ ProducerBusy             508
    ├─ IntegrityError          6   verify, restore
    │  ├─ Corruption               601 file; 602 journal; 604 components disagree
    │  │  └─ MissingFile           601 a file that is named but absent
    │  └─ FormatMismatch           603
    ├─ PartlyDone              7   read the list: done and failed_list
    ├─ ConditionNotMet         8   decide (801 condition, 802 --fail-empty, 803 --expect)
    ├─ Refused                 9   add --yes (901) or the named --force (902)
    ├─ OutcomeUnknown         10   look up the id it carries; never assume
    └─ Failure                 1   see the message; nothing was changed
       ├─ InternalError            101 a bug
       │  └─ NameTaken             101 a name to publish exists; never leaves the engine
       ├─ DiskFailed               102 an I/O error before the append
       ├─ BadRecord                104 bad input record, with line
       ├─ SqlError                 105
       ├─ CommandFailed            106 a user function or command failed
       └─ MissingExtra             107 an extra or Java is not installed

Pulsar twins: InvalidTxnStatus, TransactionConflict, TransactionTimedOut (an InvalidTxnStatus),
ProducerFenced, ProducerBusy, ProducerQueueIsFull and IncompatibleSchema (PulsarClientException
there), ConsumerBusy, and NotAllowed have the same names there; ExpiredTransaction is the
transaction-key PIP's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

Codes = tuple[int, ...]
Hint = str | Callable[[], str] | None
_CALLS: Final = ("error_classes", "is_noted")


class TxlogError(Exception):
    """The root. `codes` lists the codes a class may carry; the first is the default.

    message: one line without a full stop, control characters escaped
    hint:    a remedy, or None; a function runs only when a caller reads the hint, as most callers
             never do: finding a similar name takes milliseconds
    fields:  the facts, by the names of spec/cli 5 (path, txn, setting, pid, ...)
    code:    one of `codes`; by default the first
    """

    codes: Codes = (101,)
    code: int = 101
    kind: str = "failure"
    exit: int = 1
    retryable: bool = False

    def __init_subclass__(cls) -> None:
        cls.code = cls.codes[0]
        cls.exit = cls.code // 100

    def __init__(
        self, message: str, *, hint: Hint = None, code: int | None = None, **fields: object
    ) -> None:
        self.message = printable(message)
        self._hint = hint
        self.fields = fields
        if code is not None:
            assert code in self.codes, f"{type(self).__name__} has no code {code}"
            if code // 100 != self.exit:  # an InvalidMessage in an input is a failure, not usage
                self.kind = "failure"
            self.code = code
            self.exit = code // 100
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    @property
    def hint(self) -> str | None:
        """A remedy, or None."""
        if callable(self._hint):
            self._hint = self._hint()
        return self._hint

    @hint.setter
    def hint(self, hint: Hint) -> None:
        self._hint = hint

    def as_dict(self) -> dict[str, object]:
        """Return the members of the JSON error object; ids as text, bytes never."""
        out: dict[str, object] = {
            "code": f"TXL-{self.code}",
            "class": type(self).__name__,
            "kind": self.kind,
            "exit": self.exit,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
        }
        for name, value in self.fields.items():
            out[name] = _plain(value)
        return out


class Usage(TxlogError):
    """The arguments of the call are wrong."""

    codes: Codes = (201,)
    kind = "usage"


class InvalidArgument(Usage, ValueError, TypeError):
    """A malformed argument: name, id, range, time, size, epoch, time-out."""

    codes: Codes = (201, 202, 203, 205)


class LimitExceeded(Usage):
    """A bound of the settings or a hard limit; fields setting, limit, value."""

    codes: Codes = (204,)
    kind = "limit"


class InvalidMessage(Usage):
    """A message that cannot be stored: too large, bad property, time out of range."""

    codes: Codes = (206, 104)


class NotFound(TxlogError):
    """The object does not exist or is not visible to the caller."""

    codes: Codes = (308,)
    kind = "not-found"


class StoreNotFound(NotFound):
    """No store at the given or searched path."""

    codes: Codes = (301,)


class TopicNotFound(NotFound):
    """No such topic or partition."""

    codes: Codes = (302,)


class SubscriptionNotFound(NotFound):
    """No such subscription."""

    codes: Codes = (303,)


class TransactionNotFound(NotFound):
    """Never issued (304), or ended and forgotten (305)."""

    codes: Codes = (304, 305)


class TransactionKeyNotFound(NotFound):
    """No such transaction key of this owner."""

    codes: Codes = (306,)


class MessageNotFound(NotFound):
    """No such message, or it is not visible."""

    codes: Codes = (307,)


class CoordinatorNotFound(NotFound):
    """The store has no coordinator of this number."""

    codes: Codes = (308,)


class WrongState(TxlogError):
    """The object's state does not allow the call."""

    codes: Codes = (402,)
    kind = "state"


class AlreadyExists(WrongState):
    """An object of that name exists; names equal after case folding count as the same."""

    codes: Codes = (401,)


class AlreadyClosed(WrongState):
    """A closed handle, or one inherited by fork: open again."""


class InvalidTxnStatus(WrongState):
    """The transaction's status does not allow the call; field reason: why it was aborted."""

    @property
    def aborted_by_recovery(self) -> bool:
        """Whether the store aborted it after a failed flush, also of a peer, or after a restart.

        Nothing of the transaction is stored: do its work again in another one.
        """
        return self.fields.get("reason") == "recovery"


class TransactionTimedOut(InvalidTxnStatus):
    """The time-out ended the transaction: begin again."""

    codes: Codes = (403,)
    kind = "timed-out"


class ExpiredTransaction(WrongState):
    """The transaction is fenced: a newer holder of the key is at work."""

    codes: Codes = (404,)
    kind = "fenced"


class NotAllowed(WrongState):
    """The caller, type, epoch or name does not fit: do not retry."""

    codes: Codes = (406,)
    kind = "not-allowed"


class ProducerFenced(NotAllowed):
    """The epoch is no longer the newest, or the key was deleted: stop."""

    codes: Codes = (405,)
    kind = "fenced"


class NotAuthenticated(NotAllowed):
    """The server cannot authenticate the client: no token, a bad one, or an expired one."""

    codes: Codes = (411,)


class TransactionConflict(WrongState):
    """Two transactions acknowledged one message; the second was aborted."""

    codes: Codes = (407,)
    kind = "conflict"


class StillInUse(WrongState):
    """In use; the named --force flag overrides that."""

    codes: Codes = (408,)


class ReadOnlyStore(WrongState):
    """The store cannot be written (EROFS, EACCES), or was opened read-only."""

    codes: Codes = (409,)
    kind = "not-allowed"


class IncompatibleSchema(WrongState):
    """The topic's policy does not allow this schema after the older ones."""

    codes: Codes = (410,)


class TryAgain(TxlogError):
    """Nothing was done: wait and repeat."""

    codes: Codes = (502, 509)
    kind = "retry"
    retryable = True


class StoreLocked(TryAgain):
    """The lock time-out passed; fields pid and command name the holder."""

    codes: Codes = (501,)


class StoreFull(TryAgain):
    """ENOSPC, EDQUOT or too little reserve: nothing was written."""

    codes: Codes = (503,)


class SnapshotExpired(TryAgain):
    """Files of a snapshot were removed: take a new snapshot."""

    codes: Codes = (504,)


class NoResources(TryAgain):
    """No descriptors or no memory (EMFILE, ENFILE, ENOMEM)."""

    codes: Codes = (504,)


class ConsumerBusy(TryAgain):
    """An exclusive subscription has a consumer, or its consumers use another type."""

    codes: Codes = (505,)
    kind = "busy"


class PartitionUnavailable(TryAgain):
    """A partition is offline or quarantined; other partitions still work."""

    codes: Codes = (506,)
    kind = "unavailable"


class ProducerBusy(TryAgain):
    """Another process has an exclusive producer on the topic."""

    codes: Codes = (508,)
    kind = "busy"


class ProducerQueueIsFull(TryAgain):
    """The producer's queue of unanswered messages is full; fields setting, limit."""

    codes: Codes = (507,)


class IntegrityError(TxlogError):
    """Stored data is damaged, or its format is unknown."""

    codes: Codes = (601,)
    kind = "corruption"


class Corruption(IntegrityError):
    """Bytes are not as the store wrote them; fields path, offset, expected, found, lsn."""

    codes: Codes = (601, 602, 604)

    def __init__(
        self, message: str, *, hint: Hint = None, code: int | None = None, **fields: object
    ) -> None:
        # damage in a journal file is always 602
        if code is None and str(fields.get("path", "")).startswith("journal/"):
            code = 602
        super().__init__(message, hint=hint, code=code, **fields)


class MissingFile(Corruption):
    """Another file names a file that is missing; field path."""


class FormatMismatch(IntegrityError):
    """A format version this program does not know."""

    codes: Codes = (603,)


class PartlyDone(TxlogError):
    """Some targets were done; fields done [{name, …}] and failed_list."""

    codes: Codes = (701,)
    kind = "partial"


class ConditionNotMet(TxlogError):
    """No data, or a condition not met (801, 802 --fail-empty, 803 --expect)."""

    codes: Codes = (801, 802, 803)
    kind = "unmet"


class Refused(TxlogError):
    """A consent is missing: --yes (901), or the named --force or --accept-loss (902)."""

    codes: Codes = (901, 902)
    kind = "refused"


class OutcomeUnknown(TxlogError):
    """A flush failed after the append, or the answer was lost: done or not done."""

    codes: Codes = (1001,)
    kind = "unknown"


class Failure(TxlogError):
    """Failed, and nothing was changed."""


class InternalError(Failure):
    """A bug of txlog."""


class NameTaken(InternalError):
    """A name to publish exists already; the engine handles it, callers never see it."""


class DiskFailed(Failure):
    """An I/O error before the append."""

    codes: Codes = (102,)
    kind = "io"


class BadRecord(Failure):
    """A record of an input that cannot be read; field line."""

    codes: Codes = (104,)


class SqlError(Failure):
    """DuckDB refused or failed a statement."""

    codes: Codes = (105,)


class CommandFailed(Failure):
    """A user's function or command failed."""

    codes: Codes = (106,)


class MissingExtra(Failure):
    """An optional dependency or Java is not installed."""

    codes: Codes = (107,)


IN_DOUBT: Final = (
    "txlog was writing this call, so it may have been done: look it up by id, or repeat the call "
    "with the same producer and sequence"
)
"""The note on a foreign exception that ended a call while its frame was being written."""


def is_noted(error: BaseException) -> bool:
    """Whether an exception has the note IN_DOUBT."""
    return IN_DOUBT in getattr(error, "__notes__", ())


def may_be_of_handler(error: BaseException) -> bool:
    """Whether a signal handler may have raised an exception, which then belongs to the caller.

    Python runs handlers in the main thread only.
    """
    is_ours = isinstance(error, TxlogError | MemoryError)
    return not is_ours and threading.current_thread() is threading.main_thread()


def error_classes(root: type[TxlogError] = TxlogError) -> Iterator[type[TxlogError]]:
    """Yield the classes below root, depth first, in the order of this file."""
    for child in root.__subclasses__():
        if child.__module__ == __name__:
            yield child
            yield from error_classes(child)


def error_table() -> list[type[TxlogError]]:
    """Return the classes ordered by exit code and code; the docstring is the meaning."""
    return sorted(error_classes(), key=lambda c: (c.exit, c.codes, c.__name__))


def printable(text: str) -> str:
    """Return text with control, separator and surrogate characters escaped, so it stays one line.

    Cost: O(n); errors only.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _plain(value: object) -> object:
    """Return value in a form for JSON; ids, and other values that JSON lacks, as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"  # no payload in errors
    return str(value)


def __dir__() -> list[str]:
    """The public names: the classes of the tree, and the functions about an error."""
    return sorted({"TxlogError", *_CALLS, *(kind.__name__ for kind in error_classes())})
