"""Consuming: how the consumers of a subscription share its messages and agree on their state.

A subscription is a position in each partition of a topic, plus everything acknowledged beyond it.
That is its cursor. Several processes consume it at once, and each may die while it has
messages in hand. Two facts must outlive all these processes: which consumer has a message now, and
whether a consumer has finished with it. Both are ops in the journal, folded into the cursor.

A message of a subscription is in one of three states. A PENDING message may also be in the hand of
a consumer:

    PENDING ──ack──────────────────────────────────────▶ DELETED
       │ ▲ └──ack in a transaction──▶ PENDING_ACK ──commit──▲
       │ └───────────abort────────────────┘
       │
       └── in no hand ──Leased──▶ in one hand ──Returned──▶ in no hand again
                                                            (at once, or after a delay)

The time line of a message on a shared subscription with two consumers:

    A   receive ── Leased(A, m1 m2) ── ack m1 ── works on m2 ── killed
                                                                  ╎ its lock file is free
    B             receive ── Leased(B, m3) ── ack m3 ── receive ──┴─ Returned(A, m2), A detached
                                                                     Leased(B, m2)  delivered again

A lease is a frame. `receive` decides under the write lock, so the two calls are in order, and the
second sees what the first one took. Without it both would read the same cursor, both would find m1
unacknowledged, and both would work on it.

Leases are not flushed. A power cut takes the lease, but it takes the consumer as well, and then
returning the message is right. There is one exception: a message that is itself not durable yet is
flushed before it is handed out, or an application could act on a message that never existed.

Four events end a lease:

 1. Its consumer acknowledges. Any acknowledgement ends a lease, no matter who sends it.
 2. The consumer gives the message back: at once, or as a negative acknowledgement after a delay,
    which doubles with each redelivery if a policy sets this.
 3. The consumer dies. Each one holds a flock on `consumers/<id>.lock` for as long as it lives. If
    another process can lock the file, the consumer's process has ended. With a heartbeat, a process
    that only swaps would seem dead, and two would work on the message. A process id would not do,
    because the kernel gives it to other programs later. Consumer ids are used once, so an old lock
    file never belongs to a new consumer.
 4. The ack time-out runs out, if there is one. It is measured on the clock since boot, which users
    cannot set.

A consumer checks for dead peers and expired leases when it asks for messages. No thread does it in
the background, since no consumer needs the messages until one asks.

Taking a batch costs a write lock, and an application asks for one message at a time, so a consumer
takes a batch ahead of its application. The application must not notice. A message that the
application never received comes back without counting as a redelivery, and its time-out has not
begun. Only the consumer knows how far its application has got, and it may be killed at any moment.
So it writes that position to its lock file, and the peer that finds it dead reads it there. Without
it, every crash would count as a redelivery of messages that no application has received, and bring
them closer to the dead-letter topic.

Which of the deliverable messages a consumer gets depends on the type of the subscription
(`engine/plan/consuming`):

    exclusive, failover   one consumer is active; after a return it goes back to the lowest returned
                          message and takes everything from there again, in order
    shared                the consumer that asks gets the next message that is in no hand
    key-shared            each consumer owns a share of the keys; a key waits while an earlier
                          message with it is in another hand, so that its order survives a change

A consumer remembers its position in each partition. This only saves time and is kept in memory:
every return raises the cursor's round, and a consumer that finds a newer round goes back as far as
the returns say.

Acknowledging is checked as a whole before anything is written. In a transaction only PENDING
messages can be acknowledged; otherwise two transactions would consume the same input. The frame
that is written then is the abort of the transaction that came second.

    m7   PENDING ── ack by T1 ──▶ PENDING_ACK ── T1 commits ──▶ DELETED
                    ack by T2 ──▶ conflict: T2 is aborted in this frame

Moving a message off the subscription, to its dead-letter or retry topic, is one frame: the copy in
the target and the acknowledgement of the original. As two frames, a crash between them would leave
the message in both topics, or in neither.

A seek makes everything before the position acknowledged and everything after it pending again, in
all partitions in one frame. Leases and redelivery counts are void afterwards; transactions that
hold acknowledgements there are aborted first, if the caller agreed to it.

Source: PIP-31 "Acknowledgement"; spec/transactions 9.

Contents:

    acknowledge         one by one or up to a position, plain or in a transaction
    dead_letter_retry   moving dead letters back to the topics that they came from
    dead_letters        moving messages to the dead-letter topic or the retry topic
    lease               handing messages to a consumer, and taking them back
    position            by command: seek, skip, expire; delayed messages promoted or cancelled
    watermark_offer     which watermark a consumer may receive, and the frame that records it
"""
