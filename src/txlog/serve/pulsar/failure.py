"""Owns the mapping of errors to the protocol: for each class of the store's errors one of Pulsar's
ServerErrors.

Source: spec/serve 5.
"""

from __future__ import annotations

from typing import Final

from txlog import errors
from txlog.serve.pulsar.messages import ERRORS
from txlog.serve.pulsar.wire import ChecksumMismatch

# The first match counts, so a class is listed before its parent.
_NAMES: Final[list[tuple[type[errors.TxlogError], str]]] = [
    (errors.TopicNotFound, "TopicNotFound"),
    (errors.SubscriptionNotFound, "SubscriptionNotFound"),
    (errors.TransactionNotFound, "TransactionNotFound"),
    (errors.CoordinatorNotFound, "TransactionCoordinatorNotFound"),
    (errors.InvalidTxnStatus, "InvalidTxnStatus"),
    (errors.ExpiredTransaction, "InvalidTxnStatus"),
    (errors.ProducerFenced, "ProducerFenced"),
    (errors.TransactionConflict, "TransactionConflict"),
    (errors.IncompatibleSchema, "IncompatibleSchema"),
    (errors.NotAuthenticated, "AuthenticationError"),
    (errors.NotAllowed, "NotAllowedError"),
    (errors.ReadOnlyStore, "NotAllowedError"),
    (errors.ConsumerBusy, "ConsumerBusy"),
    (errors.ProducerBusy, "ProducerBusy"),
    (errors.StillInUse, "ConsumerBusy"),
    (errors.ProducerQueueIsFull, "TooManyRequests"),
    (errors.NoResources, "TooManyRequests"),
    (errors.AlreadyClosed, "ServiceNotReady"),
    (errors.TryAgain, "ServiceNotReady"),
    (errors.LimitExceeded, "NotAllowedError"),
    (errors.InvalidMessage, "NotAllowedError"),
    (errors.InvalidArgument, "NotAllowedError"),
    (errors.IntegrityError, "PersistenceError"),
    (errors.DiskFailed, "PersistenceError"),
    (errors.OutcomeUnknown, "PersistenceError"),
]


def error_of(error: Exception) -> int:
    """The number of the ServerError for an error."""
    if isinstance(error, errors.InvalidArgument) and error.code == 202:
        return ERRORS["InvalidTopicName"]
    if isinstance(error, errors.TryAgain) and error.code == 509:
        return ERRORS["TooManyRequests"]
    for kind, name in _NAMES:
        if isinstance(error, kind):
            return ERRORS[name]
    return ERRORS["UnknownError"]


def lookup_error_of(error: Exception, version: str) -> int:
    """As `error_of`, for a lookup. After an error unknown to it Java retries until its time-out.

    Java checks names itself and so has no InvalidTopicName. But it accepts names that the store
    does not, such as `non-persistent://`.

    version: of the client, as it says
    """
    number = error_of(error)
    if number == ERRORS["InvalidTopicName"] and version.startswith("Pulsar-Java"):
        return ERRORS["NotAllowedError"]
    return number


# Errors after which a client may send the same message again, and have it stored; it creates a
# deleted topic again.
_PASSING: Final = (
    errors.TopicNotFound,
    errors.ProducerFenced,
    errors.ProducerBusy,
    errors.ProducerQueueIsFull,
    errors.NoResources,
    errors.AlreadyClosed,
    errors.TryAgain,
    errors.IntegrityError,
    errors.DiskFailed,
    errors.OutcomeUnknown,
)


def refusal_of(error: errors.TxlogError, version: str) -> int | None:
    """The number of the ServerError in a SEND_ERROR that a client applies to one message only.

    For any other error, stock clients reset the whole connection. They know these errors as final:
    Java NotAllowedError, and the library of C++, Python and Node ChecksumError. None: the client
    only sees its producer closed, and retries until its time-out for sends.

    version: of the client, as it says
    """
    if isinstance(error, _PASSING):
        return None
    is_damaged = isinstance(error, ChecksumMismatch)
    if version.startswith("Pulsar-Go"):
        return None
    if is_damaged or version.startswith("Pulsar-CPP"):
        return ERRORS["ChecksumError"]
    return ERRORS["NotAllowedError"] if version.startswith("Pulsar-Java") else error_of(error)


# these name files of the server's machine
FILE_ERRORS: Final = (errors.IntegrityError, errors.DiskFailed)
OF_FILES: Final = "the server cannot use a file of its store; txlog verify says more on its machine"


def text_of(error: Exception) -> str:
    """The text for a client: message and code; without details of a bug or names of files."""
    if isinstance(error, FILE_ERRORS):
        return f"{OF_FILES} (TXL-{error.code})"
    if isinstance(error, errors.TxlogError):
        return f"{error.message} (TXL-{error.code})"
    return "the server failed at this command"
