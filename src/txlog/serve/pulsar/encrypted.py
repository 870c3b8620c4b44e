"""Owns messages that a client encrypted end to end: how a row stores one, and how the server sends
it.

The server cannot read such a SEND. It stores the payload as it came, compressed or not, as one row.
A batch is one row, too: only its client can split it. The receiver also needs the keys, algorithm,
compression and the number of messages. They are the property ENCRYPTED: the bytes of a
MessageMetadata in base64. Other readers of the row get an unreadable value, and this property.

Acknowledgements of single messages in such a batch are kept in memory. They reach the store with
the last one: after a restart the consumer gets the whole batch again, as its client sent it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from txlog.errors import InvalidMessage
from txlog.serve.pulsar.messages import MessageMetadata, Proto

if TYPE_CHECKING:
    from collections.abc import Iterable

ENCRYPTED: Final = "pulsar.encrypted"
COUNT_MAX: Final = 10_000  # messages in a batch
# Fields of the metadata to store; key, properties and times are columns of the row.
_KEPT: Final = (
    "sequence_id",
    "compression",
    "uncompressed_size",
    "num_messages_in_batch",
    "highest_sequence_id",
    "encryption_algo",
    "encryption_param",
    "schema_version",
)


def property_of(head: Proto) -> tuple[str, str]:
    """The property that stores the metadata of an encrypted SEND.

    raises: InvalidMessage
    """
    if not 1 <= head.num_messages_in_batch <= COUNT_MAX:
        raise InvalidMessage(
            f"an encrypted batch of {head.num_messages_in_batch} messages, the most is {COUNT_MAX}"
        )
    stored = MessageMetadata()
    stored.encryption_keys.MergeFrom(head.encryption_keys)
    for name in _KEPT:
        if head.HasField(name):
            setattr(stored, name, getattr(head, name))
    return ENCRYPTED, b64encode(stored.SerializePartialToString()).decode()


def kept_in(properties: Iterable[tuple[str, str]] | None) -> Proto | None:
    """The metadata that the properties of a row store; None: it is not encrypted."""
    for name, text in properties or ():
        if name == ENCRYPTED:
            return _read(text)
    return None


def _read(text: str) -> Proto | None:
    stored = MessageMetadata()
    try:
        stored.MergeFromString(b64decode(text, validate=True))
    except (NotBase64, ValueError, DecodeError):  # another program's property of this name
        return None
    if not stored.encryption_keys or not 1 <= stored.num_messages_in_batch <= COUNT_MAX:
        return None
    return stored


def message_count(properties: Iterable[tuple[str, str]] | None) -> int:
    """How many messages a row is to clients: 1, except for an encrypted batch."""
    stored = kept_in(properties)
    return 1 if stored is None else int(stored.num_messages_in_batch)
