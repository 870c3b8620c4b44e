"""Owns the checked options of `produce`, as its command passes them to its work."""

from __future__ import annotations

import msgspec

from txlog.base.ids import TxnId

BATCH_BYTES = 16 << 20  # bound on values, if --batch is a number of records


class Request(msgspec.Struct):
    """The options of one `produce`, checked as far as possible without the store."""

    topic: str
    files: list[str]
    messages: list[bytes] | None
    properties: dict[str, str]
    form: str = "lines"
    key: bytes | None = None
    key_delimiter: bytes | None = None
    limit: int | None = None
    partition: int | None = None
    event_time: int | None = None
    deliver_at: int | None = None
    deliver_after_ms: int | None = None
    producer: str | None = None
    sequence_from: int | None = None
    access_mode: str = "shared"
    create: bool = False
    batch_messages: int = 5000
    batch_bytes: int = BATCH_BYTES
    flush_every_ms: int = 1000
    rate: float | None = None
    durability: str | None = None
    own_txn: bool = False
    txn_every_messages: int | None = None
    txn_every_ms: int | None = None
    join: TxnId | None = None
    txn_timeout_ms: int | None = None
    transaction_key: str | None = None
    epoch: int | None = None
    expect: int | None = None
    trailer: bytes | None = None
    skip_bad: bool = False
    dead_letter_topic: str | None = None
    require_newline: bool = False
    ack_format: str | None = None
    keep_partition: bool = False
    keep_sequence: bool = False
    chunking: bool = False
    watermarks: bool = False
    watermark_lag_ms: int = 0
    watermark_every_messages: int | None = None
    watermark_every_ms: int | None = None
    idle_on_close: bool = False
