"""A crash of a delayed send or a policy leaves the state before a call or after it.

The test tries every kill and power cut of each call on the disk in memory. Messages, their times,
the index and the policies must agree. `TXLOG_SEED` and `TXLOG_IMAGES` work as in `test_images`.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable

import pytest

from tests.crash.world import START_MS, after_reboot, new_disk, open_client, read_messages
from tests.disk.memory import MemoryDisk
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.folds.catalog import numbers
from txlog.engine.view import View
from txlog.errors import InvalidMessage

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
IMAGES = int(os.environ.get("TXLOG_IMAGES", "3"))
LARGE = b"-" * 250
Seen = tuple[list[tuple[bytes, int | None]], list[int], dict[str, object]]


def send(client: Client, value: bytes, **options: int) -> None:
    client.producer("t", chunking=True).send(value, **options)  # type: ignore[arg-type]


def refused(client: Client, value: bytes) -> None:
    with pytest.raises(InvalidMessage):
        send(client, value, deliver_after=501)


def in_txn(client: Client) -> None:
    producer = client.producer("t", chunking=True)
    with client.transaction() as txn:
        producer.send(b"txn", txn=txn)
        producer.send(b"txn later", txn=txn, deliver_after=40)
        producer.send(b"txn" + LARGE, txn=txn, deliver_after=50)
        with contextlib.suppress(InvalidMessage):
            producer.send(b"txn refused", txn=txn, deliver_after=501)


STEPS: dict[str, Callable[[Client], object]] = {
    "plain": lambda client: send(client, b"plain", deliver_after=100),
    "maximum": lambda client: client.admin.set_delayed_policies("t", max_delivery_delay_ms=500),
    "refused": lambda client: refused(client, b"refused"),
    "refused large": lambda client: refused(client, b"refused" + LARGE),
    "large": lambda client: send(client, b"large" + LARGE, deliver_after=400),
    "transaction": in_txn,
    "checkpoint": lambda client: client.checkpoint(roll_all=True),
    "fixed": lambda client: client.admin.set_delayed_policies(
        namespace="public/default", fixed_delivery_delay_ms=50
    ),
    "fixed send": lambda client: send(client, b"fixed"),
    "fixed large": lambda client: send(client, b"fixed" + LARGE, deliver_at=7),
    "inherit": lambda client: client.admin.remove_delayed_policies(namespace="public/default"),
    "store": lambda client: client.admin.set_delayed_policies(ttl_from="deliver_at", strict=False),
    "last": lambda client: send(client, b"last", deliver_at=5),
}


def observe(client: Client) -> Seen:
    """Messages with their times, the times in the index, and the policies of the topic."""

    def indexed(view: View) -> list[int]:
        [topic] = view.catalog.topics.values()
        return [at for number in numbers(topic) for at in view.delayed(number).mutable.at]

    values = [(m.value or b"", m.deliver_at) for m in read_messages(client, "t")]
    policies = client.admin.get_delayed_policies("t")
    return (
        sorted(values),
        sorted(client.store.read(indexed)),
        {
            **policies["policies"],
            **{f"{name} of": origin for name, origin in policies["origins"].items()},
        },
    )


@pytest.mark.deep
def test_every_crash_leaves_a_state_that_was_answered_or_under_way() -> None:
    """spec/reliability 3: nothing of a refused batch, no time without a message or half policy."""
    disk = new_disk()
    client = open_client(disk)
    client.create_topic("t")
    rng = random.Random(SEED)
    cases: list[tuple[MemoryDisk, bool, str]] = []
    label = ""

    def collect(op: str, path: str, **info: int) -> None:
        at = f"{label}, seed {SEED}, before {op} {path}"
        cases.append((disk.fork_kill(), False, at))
        for number, image in enumerate(disk.images(rng, IMAGES)):
            cases.append((image, True, f"{at}, image {number}"))

    state_before = observe(client)
    tried = 0
    for name, step in STEPS.items():
        label = name
        disk.step = collect
        step(client)
        collect("", "the end")
        disk.step = lambda op, path, **info: None
        state_after = observe(client)
        for crashed, is_cut, at in cases:
            recovered = open_client(crashed, after_reboot() if is_cut else ManualClock(START_MS))
            recovered.flush()
            state = observe(recovered)
            assert state in (state_before, state_after), at
            messages, times, _ = state
            due = sorted(when for _, when in messages if when is not None and when > START_MS)
            assert times == due, at
        tried += len(cases)
        cases.clear()
        state_before = state_after
    assert [value[:11] for value, _ in state_before[0]] == [
        b"fixed",
        b"fixed------",
        b"large------",
        b"last",
        b"plain",
        b"txn",
        b"txn later",
        b"txn--------",
    ]
    assert tried > 200
