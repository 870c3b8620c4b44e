"""The ops of batches that were written as files, a part of the closed set of ops.py."""

import msgspec

from txlog.engine.storage.segment import FileRef


class Adopted(msgspec.Struct, tag="adpt", frozen=True, array_like=True, gc=False):
    """A file that was staged is the ledger file.ledger of a partition, closed, behind the last one.

    An open ledger without a row gives way to it. The LSN of its rows is that of this frame.
    time_ms: the publish_time of its rows; times: as in Appended
    """

    partition: int
    file: FileRef
    payload_bytes: int
    time_ms: int
    times: bytes | None = None


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a recorded batch was: the answer to whoever brings it again.

    topic:    its number
    sequence: of its transaction, at the coordinator of the key
    places:   (partition, first ledger, messages); its ledgers there follow one another
    lsn:      of the frame; 0 in an op, which is in it
    """

    topic: int
    sequence: int
    messages: int
    payload_bytes: int
    files: int
    time_ms: int
    places: list[tuple[int, int, int]]
    lsn: int = 0


class BatchRecorded(msgspec.Struct, tag="brec", frozen=True, array_like=True, gc=False):
    """The batch of this number or name was stored under the key, in this frame."""

    coordinator: int
    uid: int
    key: str
    batch: int | str
    answer: Batch
