"""Broken histories get the right name, and correct ones get none."""

from __future__ import annotations

import pytest

from tests.history.broken import BROKEN
from tests.history.checker import NAMES, check
from tests.history.notation import history

CORRECT: dict[str, str] = {
    "a client's queue holds what another acknowledged": """
        subscribe c1 kind=shared is_ahead=true
        p2/subscribe c2 kind=shared is_ahead=true
        send m1 -> 1:0
        * kill
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        p2/receive c2 -> 1:0/m1""",
    "a client comes back later than another": """
        subscribe c1 kind=failover is_ahead=true
        p2/subscribe c2 kind=failover is_ahead=true
        * kill
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:0/m1
        p2/receive c2 -> 1:1/m2
        p2/close c2
        send m3 -> 1:2
        receive c1 -> 1:2/m3""",
    "a power cut ends a consumer that attached after a failed flush": """
        * lossy
        subscribe c1 kind=exclusive
        * power_cut
        p2/subscribe c2 kind=exclusive""",
    "the message of a fenced holder waits in its client": """
        begin key=k -> A epoch=0
        p2/begin key=k -> B epoch=1
        send m1 txn=A
        commit txn=A ! ExpiredTransaction""",
    "nothing": "",
    "sends with unknown outcomes, there or not": """
        send m1 ?
        send m2 ? OutcomeUnknown
        send m3 -> 1:2
        final_read -> 1:1/m2 1:2/m3""",
    "an unknown send that appears late": """
        send m1 ?
        read -> t.0/
        * p/kill
        p2/send m2 -> 1:1
        final_read -> 1:0/m1 1:1/m2""",
    "a reader that comes to transactions in two rounds": """
        begin -> A
        send m1 txn=A
        send u.0/m2 txn=A
        commit txn=A
        begin -> B
        send m3 txn=B
        commit txn=B
        * round reader=r topics={"t":["m1"],"u":["m2"]}
        * round reader=q topics={"t":["m1","m3"],"u":["m2"]}
        * round reader=r topics={"t":["m3"]}
        final_read -> 1:0:1/m1 1:1:1/m3 u.0/2:0:1/m2""",
    "a reader that was overtaken begins again": """
        send m1 -> 1:0
        read reader=r -> 1:0/m1
        send m2 -> 1:1
        send m3 -> 1:2
        trim before=1:2
        read reader=r ! MessageNotFound
        read reader=r2 -> 1:2/m3""",
    "an unknown commit, done": """
        begin -> A
        send m1 txn=A
        send u.0/m2 txn=A
        x: commit txn=A
        * p/kill
        p2/read -> t.0/ u.0/
        final_read -> 1:0:1/m1 u.0/2:0:1/m2""",
    "an unknown commit, not done": """
        begin -> A
        send m1 txn=A
        commit txn=A ? OutcomeUnknown
        commit txn=A ! InvalidTxnStatus
        final_read -> t.0/""",
    "a send in a transaction whose outcome is unknown": """
        begin -> A
        send m1 txn=A
        send m2 txn=A ?
        commit txn=A
        final_read -> 1:0:1/m1""",
    "a repeated sequence": """
        send m1 producer=n sequence=7 ?
        send m1 producer=n sequence=7 -> duplicate=true
        final_read -> 1:0/m1""",
    "a send without a name that was repeated": """
        send m1 ?
        send m1 -> 1:1
        final_read -> 1:0/m1 1:1/m1""",
    "messages of an aborted transaction, sent again in another": """
        begin -> A
        send m1 txn=A
        abort txn=A
        begin -> B
        send m1 txn=B
        commit txn=B
        final_read -> 1:0:1/m1""",
    "a preview of an open transaction": """
        begin -> A
        send m1 txn=A
        read isolation=uncommitted -> 1:0:1/m1
        abort txn=A""",
    "reads at the same time as sends": """
        x: send m1
        y: send u.0/m2
        a: p2/read
        b: p3/read
        a -> 1:0/m1 u.0/
        b -> 1:0/m1 u.0/2:0/m2
        x -> 1:0
        y -> 2:0
        final_read -> 1:0/m1 u.0/2:0/m2""",
    "concurrent commits in the same order everywhere": """
        begin -> A
        begin -> B
        send m1 txn=A
        send t.1/m2 txn=A
        send m3 txn=B
        send t.1/m4 txn=B
        x: commit txn=A
        y: commit txn=B
        read -> 1:0:1/m3 t.1/2:0:1/m4
        x ->
        y ->
        final_read -> 1:0:1/m3 1:1:1/m1 t.1/2:0:1/m4 t.1/2:1:1/m2""",
    "a reader that continues over a kill": """
        send m1 -> 1:0
        read reader=r start=earliest -> 1:0/m1
        x: send m2
        * p/kill
        read reader=r start=earliest -> 1:1/m2
        send m3 -> 1:2
        read reader=r start=earliest -> 1:2/m3""",
    "messages that were trimmed": """
        send m1 -> 1:0
        send m2 -> 1:1
        send m3 -> 1:2
        trim before=1:2
        final_read -> 1:2/m3""",
    "a topic that was deleted and created again": """
        send m1 -> 1:0
        delete_topic t
        create_topic t
        send m2 -> 2:0
        final_read -> 2:0/m2""",
    "a plain acknowledgement that a power cut lost": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        * power_cut
        final_drain -> 1:0/m1""",
    "and one that a failed flush lost": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        send m2 ? OutcomeUnknown
        subscribe c2 kind=shared
        receive c2 -> 1:0/m1""",
    "a lost acknowledgement, before a call that flushed nothing": """
        subscribe c1 kind=shared
        send m1 producer=n sequence=1 -> 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        send m1 producer=n sequence=1 -> duplicate=true
        p2/flush
        begin -> A
        commit txn=A
        * power_cut
        final_drain -> 1:0/m1""",
    "two threads with one reader and one consumer": """
        send m1 -> 1:0
        send m2 -> 1:1
        subscribe c1 kind=exclusive initial=earliest
        x: read reader=r start=earliest
        y: read reader=r start=earliest
        x -> 1:1/m2
        y -> 1:0/m1
        x: receive c1
        y: receive c1
        x -> 1:1/m2
        y -> 1:0/m1""",
    "an acknowledgement whose outcome is unknown": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:0/m1 1:1/m2
        acknowledge c1 1:0 ?
        acknowledge c1 1:1 ?
        * p/kill
        final_read -> 1:0/m1 1:1/m2
        final_drain -> 1:1/m2""",
    "a nack, and the message again": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        nack c1 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        final_read -> 1:0/m1
        final_drain ->""",
    "a rewind on Exclusive": """
        subscribe c1 kind=exclusive
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:0/m1 1:1/m2
        nack c1 1:0
        receive c1 -> 1:0/m1 1:1/m2""",
    "a seek after an acknowledgement": """
        subscribe c1 kind=exclusive initial=earliest
        send m1 -> 1:0
        begin -> A
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        commit txn=A
        seek earliest
        receive c1 -> 1:0/m1
        final_read -> 1:0/m1
        final_drain -> 1:0/m1""",
    "a seek in the middle of an acknowledgement": """
        subscribe c1 kind=shared initial=earliest
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        x: acknowledge c1 1:0
        seek earliest
        x ->
        final_read -> 1:0/m1
        final_drain ->""",
    "a seek over messages": """
        subscribe c1 kind=exclusive initial=earliest
        send m1 -> 1:0
        send m2 -> 1:1
        seek 1:1
        final_read -> 1:0/m1 1:1/m2
        final_drain -> 1:1/m2""",
    "a transaction that timed out": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        begin -> A
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        subscribe c2 kind=shared
        receive c2 -> 1:0/m1
        commit txn=A ! TransactionTimedOut
        acknowledge c2 1:0
        final_read -> 1:0/m1
        final_drain ->""",
    "an unknown commit with an acknowledgement, done": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        begin -> A
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        send u.0/m2 txn=A
        commit txn=A ?
        final_read -> 1:0/m1 u.0/2:0:1/m2
        final_drain ->""",
    "and not done": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        begin -> A
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        send u.0/m2 txn=A
        commit txn=A ?
        final_read -> 1:0/m1 u.0/
        final_drain -> 1:0/m1""",
    "a subscription that began later": """
        send m1 -> 1:0
        subscribe c1 kind=shared
        send m2 -> 1:1
        final_read -> 1:0/m1 1:1/m2
        final_drain -> 1:1/m2""",
    "a key that moves to another consumer": """
        subscribe c1 kind=key_shared
        send m1 key=k -> 1:0
        send m2 key=k -> 1:1
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        p2/subscribe c2 kind=key_shared
        p2/receive c2 -> 1:1/m2""",
    "a failover": """
        subscribe c1 kind=failover
        p2/subscribe c2 kind=failover
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        * p/kill
        p2/receive c2 -> 1:0/m1
        send m2 -> 1:1
        p2/receive c2 -> 1:1/m2""",
    "Exclusive, taken over after a kill": """
        subscribe c1 kind=exclusive
        * p/kill
        p2/subscribe c2 kind=exclusive
        p2/close c2
        subscribe c3 kind=exclusive""",
    "a fenced holder that was refused": """
        connect_key key=k -> epoch=0
        begin key=k epoch=0 -> A
        send m1 txn=A
        x: p2/connect_key key=k
        send m2 txn=A
        x -> epoch=1
        commit txn=A ! ExpiredTransaction
        p2/begin key=k epoch=1 -> B
        p2/send m3 txn=B
        p2/commit txn=B
        final_read -> 1:0:1/m3""",
    "a commit that had been decided before the fence": """
        connect_key key=k -> epoch=0
        begin key=k epoch=0 -> A
        send m1 txn=A
        commit txn=A
        p2/connect_key key=k -> epoch=1
        commit txn=A
        final_read -> 1:0:1/m1""",
    "a delayed message in time, and one that is not due": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        send m2 deliver_at_ms=90000 -> 1:1 at=1000
        receive c1 -> 1:0/m1 at=5000
        acknowledge c1 1:0
        final_read -> 1:0/m1 1:1/m2
        final_drain -> at=9000""",
    "a clock that was set ahead so little that it is trusted": """
        * settings clock_jump_max_ms=60000
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        * clock_jump by_ms=5000
        receive c1 -> 1:0/m1 at=7000""",
    "a clock that was set ahead before a power cut": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        * clock_jump by_ms=5000
        * power_cut
        p2/subscribe c2 kind=shared
        p2/receive c2 -> 1:0/m1 at=7000""",
    "exclusive producers one after the other": """
        open_producer session=a access=exclusive
        close_producer session=a
        p2/open_producer session=b access=exclusive
        * p2/kill
        open_producer session=c access=exclusive
        p2/open_producer session=d access=exclusive-with-fencing""",
    "a clock that was set back": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        * clock_jump by_ms=-3000
        receive c1 -> 1:0/m1 at=3000""",
    "delayed messages come at once on Exclusive": """
        subscribe c1 kind=exclusive
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        receive c1 -> 1:0/m1 at=1001""",
    "watermarks that rise, and a late message of a producer that broke its promise": """
        announce producer=n time_ms=10
        subscribe c1 kind=exclusive
        send m1 producer=n event_time_ms=20 -> 1:0
        receive c1 has_late=1 -> 1:0/m1
        announce producer=n time_ms=50
        * watermark c1 time_ms=50
        send m2 producer=n event_time_ms=30 -> 1:1
        receive c1 has_late=1 -> 1:1/m2~
        final_read -> 1:0/m1 1:1/m2""",
    "messages that policies may remove": """
        * settings clock_jump_max_ms=60000
        create_topic t retention_ms=60000 at=500
        create_topic u retention_acked=1 at=500
        subscribe c1 topic=u kind=shared at=500
        send m1 -> 1:0 at=1000
        send m2 -> 1:1 at=1000
        send u.0/m3 -> 1:0 at=1000
        acknowledge c1 topic=u 1:0 at=1000
        * clock_jump by_ms=3600000
        read -> 1:0/m1 1:1/m2 u.0/ at=3601000
        * power_cut
        read -> 1:1/m2 u.0/ at=3602000""",
    "a death that is counted": """
        p1/subscribe c1 kind=shared
        p1/send m1 -> 1:0
        p1/receive c1 -> 1:0/m1+0
        * p1/kill
        p2/subscribe c2 kind=shared
        p2/receive c2 -> 1:0/m1+1
        p2/acknowledge c2 1:0""",
    "a consumer that joined before the watermark rose": """
        subscribe c1 kind=shared
        subscribe c2 kind=shared
        * watermark c1 time_ms=100
        * watermark c2 time_ms=90""",
    "a dead letter": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        nack c1 1:0
        final_read -> 1:0/m1 t-s-DLQ.0/2:0/m1
        final_drain ->""",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_is_named(name: str) -> None:
    events = history(BROKEN[name])
    findings = check(events)
    assert {finding.name for finding in findings} == {name.split(",")[0]}, findings
    for finding in findings:
        assert finding.events and all(0 <= event < len(events) for event in finding.events)


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_history_passes(name: str) -> None:
    assert check(history(CORRECT[name])) == []


def test_each_name_has_a_broken_history() -> None:
    assert {name.split(",")[0] for name in BROKEN} == NAMES
    assert len(BROKEN) >= 50
