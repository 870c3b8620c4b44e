"""The ops of event-time watermarks: rows of a partition or sidecar that are not data.

Part of the closed set of ops.py, which is where everybody takes them from. What a transaction
asserts takes effect with its commit marker, which carries the net effect of its rows.
Source: apache/pulsar#12267; spec/watermarks 3, 7, 8.
"""

import msgspec

# (producer, whether it was idle in between, its time or null): what a transaction does to one
Effect = tuple[str, bool, int | None]
UNNAMED = "(unnamed)"  # the member that producers without a name share
_effects = msgspec.msgpack.Decoder(list[Effect])


def encode_effects(effects: list[Effect]) -> bytes:
    """The effects of a marker as its row has them."""
    return msgspec.msgpack.encode(effects)


def read_effects(value: bytes) -> list[Effect]:
    """The effects of a marker; raises msgspec.DecodeError."""
    return _effects.decode(value)


class _Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class WatermarkSet(_Op, tag="wset", frozen=True, array_like=True, gc=False):
    """A W_SET row: from here on nothing of the producer is older than event_time (ms)."""

    partition: int
    ledger: int
    entry: int
    producer: str
    event_time: int


class WatermarkIdled(_Op, tag="widl", frozen=True, array_like=True, gc=False):
    """A W_IDLE row: the producer leaves until its next W_SET; by: producer, admin or timeout."""

    partition: int
    ledger: int
    entry: int
    producer: str
    by: str


class WatermarkSnapshot(_Op, tag="wsna", frozen=True, array_like=True, gc=False):
    """A W_SNAPSHOT row: the whole state just before it.

    payload:      msgpack, as folds/watermark has it
    ledger_bytes: payload bytes of the ledger before this row
    """

    partition: int
    ledger: int
    entry: int
    payload: bytes
    ledger_bytes: int


class BufferWatermark(_Op, tag="bwmk", frozen=True, array_like=True, gc=False):
    """A W_SET or, with event_time null, W_IDLE row in the sidecar, of an open transaction."""

    partition: int
    ledger: int
    entry: int
    coordinator: int
    sequence: int
    producer: str
    event_time: int | None


class WatermarkEmitted(_Op, tag="wemi", frozen=True, array_like=True, gc=False):
    """A consumer of the subscription is handed event_time: it does not fall in this epoch.

    position: (ledger, entry) up to which everything was acknowledged
    """

    subscription: int
    partition: int
    epoch: int
    event_time: int
    position: tuple[int, int]
