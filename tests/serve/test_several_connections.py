"""One client over several connections: partitions of its consumer are one consumer of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serve.deliveries import counted, parted
from tests.serve.served import Raw, served
from txlog.serve.pulsar import consumers
from txlog.serve.pulsar.messages import ERRORS, BaseCommand

pytestmark = pytest.mark.usefixtures("quick_disk")

EXCLUSIVE, FAILOVER, KEY_SHARED = 0, 2, 3


def until(raw: Raw, name: str) -> Any:
    """The next command with a name; notifications about subscriptions before it are skipped."""
    while True:
        frame = raw.frame()
        kind = BaseCommand.DESCRIPTOR.fields_by_number[frame.kind].name
        if kind == name:
            return frame.body
        assert kind == "active_consumer_change", f"{kind}: {frame.body}"


def asked(raw: Raw, answer: str, partition: int, kind: int) -> Any:
    """Subscribe to a partition by a consumer with a name from the user."""
    raw.send(
        "subscribe",
        request_id=7,
        topic=f"parted-partition-{partition}",
        subscription="s",
        subType=kind,
        consumer_id=partition,
        consumer_name="till",
    )
    return until(raw, answer)


@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=consumers.KINDS)
def test_each_partition_comes_by_its_connection(tmp_path: Path, kind: int) -> None:
    """Kills: a consumer of the store per connection, or keys that no consumer gets."""
    with served(tmp_path / "s") as url, Raw(url) as first, Raw(url) as second, Raw(url) as third:
        parted(tmp_path / "s", "parted", [b"v"] * 20, 20)
        raws = (first, second, third)
        for at, raw in enumerate(raws):
            asked(raw, "success", at, kind)
        for at, raw in enumerate(raws):
            raw.send("flow", consumer_id=at, messagePermits=20)
        assert [counted(raw, 1) for raw in raws] == [[(at, 20)] for at in range(3)]


def test_a_partition_of_an_exclusive_subscription_has_one_consumer(tmp_path: Path) -> None:
    with served(tmp_path / "s") as url, Raw(url) as first, Raw(url) as second:
        parted(tmp_path / "s", "parted", [b"v"], 1)
        asked(first, "success", 0, EXCLUSIVE)
        asked(second, "success", 1, EXCLUSIVE)
        error = asked(second, "error", 0, EXCLUSIVE)
        assert error.error == ERRORS["ConsumerBusy"]


@pytest.mark.parametrize("kind", [FAILOVER, KEY_SHARED], ids=["failover", "key-shared"])
def test_clients_of_one_name_do_not_starve_each_other(tmp_path: Path, kind: int) -> None:
    """Two clients share two consumers of the store; when one client leaves, the other gets all."""
    with served(tmp_path / "s") as url, Raw(url) as stays:
        parted(tmp_path / "s", "parted", [b"v"] * 20, 20)
        with Raw(url) as goes:
            asked(goes, "success", 0, kind)
            asked(stays, "success", 1, kind)
            asked(goes, "success", 1, kind)
            asked(stays, "success", 0, kind)
        number = until(stays, "close_consumer").consumer_id
        asked(stays, "success", number, kind)
        for at in range(2):
            stays.send("flow", consumer_id=at, messagePermits=20)
        assert counted(stays, 2) == [(0, 20), (1, 20)]
