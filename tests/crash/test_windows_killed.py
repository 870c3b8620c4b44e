"""The crash windows K1 to K12 of spec/transactions 13 with real processes that SIGKILL ends.

A process ends itself at a named call of its disk (`killing.py`), so nothing depends on when a
signal arrives. A real power cut is impossible here. Where a window is about one, the machine
restarts (another boot id) over the files that the dead process wrote. `test_windows.py` cuts the
power.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import txlog
from tests.children.killing import START_MS, clock_at
from tests.crash.test_windows import state
from tests.harness import KILLED, ready, run
from tests.tiers import graded
from txlog.base.ids import TxnId
from txlog.client.client import Client
from txlog.client.open import open_store
from txlog.clock import ManualClock
from txlog.engine.session.reading.message import messages
from txlog.engine.storage.manifest import generations, read_manifest
from txlog.errors import InvalidTxnStatus, TransactionNotFound, TransactionTimedOut

pytestmark = pytest.mark.usefixtures("quick_disk")


class Scene:
    """A store with a topic, a message in each partition, a subscription, an open transaction."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "store")
        txlog.init(
            self.path, clock=clock_at(0), coordinators=2, txn_ids_reserved=8, reader_grace_ms=0
        )
        with self.open() as client:
            client.create_topic("t", 2)
            client.create_subscription("t", "s")
            for partition in (0, 1):
                client.producer("t").send(b"in%d" % partition, partition=partition)
            self.held = next(iter(messages(next(client.read("t", limit=1))))).message_id
            assert self.held is not None

    def open(self, after_ms: int = 0, clock: ManualClock | None = None) -> Client:
        """A client that acts as another process."""
        client = open_store(self.path, clock=clock or clock_at(after_ms))
        client.checkpoint_automatically = False
        return client

    def restarted(self) -> Client:
        """The first process after a restart of the machine; its recovery is done."""
        clock = ManualClock(START_MS)
        clock.reboot("another boot", START_MS + 1000)
        client = self.open(clock=clock)
        client.flush()
        return client

    def fill(self, timeout_ms: int | None = None) -> TxnId:
        """An open transaction: a message to each partition, one acknowledgement."""
        with self.open() as client:
            txn = client.begin(timeout_ms)["txn"]
            assert isinstance(txn, TxnId)
            for partition in (0, 1):
                client.producer("t").send(b"out%d" % partition, partition=partition, txn=txn)
            assert self.held is not None
            client.acknowledge("t", "s", [self.held], txn=txn)
            return txn

    def die(self, scenario: str, aim: str, *arguments: object, killed: bool = True) -> list[str]:
        """Run a process that dies at its aim, `op part nth when`; returns the lines it printed."""
        command = ready("killing", self.path, scenario, *aim.split(), *arguments)
        code = KILLED if killed else 0
        return run(command, code=code, where=f"{scenario} {aim}").stdout.splitlines()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def values(client: Client) -> list[bytes | None]:
    return sorted((m.value for table in client.read("t") for m in messages(table)), key=bytes)  # type: ignore[arg-type]


def is_visible(client: Client) -> bool:
    """True when all of the transaction of `fill` is visible; a part alone is an error (I-6)."""
    seen = values(client)
    if b"out0" in seen:
        assert seen == [b"in0", b"in1", b"out0", b"out1"]
        return True
    assert seen == [b"in0", b"in1"]
    return False


NEVER = "pwrite nowhere 1 before"


@pytest.mark.parametrize("written", [0, 1, 100])
def test_k1_before_the_frame_is_complete(scene: Scene, written: int) -> None:
    """K1: nothing happened, and the open transaction goes on."""
    txn = scene.fill()
    assert scene.die("commit", f"pwrite .journal 1 {written}", txn) == []
    with scene.open() as client:
        client.flush()
        assert state(client, txn) == ("open", None)
        assert len(os.listdir(Path(scene.path, "quarantine"))) == (written > 0)
        assert client.commit(txn)["already"] is False
        assert is_visible(client)


def test_k2_written_and_not_flushed(scene: Scene) -> None:
    """K2: the frame is rolled forward; a repeated commit answers `already`, a repeated send
    `duplicate`.
    """
    txn = scene.fill()
    assert scene.die("commit", "datasync .journal 1 before", txn) == []
    with open_store(scene.path, read_only=True, clock=clock_at(0)) as reader:
        assert not is_visible(reader)  # readers see durable frames only
    with scene.open() as client:
        assert client.commit(txn)["already"]
        assert is_visible(client)
    assert scene.die("send", "datasync .journal 1 before") == []
    with scene.open() as client:
        repeated = client.producer("t", "p").send(b"x", partition=0, sequence_id=7)
        assert repeated.duplicate
        assert values(client).count(b"x") == 1


@pytest.mark.parametrize(("when", "kept"), [("100", False), ("after", True)])
def test_k3_the_machine_restarts_before_the_flush(scene: Scene, when: str, kept: bool) -> None:
    """K3: as K1 or K2; open transactions are aborted."""
    txn = scene.fill()
    with scene.open() as client:
        other = client.begin()["txn"]
    assert scene.die("commit", f"pwrite .journal 1 {when}", txn) == []
    with scene.restarted() as client:
        assert state(client, other) == ("aborted", "recovery")
        assert is_visible(client) is kept
        if kept:
            assert client.commit(txn)["already"]
        else:
            with pytest.raises(InvalidTxnStatus, match="recovery"):
                client.commit(txn)


@pytest.mark.parametrize("aim", ["datasync .journal 1 after", "pwrite witness 2 after"])
@pytest.mark.parametrize("restarted", [False, True])
def test_k4_flushed_and_not_answered(scene: Scene, aim: str, restarted: bool) -> None:
    """K4: the decision survives."""
    txn = scene.fill()
    assert scene.die("commit", aim, txn) == []
    with scene.restarted() if restarted else scene.open() as client:
        assert client.commit(txn)["already"]
        assert is_visible(client)


@pytest.mark.parametrize("restarted", [False, True])
def test_k5_the_flush_fails(scene: Scene, restarted: bool) -> None:
    """K5: unknown, with the id; the next process settles it, and the answer never changes."""
    txn = scene.fill()
    assert scene.die("fail", "datasync .journal 1 before", txn) == [f"unknown {txn}"]
    with scene.restarted() if restarted else scene.open() as client:
        client.flush()
        first = state(client, txn)
        assert first in (("committed", None), ("aborted", "recovery"))
        assert is_visible(client) == (first[0] == "committed")
    with scene.restarted() as client:
        assert state(client, txn) == first
        assert is_visible(client) == (first[0] == "committed")


def test_k6_an_id_that_was_given_out(scene: Scene) -> None:
    """K6: a restart skips the ids of a block that may have been given out."""
    (text,) = scene.die("begin", NEVER, scene.held)
    txn = TxnId.parse(text)
    with scene.restarted() as client:
        fresh = [client.begin()["txn"] for _ in range(4)]
        assert all(new_txn.sequence > txn.sequence for new_txn in fresh if new_txn.coordinator == 0)
        with pytest.raises((TransactionNotFound, InvalidTxnStatus)):
            client.commit(txn)
        skipped = TxnId(txn.coordinator, txn.sequence + 1)
        with pytest.raises(TransactionNotFound) as caught:
            client.commit(skipped)
        assert caught.value.code == 305
        assert not is_visible(client)


def test_k7_a_client_dies_with_an_open_transaction(scene: Scene) -> None:
    """K7: after the time-out, its acknowledged messages come again, and no reader sees its rows."""
    (text,) = scene.die("begin", NEVER, scene.held)
    with scene.open(1000) as client, client.consumer("t", "s") as consumer:
        assert consumer.receive_batch(10).column("value").to_pylist() == [b"in1"]
    with scene.open(1001) as client:
        with client.consumer("t", "s") as consumer:
            table = consumer.receive_batch(10)
        assert table.column("value").to_pylist() == [b"in0", b"in1"]
        with pytest.raises(TransactionTimedOut):
            client.commit(TxnId.parse(text))
        assert not is_visible(client)


@pytest.mark.parametrize(
    "aim", ["pwrite .journal 1 before", "pwrite .journal 1 100", "datasync .journal 1 before",
            "datasync .journal 1 after", "pwrite witness 2 after"]
)  # fmt: skip
def test_k8_decided_and_waiting(scene: Scene, aim: str) -> None:
    """K8: coming back is one frame: all waiting work or nothing, and it can be repeated."""
    txn = scene.fill()
    with scene.open() as client:
        client.admin.set_offline("t/1")
        assert client.commit(txn)["state"] == "committing"
    assert scene.die("online", aim) == []
    with scene.open() as client:
        client.flush()
        online = client.describe_topic("t")["partition_list"][1]["online"]
        assert online is ("datasync" in aim or "witness" in aim)
        assert client.commit(txn)["state"] == ("committed" if online else "committing")
        with pytest.raises(InvalidTxnStatus):
            client.abort(txn)
        assert client.admin.set_online("t/1")["finished_list"] == ([] if online else [txn])
        assert is_visible(client)


@pytest.mark.parametrize(
    "aim",
    graded(
        ["publish .state 1 after", "publish .arrow 1 after", "publish .manifest 1 before",
         "publish .arrow 2 before", "publish .manifest 1 after", "publish .parquet 1 after",
         "publish .parquet 2 before", "publish .manifest 2 after", "unlink .journal 1 before"],
        3,
    ),
)  # fmt: skip
def test_k9_a_checkpoint_is_killed(scene: Scene, aim: str) -> None:
    """K9: manifest g or g + 1, each complete; files that neither names are swept."""
    txn = scene.fill()
    with scene.open() as client:
        client.commit(txn)
        client.checkpoint()
        for partition in (0, 1):
            client.producer("t").send(b"more", partition=partition)
        values_before = values(client)
    assert scene.die("checkpoint", aim) == []
    with scene.open() as client:
        assert values(client) == values_before
        client.checkpoint(roll_all=True)
        client.checkpoint()
        assert values(client) == values_before
        assert client.commit(txn)["already"]
        referenced: set[str] = set()
        for generation in generations(client.store.disk):
            manifest = read_manifest(client.store.disk, generation, client.store.identity.salt)
            referenced |= {ref.path for refs in manifest.files.values() for ref in refs}
            referenced |= {path for path, _ in manifest.dropped}
        stored = {
            str(path.relative_to(scene.path))
            for path in Path(scene.path, "topics").rglob("*.*")
            if path.is_file()
        }
        assert stored <= referenced


def test_k10_a_consumer_dies_with_messages_in_hand(scene: Scene) -> None:
    """K10: the death frees the lock, and the messages come again with a higher count."""
    assert scene.die("consume", NEVER) == ["in0", "in1"]
    with scene.open() as client, client.consumer("t", "s") as consumer:
        table = consumer.receive_batch(10)
        assert table.column("value").to_pylist() == [b"in0", b"in1"]
        assert table.column("redelivery_count").to_pylist() == [1, 1]


@pytest.mark.parametrize("first", ["commit", "expire"])
def test_k11_expiry_races_a_commit(scene: Scene, first: str) -> None:
    """K11: the first frame decides, flushed or not."""
    txn = scene.fill(1000)
    after_ms = 1000 if first == "commit" else 1001
    assert scene.die(first, "datasync .journal 1 before", txn, after_ms) == []
    with scene.open(1001 if first == "commit" else 0) as client:
        if first == "commit":
            assert client.expire()["expired"] == 0
            assert client.commit(txn)["already"]
        else:
            with pytest.raises(TransactionTimedOut):
                client.commit(txn)
        assert is_visible(client) == (first == "commit")


@pytest.mark.parametrize(
    "aim", ["pwrite .journal 1 before", "pwrite .journal 1 150", "datasync .journal 1 before",
            "datasync .journal 1 after", "pwrite witness 1 before", "pwrite witness 2 before"]
)  # fmt: skip
def test_k12_during_the_sweep(scene: Scene, aim: str) -> None:
    """K12: a repeated sweep gives the same, and a second repeat changes nothing."""
    txns = [scene.fill(1000)]
    with scene.open() as client:
        txns += [client.begin(1000)["txn"] for _ in range(3)]
    assert scene.die("expire", aim, "-", 1001) == []
    with scene.open(1001) as client:
        client.expire()
        assert {state(client, txn) for txn in txns} == {("aborted", "timeout")}
        lsn = client.wait_for_change(0)
        assert client.expire()["expired"] == 0
        assert client.wait_for_change(0) == lsn
        assert not is_visible(client)


@pytest.mark.parametrize("aim", ["pwrite witness 1 before", "publish .tail 1 after",
                                 "publish .journal 1 after", "pwrite .journal 1 before",
                                 "datasync .journal 1 before"])  # fmt: skip
def test_k12_during_the_recovery(scene: Scene, aim: str) -> None:
    """K12: after a torn frame; the next recovery ends where the first would have ended."""
    txn = scene.fill()
    assert scene.die("commit", "pwrite .journal 1 100", txn) == []
    died = scene.die("flush", aim, killed="publish .journal" not in aim)
    assert died in ([], ["answered"])
    with scene.open() as client:
        client.flush()
        assert state(client, txn) == ("open", None)
        assert client.commit(txn)["already"] is False
        assert is_visible(client)
