"""Policies of delayed delivery: inheritance, fixed and maximum delay, refusals.

Source: spec/delayed 2, 9 to 11.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import START_MS, Bench, open_client, read
from txlog import Client
from txlog.base.settings import INSTANT_MS_MAX
from txlog.errors import (
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    TopicNotFound,
    TxlogError,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2, "acme/jobs/t": 1}, max_message_bytes=4096),
]
DAY = 86_400_000
LARGE = b"x" * 5_000
DEFAULTS = {
    "active": True, "tick_time_ms": 1000, "strict": True, "max_delivery_delay_ms": 0,
    "fixed_delivery_delay_ms": 0, "ttl_from": "publish",
}  # fmt: skip


def delivery(client: Client, topic: str = "t") -> list[int | None]:
    return [message.deliver_at for message in read(client, topic)]


def lsn(client: Client) -> int:
    found_lsn = client.status()["journal"]["lsn"]
    assert isinstance(found_lsn, int)
    return found_lsn


# --- inheritance -------------------------------------------------------------------------------


def test_a_topic_inherits_from_its_namespace_and_that_from_the_store(bench: Bench) -> None:
    """9: topic, else namespace, else store; remove = inherit; over a checkpoint and a restart."""
    admin = bench.client.admin
    delayed_policies = admin.get_delayed_policies("acme/jobs/t")
    assert (delayed_policies["topic"], delayed_policies["namespace"]) == ("acme/jobs/t", None)
    assert delayed_policies["policies"] == DEFAULTS
    assert set(delayed_policies["origins"].values()) == {"store"}
    assert admin.set_delayed_policies(tick_time_ms=5, strict=False)["changed"]
    admin.set_delayed_policies(namespace="acme/jobs", tick_time_ms=6, max_delivery_delay_ms=9)
    admin.set_delayed_policies("acme/jobs/t", tick_time_ms=7, ttl_from="deliver_at", active=False)
    for _ in range(2):
        delayed_policies = bench.client.admin.get_delayed_policies("acme/jobs/t")
        assert delayed_policies["policies"] == {
            "active": False,
            "tick_time_ms": 7,
            "strict": False,
            "max_delivery_delay_ms": 9,
            "fixed_delivery_delay_ms": 0,
            "ttl_from": "deliver_at",
        }
        assert delayed_policies["origins"] == {
            "active": "topic",
            "tick_time_ms": "topic",
            "strict": "store",
            "max_delivery_delay_ms": "namespace",
            "fixed_delivery_delay_ms": "store",
            "ttl_from": "topic",
        }
        other = bench.client.admin.get_delayed_policies("t")["policies"]
        assert (other["tick_time_ms"], other["strict"], other["active"]) == (5, False, True)
        space = bench.client.admin.get_delayed_policies(namespace="acme/jobs")
        assert space["policies"]["tick_time_ms"] == 6
        assert space["origins"]["tick_time_ms"] == "namespace"
        bench.client.checkpoint()
        bench.reopen()
    admin = bench.client.admin
    answer = admin.remove_delayed_policies(["tick_time_ms"], "acme/jobs/t")
    assert (answer["policies"]["tick_time_ms"], answer["origins"]["active"]) == (6, "topic")
    assert admin.remove_delayed_policies([], "acme/jobs/t")["policies"]["active"]
    assert not admin.remove_delayed_policies([], "acme/jobs/t")["changed"]
    assert admin.remove_delayed_policies(namespace="acme/jobs")["policies"]["tick_time_ms"] == 5
    assert admin.remove_delayed_policies()["policies"] == DEFAULTS
    assert admin.get_delayed_policies("acme/jobs/t")["policies"] == DEFAULTS


def test_a_policy_switched_off_for_a_topic_overrides_the_store(bench: Bench) -> None:
    """0 and False are values; they do not mean that the policy is unset."""
    admin = bench.client.admin
    admin.set_delayed_policies(max_delivery_delay_ms=10, active=False)
    admin.set_delayed_policies("t", max_delivery_delay_ms=0, active=True)
    delayed_policies = admin.get_delayed_policies("t")
    assert (
        delayed_policies["policies"]["max_delivery_delay_ms"],
        delayed_policies["policies"]["active"],
    ) == (0, True)
    bench.client.producer("t").send(b"x", deliver_after=11)
    assert not admin.set_delayed_policies("t", active=True)["changed"]


def test_settings_given_to_init_become_policies_of_the_store(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", fixed_delivery_delay_ms=7, ttl_from="deliver_at")
    bench.client.create_topic("t")
    policies = bench.client.admin.get_delayed_policies()["policies"]
    assert (policies["fixed_delivery_delay_ms"], policies["ttl_from"]) == (7, "deliver_at")
    bench.client.producer("t").send(b"x")
    assert delivery(bench.client) == [START_MS + 7]
    assert bench.client.admin.remove_delayed_policies()["policies"] == DEFAULTS
    bench.client.producer("t").send(b"x")
    assert delivery(bench.client) == [START_MS + 7, None]


def test_other_processes_follow_a_change(bench: Bench) -> None:
    """An open producer refuses by the current policies."""
    other = bench.another().producer("t")
    other.send(b"x", deliver_after=60, partition=0)
    scopes: list[dict[str, Any]] = [{}, {"namespace": "public/default"}, {"topic": "t"}]
    for scope in scopes:
        bench.client.admin.set_delayed_policies(max_delivery_delay_ms=50, **scope)
        with pytest.raises(InvalidMessage):
            other.send(b"x", deliver_after=60)
        bench.client.admin.remove_delayed_policies(**scope)
    bench.client.admin.set_delayed_policies(fixed_delivery_delay_ms=3)
    other.send(b"x", deliver_after=60, partition=0)
    assert delivery(bench.client) == [START_MS + 60, START_MS + 3]


def test_policies_go_with_their_topic(bench: Bench) -> None:
    admin = bench.client.admin
    admin.set_delayed_policies("t", fixed_delivery_delay_ms=3, strict=False, ttl_from="publish")
    assert bench.client.set_policies("t", ttl_ms=5) == {"ttl_ms": 5}
    assert admin.update_topic("t", retention_acked=1)["policies"] == {
        "ttl_ms": 5,
        "retention_acked": 1,
    }
    assert bench.client.describe_topic("t")["policies"] == {
        "ttl_ms": 5,
        "retention_acked": 1,
        "fixed_delivery_delay_ms": 3,
        "strict": False,
        "ttl_from": "publish",
    }
    bench.client.admin.delete_topic("t")
    bench.client.create_topic("t")
    assert bench.client.admin.get_delayed_policies("t")["policies"] == DEFAULTS


@pytest.mark.parametrize(("scope", "given", "error"), [
    ({}, {"tick_time_ms": -1}, InvalidArgument),
    ({}, {"max_delivery_delay_ms": -1}, InvalidArgument),
    ({}, {"fixed_delivery_delay_ms": -5}, InvalidArgument),
    ({}, {"fixed_delivery_delay_ms": INSTANT_MS_MAX + 1}, LimitExceeded),
    ({}, {"tick_time_ms": DAY + 1}, LimitExceeded),
    ({}, {"tick_time_ms": 1.0}, InvalidArgument),
    ({}, {"tick_time_ms": True}, InvalidArgument),
    ({}, {"tick_time_ms": "5"}, InvalidArgument),
    ({}, {"active": 2}, InvalidArgument),
    ({}, {"active": "yes"}, InvalidArgument),
    ({}, {"strict": 1.0}, InvalidArgument),
    ({}, {"ttl_from": "now"}, InvalidArgument),
    ({}, {"ttl_from": 1}, InvalidArgument),
    ({"topic": "t", "namespace": "public/default"}, {"active": True}, InvalidArgument),
    ({"topic": "t/0"}, {"active": True}, InvalidArgument),
    ({"namespace": "jobs"}, {"active": True}, InvalidArgument),
    ({"namespace": "a/b/c"}, {"active": True}, InvalidArgument),
    ({"namespace": "../x"}, {"active": True}, InvalidArgument),
    ({"namespace": "/x"}, {"active": True}, InvalidArgument),
    ({"topic": "no"}, {"active": True}, TopicNotFound),
])  # fmt: skip
def test_a_wrong_policy_changes_nothing(
    bench: Bench, scope: dict[str, Any], given: dict[str, Any], error: type[TxlogError]
) -> None:
    """11: negative policy value: InvalidArgument, nothing written; in each scope."""
    lsn_before = lsn(bench.client)
    scopes = [scope] if scope else [{}, {"topic": "t"}, {"namespace": "acme/jobs"}]
    for each_scope in scopes:
        with pytest.raises(error) as caught:
            bench.client.admin.set_delayed_policies(**each_scope, **given)
        if error is LimitExceeded:
            [(name, value)] = given.items()
            assert caught.value.fields["setting"] == name
            assert caught.value.fields["value"] == value
            assert caught.value.fields["limit"] == value - 1
    with pytest.raises(InvalidArgument):
        bench.client.admin.remove_delayed_policies(["delay"])
    with pytest.raises(InvalidArgument):  # delayed policies have a call of their own
        bench.client.set_policies("t", max_delivery_delay_ms=5)
    assert lsn(bench.client) == lsn_before


# --- fixed delay -------------------------------------------------------------------------------


def test_a_fixed_delay_counts_whatever_was_given(bench: Bench) -> None:
    """2: even if the sender gave no time; the maximum is not checked."""
    client = bench.client
    client.admin.set_delayed_policies("t", fixed_delivery_delay_ms=100, max_delivery_delay_ms=10)
    producer = client.producer("t", chunking=True)
    cases: list[dict[str, Any]] = [
        {},
        {"deliver_at": 5},
        {"deliver_after": 9},
        {"deliver_at": START_MS + DAY},
        {"deliver_after": DAY},
    ]
    for case in cases:
        for value in (b"x", LARGE):
            producer.send(value, partition=0, **case)
            with client.transaction() as txn:
                producer.send(value, partition=0, txn=txn, **case)
        bench.clock.advance(1)
    assert delivery(client) == [START_MS + 100 + at for at in range(5) for _ in range(4)]
    producer.send_batch(pa.table({"value": [b"a", b"b"], "partition": [1, 1]}))
    assert delivery(client)[-2:] == [START_MS + 105] * 2
    client.admin.set_delayed_policies("t", active=False)
    producer.send(b"x", deliver_after=DAY, partition=1)
    assert delivery(client)[-1] == bench.clock.now().wall_ms + DAY


def test_a_fixed_delay_ends_with_the_last_instant(bench: Bench) -> None:
    bench.client.admin.set_delayed_policies("t", fixed_delivery_delay_ms=INSTANT_MS_MAX)
    producer = bench.client.producer("t", chunking=True)
    for value in (b"x", LARGE):
        producer.send(value)
    assert delivery(bench.client) == [INSTANT_MS_MAX] * 2


# --- maximum -----------------------------------------------------------------------------------

SENDS = ("plain", "txn", "later", "large", "large in txn", "batch", "built")


def attempt(bench: Bench, how: str, **options: Any) -> None:
    """Send in one of the possible ways."""
    client = bench.client
    producer = client.producer("t", chunking=True)
    if how == "plain":
        producer.send(b"x", **options)
    elif how == "large":
        producer.send(LARGE, **options)
    elif how == "batch":
        columns = {name: pa.array([None, item, None]) for name, item in options.items()}
        producer.send_batch(pa.table({"value": [b"x"] * 3, "key": [b"a", b"b", b"c"], **columns}))
    elif how == "built":
        message = producer.new_message().value(b"x")
        for name, item in options.items():
            getattr(message, name)(item)
        message.send()
    elif how == "later":
        with client.transaction() as txn:
            producer.send_async(b"x", txn=txn, **options)
    else:
        with client.transaction() as txn:
            producer.send(LARGE if how == "large in txn" else b"x", txn=txn, **options)


@pytest.mark.parametrize("how", SENDS)
@pytest.mark.parametrize("name", ["deliver_at", "deliver_after"])
def test_a_delay_above_the_maximum_is_refused(bench: Bench, how: str, name: str) -> None:
    """2, 11: equality passes; InvalidMessage with setting, limit, value; no row is appended."""
    client = bench.client
    bench.clock.advance(7)
    client.admin.set_delayed_policies("t", max_delivery_delay_ms=DAY)
    base = START_MS + 7 if name == "deliver_at" else 0
    for over, files in ((1, 0), (INSTANT_MS_MAX, 0)):
        with pytest.raises(InvalidMessage) as caught:
            attempt(bench, how, **{name: base + DAY + over})
        fields = caught.value.fields
        value = DAY + over
        if name == "deliver_after" and over > 1:
            value = INSTANT_MS_MAX - START_MS - 7
        assert (fields["setting"], fields["limit"], fields["value"]) == (
            "max_delivery_delay_ms",
            DAY,
            value,
        )
        assert not read(client)
        assert not list(Path(bench.path).glob("topics/**/*.parquet"))[files:]
    assert client.describe_topic("t")["messages"] == 0
    attempt(bench, how, **{name: base + DAY})
    assert len(read(client)) == (3 if how == "batch" else 1)
    for index in (0, 1):
        for stat in client.admin.transaction_buffer_stats("t", index):
            assert stat["ongoing_txn_size"] == 0


def test_the_maximum_holds_only_while_the_policy_is_active(bench: Bench) -> None:
    client = bench.client
    client.admin.set_delayed_policies("t", max_delivery_delay_ms=5, active=False)
    for how in SENDS:
        attempt(bench, how, deliver_after=6)
    assert client.describe_topic("t")["messages"] == len(SENDS) + 2


def test_refusals_are_counted_by_message(bench: Bench) -> None:
    """11: counted, over restarts; a refused send leaves the transaction open."""
    client = bench.client
    client.admin.set_delayed_policies("t", max_delivery_delay_ms=5)
    producer = client.producer("t", chunking=True)
    table = pa.table(
        {"value": [b"x"] * 5, "deliver_after": [1, 6, 7, None, 8], "partition": [0, 0, 1, 1, 1]}
    )
    with pytest.raises(InvalidMessage):
        producer.send_batch(table)
    with client.transaction(write_through=True) as txn:
        producer.send(b"kept", txn=txn)
        for value in (b"x", LARGE):
            with pytest.raises(InvalidMessage):
                producer.send(value, deliver_after=6, txn=txn)
        assert txn.state == "OPEN"
    assert [m.value for m in read(client)] == [b"kept"]
    client.checkpoint()
    assert counted(bench.reopen()) == {"refused": 5, "beyond": 0}


def counted(client: Client, topic: str = "t") -> dict[str, int]:
    """The counters of a topic, from the metrics."""
    out = {"refused": 0, "beyond": 0}
    names = {"txlog_delayed_rejected_total": "refused", "txlog_delayed_beyond_ttl_total": "beyond"}
    for family in client.admin.metrics():
        for _, labels, value in family.samples:
            if family.name in names and labels["topic"] == topic:
                out[names[family.name]] += int(value)
    return out


def test_a_duplicate_is_not_refused(bench: Bench) -> None:
    """A repeated send gets `duplicate`, whatever the policy is now."""
    client = bench.client
    producer = client.producer("t", "me", chunking=True)
    first = [
        producer.send(value, deliver_after=50, sequence_id=at, partition=0)
        for at, value in enumerate((b"a", LARGE))
    ]
    client.admin.set_delayed_policies("t", max_delivery_delay_ms=5)
    for at, value in enumerate((b"a", LARGE)):
        message_ids_again = producer.send(value, deliver_after=50, sequence_id=at, partition=0)
        expected_id = first[at].message_id if at == 1 else None  # the id of the newest message
        assert (message_ids_again.duplicate, message_ids_again.message_id) == (True, expected_id)
    with pytest.raises(InvalidMessage):
        producer.send(b"c", deliver_after=50, sequence_id=2, partition=0)
    assert producer.last_sequence_id() == 1
    assert producer.send(b"c", deliver_after=5, sequence_id=2, partition=0).message_id is not None


def test_a_policy_that_came_while_a_large_message_was_written(bench: Bench) -> None:
    """The policies at the time of the frame decide; a refused send removes its file."""
    client = bench.client

    def pieces(change: dict[str, int]) -> Any:
        yield LARGE
        bench.another().admin.set_delayed_policies("t", **change)  # type: ignore[arg-type]
        bench.clock.advance(10)
        yield LARGE

    producer = client.producer("t", chunking=True)
    with pytest.raises(InvalidMessage):
        producer.send(pieces({"max_delivery_delay_ms": 5}), deliver_after=6)
    assert not list(Path(bench.path).glob("topics/**/*.parquet"))
    receipt = producer.send(pieces({"fixed_delivery_delay_ms": 4}), deliver_at=5, partition=0)
    assert delivery(client) == [START_MS + 20 + 4]
    with client.transaction() as txn:
        client.admin.remove_delayed_policies([], "t")
        producer.send(pieces({}), deliver_after=9, partition=0, txn=txn)
    for _ in range(2):
        assert delivery(bench.client) == [START_MS + 24, START_MS + 39]
        assert read(bench.client)[0].message_id == receipt.message_id
        bench.client.checkpoint(roll_all=True)
        bench.client.admin.compact("t")
        bench.reopen()


def test_a_dry_run_of_a_policy_changes_nothing(bench: Bench) -> None:
    dry = open_client(bench.path, bench.clock, dry_run=True)
    answer = dry.admin.set_delayed_policies("t", tick_time_ms=5)
    assert (answer["changed"], answer["policies"]["tick_time_ms"]) == (True, 5)
    answer = dry.admin.set_delayed_policies(tick_time_ms=6)
    assert answer["policies"]["tick_time_ms"] == 6
    assert bench.client.admin.get_delayed_policies("t")["policies"] == DEFAULTS
    assert txlog.__version__
