"""Owns the warning about a batch of needlessly small files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txlog.engine.plan.staging import Staged

SMALL_BYTES: Final = 4 << 20
"""A file below this costs a reader more to open than to read."""


def said_of_small(staged: Sequence[Staged], remedy: str) -> str | None:
    """The warning if files are small and a partition has several of them, else None."""
    small = [one for one in staged if one.file.bytes < SMALL_BYTES]
    partitions = {one.partition for one in small}
    if len(small) <= len(partitions):
        return None
    return (
        f"{len(small)} of {len(staged)} files of this batch are below {SMALL_BYTES >> 20} MiB,"
        f" for {len(partitions)} partition{'s' * (len(partitions) > 1)}: {remedy}"
    )
