"""The ops of delayed delivery: the buckets of a partition's index, promotions, policies.

The times themselves are in the ops that store messages. Part of the closed set of ops.py, which is
where everybody takes them from. Source: apache/pulsar#16763; spec/delayed-delivery 4, 9.
"""

import msgspec

from txlog.engine.storage.segment import FileRef

Id = tuple[int, int, int]  # the id of a message: ledger, entry, index (0: a plain one)
NO_TIME = -(1 << 63)  # in the `times` of an op: this message has none


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """An immutable bucket: the delayed ids of a range of positions, in a published file.

    first, last:    the whole range as it was made, closed
    count:          ids in the file; min_at, max_at: their least and greatest time
    cutoff_ms:      what was due then was left out
    half_at:        once this is due, more than half of the ids are
    """

    gen: int
    file: FileRef
    first: Id
    last: Id
    count: int
    min_at: int
    max_at: int
    cutoff_ms: int
    half_at: int = (1 << 63) - 1


class _Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class BucketSealed(_Op, tag="bsea", frozen=True, array_like=True, gc=False):
    """Ids first..last are in a bucket, without those due at cutoff_ms; null: all of them were.

    kind: seal (they leave the mutable bucket), rebuild (they were not indexed)
    """

    partition: int
    kind: str
    first: Id
    last: Id
    cutoff_ms: int
    bucket: Bucket | None


class BucketsMerged(_Op, tag="bmer", frozen=True, array_like=True, gc=False):
    """One bucket stands for its sources, without what was due at cutoff_ms; null: all of it was.

    paths: the files that lose their name
    """

    partition: int
    sources: list[int]
    cutoff_ms: int
    bucket: Bucket | None
    paths: list[str]


class BucketDeleted(_Op, tag="bdel", frozen=True, array_like=True, gc=False):
    """Buckets are gone; cause: due, acknowledged, trimmed or lost.

    What of a lost one, or of an acknowledged one, may still be wanted is not indexed from then on.
    """

    partition: int
    gens: list[int]
    cause: str
    cutoff_ms: int
    paths: list[str]


class Promoted(_Op, tag="prom", frozen=True, array_like=True, gc=False):
    """These messages are released on the subscription: delivered whatever their time."""

    subscription: int
    partition: int
    runs: list[tuple[int, int, int, int, int]]


class DelaysCounted(_Op, tag="dcnt", frozen=True, array_like=True, gc=False):
    """Messages for a partition were refused for their delay, or stored to expire before it ends."""

    partition: int
    refused: int = 0
    beyond_ttl: int = 0


class NamespacePolicySet(_Op, tag="npol", frozen=True, array_like=True, gc=False):
    """A policy of a namespace (tenant/namespace) has this value; null: it has none."""

    namespace: str
    name: str
    value: int | None
