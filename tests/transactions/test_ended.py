"""Records of ended transactions: encoded in blocks, with the same answers as a dict."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine_kit import Bench
from tests.tiers import graded
from txlog.engine.folds import coordinator
from txlog.engine.folds.coordinator import COMMITTED, FOLD, Coordinator, EndedTxns, Txn

pytestmark = pytest.mark.usefixtures("quick_disk")


def ended(sequence: int, lsn: int, ended_ms: int) -> Txn:
    """The record of a transaction that was decided in a frame."""
    return Txn(
        0, sequence, 1, "ana", 9, 10, "boot", 10, None, 0, COMMITTED, None, ended_ms, ended_ms, lsn,
        markers=((1, 1, lsn, 1),),
    )  # fmt: skip


def dump_of(plain: dict[int, Txn]) -> bytes:
    """The dump of a coordinator that remembers these, encoded as any struct."""
    fields = msgspec.structs.asdict(Coordinator())
    return msgspec.msgpack.encode([{**fields, "ended": plain}[name] for name in fields])


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_ended_transactions_behave_like_a_dict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any order of ends, removals and dumps, the same to the byte."""
    monkeypatch.setattr(coordinator, "BLOCK", 4)
    chance = random.Random(seed)
    state, plain, lsn = Coordinator(), dict[int, Txn](), 0
    for sequence in range(200):
        lsn += chance.randrange(3)
        # a transaction that waited for a partition
        decided = chance.randrange(lsn + 1) if chance.random() < 0.1 else lsn
        txn = ended(sequence, decided, chance.randrange(1000))
        state.ended.put(txn)
        plain[sequence] = txn
        plain = {
            each_sequence.sequence: each_sequence
            for each_sequence in sorted(plain.values(), key=_decision)
        }
        step = chance.randrange(6)
        if step == 0:
            sequences = [*plain]
            forgotten = (
                chance.sample(sequences, min(3, len(sequences))) if sequence % 3 else sequences[:8]
            )
            state.ended.drop([*forgotten, 10**6])
            for each_sequence in forgotten:
                plain.pop(each_sequence, None)
        elif step == 1:
            dump = FOLD.dump(state)
            assert dump == dump_of(plain)
            assert FOLD.load(dump) == state
            state = FOLD.load(dump)
        elif step == 2:
            ms = chance.randrange(1000)
            expected = [
                each_sequence.sequence
                for each_sequence in plain.values()
                if each_sequence.ended_ms < ms
            ]
            assert state.ended.before(ms, thorough=True) == expected
            expired = state.ended.before(ms, thorough=False)
            assert expired == [
                each_sequence for each_sequence in expected if each_sequence in expired
            ]
        elif step == 3:
            state.ended.survey(chance.randrange(3))
        for each_sequence in chance.sample(range(200), 5):
            assert state.ended.get(each_sequence) == plain.get(each_sequence)
            assert (each_sequence in state.ended) is (each_sequence in plain)
        assert [*state.ended] == [*plain]
        assert [*state.ended.values()] == [*plain.values()]
        assert len(state.ended) == len(plain)


def _decision(txn: Txn) -> int:
    return txn.decision_lsn


class Counted:
    """A decoder that counts the transactions it is given."""

    def __init__(self, decoder: Any) -> None:
        self.decoder, self.count = decoder, 0

    def decode(self, data: bytes) -> dict[int, Any]:
        found_decoded: dict[int, Any] = self.decoder.decode(data)
        self.count += len(found_decoded)
        return found_decoded


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> tuple[Counted, Counted]:
    """Decoders that count: for whole records, and for times of ends."""
    counters = Counted(coordinator._txns), Counted(coordinator._ends)
    monkeypatch.setattr(coordinator, "_txns", counters[0])
    monkeypatch.setattr(coordinator, "_ends", counters[1])
    monkeypatch.setattr(coordinator, "BLOCK", 8)
    return counters


def test_a_newer_transaction_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation looks up its open transaction, which is never among the ended ones."""
    ended_txns = EndedTxns(ended(sequence, sequence, 0) for sequence in range(1000))

    def contains(block: object, sequence: int) -> bool:
        raise AssertionError(f"{sequence} was looked for")

    monkeypatch.setattr(coordinator._Block, "__contains__", contains)
    assert ended_txns.get(1000) is None
    assert 1000 not in ended_txns
    loaded = FOLD.load(dump_of({txn_id.sequence: txn_id for txn_id in ended_txns.values()})).ended
    assert loaded.get(1000) is None


def test_a_sweep_decodes_only_due_records(decoded: tuple[Counted, Counted], tmp_path: Path) -> None:
    """Every checkpoint sweeps under the write lock, so its cost must follow the records it
    forgets.
    """
    whole, ends = decoded
    bench = Bench(tmp_path / "store", coordinators=2, txn_ended_retention_ms=100_000)
    client = bench.client
    for number in range(160):
        client.commit(client.begin(coordinator=number % 2)["txn"])
        bench.clock.advance(100)
    client.checkpoint()
    client = bench.reopen()
    client.checkpoint()  # it decodes loaded records once
    assert ends.count == 160
    whole.count = ends.count = 0
    bench.clock.advance(85_000)  # after 16 s, the first ten are past their time
    assert client.expire()["forgotten"] == 10
    assert (whole.count, ends.count) == (0, 0)
    assert client.expire()["forgotten"] == 0
    client.checkpoint()
    assert (whole.count, ends.count) == (0, 0)
    assert len(client.transactions(all=True)) == 150


def test_the_bound_on_their_number_looks_at_the_oldest(
    decoded: tuple[Counted, Counted], tmp_path: Path
) -> None:
    whole, _ = decoded
    bench = Bench(tmp_path / "store", coordinators=2)
    client = bench.client
    for number in range(100):
        client.commit(client.begin(coordinator=number % 2)["txn"])
    client.admin.set_setting("txn_ended_retention_count", 90)
    whole.count = 0
    assert client.expire()["forgotten"] == 10
    assert whole.count <= 10 + 2  # one more for each coordinator


def test_a_checkpoint_learns_their_times_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other callers may use the store between two pieces."""
    monkeypatch.setattr(coordinator, "BLOCK", 4)
    bench = Bench(tmp_path / "store", coordinators=1)
    for _ in range(200):
        bench.client.commit(bench.client.begin()["txn"])
    bench.client.checkpoint()
    client = bench.reopen()
    pieces: list[int] = []
    at_once = EndedTxns.survey

    def survey(self: EndedTxns, most: int) -> bool:
        pieces.append(most)
        return at_once(self, most)

    monkeypatch.setattr(EndedTxns, "survey", survey)
    client.checkpoint()
    assert len(pieces) >= 200 // 4 // 8
    assert set(pieces) == {8}
