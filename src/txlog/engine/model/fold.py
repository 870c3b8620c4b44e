"""The fold: a component's state as a deterministic function of its ops.

`apply` sees the LSN and the time of the frame and the op, nothing else: no clock, no disk, no other
fold (Law 7). `load(dump(state))` is the same state, so a checkpoint may stand anywhere (Law 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from txlog.engine.model.ops import Op
from txlog.errors import Corruption

Take = Callable[[Any, int, int, Any], None]


class Fold(msgspec.Struct, frozen=True):
    """One kind of component; the state's type is private to the fold's module.

    takes: for some types of op, the function that applies it, where `apply` does nothing else
    """

    kind: str
    new: Callable[[], Any]
    apply: Callable[[Any, int, int, Op], None]
    dump: Callable[[Any], bytes]
    load: Callable[[bytes], Any]
    takes: Mapping[type, Take] = {}

    def take(self, op: type) -> Take:
        """The function that applies an op of this type."""
        return self.takes.get(op, self.apply)


def unexpected(kind: str, lsn: int, op: Op) -> Corruption:
    """The error for an op that this kind of fold does not take."""
    return Corruption(
        f"frame {lsn}: a {kind} cannot take the op {type(op).__name__}", lsn=lsn, code=604
    )


def broken(kind: str, lsn: int, why: str) -> Corruption:
    """The error for an op that contradicts the state: an invariant of txlog does not hold."""
    return Corruption(f"frame {lsn}: {kind}: {why}", lsn=lsn, code=604)
