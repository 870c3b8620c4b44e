"""The paths of the files of a ledger: names of topics as directories, percent-encoded."""

from __future__ import annotations

from typing import NamedTuple

from txlog.base.ids import TopicName, encode_component
from txlog.engine.folds.catalog import Catalog, index_of, topic_of

DELAYED_DIR = "_delayed"
COMPACTED_DIR = "_compacted"
NOTE = "_README"  # in the directory of a topic; no topic has a name with a first _


def topic_dir(full_name: str) -> str:
    """topics/<tenant>/<namespace>/<topic>."""
    name = TopicName.parse(full_name)
    parts = (name.tenant, name.namespace, name.name)
    return f"topics/{'/'.join(map(encode_component, parts))}"


_BELOW = {"p": "", "s": "/_txnlog", "d": f"/{DELAYED_DIR}", "c": f"/{COMPACTED_DIR}"}


class FilePlace(NamedTuple):
    """The parts of a directory's path: topic, partition in it, role.

    role: p of the partition's ledgers, s of its sidecar's, d of the buckets of its delayed index, c
          of its compacted rows
    """

    topic: str
    partition: int
    role: str


def place_of(catalog: Catalog, partition: int, role: str) -> FilePlace:
    """The place of a partition's files in this role."""
    topic = topic_of(catalog, partition)
    return FilePlace(topic.name, index_of(topic, partition), role)


def place_dir(place: FilePlace) -> str:
    """The directory of a place."""
    base = f"{topic_dir(place.topic)}/partition={place.partition}"
    return base + _BELOW[place.role]


def ledger_dir(catalog: Catalog, partition: int, role: str) -> str:
    """The directory of a partition's files in this role."""
    return place_dir(place_of(catalog, partition, role))


def delayed_dir(catalog: Catalog, partition: int) -> str:
    """The directory of the buckets of a partition's delayed index."""
    return ledger_dir(catalog, partition, "d")


def part_path(directory: str, ledger: int, generation: int) -> str:
    """A part of an open ledger; generations make its number unique."""
    return f"{directory}/_ledger-{ledger:012d}.{generation:010d}.arrow"


def sealed_path(directory: str, ledger: int, generation: int) -> str:
    """The one Parquet file of a closed ledger."""
    return f"{directory}/ledger-{ledger:012d}.{generation:010d}.parquet"
