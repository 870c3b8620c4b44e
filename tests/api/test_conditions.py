"""client.wait: conditions over one view, checked again after every write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine_kit import Bench, begin, ids, say, send
from txlog import TxnId
from txlog.base.settings import EVENT_TIME_MAX
from txlog.client import wait as conditions
from txlog.engine.session.reading.pause import POLL_SECONDS_MAX, until
from txlog.engine.session.reading.watermark_ground import Subscribed
from txlog.engine.session.reading.watermark_session import WatermarkSession
from txlog.engine.store.wakeups import Wakeups
from txlog.errors import InvalidArgument, SubscriptionNotFound, TopicNotFound, TransactionNotFound

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s", "shared")]),
]


def now(bench: Bench, *topics: str, **options: Any) -> list[tuple[bool, str]]:
    """The current state of the conditions.

    Also checks that `met` is true exactly if each condition is.
    """
    answer = bench.client.wait(topics, **options, timeout_ms=0)
    rows = [(row["met"], row["value"]) for row in answer["condition_list"]]
    assert answer["met"] is all(met for met, _ in rows)
    return rows


def meanwhile(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> list[float]:
    """During a wait, each pause runs the next step. Returns the pauses."""
    remaining_steps, pauses = list(steps), list[float]()

    def wait(wakeups: Wakeups, seen: int, seconds: float) -> bool:
        pauses.append(seconds)
        assert remaining_steps, "it waits for something that does not come"
        remaining_steps.pop(0)()
        return True

    monkeypatch.setattr(Wakeups, "wait", wait)
    return pauses


def test_messages(bench: Bench) -> None:
    """Only visible messages count, in all partitions or in one."""
    client = bench.client
    assert now(bench, "t", messages=0) == [(True, "0")]
    send(client, b"1", b"2")
    txn = begin(client)
    client.producer("t").send(b"3", partition=1, txn=txn)
    assert now(bench, "t", "t/0", "t/1", messages=2) == [(True, "2"), (True, "2"), (False, "0")]
    client.commit(txn)
    assert now(bench, "t", messages=3) == [(True, "3")]
    assert now(bench, "t", messages=4) == [(False, "3")]


def test_a_watermark_at_the_end(bench: Bench) -> None:
    """The same value as in `watermark show`; there is none without an active producer."""
    client = bench.client
    assert now(bench, "t", watermark=1) == [(False, "unknown")]
    say(client, "A", 50)
    say(client, "B", 70)
    client.flush()
    assert now(bench, "t", watermark=50) == [(True, "1970-01-01T00:00:00.050Z")]
    assert now(bench, "t", watermark=51) == [(False, "1970-01-01T00:00:00.050Z")]
    say(client, "A", None)
    assert now(bench, "t", watermark=51) == [(True, "1970-01-01T00:00:00.070Z")]
    say(client, "B", None)
    assert now(bench, "t", watermark=1) == [(False, "idle")]
    say(client, "A", EVENT_TIME_MAX)
    assert now(bench, "t", watermark=EVENT_TIME_MAX) == [(True, str(EVENT_TIME_MAX))]


def test_a_watermark_where_a_subscription_is(bench: Bench) -> None:
    """The highest value that was handed out stays, even if a late producer lowers the watermark or
    all producers are idle.
    """
    client = bench.client

    def at(time: int) -> bool:
        client.flush()
        ((met, _),) = now(bench, "t", watermark=time, subscription="s")
        return met

    (first,) = send(client, b"x")
    say(client, "A", 50)
    assert not at(1)
    client.acknowledge("t", "s", [first])
    assert at(50)
    assert not at(51)
    session = WatermarkSession(
        client.store, Subscribed(client.store, lambda view: [(1, 1), (1, 2)])
    )
    assert session.moved()
    say(client, "B", 20)
    assert at(50)
    say(client, "C", 10)
    assert now(bench, "t", watermark=11) == [(False, "1970-01-01T00:00:00.010Z")]
    for name in "ABC":
        say(client, name, None)
    assert at(50)
    client.create_subscription("t", "other", type="shared")
    assert now(bench, "t", watermark=1, subscription="other") == [(False, "unknown")]
    client.acknowledge("t", "other", ids(client))
    assert now(bench, "t", watermark=1, subscription="other") == [(False, "idle")]
    client.admin.set_offline("t", 0)
    assert now(bench, "t", watermark=1, subscription="s") == [(False, "unavailable")]


def test_a_backlog(bench: Bench) -> None:
    """At most this many messages are left.

    If several topics have a subscription with this name, the topic must be given.
    """
    client = bench.client
    message_ids = send(client, b"1", b"2", b"3")
    assert now(bench, backlogs={"s": 3}) == [(True, "3")]
    assert now(bench, "t", "t/1", backlogs={"s": 2}) == [(False, "3"), (True, "0")]
    client.acknowledge("t", "s", message_ids[:2])
    assert now(bench, backlogs={"s": 1}) == [(True, "1")]
    client.create_topic("u")
    client.create_subscription("u", "s")
    with pytest.raises(InvalidArgument):
        now(bench, backlogs={"s": 1})
    assert now(bench, "u", backlogs={"s": 0}) == [(True, "0")]
    with pytest.raises(SubscriptionNotFound):
        now(bench, backlogs={"nobody": 1})


def test_a_state_of_a_transaction(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that can no longer be reached ends the wait at once."""
    client = bench.client
    first, second = begin(client), begin(client)
    assert now(bench, txns={first: "open", second: "committed"}) == [
        (True, "open"),
        (False, "open"),
    ]
    client.commit(first)
    client.abort(second)
    assert now(bench, txns={first: "committed", second: "aborted"}) == [
        (True, "committed"),
        (True, "aborted"),
    ]
    assert now(bench, txns={first: "ended", second: "ended"})[0][0]
    meanwhile(monkeypatch)
    for state in ("open", "aborted", "committing", "aborting"):
        answer = client.wait(txns={first: state})  # without a time-out
        assert not answer["met"]
    with pytest.raises(TransactionNotFound):
        client.wait(txns={TxnId(0, 99): "ended"})
    with pytest.raises(InvalidArgument):
        client.wait(txns={first: "gone"})


def test_it_waits_until_all_hold_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes. The pauses between the checks grow."""
    other = bench.another()
    txn = begin(other)
    pauses = meanwhile(
        monkeypatch,
        lambda: send(other, b"1", b"2"),
        lambda: None,
        lambda: say(other, "A", 9),
        lambda: other.commit(txn),
        lambda: send(other, b"3"),
    )
    answer = bench.client.wait(["t"], messages=3, watermark=9, txns={txn: "committed"})
    assert answer["met"]
    assert [row["name"] for row in answer["condition_list"]] == [
        "messages:t",
        "watermark:t",
        f"txn:{txn}",
    ]
    assert [row["value"] for row in answer["condition_list"]][::2] == ["3", "committed"]
    assert max(pauses) <= POLL_SECONDS_MAX


def test_conditions_are_checked_again_only_after_a_frame(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no busy loop: each check only looks at the journal."""
    numbers: list[int] = []
    original = conditions.Found

    def ask(view: Any, store: Any) -> conditions.Found:
        numbers.append(view.lsn)
        return original(len(numbers) == 2, "")

    nothing = [lambda: None] * 5
    meanwhile(monkeypatch, *nothing, lambda: send(bench.client, b"1"))
    waiting = conditions.Wait(bench.client.store, [conditions.Condition("x", ask)])
    assert until(bench.client.store, waiting.look, None, waiting.rest)
    assert waiting.answer()["met"]
    assert len(numbers) == 2
    assert numbers[0] < numbers[1]


def test_bad_calls(bench: Bench) -> None:
    """An unknown name is an error, and the call does not wait for it."""
    with pytest.raises(InvalidArgument):
        bench.client.wait()
    with pytest.raises(InvalidArgument):
        bench.client.wait(["t"])
    for topic in ("nothing", "t/2"):
        with pytest.raises(TopicNotFound):
            bench.client.wait([topic], messages=1)
    with pytest.raises(SubscriptionNotFound):
        bench.client.wait(["t"], watermark=1, subscription="nobody")
