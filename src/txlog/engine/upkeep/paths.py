"""Where the files of a ledger lie: names of topics as directories, percent-encoded."""

from __future__ import annotations

from txlog.engine.folds.catalog import Catalog, index_of, topic_of
from txlog.ids import TopicName, encode_component

DELAYED_DIR = "_delayed"


def partition_dir(catalog: Catalog, partition: int) -> str:
    """topics/<tenant>/<namespace>/<topic>/partition=<n> of a partition's store-wide number."""
    topic = topic_of(catalog, partition)
    return f"{topic_dir(topic.name)}/partition={index_of(topic, partition)}"


def topic_dir(full_name: str) -> str:
    """topics/<tenant>/<namespace>/<topic>."""
    name = TopicName.parse(full_name)
    parts = (name.tenant, name.namespace, name.name)
    return f"topics/{'/'.join(map(encode_component, parts))}"


def ledger_dir(catalog: Catalog, partition: int, role: str) -> str:
    """The directory of a partition's ledgers (role p) or of its sidecar's (role s)."""
    base = partition_dir(catalog, partition)
    return base if role == "p" else f"{base}/_txnlog"


def delayed_dir(catalog: Catalog, partition: int) -> str:
    """The directory of the buckets of a partition's delayed index."""
    return f"{partition_dir(catalog, partition)}/{DELAYED_DIR}"


def part_path(directory: str, ledger: int, generation: int) -> str:
    """A part of an open ledger; generations make its number unique."""
    return f"{directory}/_ledger-{ledger:012d}.{generation:010d}.arrow"


def sealed_path(directory: str, ledger: int, generation: int) -> str:
    """The one Parquet file of a closed ledger."""
    return f"{directory}/ledger-{ledger:012d}.{generation:010d}.parquet"
