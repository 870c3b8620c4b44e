"""The ops of the catalog: what there is, and what it was told.

They are part of the closed set of ops.py, which is where everybody takes them from.
"""

import msgspec


class _Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class SettingSet(_Op, tag="set", frozen=True, array_like=True, gc=False):
    """A setting of the store has this value."""

    name: str
    value: int | str | float


class ClockNoted(_Op, tag="clk", frozen=True, array_like=True, gc=False):
    """The wall clock was believed at wall_ms, when the clock since boot stood at boot_ms.

    seen_*: where both stood when a wall clock that is far ahead was first seen in another boot
    """

    wall_ms: int
    boot_id: str
    boot_ms: int
    seen_wall_ms: int = 0
    seen_boot_id: str = ""
    seen_boot_ms: int = 0


class TopicCreated(_Op, tag="topic", frozen=True, array_like=True, gc=False):
    """A topic exists; its partitions are numbered from first_partition.

    The same frame holds a LedgerRolled for the first ledger of each.
    """

    topic: int
    name: str
    first_partition: int
    partitions: int


class PartitionsAdded(_Op, tag="padd", frozen=True, array_like=True, gc=False):
    """A topic has more partitions, numbered from first_partition; the frame makes their ledgers."""

    topic: int
    first_partition: int
    partitions: int


class TopicDeleted(_Op, tag="tdel", frozen=True, array_like=True, gc=False):
    """A topic is gone with its partitions and these ledgers, those of sidecars too."""

    topic: int
    partitions: list[int]
    ledgers: list[int]


class SubscriptionCreated(_Op, tag="sub", frozen=True, array_like=True, gc=False):
    """A durable subscription exists on a topic."""

    subscription: int
    topic: int
    name: str
    kind: str
    isolation: str


class SubscriptionPolicySet(_Op, tag="spol", frozen=True, array_like=True, gc=False):
    """A policy of a subscription has this value; null: it has none any more."""

    subscription: int
    name: str
    value: int | str | None


class SubscriptionDeleted(_Op, tag="sdel", frozen=True, array_like=True, gc=False):
    """A subscription is gone with its cursors on these partitions, and what was pending there.

    clamped: those where its consumers were handed watermarks; none where the partitions go, too
    """

    subscription: int
    partitions: list[int]
    clamped: list[int] = []


class ConsumerAttached(_Op, tag="con", frozen=True, array_like=True, gc=False):
    """A consumer holds consumers/<id>.lock and receives on the subscription."""

    subscription: int
    consumer: int
    name: str
    kind: str = "exclusive"
    priority: int = 0


class ConsumerDetached(_Op, tag="coff", frozen=True, array_like=True, gc=False):
    """The consumer closed itself, or was found dead."""

    subscription: int
    consumer: int


class SubscriptionTypeSet(_Op, tag="styp", frozen=True, array_like=True, gc=False):
    """The type of a subscription is another one; no consumer of it lived."""

    subscription: int
    kind: str


class IsolationSet(_Op, tag="iso", frozen=True, array_like=True, gc=False):
    """The isolation of a subscription is another one; no consumer of it lived."""

    subscription: int
    isolation: str


class PolicySet(_Op, tag="pol", frozen=True, array_like=True, gc=False):
    """A policy of a topic has this value; null: it has none any more."""

    topic: int
    name: str
    value: int | None


class PartitionOffline(_Op, tag="poff", frozen=True, array_like=True, gc=False):
    """A partition and its sidecar are not available: reason admin or damage.

    ledger, row: with damage, the first row that cannot be read; nothing behind it is shown
    """

    partition: int
    reason: str
    ledger: int = 0
    row: int = 0


class PartitionAvailable(_Op, tag="pon", frozen=True, array_like=True, gc=False):
    """A partition is available again; its frame ends every decided transaction that waited."""

    partition: int
