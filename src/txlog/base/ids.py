"""Owns the names and ids: their structure, their text, the rules for names.

1. A TxnId is 128 bits: the coordinator in the top 16, its counter from 0 in the rest. Both 64-bit
   halves fit a signed integer, because counters stay below 2^63 and coordinators below 2^15.
2. A MessageId is L:E for a plain message or a commit marker, L:E:I for the I-th message, from 1, of
   the transaction whose marker is L:E (PIP-31 counts from 1 as well). index 0 means "no index".
   Ledgers number over the whole store, so an id names its partition.
3. Names that differ are encoded differently, and no encoded name begins with `_` or `.`.

Programs make millions of ids, so the constructors check nothing; the parsers check.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

import msgspec

from txlog.errors import InvalidArgument, NotAllowed

COORDINATORS_MAX: Final = 32_768
SEQUENCE_STOP: Final = 1 << 63
NAME_CHARS_MAX: Final = 128
NAME_ENCODED_BYTES_MAX: Final = 240
TENANT_DEFAULT: Final = "public"
NAMESPACE_DEFAULT: Final = "default"
SIDECAR: Final = "_txnlog"

_DEFAULTS: Final = [TENANT_DEFAULT, NAMESPACE_DEFAULT]
_HALF_MASK: Final = (1 << 64) - 1
_COUNTER_HIGH_MASK: Final = (1 << 48) - 1
_TXN_PAIR = re.compile(r"([0-9]{1,5}):([0-9]{1,19})")
_TXN_HALVES = re.compile(r"\(([0-9]{1,20}), ?([0-9]{1,20})\)")
_MESSAGE_ID = re.compile(r"([0-9]{1,19}):([0-9]{1,19})(?::([0-9]{1,19}))?")
_PARTITION_SUFFIX = re.compile(r"(.*)-partition-([0-9]+)", re.DOTALL)
_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_NAME_MARKS: Final = frozenset("._-=:+@~")
# A command would take a name that begins with - for an option. The Go client makes such topics: it
# omits the topic in TOPIC-SUBSCRIPTION-RETRY, with patterns and retries. Apache Pulsar takes them.
_DASH_FIRST: Final = frozenset({"topic"})
_ASCII_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLAIN_BYTES: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)

assert (COORDINATORS_MAX - 1) << 48 < SEQUENCE_STOP  # rule 1: the high half fits a signed integer


def txn_halves(coordinator: int, sequence: int) -> tuple[int, int]:
    """The high and the low 64 bits of a transaction id."""
    return coordinator << 48 | sequence >> 64, sequence & _HALF_MASK


class TxnId(msgspec.Struct, frozen=True, order=True, gc=False):
    """A transaction: the coordinator that issued it, and its number there."""

    coordinator: int
    sequence: int

    @property
    def most(self) -> int:
        """The high 64 bits."""
        return txn_halves(self.coordinator, self.sequence)[0]

    @property
    def least(self) -> int:
        """The low 64 bits."""
        return txn_halves(self.coordinator, self.sequence)[1]

    @classmethod
    def from_halves(cls, most: int, least: int) -> TxnId:
        """Return the id for two 64-bit halves, read as unsigned."""
        most &= _HALF_MASK
        return cls(most >> 48, (most & _COUNTER_HIGH_MASK) << 64 | least & _HALF_MASK)

    @classmethod
    def parse(cls, text: str) -> TxnId:
        """Return the id written `3:18` or `(844424930131968,18)`.

        raises: InvalidArgument (203)
        """
        pair = _TXN_PAIR.fullmatch(text)
        if pair is not None:
            coordinator, sequence = int(pair[1]), int(pair[2])
            if coordinator < COORDINATORS_MAX and sequence < SEQUENCE_STOP:
                return cls(coordinator, sequence)
        halves = _TXN_HALVES.fullmatch(text)
        if halves is not None:
            most, least = int(halves[1]), int(halves[2])
            if most <= _HALF_MASK and least <= _HALF_MASK:
                return cls.from_halves(most, least)
        raise InvalidArgument(
            f"not a transaction id: {_short(text)}",
            code=203,
            hint="write COORDINATOR:SEQUENCE, such as 3:18",
        )

    def __str__(self) -> str:
        return f"{self.coordinator}:{self.sequence}"


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """An entry of a ledger."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


class MessageId(msgspec.Struct, frozen=True, order=True, gc=False):
    """The id of a message; index 0: a plain message, or a marker itself."""

    ledger: int
    entry: int
    index: int = 0

    @property
    def position(self) -> Position:
        """The position of the entry, without the index."""
        return Position(self.ledger, self.entry)

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Return the id written `L:E` or `L:E:I`.

        raises: InvalidArgument (203)
        """
        match = _MESSAGE_ID.fullmatch(text)
        if match is not None:
            ledger, entry = int(match[1]), int(match[2])
            index = 0 if match[3] is None else int(match[3])
            if match[3] is not None and index == 0:
                raise InvalidArgument(
                    f"not a message id: {_short(text)}: the index counts from 1", code=203
                )
            if max(ledger, entry, index) < SEQUENCE_STOP:
                return cls(ledger, entry, index)
        raise InvalidArgument(
            f"not a message id: {_short(text)}",
            code=203,
            hint="write LEDGER:ENTRY or LEDGER:ENTRY:INDEX, such as 17:4 or 17:4:2",
        )

    def __str__(self) -> str:
        if self.index:
            return f"{self.ledger}:{self.entry}:{self.index}"
        return f"{self.ledger}:{self.entry}"


class TopicName(msgspec.Struct, frozen=True, order=True, gc=False):
    """A topic, or one partition of it; partition None means the topic as a whole."""

    tenant: str
    namespace: str
    name: str
    partition: int | None = None

    @classmethod
    def parse(cls, text: str, *, allow_partition: bool = False) -> TopicName:
        """Return the topic written `t`, `tenant/ns/t` or `persistent://tenant/ns/t`.

        allow_partition: also `t/2` and `t-partition-2`
        raises: InvalidArgument (202), NotAllowed for a sidecar
        """
        return _parse_topic(text, allow_partition)

    @classmethod
    def _parse(cls, text: str, allow_partition: bool) -> TopicName:
        if not isinstance(text, str):
            raise InvalidArgument(f"not a topic: {text!r}", code=202)
        path = text.removeprefix("persistent://")
        if "://" in path:
            raise InvalidArgument(
                f"not a topic: {_short(text)}", code=202, hint="only persistent:// is known"
            )
        parts = path.split("/")
        # older versions allowed this name in public/default; such topics are still read
        if len(parts) > 1 and parts[-1] == SIDECAR and parts[:-1] != _DEFAULTS:
            raise NotAllowed(f"{_short(text)} is a transaction sidecar, not a topic")
        partition: int | None = None
        if len(parts) in (2, 4) and _PARTITION_NUMBER.fullmatch(parts[-1]):
            partition = int(parts.pop())
        if len(parts) == 1 and path is text:
            tenant, namespace, name = TENANT_DEFAULT, NAMESPACE_DEFAULT, parts[0]
        elif len(parts) == 3:
            tenant, namespace, name = parts
        else:
            raise InvalidArgument(
                f"not a topic: {_short(text)}",
                code=202,
                hint="write NAME, NAME/PARTITION or TENANT/NAMESPACE/NAME",
            )
        suffix = _PARTITION_SUFFIX.fullmatch(name)
        if suffix is not None:
            if partition is not None or not _PARTITION_NUMBER.fullmatch(suffix[2]):
                raise InvalidArgument(f"not a partition: {_short(text)}", code=202)
            name, partition = suffix[1], int(suffix[2])
            if _PARTITION_SUFFIX.fullmatch(name):
                raise InvalidArgument(f"not a partition: {_short(text)}", code=202)
        if partition is not None and not allow_partition:
            raise InvalidArgument(f"{_short(text)} names a partition, not a topic", code=202)
        check_name("tenant", tenant)
        check_name("namespace", namespace)
        check_name("topic", name)
        return cls(tenant, namespace, name, partition)

    @property
    def topic(self) -> TopicName:
        """The topic, without the partition."""
        return TopicName(self.tenant, self.namespace, self.name)

    @property
    def full(self) -> str:
        """`tenant/namespace/name`, without the partition."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def short(self) -> str:
        """The name alone in public/default, else `full`; without the partition.

        A name that begins with - stays full, as a command would take it for an option.
        """
        is_default = self.tenant == TENANT_DEFAULT and self.namespace == NAMESPACE_DEFAULT
        return self.name if is_default and not self.name.startswith("-") else self.full

    def check_new(self) -> TopicName:
        """Return the name if a topic can be created under it.

        raises: NotAllowed for the name of a sidecar, which only older versions allowed;
                InvalidArgument for a name that `parse` does not accept as a topic
        """
        if self.name == SIDECAR:
            raise NotAllowed(
                f"{SIDECAR} is the name of transaction sidecars, not of a topic",
                hint="choose another name",
            )
        TopicName.parse(self.full)
        return self

    def __str__(self) -> str:
        return self.short if self.partition is None else f"{self.short}/{self.partition}"


def check_name(kind: str, text: str) -> str:
    """Return text if it may name a tenant, namespace, topic, subscription, producer or consumer.

    raises: InvalidArgument (202) that names the broken rule; the name is never changed silently
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"bad {kind} name {text!r}: it is not a str", code=202)
    reason = _broken_rule(text)
    if reason is None and kind not in _DASH_FIRST and text.startswith("-"):
        reason = "it begins with -"
    if reason is not None:
        raise InvalidArgument(f"bad {kind} name {_short(text)}: {reason}", code=202)
    return text


def encode_component(name: str) -> str:
    """Return name as a file name: bytes outside A-Z a-z 0-9 . _ - and a first _ or . as %XX."""
    if _ASCII_NAME.fullmatch(name):
        return name
    raw = name.encode("utf-8")
    return "".join(
        chr(byte) if byte in _PLAIN_BYTES and (at > 0 or byte not in b"_.") else f"%{byte:02X}"
        for at, byte in enumerate(raw)
    )


def _broken_rule(text: str) -> str | None:
    if not text:
        return "it is empty"
    if len(text) > NAME_CHARS_MAX:
        return f"it has {len(text)} characters, at most {NAME_CHARS_MAX} are allowed"
    for char in text:
        if char not in _NAME_MARKS and unicodedata.category(char) not in _NAME_CATEGORIES:
            return "only letters, digits and . _ - = : + @ ~ are allowed"
    if text in (".", ".."):
        return "it is a directory's own name"
    if text.startswith("__"):
        return "names with two leading underscores are the system's"
    if not unicodedata.is_normalized("NFC", text):
        return "it is not in the normal form NFC"
    encoded_bytes = len(encode_component(text))
    if encoded_bytes > NAME_ENCODED_BYTES_MAX:
        return f"it takes {encoded_bytes} bytes encoded, at most {NAME_ENCODED_BYTES_MAX} fit"
    return None


_NAME_CATEGORIES: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nd"})


def _short(text: str) -> str:
    """Return text quoted and shortened for an error line."""
    return f'"{text}"' if len(text) <= 80 else f'"{text[:77]}..."'


@lru_cache(maxsize=1024)
def _parse_topic(text: str, allow_partition: bool) -> TopicName:
    """Cached, because every call parses names, and checking one takes 12 us."""
    return TopicName._parse(text, allow_partition)
