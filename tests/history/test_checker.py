"""Broken histories get the right name, and correct ones get none."""

from __future__ import annotations

import pytest

from tests.history.checker import NAMES, check
from tests.history.notation import history

# Each is named by its finding, and a word that tells it from others with the same.
BROKEN: dict[str, str] = {
    # --- the log
    "lost-message, plain": """
        send m1 -> 1:0
        send m2 -> 1:1
        read -> 1:1/m2""",
    "lost-message, with its partition": """
        send m1 -> 1:0
        send t.1/m2 -> 2:0
        final_read -> 1:0/m1""",
    "lost-message, from the end": """
        send m1 -> 1:0
        send m2 -> 1:1
        final_read -> 1:0/m1""",
    "lost-message, of a transaction": """
        begin -> A
        send m1 txn=A
        send u.0/m2 txn=A
        commit txn=A
        final_read -> t.0/ u.0/""",
    "lost-message, after a power cut": """
        send m1 -> 1:0
        * power_cut
        final_read -> t.0/""",
    "lost-message, which was seen before": """
        send m1 -> 1:0
        read -> 1:0/m1
        * kill
        final_read -> t.0/""",
    "lost-message, skipped by a reader": """
        send m1 -> 1:0
        read reader=r start=earliest -> 1:0/m1
        send m2 -> 1:1
        send m3 -> 1:2
        read reader=r start=earliest -> 1:2/m3
        final_read -> 1:0/m1 1:1/m2 1:2/m3""",
    "lost-message, behind a gap": """
        send m1 ?
        send m2 -> 1:1
        read -> 1:1/m2
        read -> 1:0/m1 1:1/m2""",
    "lost-message, whose repetition was called a duplicate": """
        send m1 producer=n sequence=1 ?
        send m1 producer=n sequence=1 -> duplicate=true
        final_read -> t.0/""",
    "phantom-message, never sent": """
        send m1 -> 1:0
        read -> 1:0/m1 1:1/m9""",
    "phantom-message, received": """
        subscribe c1 kind=shared
        receive c1 -> 1:0/m9""",
    "phantom-message, before it was sent": """
        read -> 1:0/m1
        send m1 -> 1:0""",
    "phantom-message, before the commit": """
        begin -> A
        send m1 txn=A
        read -> 1:0:1/m1
        commit txn=A
        final_read -> 1:0:1/m1""",
    "duplicate-message, plain": """
        send m1 -> 1:0
        final_read -> 1:0/m1 1:1/m1""",
    "duplicate-message, in two partitions": """
        send m1 -> 1:0
        final_read -> 1:0/m1 t.1/2:0/m1""",
    "duplicate-message, of a transaction": """
        begin -> A
        send m1 txn=A
        commit txn=A ?
        final_read -> 1:0:1/m1 1:1:1/m1""",
    "duplicate-sequence, after an unknown outcome": """
        send m1 producer=n sequence=7 ?
        p2/send m1 producer=n sequence=7 -> 1:1
        final_read -> 1:0/m1 1:1/m1""",
    "duplicate-sequence, in a transaction": """
        begin -> A
        send m1 producer=n sequence=7 txn=A
        send m1 producer=n sequence=7 txn=A
        commit txn=A
        final_read -> 1:0:1/m1 1:0:2/m1""",
    "changed-message, in two reads": """
        send m1 ?
        send m2 ?
        read -> 1:0/m1
        read -> 1:0/m2""",
    "aborted-read, after the abort": """
        begin -> A
        send m1 txn=A
        abort txn=A
        read -> 1:0:1/m1""",
    "aborted-read, of an open transaction": """
        begin -> A
        send m1 txn=A
        subscribe c1 kind=shared
        receive c1 -> 1:0:1/m1""",
    "aborted-read, after a conflict": """
        begin -> A
        send m1 txn=A
        acknowledge c1 9:0 txn=A ! TransactionConflict
        commit txn=A ?
        read -> 1:0:1/m1""",
    "torn-transaction, in two topics": """
        begin -> A
        send m1 txn=A
        send u.0/m2 txn=A
        commit txn=A
        final_read -> 1:0:1/m1 u.0/""",
    "torn-transaction, after an unknown commit": """
        begin -> A
        send m1 txn=A
        send m2 txn=A
        commit txn=A ?
        final_read -> 1:0:2/m2""",
    "torn-transaction, for a moment": """
        begin -> A
        send m1 txn=A
        send t.1/m2 txn=A
        x: commit txn=A
        read -> 1:0:1/m1 t.1/
        x ->
        final_read -> 1:0:1/m1 t.1/2:0:1/m2""",
    "torn-transaction, mixed with a message": """
        begin -> A
        send m1 txn=A
        send m2 txn=A
        x: commit txn=A
        send m3 ?
        x ->
        final_read -> 1:0/m1 1:1/m3 1:2/m2""",
    "torn-transaction, without its acknowledgement": """
        subscribe c1 kind=shared initial=earliest
        send m1 -> 1:0
        begin -> A
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        send u.0/m2 txn=A
        commit txn=A ?
        final_read -> 1:0/m1 u.0/2:0:1/m2
        final_drain -> 1:0/m1""",
    # --- moments
    "torn-snapshot, of two topics": """
        send m1 -> 1:0
        x: send t.0/m2
        x -> 1:1
        y: read
        send m3 -> 1:2
        send u.0/m4 -> 2:0
        y -> 1:0/m1 1:1/m2 u.0/2:0/m4
        final_read -> 1:0/m1 1:1/m2 1:2/m3 u.0/2:0/m4""",
    "torn-snapshot, two reads that disagree": """
        x: send m1
        y: send u.0/m2
        a: p2/read
        b: p3/read
        a -> 1:0/m1 u.0/
        b -> t.0/ u.0/2:0/m2
        x -> 1:0
        y -> 2:0
        final_read -> 1:0/m1 u.0/2:0/m2""",
    "torn-snapshot, of transactions that wrote in order": """
        begin -> A
        begin -> B
        send m1 txn=A
        send u.0/m2 txn=A
        send u.0/m3 txn=B
        send t.1/m4 txn=B
        x: commit txn=A
        y: commit txn=B
        a: p2/read
        a -> t.0/ t.1/3:0:1/m4
        x ->
        y ->
        final_read -> 1:0:1/m1 u.0/2:0:1/m2 u.0/2:1:1/m3 t.1/3:0:1/m4""",
    "stale-read, of an answered message": """
        send m1 -> 1:0
        p2/read -> t.0/
        final_read -> 1:0/m1""",
    "stale-read, less than another saw": """
        x: send m1
        p2/read -> 1:0/m1
        p3/read -> t.0/
        x -> 1:0
        final_read -> 1:0/m1""",
    "non-monotonic-read, of one process": """
        x: send m1
        p2/read -> 1:0/m1
        p2/read -> t.0/
        x -> 1:0
        final_read -> 1:0/m1""",
    "non-monotonic-read, of a reader": """
        send m1 -> 1:0
        send m2 -> 1:1
        read reader=r start=earliest -> 1:0/m1 1:1/m2
        read reader=r start=earliest -> 1:1/m2""",
    "order-violation, of one process": """
        send m1 -> 1:1
        send m2 -> 1:0
        final_read -> 1:0/m2 1:1/m1""",
    "order-violation, of one session": """
        x: send m1 session=a
        y: send m2 session=a
        x -> 1:1
        y -> 1:0
        final_read -> 1:0/m2 1:1/m1""",
    "order-violation, in a transaction": """
        begin -> A
        send m1 txn=A
        send m2 txn=A
        commit txn=A
        final_read -> 1:0:1/m2 1:0:2/m1""",
    "order-violation, for one reader": """
        send m1 -> 1:0
        send m2 -> 1:1
        read -> 1:1/m2 1:0/m1""",
    "commit-order, in two partitions": """
        begin -> A
        begin -> B
        send m1 txn=A
        send t.1/m2 txn=A
        send m3 txn=B
        send t.1/m4 txn=B
        x: commit txn=A
        y: commit txn=B
        x ->
        y ->
        final_read -> 1:0:1/m1 1:1:1/m3 t.1/2:0:1/m4 t.1/2:1:1/m2""",
    # --- outcomes
    "wrong-outcome, failed and stored": """
        send m1 ! StoreFull
        final_read -> 1:0/m1""",
    "wrong-outcome, failed in a transaction": """
        begin -> A
        send m1 txn=A ! PartitionUnavailable
        commit txn=A
        final_read -> 1:0:1/m1""",
    "wrong-outcome, committed and aborted": """
        begin -> A
        send m1 txn=A
        commit txn=A
        abort txn=A
        final_read -> 1:0:1/m1""",
    "wrong-outcome, another id": """
        send m1 -> 1:7
        final_read -> 1:0/m1""",
    # --- subscriptions
    "duplicate-delivery, to two consumers": """
        subscribe c1 kind=shared
        p2/subscribe c2 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        p2/receive c2 -> 1:0/m1""",
    "duplicate-delivery, to one consumer": """
        subscribe c1 kind=exclusive
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        receive c1 -> 1:0/m1""",
    "delivery-order, Exclusive": """
        subscribe c1 kind=exclusive
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:1/m2
        receive c1 -> 1:0/m1""",
    "key-order, in one consumer": """
        subscribe c1 kind=key_shared
        send m1 key=k -> 1:0
        send m2 key=k -> 1:1
        receive c1 -> 1:1/m2
        receive c1 -> 1:0/m1""",
    "key-order, in two consumers": """
        subscribe c1 kind=key_shared
        p2/subscribe c2 kind=key_shared
        send m1 key=k -> 1:0
        send m2 key=k -> 1:1
        receive c1 -> 1:0/m1
        p2/receive c2 -> 1:1/m2""",
    "returned-acknowledgement, plain": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        * kill
        subscribe c2 kind=shared
        receive c2 -> 1:0/m1""",
    "returned-acknowledgement, to a client that came later": """
        subscribe c1 kind=shared is_ahead=true
        send m1 -> 1:0
        * kill
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        p2/subscribe c2 kind=shared is_ahead=true
        p2/receive c2 -> 1:0/m1""",
    "returned-acknowledgement, of a transaction": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        begin -> A
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        commit txn=A
        * power_cut
        final_drain -> 1:0/m1""",
    "returned-acknowledgement, flushed before the cut": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        send m2 -> 1:1
        * power_cut
        final_drain -> 1:0/m1 1:1/m2""",
    "returned-acknowledgement, cumulative": """
        subscribe c1 kind=exclusive
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:0/m1 1:1/m2
        acknowledge c1 1:1 cumulative=true
        * kill
        final_drain -> 1:0/m1""",
    "double-acknowledgement, by two transactions": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        begin -> A
        begin -> B
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        acknowledge c1 1:0 txn=B
        commit txn=A
        commit txn=B""",
    "unreachable-message, never delivered": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        final_read -> 1:0/m1
        final_drain ->""",
    "unreachable-message, after an abort": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        begin -> A
        receive c1 -> 1:0/m1
        acknowledge c1 1:0 txn=A
        abort txn=A
        final_read -> 1:0/m1
        final_drain ->""",
    "unreachable-message, after a seek": """
        subscribe c1 kind=shared initial=earliest
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        seek earliest
        final_read -> 1:0/m1
        final_drain ->""",
    "wrong-watermark, of the transaction of the message": """
        announce producer=n time_ms=10
        subscribe c1 kind=exclusive
        begin -> A
        send m1 producer=n event_time_ms=20 txn=A
        announce producer=n time_ms=50 txn=A
        commit txn=A
        * watermark c1 time_ms=50
        receive c1 -> 1:0:1/m1
        final_read -> 1:0:1/m1""",
    "unreachable-message, after a nack": """
        subscribe c1 kind=shared
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:0/m1 1:1/m2
        nack c1 1:0
        acknowledge c1 1:1
        final_read -> 1:0/m1 1:1/m2
        final_drain ->""",
    "two-active-consumers, Exclusive": """
        subscribe c1 kind=exclusive
        p2/subscribe c2 kind=exclusive""",
    "two-active-consumers, Failover": """
        subscribe c1 kind=failover
        p2/subscribe c2 kind=failover
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:0/m1
        p2/receive c2 -> 1:1/m2""",
    # --- keys and names
    "fenced-holder, its commit": """
        connect_key key=k -> epoch=0
        begin key=k epoch=0 -> A
        send m1 txn=A
        p2/connect_key key=k -> epoch=1
        commit txn=A
        final_read -> 1:0:1/m1""",
    "fenced-holder, its send": """
        begin key=k -> A epoch=0
        p2/begin key=k -> B epoch=1
        send m1 txn=A -> 1:0""",
    "fenced-holder, its begin": """
        connect_key key=k -> epoch=0
        p2/connect_key key=k -> epoch=1
        begin key=k epoch=0 -> A""",
    "fenced-holder, a producer": """
        open_producer producer=n session=a
        p2/open_producer producer=n session=b
        send m1 producer=n session=a -> 1:0
        final_read -> 1:0/m1""",
    "epoch-reused, by two": """
        x: connect_key key=k
        y: p2/connect_key key=k
        x -> epoch=3
        y -> epoch=3""",
    "epoch-reused, it fell": """
        connect_key key=k -> epoch=3
        connect_key key=k -> epoch=2""",
    "epoch-reused, an id": """
        begin -> A
        p2/begin -> A""",
    # --- time
    "early-delivery, by a second": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        receive c1 -> 1:0/m1 at=4000""",
    "late-delivery, never": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        final_read -> 1:0/m1
        final_drain -> at=9000""",
    "wrong-watermark, it fell": """
        subscribe c1 kind=exclusive
        * watermark c1 time_ms=100
        * watermark c1 time_ms=90""",
    "wrong-watermark, a message below it": """
        announce producer=n time_ms=10
        subscribe c1 kind=exclusive
        send m1 producer=n event_time_ms=20 -> 1:0
        * watermark c1 time_ms=50
        receive c1 -> 1:0/m1
        final_read -> 1:0/m1""",
    "wrong-watermark, late and not marked": """
        subscribe c1 kind=exclusive
        send m1 event_time_ms=20 -> 1:0
        * watermark c1 time_ms=50
        receive c1 has_late=1 -> 1:0/m1""",
}

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
