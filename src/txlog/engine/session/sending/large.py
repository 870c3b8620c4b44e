"""Sending large messages: a value of any length becomes a file of chunks, which one frame names.

    reserve an id · publish the file chunk by chunk · write the frame

A sender holds a few chunks in memory at a time, also when it reads the value from a file. Until the
frame is written it holds the lock of the chunk file, so that no sweep removes it. If the sender
dies before that, a sweep removes the file (R19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, TypeAlias

import pyarrow as pa

from txlog.base.ids import SEQUENCE_STOP, TxnId
from txlog.base.settings import KEY_BYTES_MAX, MIB, TXN_MESSAGES_MAX, Settings
from txlog.engine.decide.sending import large
from txlog.engine.decide.sending.large import LargeOutcome, LargeTarget, PublishedChunks
from txlog.engine.decide.sending.producers import NamedProducer
from txlog.engine.decide.sending.send import AFTER, AT
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.folds.catalog import numbers
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.route import (
    COLUMNS,
    PartitionSlice,
    check_delays,
    check_number,
    partition_of_key,
)
from txlog.engine.session.sending.access import Target
from txlog.engine.session.sending.message import LargeReceipt
from txlog.engine.session.transactions.transaction import Transaction, in_transaction
from txlog.engine.storage.chunks import ChunkFile, cut
from txlog.engine.storage.disk.protocol import Stream, is_of_handler
from txlog.engine.store.appender import DiskSpace
from txlog.engine.store.store import Store
from txlog.engine.upkeep.space import sweep
from txlog.engine.view import View, ledger_dir, sealed_path
from txlog.errors import (
    DiskFailed,
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    OutcomeUnknown,
    ReadOnlyStore,
    TxlogError,
)

Piece: TypeAlias = bytes | bytearray | memoryview
Value: TypeAlias = Piece | BinaryIO | Iterable[bytes]
# Writing a chunk takes several times its memory, so its size has a limit of its own.
CHUNK_BYTES_MAX = 8 * MIB
CHUNKS_MAX = TXN_MESSAGES_MAX
DELIVERY = (AT, AFTER)


@dataclass(frozen=True, slots=True)
class Body:
    """A large value that is not read yet, as an iterator of its chunks."""

    chunks: Iterator[memoryview]


def body_of(
    value: Value, key: bytes | None, properties: Mapping[str, str] | None, settings: Settings
) -> Body | Piece:
    """The value itself if it fits into a plain message, else the body for `send`.

    raises: InvalidMessage, InvalidArgument, LimitExceeded, DiskFailed (it cannot be read)
    """
    overhead = _overhead(key, properties)
    room = settings.max_message_bytes - overhead
    most = settings.max_chunked_message_bytes
    chunk_bytes = min(settings.max_message_bytes, CHUNK_BYTES_MAX)
    if isinstance(value, bytes | bytearray | memoryview):
        size = memoryview(value).nbytes
        if size <= room:
            return value
        if size + overhead > most:
            raise _too_large(size + overhead, most)
        pieces: Iterator[Piece] = iter([value])
    else:
        pieces = _pieces(value, chunk_bytes)
        first = bytearray()
        while len(first) <= room:
            piece = next(pieces, None)
            if piece is None:
                return bytes(first)
            first += piece
        pieces = chain([first], pieces)
    if room < 1:
        raise InvalidMessage(
            f"key and properties have {overhead} bytes, max_message_bytes is "
            f"{settings.max_message_bytes}",
            hint="only the value is cut into chunks",
            setting="max_message_bytes",
            limit=settings.max_message_bytes,
            value=overhead,
        )
    chunks = cut(pieces, min(room, chunk_bytes), chunk_bytes)
    return Body(_bounded(chunks, overhead, most))


def send(
    store: Store,
    topic: Target,
    to: LargeTarget,
    attributes: Mapping[str, object],
    body: Body,
    txn: Transaction | TxnId | None,
) -> LargeReceipt:
    """Send a large message; durable when it returns, in a transaction with the commit.

    attributes: key, properties, event_time, deliver_at, deliver_after, as far as given
    raises:     as Producer.send; after StoreFull and LimitExceeded nothing of it is on disk
    """
    if store.dry_run:
        raise ReadOnlyStore("a dry run stores no messages", path=store.disk.description)
    columns, delivery = _columns(attributes)
    to = LargeTarget(to.partition, to.named, to.sequence, delivery.get(AT), delivery.get(AFTER))
    placed = _reserve(store, topic, to, txn)
    if not placed.ledger:
        return LargeReceipt(to.partition, placed, 0)
    path = store.read(lambda view: _path(view, topic, to, placed.ledger))
    content = ChunkFile(columns, _with_room(store, body.chunks))
    try:
        with store.disk.publishing(path, Stream(content)):
            published = PublishedChunks(
                content.ref(path, placed.ledger),
                content.value_bytes,
                content.value_bytes + len(bytes(attributes.get("key") or b"")),  # type: ignore[call-overload]
                content.crc,
            )
            outcome = _append(store, topic, to, published, txn)
    except OutcomeUnknown:
        raise
    except TxlogError:
        with suppress(TxlogError):  # a later sweep removes it
            sweep.unlink_unnamed(store, path)
        raise
    if outcome.duplicate:
        with suppress(TxlogError):
            sweep.unlink_unnamed(store, path)
        return LargeReceipt(to.partition, outcome, 0)
    return LargeReceipt(to.partition, outcome, published.payload_bytes)


def _path(view: View, topic: Target, to: LargeTarget, ledger: int) -> str:
    number = numbers(live_topic(view, topic.number, "of this producer"))[to.partition]
    directory = ledger_dir(view.catalog, number, "s")
    return sealed_path(directory, ledger, view.manifest.generation)


def _reserve(
    store: Store, topic: Target, to: LargeTarget, txn: Transaction | TxnId | None
) -> LargeOutcome:
    if txn is None:
        answer = store.write(
            lambda view, now: large.reserve(view, store.settings, now, topic.find(view), to)
        )
    else:
        uid = store.disk.owner()[0]
        answer = in_transaction(
            store,
            txn,
            lambda view, now, use: large.reserve_in_txn(
                view, store.settings, now, uid, topic.find(view), to, use
            ),
            _uses(topic.number, to),
        )
    return answer


def _append(
    store: Store,
    topic: Target,
    to: LargeTarget,
    published: PublishedChunks,
    txn: Transaction | TxnId | None,
) -> LargeOutcome:
    owner = store.disk.owner()
    if txn is None:
        answer = store.write(
            lambda view, now: large.append(
                view, store.settings, now, topic.find(view), to, published, owner
            )
        )
    else:
        answer = in_transaction(
            store,
            txn,
            lambda view, now, use: large.append_in_txn(
                view, store.settings, now, owner[0], topic.find(view), to, published, use
            ),
            _uses(topic.number, to),
        )
    return answer


def _uses(topic: int, to: LargeTarget) -> CallScope:
    return CallScope(sends=(topic, [PartitionSlice(to.partition, 0, 1, 0)]))


def address(
    partitions: int,
    turn: int,
    key: bytes | None,
    partition: int | None,
    producer: NamedProducer | None,
    sequence: int | None,
) -> LargeTarget:
    """The target of a large message: the named partition, else the partition of its key or turn.

    raises: InvalidArgument (no such partition, a sequence above 63 bits), InvalidMessage (a
            negative sequence)
    """
    check_number("sequence_id", sequence)
    if sequence is not None and sequence >= SEQUENCE_STOP:
        raise InvalidArgument("sequence_id does not fit into 64 bits", code=203)
    if partition is None:
        partition = turn % partitions if key is None else partition_of_key(key, partitions)
    elif not 0 <= partition < partitions:
        raise InvalidArgument(
            f"partition {partition} is not one of 0 to {partitions - 1}", code=203
        )
    return LargeTarget(partition, producer, sequence)


def _columns(attributes: Mapping[str, object]) -> tuple[pa.RecordBatch, dict[str, int]]:
    """The columns besides the value as the chunk file has them, and the time of delivery."""
    try:
        columns = {name: pa.array([item], COLUMNS[name]) for name, item in attributes.items()}
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as exc:
        raise InvalidArgument(f"the message cannot be encoded: {exc}") from exc
    delivery = {
        name: columns[name].cast(pa.int64())[0].as_py() for name in DELIVERY if name in columns
    }
    check_number(AT, delivery.get(AT))
    if AFTER in columns:
        check_delays(pa.RecordBatch.from_arrays(list(columns.values()), list(columns)))
        del columns[AFTER]
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns)), delivery


def _overhead(key: bytes | None, properties: Mapping[str, str] | None) -> int:
    """Bytes of key and properties."""
    size = 0 if key is None else len(key)
    if size > KEY_BYTES_MAX:
        raise InvalidMessage(f"a key has {size} bytes, the largest is {KEY_BYTES_MAX}")
    try:
        for name, item in (properties or {}).items():
            size += len(name.encode()) + len(item.encode())
    except (AttributeError, UnicodeEncodeError) as exc:
        raise InvalidArgument(f"the message cannot be encoded: {exc}") from exc
    return size


def _pieces(value: BinaryIO | Iterable[bytes], size: int) -> Iterator[Piece]:
    """The pieces of a file or an iterable."""
    read = getattr(value, "read", None)
    if read is None and not isinstance(value, Iterable):
        raise InvalidArgument("the value is neither bytes nor a file nor an iterable of bytes")
    try:
        for piece in iter(lambda: read(size), b"") if read is not None else iter(value):
            if not isinstance(piece, bytes | bytearray | memoryview):
                raise InvalidArgument(
                    f"a piece of the value is {type(piece).__name__}, it must be bytes",
                    hint="open the file with mode rb",
                )
            if piece:
                yield piece
    except OSError as error:
        if is_of_handler(error):
            raise
        raise DiskFailed(f"cannot read the message: {error.strerror}") from error


def _bounded(chunks: Iterator[memoryview], overhead: int, most: int) -> Iterator[memoryview]:
    """The chunks; raises LimitExceeded once the message is too large."""
    size = overhead
    for number, chunk in enumerate(chunks, 1):
        size += chunk.nbytes
        if size > most:
            raise _too_large(size, most)
        if number > CHUNKS_MAX:
            raise LimitExceeded(
                f"a message would have more than {CHUNKS_MAX} chunks",
                hint="raise max_message_bytes",
                limit=CHUNKS_MAX,
                value=number,
            )
        yield chunk


def _too_large(size: int, most: int) -> LimitExceeded:
    return LimitExceeded(
        f"a message has {size} bytes or more, max_chunked_message_bytes is {most}",
        hint="send it in several messages",
        setting="max_chunked_message_bytes",
        limit=most,
        value=size,
    )


def _with_room(store: Store, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
    """The chunks; raises StoreFull when the disk has no room for the next one (R30)."""
    space = DiskSpace(store.disk)
    for chunk in chunks:
        space.check(chunk.nbytes, store.settings.free_bytes_min)
        yield chunk
