"""The metrics have the names and types of the spec, and their values equal a scan of the journal
(I-22).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine_kit import Bench, begin
from tests.laws.history import random_history
from tests.tiers import graded
from txlog import Client
from txlog.client.answers.keys import key_families, nearest_rank
from txlog.client.answers.metric_family import Family, rows
from txlog.client.answers.metrics_text import exposition
from txlog.engine.folds import coordinator
from txlog.engine.folds.transaction_key import Key
from txlog.engine.model import ops as op_types
from txlog.engine.model.idset import covers, each
from txlog.engine.model.ops import Op, decode_ops
from txlog.engine.storage.frame import RawFrame
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 15, 30, 60, 300, 1500, 3000)
# spec/transactions 16
TYPES = {
    **dict.fromkeys(
        ("pulsar_txn_active_count", "txlog_txn_unfinished", "txlog_txn_oldest_open_seconds",
         "txlog_txn_waiting", "pulsar_txn_tb_active_total", "txlog_sidecar_bytes",
         "txlog_pending_ack_messages", "pulsar_txn_transaction_key_count",
         "pulsar_txn_transaction_key_epoch", "txlog_transaction_key_last_used_seconds"), "gauge",
    ),
    **dict.fromkeys(
        ("pulsar_txn_created_total", "pulsar_txn_committed_total", "pulsar_txn_aborted_total",
         "pulsar_txn_timeout_total", "pulsar_txn_append_log_total",
         "txlog_txn_aborted_by_reason_total", "txlog_recovery_rolled_total",
         "pulsar_txn_tb_committed_total", "pulsar_txn_tb_aborted_total",
         "pulsar_txn_tp_committed_count_total", "pulsar_txn_tp_aborted_count_total",
         "txlog_ack_conflicts_total", "txlog_ack_dropped_total", "txlog_redelivered_total",
         "txlog_dead_lettered_total", "txlog_dedup_dropped_total",
         "txlog_dedup_original_missing_total"), "counter",
    ),
    "txlog_txn_duration_seconds": "histogram",
    "pulsar_txn_transaction_key_age": "summary",
}  # fmt: skip
Labels = frozenset[tuple[str, str]]
Values = dict[tuple[str, Labels], float]
Items = list[tuple[int, int, Op]]


def scraped(client: Client) -> Values:
    """The samples that a Prometheus server reads from the text."""
    text = exposition(client.admin.metrics())
    out: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in out
            out[key] = sample.value
    return out


def labels(**options: object) -> Labels:
    return frozenset((name, str(value)) for name, value in options.items())


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Items]:
    """Every op that any view processes, once, as it was written; an end as the ops it replaces."""
    seen: set[int] = set()
    out: Items = []
    apply = View.apply

    def record(self: View, raw: RawFrame, ops: list[Op]) -> None:
        if raw.lsn not in seen:
            seen.add(raw.lsn)
            for op in decode_ops(raw.ops, lsn=raw.lsn):
                steps = op.steps() if isinstance(op, op_types.TxnEnded) else [op]
                out.extend((raw.lsn, raw.time_ms, step) for step in steps)
        apply(self, raw, ops)

    monkeypatch.setattr(View, "apply", record)
    yield out


def scan(items: Items, coordinators: int) -> Values:
    """The counters computed from the ops alone, without the folds."""
    counts: Counter[tuple[str, Labels]] = Counter()
    places: dict[int, Labels] = {}
    held_labels: dict[int, Labels] = {}
    began: dict[tuple[int, int], int] = {}
    reasons: dict[tuple[int, int], str] = {}
    pending: Counter[tuple[int, int, int, int]] = Counter()
    hands: defaultdict[tuple[int, int], Hands] = defaultdict(Hands)
    names: dict[int, str] = {}
    for number in range(coordinators):
        for name in ("created", "committed", "aborted", "timeout", "append_log"):
            counts[f"pulsar_txn_{name}_total", labels(coordinator_id=number)] = 0
    log = {
        op_types.IdsReserved,
        op_types.CounterRaised,
        op_types.TxnOpened,
        op_types.PartitionAdded,
        op_types.SubscriptionAdded,
        op_types.StatusUpdated,
        op_types.TxnsForgotten,
    }
    for _, time_ms, op in items:
        if type(op) in log:
            each_labels = labels(coordinator_id=op.coordinator)  # type: ignore[union-attr]
            counts["pulsar_txn_append_log_total", each_labels] += 1
        if isinstance(op, op_types.TopicCreated):
            short = op.name.removeprefix("public/default/")
            names[op.topic] = short
            for index in range(op.partitions):
                places[op.first_partition + index] = labels(topic=short, partition=index)
        elif isinstance(op, op_types.PartitionsAdded):
            total = sum(
                label in places.values()
                for label in (labels(topic=names[op.topic], partition=at) for at in range(99))
            )
            for index in range(op.partitions):
                places[op.first_partition + index] = labels(
                    topic=names[op.topic], partition=total + index
                )
        elif isinstance(op, op_types.SubscriptionDeleted):
            # a new topic with the same name begins at zero
            forget(counts, held_labels.pop(op.subscription))
            for key in [key for key in pending if key[2] == op.subscription]:
                del pending[key]
        elif isinstance(op, op_types.TopicDeleted):
            for partition in op.partitions:
                forget(counts, places.pop(partition))
        elif isinstance(op, op_types.Sought):
            hands[op.subscription, op.partition] = Hands()
        elif isinstance(op, op_types.SubscriptionCreated):
            held_labels[op.subscription] = labels(topic=names[op.topic], subscription=op.name)
        elif isinstance(op, op_types.TxnOpened):
            began[op.coordinator, op.sequence] = op.wall_ms
            counts["pulsar_txn_created_total", labels(coordinator_id=op.coordinator)] += 1
        elif isinstance(op, op_types.StatusUpdated):
            pair = (op.coordinator, op.sequence)
            if op.reason is not None:
                reasons[pair] = op.reason
            if op.status in ("COMMITTED", "ABORTED"):
                status = op.status.lower()
                own_labels = labels(coordinator_id=op.coordinator)
                counts[f"pulsar_txn_{status}_total", own_labels] += 1
                took = (time_ms - began[pair]) / 1000
                of_status = labels(status=status)
                counts["txlog_txn_duration_seconds_count", of_status] += 1
                counts["txlog_txn_duration_seconds_sum", of_status] += took  # type: ignore[assignment]
                for bound in BOUNDS:
                    bucket = of_status | labels(le=f"{bound:g}")
                    counts["txlog_txn_duration_seconds_bucket", bucket] += took <= bound
                if op.status == "ABORTED":
                    reason = labels(reason=reasons[pair])
                    counts["txlog_txn_aborted_by_reason_total", reason] += 1
                    counts["pulsar_txn_timeout_total", own_labels] += reasons[pair] == "timeout"
        elif isinstance(op, op_types.BufferCommitted):
            counts["pulsar_txn_tb_committed_total", places[op.partition]] += 1
        elif isinstance(op, op_types.BufferAborted):
            counts["pulsar_txn_tb_aborted_total", places[op.partition]] += 1
        elif isinstance(op, op_types.PendingAcked):
            key = (op.coordinator, op.sequence, op.subscription, op.partition)
            pending[key] += op.count
        elif isinstance(op, op_types.PendingCommitted):
            pending.pop((op.coordinator, op.sequence, op.subscription, op.partition))
            counts["pulsar_txn_tp_committed_count_total", held_labels[op.subscription]] += 1
        elif isinstance(op, op_types.PendingAborted):
            key = (op.coordinator, op.sequence, op.subscription, op.partition)
            counts["txlog_redelivered_total", held_labels[op.subscription]] += pending.pop(key)
            counts["pulsar_txn_tp_aborted_count_total", held_labels[op.subscription]] += 1
        elif isinstance(op, op_types.Returned):
            back = hands[op.subscription, op.partition]
            back.take(op.consumer, op.uncounted)
            counts["txlog_redelivered_total", held_labels[op.subscription]] += back.take(
                op.consumer, op.counted
            )
        elif isinstance(op, op_types.CursorTrimmed):
            for coordinator, sequence, _, _, count in op.pending:
                pending[coordinator, sequence, op.subscription, op.partition] = count
        if isinstance(op, op_types.Leased):
            hands[op.subscription, op.partition].give(op.consumer, op.runs)
        elif isinstance(op, op_types.Acked | op_types.PendingAcked | op_types.CursorTrimmed):
            runs = [] if isinstance(op, op_types.CursorTrimmed) else op.runs
            mark = None if isinstance(op, op_types.PendingAcked) else op.mark_delete
            hands[op.subscription, op.partition].settle(runs, mark)
    for (_, _, subscription, _), count in pending.items():
        counts["txlog_pending_ack_messages", held_labels[subscription]] += count
    unfinished = began.keys() - ended_pairs(items)
    for number, _ in unfinished:
        counts["pulsar_txn_active_count", labels(coordinator_id=number)] += 1
    counts["txlog_txn_unfinished", labels(status="open")] += len(unfinished)
    return dict(counts)


def forget(counts: Counter[tuple[str, Labels]], label: Labels) -> None:
    for key in [key for key in counts if key[1] == label]:
        del counts[key]


class Hands:
    """The messages that consumers hold, one by one."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, int, int], int] = {}

    def give(self, consumer: int, runs: list[op_types.Run]) -> None:
        self.of |= {message_id: consumer for run in runs for message_id in each(run)}

    def take(self, consumer: int, runs: list[op_types.Run] | None) -> int:
        acknowledged = [
            message_id
            for message_id, who in self.of.items()
            if who == consumer and (runs is None or any(message_id in each(run) for run in runs))
        ]
        for message_id in acknowledged:
            del self.of[message_id]
        return len(acknowledged)

    def settle(self, runs: list[op_types.Run], mark: op_types.Mark | None) -> None:
        for ledger, first, last, low, high in runs:
            for message_id in list(self.of):
                if (
                    message_id[0] == ledger
                    and first <= message_id[1] <= last
                    and (not low or low <= message_id[2] <= high)
                ):
                    del self.of[message_id]
        for message_id in list(self.of):
            if mark is not None and covers(mark, message_id):
                del self.of[message_id]


def ended_pairs(items: Items) -> set[tuple[int, int]]:
    return {
        (op.coordinator, op.sequence)
        for _, _, op in items
        if isinstance(op, op_types.StatusUpdated) and op.status in ("COMMITTED", "ABORTED")
    }


@pytest.mark.parametrize("seed", graded(range(4), 1))
def test_metrics_equal_a_scan_of_the_journal(tmp_path: Path, recorded: Items, seed: int) -> None:
    """I-22: also after checkpoints and in another process.

    Guards against a figure that a dump forgets.
    """
    print(f"seed {seed}")
    bench = Bench(
        tmp_path / "store", ledger_entries_max=7, coordinators=2, txn_ended_retention_count=5
    )
    random_history(bench, seed, checkpoints=bool(seed % 2))
    for act in ("live", "reopened", "checkpoint", "reopened"):
        if act == "checkpoint":
            bench.client.checkpoint(roll_all=True)
        client = bench.reopen() if act == "reopened" else bench.client
        client.flush()
        samples = scraped(client)
        for key, value in scan(recorded, 2).items():
            if value or key in samples:
                assert samples[key] == pytest.approx(value), (act, key)
        for name in ("pulsar_txn_created_total", "txlog_redelivered_total"):
            assert sum(v for (n, _), v in samples.items() if n == name) == sum(
                v for (n, _), v in scan(recorded, 2).items() if n == name
            )


def test_names_and_types_match_the_spec(tmp_path: Path) -> None:
    """spec/transactions 16: the types are correct, and the reference parser of the exposition
    format finds them.
    """
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    types = {family.name: family.type for family in bench.client.admin.metrics()}
    assert TYPES.items() <= types.items()
    text = exposition(bench.client.admin.metrics())
    parsed = {family.name: family.type for family in text_string_to_metric_families(text)}
    for name, kind in TYPES.items():
        assert parsed[name.removesuffix("_total") if kind == "counter" else name] == kind
    assert "txn_id" not in text
    flat = rows(bench.client.admin.metrics())
    assert {tuple(row) for row in flat} == {("name", "type", "labels", "value")}


def test_duplicates_drops_and_conflicts_are_counted(tmp_path: Path) -> None:
    """16: refused messages leave a count, which survives a checkpoint."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s")
    producer = client.producer("t", "p")
    first = [producer.send(b"x", sequence_id=n).message_id for n in (2, 5)]
    for sequence, expected_id in ((5, first[1]), (2, None), (2, None)):
        assert producer.send(b"x", sequence_id=sequence).message_id == expected_id
    txn, other = begin(client), begin(client)
    for sequence in (1, 1):
        producer.send(b"y", txn=txn, sequence_id=sequence)
    assert first[0] is not None
    client.acknowledge("t", "s", [first[0]], txn=txn)
    assert client.acknowledge("t", "s", [first[0]])["dropped"] == 1
    with pytest.raises(Exception, match="is held by"):
        client.acknowledge("t", "s", [first[0]], txn=other)
    client.flush()
    client.checkpoint()
    where = labels(topic="t", partition=0)
    held_labels = labels(topic="t", subscription="s")
    for is_reopened in (False, True):
        samples = scraped(bench.reopen() if is_reopened else client)
        assert samples["txlog_dedup_dropped_total", where] == 4
        assert samples["txlog_dedup_original_missing_total", where] == 2
        assert samples["txlog_ack_dropped_total", held_labels] == 1
        assert samples["txlog_ack_conflicts_total", held_labels] == 1
        assert samples["txlog_pending_ack_messages", held_labels] == 1
        assert samples["pulsar_txn_tb_active_total", where] == 1
        assert samples["txlog_txn_aborted_by_reason_total", labels(reason="conflict")] == 1


def test_the_histogram_has_a_bucket_for_each_bound(tmp_path: Path) -> None:
    """16: upper bounds are inclusive, as in Prometheus.

    Guards against a value in the neighbouring bucket.
    """
    bench = Bench(tmp_path / "store")
    client = bench.client
    for took_ms in (10, 11, 60_000, 3_000_001):
        txn = begin(client, 86_400_000)
        bench.clock.advance(took_ms)
        client.commit(txn)
    samples = scraped(client)
    committed = labels(status="committed")
    buckets = {
        dict(key[1])["le"]: value
        for key, value in samples.items()
        if key[0] == "txlog_txn_duration_seconds_bucket" and committed <= key[1]
    }
    assert buckets == {
        "0.01": 1,
        "0.02": 2,
        "0.05": 2,
        "0.1": 2,
        "0.5": 2,
        "1": 2,
        "5": 2,
        "15": 2,
        "30": 2,
        "60": 3,
        "300": 3,
        "1500": 3,
        "3000": 3,
        "+Inf": 4,
    }
    assert samples["txlog_txn_duration_seconds_count", committed] == 4
    assert samples["txlog_txn_duration_seconds_sum", committed] == pytest.approx(3060.022)


def test_age_of_the_oldest_open_transaction(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    assert scraped(bench.client)["txlog_txn_oldest_open_seconds", labels()] == 0
    begin(bench.client)
    bench.client.flush()
    bench.clock.advance(1500)
    samples = scraped(bench.client)
    assert samples["txlog_txn_oldest_open_seconds", labels()] == 1.5
    assert samples["txlog_txn_unfinished", labels(status="open")] == 1


def test_a_label_is_escaped(tmp_path: Path) -> None:
    """Names may contain any Unicode; the parser returns them unchanged."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("größe=1")
    samples = scraped(bench.client)
    assert ("txlog_dedup_dropped_total", labels(topic="größe=1", partition=0)) in samples


@pytest.mark.deep
def test_random_is_not_all_zero(tmp_path: Path, recorded: Items) -> None:
    """Without this, the comparison above would also pass for a history without events."""
    bench = Bench(tmp_path / "store", coordinators=2)
    random_history(bench, 5, checkpoints=False)
    counters = scan(recorded, 2)
    for name in (
        "pulsar_txn_committed_total",
        "pulsar_txn_aborted_total",
        "pulsar_txn_tp_aborted_count_total",
        "txlog_redelivered_total",
    ):
        assert sum(value for (n, _), value in counters.items() if n == name) > 0, name


def parsed_keys(keys: dict[tuple[int, str], Key]) -> Values:
    families: list[Family] = list(key_families(keys))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(families))
        for sample in family.samples
    }


def test_keys_are_labelled_by_owner_and_key() -> None:
    """16: quantiles 0.5, 0.9 and 0.99 over the last transactions; sum and count over the life of
    the key.
    """
    times = list(range(1000, 11_000, 1000))
    used = Key("ana", 3, used_ms=1500, ended_count=70, open_ms_sum=90_000, recent_ms=times[::-1])
    keys = parsed_keys({(1000, "nightly"): used, (1001, "nightly"): Key("bob", 0)})
    own_labels, other = labels(transaction_key="ana&nightly"), labels(transaction_key="bob&nightly")
    assert keys["pulsar_txn_transaction_key_count", labels()] == 2
    assert keys["pulsar_txn_transaction_key_epoch", own_labels] == 3
    assert keys["pulsar_txn_transaction_key_epoch", other] == 0
    assert keys["txlog_transaction_key_last_used_seconds", own_labels] == 1.5
    for quantile, seconds in ((0.5, 5), (0.9, 9), (0.99, 10)):
        sample_labels = own_labels | labels(quantile=quantile)
        assert keys["pulsar_txn_transaction_key_age", sample_labels] == seconds
    assert keys["pulsar_txn_transaction_key_age_count", own_labels] == 70
    assert keys["pulsar_txn_transaction_key_age_sum", own_labels] == 90
    assert keys["pulsar_txn_transaction_key_age_count", other] == 0
    assert ("pulsar_txn_transaction_key_age", other | labels(quantile=0.5)) not in keys


def test_two_users_of_one_name_are_two_labels() -> None:
    keys = parsed_keys({(1, "k"): Key("ana", 1), (2, "k"): Key("ana", 2)})
    for uid in (1, 2):
        label = labels(transaction_key=f"{uid}&k")
        assert keys["pulsar_txn_transaction_key_epoch", label] == uid


def test_nearest_rank() -> None:
    assert [nearest_rank([3, 1, 2], q) for q in (0.0, 0.33, 0.34, 0.5, 1.0)] == [1, 1, 2, 2, 3]
    assert nearest_rank([7], 0.99) == 7


def test_an_end_in_a_later_frame_was_rolled() -> None:
    """16: an end counts as completed by a sweep or by recovery if an earlier frame decided it.

    Guards against `>=` instead of `>`.
    """
    state = coordinator.FOLD.new()
    ops: list[tuple[int, Op]] = [(1, op_types.IdsReserved(0, 9))]
    for sequence, (decided, final) in enumerate(
        [("COMMITTING", "COMMITTED"), ("ABORTING", "ABORTED")] * 2
    ):
        late = sequence < 3
        opened = op_types.TxnOpened(0, sequence, 0, "root", 1000, 0, "boot", 0)
        reason = "timeout" if final == "ABORTED" else None
        ops += [
            (2 + sequence, opened),
            (10, op_types.StatusUpdated(0, sequence, "OPEN", decided, reason)),
            (11 if late else 10, op_types.StatusUpdated(0, sequence, decided, final)),
        ]
    for lsn, op in ops:
        coordinator.FOLD.apply(state, lsn, 5, op)
    assert isinstance(state, coordinator.Coordinator)
    assert (state.rolled_forward, state.rolled_back) == (2, 1)
    assert (state.committed_count, state.aborted_by) == (2, {"timeout": 2})
    assert state.log_ops == len(ops)
    loaded_again = coordinator.FOLD.load(coordinator.FOLD.dump(state))
    assert loaded_again == state


def test_the_keys_of_a_store(tmp_path: Path) -> None:
    """16: one observation for each ended transaction, from begin to end; tombstones do not
    count.
    """
    bench = Bench(tmp_path / "store", coordinators=2)
    client = bench.client
    client.create_topic("t")
    for epoch, took_ms in enumerate((1000, 3000)):
        assert client.connect("nightly")["epoch"] == epoch
        txn = client.begin(key="nightly", epoch=epoch)["txn"]
        client.producer("t").send(b"x", txn=txn)
        bench.clock.advance(took_ms)
        client.commit(txn)
    client.connect("gone")
    client.admin.delete_transaction_key("gone")
    owner = client.store.disk.owner()[1]
    own_labels = labels(transaction_key=f"{owner}&nightly")
    for act in ("live", "checkpoint", "reopen"):
        if act == "checkpoint":
            client.checkpoint()
        looker = bench.reopen() if act == "reopen" else client
        samples = scraped(looker)
        assert samples["pulsar_txn_transaction_key_count", labels()] == 1
        assert samples["pulsar_txn_transaction_key_epoch", own_labels] == 1
        assert samples["pulsar_txn_transaction_key_age_count", own_labels] == 2
        assert samples["pulsar_txn_transaction_key_age_sum", own_labels] == 4
        assert samples["pulsar_txn_transaction_key_age", own_labels | labels(quantile=0.5)] == 1
        assert samples["pulsar_txn_transaction_key_age", own_labels | labels(quantile=0.99)] == 3
        assert sum(row["keys"] for row in looker.admin.coordinators()) == 1
