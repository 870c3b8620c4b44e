"""The op about what is gone for good, a part of the closed set of ops.py."""

from __future__ import annotations

import msgspec


class LossAccepted(msgspec.Struct, tag="loss", frozen=True, array_like=True, gc=False):
    """Somebody went on without what was damaged, by `admin repair --accept-loss`.

    partition, ledger: where; 0: the journal, and first and last are LSNs, else entries
    messages: how many are lost for certain; of frames that cannot be read nobody knows
    """

    partition: int
    ledger: int
    first: int
    last: int
    messages: int
    reason: str
    uid: int
