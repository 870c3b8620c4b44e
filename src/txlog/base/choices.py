"""Owns the words that calls of the Python API take, as types: a type checker refuses a wrong one.

The store checks the words, too; `tests/api/test_types_of_calls.py` compares both.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

SubscriptionType: TypeAlias = Literal["exclusive", "shared", "failover", "key-shared"]
Isolation: TypeAlias = Literal["committed", "uncommitted"]
Durability: TypeAlias = Literal["sync", "os"]
AccessMode: TypeAlias = Literal[
    "shared", "exclusive", "exclusive-with-fencing", "wait-for-exclusive"
]
RoutingMode: TypeAlias = Literal["round-robin", "single-partition"]
SchemaType: TypeAlias = Literal["json", "avro"]
Start: TypeAlias = Literal["earliest", "latest"]
TtlFrom: TypeAlias = Literal["publish", "deliver_at"]
OpenTransactionCheck: TypeAlias = Literal["count", "refuse", "off"]
Compatibility: TypeAlias = Literal[
    "none",
    "backward",
    "backward_transitive",
    "forward",
    "forward_transitive",
    "full",
    "full_transitive",
]
Validation: TypeAlias = Literal["enforce", "record", "off"]
TransactionState: TypeAlias = Literal[
    "open", "prepared", "committing", "committed", "aborting", "aborted"
]
OnError: TypeAlias = Literal["stop", "skip", "dead-letter"]
