"""Owns the broken histories: each is named by its finding, and a word that tells it from others."""

from __future__ import annotations

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
    "lost-message, skipped by a reader that a trim overtook": """
        send m1 -> 1:0
        read reader=r -> 1:0/m1
        send m2 -> 1:1
        send m3 -> 1:2
        p2/read -> 1:0/m1 1:1/m2 1:2/m3
        trim before=1:2
        read reader=r -> 1:2/m3""",
    "lost-message, behind a gap": """
        send m1 ?
        send m2 -> 1:1
        read -> 1:1/m2
        read -> 1:0/m1 1:1/m2""",
    "lost-message, whose repetition was called a duplicate": """
        send m1 producer=n sequence=1 ?
        send m1 producer=n sequence=1 -> duplicate=true
        final_read -> t.0/""",
    "lost-message, younger than its topic keeps it": """
        create_topic t retention_ms=60000
        subscribe c1 kind=shared
        send m1 -> 1:0 at=1000
        read -> t.0/ at=60000""",
    "lost-message, by a clock that was set ahead": """
        * settings clock_jump_max_ms=60000
        create_topic t retention_ms=60000
        send m1 -> 1:0 at=1000
        * clock_jump by_ms=3600000
        read -> t.0/ at=3602000""",
    "lost-message, which one subscription had not acknowledged": """
        create_topic t retention_acked=1
        subscribe c1 kind=shared
        subscribe c2 subscription=s2 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        acknowledge c1 1:0
        read -> t.0/""",
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
    "torn-transaction, in two rounds of a reader": """
        begin -> A
        send m1 txn=A
        send u.0/m2 txn=A
        commit txn=A
        * round reader=r topics={"u":["m2"]}
        * round reader=r topics={"t":["m1"]}
        final_read -> 1:0:1/m1 u.0/2:0:1/m2""",
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
    "duplicate-delivery, another message came back": """
        subscribe c1 kind=shared
        p2/subscribe c2 kind=shared
        p3/subscribe c3 kind=shared
        send m1 -> 1:0
        send m2 -> 1:1
        receive c1 -> 1:0/m1
        p2/receive c2 -> 1:1/m2
        p2/nack c2 1:1
        p2/close c2
        p3/receive c3 -> 1:0/m1""",
    "duplicate-delivery, a nack of one that had it before": """
        subscribe c1 kind=shared
        p2/subscribe c2 kind=shared
        p3/subscribe c3 kind=shared
        send m1 -> 1:0
        receive c1 -> 1:0/m1
        nack c1 1:0
        p2/receive c2 -> 1:0/m1
        nack c1 1:0
        p3/receive c3 -> 1:0/m1""",
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
    "fenced-holder, an exclusive producer": """
        open_producer session=a access=exclusive
        p2/open_producer session=b access=exclusive-with-fencing
        send m1 session=a -> 1:0
        final_read -> 1:0/m1""",
    "two-exclusive-producers, of two processes": """
        open_producer session=a access=exclusive
        p2/open_producer session=b access=exclusive""",
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
    "uncounted-redelivery, after a death": """
        p1/subscribe c1 kind=shared
        p1/send m1 -> 1:0
        p1/receive c1 -> 1:0/m1+0
        * p1/kill
        p2/subscribe c2 kind=shared
        p2/receive c2 -> 1:0/m1+0
        p2/acknowledge c2 1:0""",
    # --- time
    "early-delivery, by a second": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        receive c1 -> 1:0/m1 at=4000""",
    "early-delivery, by a clock that was set ahead": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        * clock_jump by_ms=5000
        receive c1 -> 1:0/m1 at=7000""",
    "late-delivery, never": """
        subscribe c1 kind=shared
        send m1 deliver_at_ms=5000 -> 1:0 at=1000
        final_read -> 1:0/m1
        final_drain -> at=9000""",
    "wrong-watermark, it fell": """
        subscribe c1 kind=exclusive
        * watermark c1 time_ms=100
        * watermark c1 time_ms=90""",
    "wrong-watermark, it fell for one that came later": """
        subscribe c1 kind=shared
        * watermark c1 time_ms=100
        close c1
        subscribe c2 kind=shared
        * watermark c2 time_ms=90""",
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
