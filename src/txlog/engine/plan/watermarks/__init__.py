"""Watermarks: how far a partition is in event time.

To add up sales by the hour, you must know when an hour is complete. Messages arrive late and out of
order, so the arrival of a message from 10:03 says nothing about 9:59. Only producers know what they
are still going to send. A watermark is their promise: "nothing older than T will come from me". The
watermark of a partition is the least of these times over all active producers.

    a producer asserts T      a row W_SET in every partition of the topic, in one frame
    a producer goes away      a row W_IDLE: it holds nothing back any more

The rows are in the log, between the messages, and that is the whole point. A consumer is somewhere
in the log; the producers are ahead of it. For the consumer, only assertions *up to its own
position* count:

    position      1     2            3     4            5     6            7            8
    partition     m1    W(A,10:00)   m2    W(B,09:58)   m3    W(A,10:05)   W(B,10:04)   m4

    A said        –     10:00        10:00 10:00        10:00 10:05        10:05        10:05
    B said        –     –            –     09:58        09:58 09:58        10:04        10:04
    watermark     –     10:00        10:00 09:58        09:58 09:58        10:04        10:04
                                           ▲
                                           a subscription that has acknowledged m1 and m2 is here

Using the producers' newest word instead would be the obvious mistake. The newest is 10:04; m3 may
be from 10:01, and a window that ends at 10:03 would be closed before m3 has been read.

The position that counts is the greatest one up to which *everything* is acknowledged. A message
that is leased, or negatively acknowledged and waiting, holds the watermark back: it may be
processed late, but it must not find its window closed. An acknowledgement in a transaction that is
still open does not count either.

In a transaction the rows go to the sidecar like any message, and take effect at the commit marker,
all together, or never. Otherwise a watermark could overtake the messages that it was asserted
after.

The value at a position (`value`) is a function of the rows up to it. Reading them all each time
would cost the length of the log, so each ledger that is begun after the first assertion opens with
a snapshot of all producers:

    ledger 7: S  m  m  W  m  W  m  m      ledger 8: S  m  W  m  m  m  W  m
              │                                     │        ▲
              └─ trimmed one day                    └────────┘ from the snapshot to the position

A look starts at the nearest snapshot at or before the position, or at its last position if that is
nearer. It folds the few rows that move the watermark. Which rows those are is known from
the fold: messages are not read at all. Since each ledger has its snapshot, trimming the log needs
no care, and a seek in either direction costs no more than the way between two snapshots.

The rules, and what goes wrong without each:

 1. A producer that has asserted once holds the watermark back until it is idle. Otherwise a
    producer that restarts would let the others run ahead, and its messages would all be late. If it
    dies without being declared idle, the watermark stops. So a policy can declare a silent producer
    idle (`engine/decide/sending/watermark`), by an ordinary row, so that all processes agree.
 2. The greatest time of a producer wins. An assertion below its last one counts as fallen, and
    changes only the time of its last assertion.
 3. A partition with no active producer has no value. If it has never had one it is *unknown*, and
    holds back every consumer that reads it: perhaps the producers have not started yet. If all of
    them went idle it is *idle*, and the other partitions decide.
 4. A delivered value never falls. A new producer may lower the value at a position, but an
    application that has closed a window cannot open it again. So the value that a subscription
    received is kept as a clamp, in a frame that is durable before the application sees the value
    (`engine/decide/consuming/watermark_offer`). The clamp holds until a seek begins a new epoch: a
    seek means to count again.
 5. A consumer of several partitions has the least of their values. An unavailable partition cannot
    be read, so there is no value while it is away.

Because the value is never stored for a reader, it needs no upkeep and cannot go stale: the same
rows give the same value in every process, after every crash, and in a copy of the store.

A message is *late* if its event time is below the watermark that its own partition had just before
it (`rows`). That is not stored either; it is computed from columns when asked for.

Source: apache/pulsar#12267; spec/watermarks 2, 4 to 8, 10.

Contents:

    rows    the rows that move a partition's watermark, and the messages that came late
    value   the watermark at a position
"""
