"""Owns how errors of the store are told to clients: each class as one of Pulsar's ServerErrors.

Source: spec/serve 5.
"""

from __future__ import annotations

from typing import Final

from txlog import errors
from txlog.serve.pulsar.messages import ERRORS

# The first that fits counts, so a class stands before the one it comes from.
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
    """The number of the ServerError that tells of an error."""
    if isinstance(error, errors.InvalidArgument) and error.code == 202:
        return ERRORS["InvalidTopicName"]
    if isinstance(error, errors.TryAgain) and error.code == 509:
        return ERRORS["TooManyRequests"]
    for kind, name in _NAMES:
        if isinstance(error, kind):
            return ERRORS[name]
    return ERRORS["UnknownError"]


def text_of(error: Exception) -> str:
    """What to say of it: its message and code, nothing of a bug."""
    if isinstance(error, errors.TxlogError):
        return f"{error.message} (TXL-{error.code})"
    return "the server failed at this command"
