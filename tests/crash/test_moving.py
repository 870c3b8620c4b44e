"""A message that goes to the dead letters or the retry topic is in one topic: the old or the new.

Real processes die by SIGKILL at each write of the move. On the disk in memory every kill and power
cut of it is tried. `TXLOG_SEED` and `TXLOG_IMAGES` work as in `test_images`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import txlog
from tests.children.killing import clock_at
from tests.crash.world import START_MS, after_reboot, new_disk, open_client, read_messages
from tests.disk.memory import MemoryDisk
from tests.harness import KILLED, SEED, Child, ready, run
from tests.tiers import graded
from txlog.base.ids import MessageId
from txlog.base.ranges import Range
from txlog.base.settings import Settings
from txlog.client.client import Client
from txlog.client.open import open_store
from txlog.clock import ManualClock
from txlog.engine.decide.draft import Decision
from txlog.engine.model.ops import SubscriptionPolicySet
from txlog.engine.session.consuming import dead_letters

pytestmark = pytest.mark.usefixtures("quick_disk")
IMAGES = int(os.environ.get("TXLOG_IMAGES", "3"))
UNACKED = Range(kind="unacked", subscription="s")
DLQ, RETRY = "t-s-DLQ", "t-s-RETRY"


def fill(client: Client, most: int = 0) -> list[MessageId]:
    """A topic with messages of all kinds, each redelivered once and therefore due to be moved."""
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    client.store.write(
        lambda view, now: Decision(
            [SubscriptionPolicySet(1, "max_redeliver_count", most)], None, True
        )
    )
    for partition in (0, 1):
        client.producer("t").send(b"plain%d" % partition, partition=partition)
    with client.transaction() as txn:
        for number in range(2):
            client.producer("t").send(b"txn%d" % number, partition=0, txn=txn)
    ids = [message.message_id for message in read_messages(client, "t")]
    message_ids = [message_id for message_id in ids if message_id is not None]
    blocker = client.begin()["txn"]
    client.acknowledge("t", "s", message_ids, txn=blocker)
    client.abort(blocker)
    return message_ids


def where(client: Client) -> dict[str, list[bytes]]:
    """Unacknowledged messages of each topic, and all dead letters."""
    there = [row["topic"] for row in client.topics()]
    return {
        name: [m.value or b"" for m in read_messages(client, name, unread)]
        for name, unread in (("t", UNACKED), (RETRY, UNACKED), (DLQ, None))
        if name in there
    }


def check_once(client: Client, sent: list[bytes], label: str) -> dict[str, list[bytes]]:
    """Every message is in exactly one topic."""
    values_by_topic = where(client)
    everything = Counter(value for values in values_by_topic.values() for value in values)
    assert everything == Counter(sent), f"{label}: {values_by_topic}"
    return values_by_topic


SENT = [b"plain0", b"plain1", b"txn0", b"txn1"]
MOVES: dict[str, Callable[[Client, list[MessageId]], object]] = {
    "give up": lambda client, ids: client.consumer("t", "s").receive_batch(10),
    "put off": lambda client, ids: client.consumer("t", "s").reconsume_later(ids[0], 1000),
}


@pytest.mark.parametrize("move", graded(MOVES, ("put off",)))
def test_every_crash_of_a_move_leaves_each_message_once(move: str) -> None:
    """spec/reliability 3: message and acknowledgement move together, after any kill or
    power cut.
    """
    disk = new_disk()
    client = open_client(disk)
    ids = fill(client, most=0 if move == "give up" else 5)
    rng = random.Random(f"{SEED} {move}")
    cases: list[tuple[MemoryDisk, bool, str]] = []

    def collect(op: str, path: str, **info: int) -> None:
        at = f"{move}, seed {SEED}, before {op} {path}"
        cases.append((disk.fork_kill(), False, at))
        for number, image in enumerate(disk.images(rng, IMAGES)):
            cases.append((image, True, f"{at}, image {number}"))

    disk.step = collect
    MOVES[move](client, ids)
    collect("", "the end")
    disk.step = lambda op, path, **info: None
    moved = set()
    for crashed, is_cut, label in cases:
        clock = after_reboot() if is_cut else ManualClock(START_MS)
        recovered = open_client(crashed, clock)
        recovered.flush()
        state = check_once(recovered, SENT, label)
        moved.add(len(state["t"]))
        if move == "give up":  # the next consumer ends the move
            assert recovered.consumer("t", "s").receive_batch(10).num_rows == 0, label
            assert sorted(where(recovered)[DLQ]) == SENT, label
        check_once(recovered, SENT, f"{label}, the second time")
    assert len(moved) > 1, "no crash was behind the move"
    assert {len(SENT)} < moved


def dying(path: str, move: str, aim: str, *arguments: str) -> list[str]:
    """The command of a process that makes a move and dies at `aim`, a write of it."""
    return ready("killing", path, move, *aim.split(), "0", "0", *arguments)


@pytest.mark.deep
def test_every_crash_of_a_large_move_leaves_the_message_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large message moves in a transaction: no reader sees the rows of an unfinished copy."""
    monkeypatch.setattr(dead_letters, "FRAME_BYTES_MOST", 2000)
    disk = new_disk(Settings(coordinators=1, max_message_bytes=1000, reader_grace_ms=0))
    client = open_client(disk)
    client.create_topic("t")
    client.create_subscription("t", "s", max_redeliver_count=0)
    value = b"large" * 700
    message_id = client.producer("t", chunking=True).send(value).message_id
    assert message_id is not None
    txn = client.begin()["txn"]
    client.acknowledge("t", "s", [message_id], txn=txn)
    client.abort(txn)
    rng = random.Random(f"{SEED} large")
    cases: list[tuple[MemoryDisk, bool, str]] = []

    def collect(op: str, path: str, **info: int) -> None:
        at = f"seed {SEED}, before {op} {path}"
        cases.append((disk.fork_kill(), False, at))
        for number, image in enumerate(disk.images(rng, IMAGES)):
            cases.append((image, True, f"{at}, image {number}"))

    disk.step = collect
    assert client.consumer("t", "s").receive_batch(10).num_rows == 0
    collect("", "the end")
    disk.step = lambda op, path, **info: None
    moved = set()
    for crashed, is_cut, label in cases:
        recovered = open_client(crashed, after_reboot() if is_cut else ManualClock(START_MS))
        recovered.flush()
        moved.add(len(where(recovered)["t"]))
        with recovered.consumer("t", "s") as consumer:
            assert consumer.receive_batch(10).num_rows == 0, label
            # The move goes on once the transaction of the dead process has ended.
            for row in recovered.transactions():
                recovered.abort(row["txn"])
            assert consumer.receive_batch(10).num_rows == 0, label
        assert where(recovered) == {"t": [], DLQ: [value]}, label
    assert moved == {0, 1}


AIMS = [
    *(f"pwrite .journal 1 {written}" for written in (0, 1, 100, 300)),
    "pwrite .journal 1 after", "datasync .journal 1 before", "datasync .journal 1 after",
]  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("aim", graded(AIMS, (AIMS[1], AIMS[-1])))
def test_process_killed_in_a_move_leaves_each_message_once(
    tmp_path: Path, move: str, aim: str
) -> None:
    path = str(tmp_path / "store")
    txlog.init(path, clock=clock_at(0), coordinators=2, reader_grace_ms=0)
    with open_store(path, clock=clock_at(0)) as client:
        ids = fill(client, most=0 if move == "give up" else 5)
    assert run(dying(path, move, aim, str(ids[0])), code=KILLED).stdout == ""
    with open_store(path, clock=clock_at(0)) as client:
        client.flush()
        state = check_once(client, SENT, aim)
        is_whole = aim.split()[-1] in ("before", "after")  # else the frame is torn
        assert (len(state["t"]) < len(SENT)) == is_whole
        with client.consumer("t", "s") as consumer:
            received = consumer.receive_batch(10).num_rows
        if move == "give up":
            assert received == 0
            assert sorted(where(client)[DLQ]) == SENT
        check_once(client, SENT, f"{aim}, the second time")


def test_processes_that_give_everything_back_and_die_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    """Two at a time on a shared subscription, killed at a random write."""
    path = str(tmp_path / "store")
    rng = random.Random(SEED)
    txlog.init(path, clock=clock_at(0), coordinators=2, reader_grace_ms=0, durability="os")
    with open_store(path, clock=clock_at(0)) as client:
        fill(client, most=2)
        producer = client.producer("t")
        sent = SENT + [b"%d" % number for number in range(40)]
        for value in sent[len(SENT) :]:
            producer.send(value, key=value)
    for _ in range(3):
        aims = [
            f"pwrite .journal {rng.randrange(1, 25)} {rng.choice(('before', 'after', '40'))}"
            for _ in range(2)
        ]
        first, second = (dying(path, "grind", aim) for aim in aims)
        with Child(first) as one, Child(second) as other:
            for child in (one, other):
                assert child.end() in ((KILLED, ""), (0, "empty\n")), child.other
        with open_store(path, clock=clock_at(0)) as client:
            client.flush()
            check_once(client, sent, f"seed {SEED}, {aims}")
    assert run(dying(path, "grind", "pwrite nowhere 1 before")).stdout == "empty\n"
    with open_store(path, clock=clock_at(0)) as client:
        values_by_topic = check_once(client, sent, f"seed {SEED}")
        assert values_by_topic["t"] == []
        assert sorted(values_by_topic[DLQ]) == sorted(sent)


def check_retried(client: Client, sent: list[bytes], label: str) -> int:
    """Every message is unacknowledged in its topic or a dead letter; how many went back."""
    back = [m.value or b"" for m in read_messages(client, "t", UNACKED)]
    dead = [row["preview"] or "" for row in client.topic(DLQ).dead_letters()]
    assert Counter([*back, *map(str.encode, dead)]) == Counter(sent), f"{label}: {back} {dead}"
    return len(back)


@pytest.mark.deep
def test_every_crash_of_a_retry_leaves_each_message_once() -> None:
    """A dead letter is in its topic again, or still a dead letter, after any kill or power cut."""
    disk = new_disk()
    client = open_client(disk)
    fill(client)
    client.consumer("t", "s").receive_batch(10)
    rng = random.Random(f"{SEED} retry")
    cases: list[tuple[MemoryDisk, bool, str]] = []

    def collect(op: str, path: str, **info: int) -> None:
        at = f"retry, seed {SEED}, before {op} {path}"
        cases.append((disk.fork_kill(), False, at))
        for number, image in enumerate(disk.images(rng, IMAGES)):
            cases.append((image, True, f"{at}, image {number}"))

    disk.step = collect
    assert client.topic(DLQ).retry_dead_letters(all=True)["retried"] == len(SENT)
    collect("", "the end")
    disk.step = lambda op, path, **info: None
    moved = set()
    for crashed, is_cut, label in cases:
        recovered = open_client(crashed, after_reboot() if is_cut else ManualClock(START_MS))
        recovered.flush()
        moved.add(check_retried(recovered, SENT, label))
        recovered.topic(DLQ).retry_dead_letters(all=True)
        assert check_retried(recovered, SENT, f"{label}, the second time") == len(SENT)
    assert {0, len(SENT)} < moved


def test_processes_that_retry_at_once_and_die_double_nothing(tmp_path: Path) -> None:
    """Two at a time, killed at a random write; the last one moves the rest."""
    path = str(tmp_path / "store")
    rng = random.Random(SEED)
    txlog.init(path, clock=clock_at(0), coordinators=2, reader_grace_ms=0, durability="os")
    with open_store(path, clock=clock_at(0)) as client:
        fill(client)
        client.consumer("t", "s").receive_batch(10)
        client.create_topic("other")
        sent = SENT + [b"%d" % number for number in range(400)]
        for value in sent[len(SENT) :]:
            properties = {"REAL_TOPIC": "t", "REAL_SUBSCRIPTION": "s"}
            client.producer(DLQ).send(value, key=value, properties=properties)
    for _ in range(3):
        aims = [
            f"pwrite .journal {rng.randrange(1, 8)} {rng.choice(('before', 'after', '40'))}"
            for _ in range(2)
        ]
        first, second = (dying(path, "retry", aim) for aim in aims)
        with Child(first) as one, Child(second) as other:
            for child in (one, other):
                assert child.end()[0] in (KILLED, 0), child.other
        with open_store(path, clock=clock_at(0)) as client:
            client.flush()
            check_retried(client, sent, f"seed {SEED}, {aims}")
    with open_store(path, clock=clock_at(0)) as client:
        client.topic(DLQ).retry_dead_letters(all=True)
        assert check_retried(client, sent, f"seed {SEED}") == len(sent)
        assert client.topic(DLQ).retry_dead_letters(all=True)["retried"] == 0
