"""Owns the transactions, keys and consumers of the model that the state machine compares with."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlog import Consumer, MessageId, TxnId

OPEN, COMMITTED = "open", "committed"


@dataclass
class ModelTxn:
    """A transaction of the model; state: open, committed, or the reason of its abort."""

    number: TxnId
    due_ms: int
    state: str = OPEN
    sent: dict[int, list[bytes]] = field(default_factory=dict)
    sequences: dict[tuple[int, str], dict[int, int]] = field(default_factory=dict)
    held: dict[tuple[str, int], set[MessageId]] = field(default_factory=dict)
    cumulative: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass
class ModelKey:
    """A transaction key of the model."""

    epoch: int = -1
    is_deleted: bool = False
    bound: ModelTxn | None = None


@dataclass
class ModelConsumer:
    """A consumer of the shared subscription, and the messages leased to it."""

    who: int
    real: Consumer
    hand: set[tuple[int, MessageId]] = field(default_factory=set)
