"""Every crash around a rename leaves the topics with their old names, or all with their new ones.

The run has renames, topics that take the old names, checkpoints and a sweep. Before each call with
an effect it keeps the disk as a kill and as power cuts leave it. Each is recovered, read, swept and
checkpointed. `TXLOG_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.contents import content
from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.disk.memory import MemoryDisk
from tests.tiers import graded
from txlog.base.ids import TopicName
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.folds.catalog import directory_of
from txlog.engine.view import View
from txlog.errors import TxlogError

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
IMAGES = 1
THOROUGH_SHARE = 0.1  # of the crashes: also swept, checkpointed and opened again
State = dict[str, Any]
Step = Callable[[Client], object]


def _prepare(client: Client) -> None:
    """A topic with messages, a pending acknowledgement, and a dead-letter topic by derivation."""
    client.create_topic("orders", 2)
    client.create_topic("orders-s-DLQ")
    client.create_topic("audit")
    client.create_subscription("orders", "s", type="shared", max_redeliver_count=1)
    client.create_subscription("audit", "a", dead_letter_topic="orders-s-DLQ")
    _send("orders", b"1")(client)
    client.producer("orders-s-DLQ").send(b"letter")
    (message,) = client.reader("orders")
    with client.transaction() as txn:
        client.acknowledge("orders", "s", [message.message_id], txn=txn)  # type: ignore[list-item]
        client.producer("orders").send(b"with ack", txn=txn, partition=1)


def _send(topic: str, value: bytes) -> Step:
    return lambda client: client.producer(topic).send(value, partition=0)


def _rename(before: str, after: str) -> Step:
    return lambda client: client.admin.rename_topic(before, after)


STEPS: dict[str, list[Step]] = {
    "rename": [_rename("orders", "sales"), _send("sales", b"2")],
    "old name": [
        _rename("orders", "sales"),
        lambda client: client.create_topic("orders"),
        _send("orders", b"new"),
        lambda client: client.checkpoint(roll_all=True),
        _rename("sales", "turnover"),
        _rename("orders", "sales"),
        _send("turnover", b"3"),
        lambda client: client.checkpoint(roll_all=True),
    ],
    "back": [
        lambda client: client.checkpoint(roll_all=True),
        _rename("orders", "sales"),
        _send("sales", b"2"),
        lambda client: client.checkpoint(roll_all=True),
        _rename("sales", "orders"),
        lambda client: client.admin.gc(apply=True, keep_ms=0),
        _send("orders", b"3"),
    ],
    "deleted": [
        lambda client: client.checkpoint(roll_all=True),
        _rename("orders", "sales"),
        lambda client: client.admin.delete_topic("sales", force=True),
        lambda client: client.create_topic("orders"),
        lambda client: client.checkpoint(),
        _send("orders", b"new"),
        lambda client: client.checkpoint(roll_all=True),
    ],
}


def seen(client: Client) -> State:
    """By topic: its number, directory, messages and the policies of its subscriptions."""

    def look(view: View) -> State:
        catalog = view.catalog
        return {
            TopicName.parse(topic.name).short: [
                number,
                directory_of(topic),
                topic.former,
                [
                    (catalog.subscriptions[at].name, {**catalog.subscriptions[at].policies})
                    for at in topic.subscriptions
                ],
            ]
            for number, topic in catalog.topics.items()
        }

    state = client.store.read(look)
    directories = [entry[1] for entry in state.values()]
    assert len({*directories}) == len(directories), "two topics share a directory"
    for topic, entry in state.items():
        messages = [(str(m.message_id), m.value, m.topic) for m in client.reader(topic)]
        entry += [messages, [row["backlog"] for row in client.subscriptions(topic)]]
    return dict(sorted(state.items()))


@pytest.mark.parametrize("of_format", graded((3, 2, 1), (3,)))
@pytest.mark.parametrize("label", graded(STEPS, ("old name",)))
def test_a_crash_leaves_all_old_names_or_all_new_ones(label: str, of_format: int) -> None:
    rng = random.Random(f"{SEED} {label} {of_format}")
    disk = new_disk(of_format=of_format)
    client = open_client(disk)
    _prepare(client)
    before, at = seen(client), "begin"
    crashes: list[tuple[MemoryDisk, bool, str]] = []
    checked = set[object]()

    def collect(op: str, path: str, **info: int) -> None:
        where = f"{label}, seed {SEED}: {at}, before {op} {path}"
        crashes.append((disk.fork_kill(), False, where))
        crashes.extend((image, True, f"{where}, cut") for image in disk.images(rng, IMAGES))

    for number, step in enumerate(STEPS[label]):
        at = f"step {number}"
        disk.step = collect
        step(client)
        disk.step = lambda op, path, **info: None
        after = seen(client)
        for image, is_cut, where in crashes:
            key = (is_cut, content(image))
            if key not in checked:
                checked.add(key)
                is_thorough = rng.random() < THOROUGH_SHARE
                _check(image, is_cut, where, [before, after], is_thorough=is_thorough)
        crashes.clear()
        before = after
    assert len(checked) > len(STEPS[label])


def _check(
    disk: MemoryDisk, is_cut: bool, where: str, states: list[State], *, is_thorough: bool
) -> None:
    clock = after_reboot() if is_cut else ManualClock(START_MS)
    try:
        reader = open_client(disk.process(read_only=True), clock)
        assert seen(reader) in states, f"{where}: a reader before recovery"
        client = open_client(disk, clock)
        client.store.flush()
        recovered = seen(client)
        assert recovered in states, f"{where}: {recovered}, not {states}"
        if not is_thorough:
            return
        client.admin.gc(apply=True, keep_ms=0)
        client.checkpoint(roll_all=True)
        client.admin.gc(apply=True, keep_ms=0)
        assert seen(client) == recovered, f"{where}: after a checkpoint"
        assert seen(open_client(disk, clock)) == recovered, f"{where}: opened again"
    except TxlogError as error:
        raise AssertionError(f"{where}: {error!r}") from error
