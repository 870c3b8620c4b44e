"""Owns the valid values of fields that a client writes: the range of each number, and that texts
are UTF-8.

The server checks every command and its message metadata once: after decoding, before a handler
runs. So handlers, and the code behind them, never get a number beyond 63 bits, a meaningless
negative number, or bytes instead of a text.

A number is 0 to 2^63 - 1, and within its type, unless EXCEPTIONS has another range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from txlog.errors import InvalidMessage, LimitExceeded
from txlog.serve.pulsar.messages import Proto

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = (1 << 64) - 1  # the unsigned numbers of an id write -1 so
# Ids in one command; a consumer never has more unacknowledged ids (members.HELD_MAX).
IDS_MAX: Final = 50_000
ITEMS_MAX: Final = 1_000  # in any other list: topics of a transaction, properties

_TYPES_OF_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: INT32_MAX,
    FieldDescriptor.TYPE_UINT32: INT32_MAX,
    FieldDescriptor.TYPE_INT64: INT64_MAX,
    FieldDescriptor.TYPE_UINT64: INT64_MAX,
}


class FieldRange(NamedTuple):
    """The numbers low..high, and perhaps one more."""

    low: int
    high: int
    in_thread: int | None = None

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        return self.low <= number <= self.high or number == self.in_thread


# Fields with another range, each with the reason.
EXCEPTIONS: Final = {
    # -1 is the first and, with its largest number, the last message of a topic.
    "MessageIdData.ledgerId": FieldRange(0, INT64_MAX, UINT64_MAX),
    "MessageIdData.entryId": FieldRange(0, INT64_MAX, UINT64_MAX),
    # -1: no partition, no message of a batch
    "MessageIdData.partition": FieldRange(-1, INT32_MAX),
    "MessageIdData.batch_index": FieldRange(-1, INT32_MAX),
    "MessageIdData.batch_size": FieldRange(-1, INT32_MAX),
    # a time before 1970, in two's complement: clients may go back further than 1970
    "CommandSeek.message_publish_time": FieldRange(0, UINT64_MAX),
    # 64 messages of a batch, a bit each
    "MessageIdData.ack_set": FieldRange(-(1 << 63), INT64_MAX),
    # An exclusive producer that has no epoch yet, and the holder of a transaction key, say -1.
    "CommandTcClientConnectRequest.epoch": FieldRange(-1, INT64_MAX),
    # Its upper 16 bits are the number of a coordinator.
    **{
        f"{message}.txnid_most_bits": FieldRange(0, UINT64_MAX)
        for message in (
            "CommandAck",
            "CommandAddPartitionToTxn",
            "CommandAddSubscriptionToTxn",
            "CommandEndTxn",
            "CommandSend",
            "MessageMetadata",
        )
    },
    # Hashes of keys have 16 bits.
    "IntRange.start": FieldRange(0, (1 << 16) - 1),
    "IntRange.end": FieldRange(0, (1 << 16) - 1),
    # In milliseconds it is an instant.
    "CommandSubscribe.start_message_rollback_duration_sec": FieldRange(0, INT64_MAX // 1_000),
}

Check: TypeAlias = Callable[[Any], None]


def check(message: Proto) -> None:
    """Refuse a message if a field has an invalid value.

    raises: InvalidMessage; LimitExceeded for a list that is too long
    """
    for field, value in message.ListFields():
        judge = _judge(field)
        if judge is not None:
            judge(value)


def range_of(field: FieldDescriptor) -> FieldRange | None:
    """The valid numbers of a field; None: it is not a number."""
    most = _TYPES_OF_INTEGERS.get(field.type)
    if most is None:
        return None
    owner = field.containing_type
    assert owner is not None  # it is no extension
    return EXCEPTIONS.get(f"{owner.name}.{field.name}", FieldRange(0, most))


@cache
def _judge(field: FieldDescriptor) -> Check | None:
    """The check for the value of a field; None: any value is valid."""
    if not field.is_repeated:
        return _one(field)
    name, most = _name_of(field), IDS_MAX if _is_ids(field) else ITEMS_MAX
    if field.type == FieldDescriptor.TYPE_INT64:
        return None  # bits: `ids.unacked` reads only as many as it needs
    check_one = _one(field)

    def check_all(values: Sequence[Any]) -> None:
        if len(values) > most:
            raise LimitExceeded(
                f"{name} has {len(values)} items, the most is {most}",
                setting="items",
                limit=most,
                value=len(values),
            )
        if check_one is not None:
            for value in values:
                check_one(value)

    return check_all


def _one(field: FieldDescriptor) -> Check | None:
    """The check for one value of a field."""
    numbers = range_of(field)
    if numbers is not None:
        return _number(_name_of(field), numbers)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text(_name_of(field))
    if field.message_type is None:
        return None
    return _id if field.message_type.name == "MessageIdData" else check


def _number(name: str, numbers: FieldRange) -> Check:
    low, high, extra = numbers

    def check_number(value: int) -> None:
        if not low <= value <= high and value != extra:
            raise InvalidMessage(f"{name} is {value}, it must be {low} to {high}")

    return check_number


def _text(name: str) -> Check:
    def check_text(value: str | bytes) -> None:
        if isinstance(value, bytes):  # the runtime returns bytes if a text is not UTF-8
            raise InvalidMessage(f"{name} is not UTF-8")

    return check_text


def _id(message_id: Proto) -> None:
    """As `check`, for an id, but faster: a command may have many ids."""
    has_odd_place = message_id.ledgerId > INT64_MAX or message_id.entryId > INT64_MAX
    has_odd_part = (
        message_id.partition < -1 or message_id.batch_index < -1 or message_id.batch_size < -1
    )
    if has_odd_place or has_odd_part or message_id.HasField("first_chunk_message_id"):
        check(message_id)


def _is_ids(field: FieldDescriptor) -> bool:
    kind: Descriptor | None = field.message_type
    return kind is not None and kind.name == "MessageIdData"


def _name_of(field: FieldDescriptor) -> str:
    name: str = field.name
    return name
