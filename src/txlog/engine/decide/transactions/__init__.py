"""Transactions: how their messages become visible at once, and how one owner ends them.

A transaction spans partitions, topics and subscriptions. Its messages must appear everywhere or
nowhere, its acknowledgements must hold everywhere or nowhere, and a reader must never see half of
it, whichever process dies. Holding the messages back in memory would lose them with the process,
and would let no other process join; writing them into the partition would need every reader to skip
what might still be aborted.

So each partition has a second log, the sidecar. A send in a transaction appends to the sidecar,
where no reader looks. The commit writes one row into the partition itself: the marker. A reader
that comes to a marker goes to the sidecar and takes the transaction's rows from there.

    T1 sends a, b; T2 sends x; a plain send of m2; T1 commits; T2 is aborted

    partition  ──●─────────────────────●─────────────────◆──────────●──────▶ time
                 m1                    m2                C(T1)      m3
                                                         │
    sidecar    ──────●────●────●────────────────●────────┼─────×───────────▶
                     a    x    b                b'       │     T2 aborted
                     T1   T2   T1               T1       │
                     └─────────┴────────────────┘◀───────┘ the marker leads here

    a reader     m1, m2, a, b, b', m3       in this order, for every reader, for ever

A message of a transaction therefore has its place at the marker: its id is the marker's ledger and
entry, and its index within the transaction. Messages become visible in order of commit, not of
sending. That matters to every reader that remembers a position: once a reader has passed an entry,
nothing can appear before it. Were a, b and b' shown where they were sent, a subscription that had
passed m2 would never get them, and two readers that looked at different times would disagree.

The commit is one frame (`transaction` has the ops):

    T1  OPEN → COMMITTED                          the point of no return
    marker in partition 1, noted in its sidecar   a row in each partition that has messages
    marker in partition 2, noted in its sidecar
    acknowledgements become final                 in each cursor that T1 acknowledged on
    the key is released                           if T1 was begun under one

Since a frame happens as a whole or not at all, there is no moment in which one partition has its
marker and another does not. An abort is one frame too, and writes nothing into any partition: the
sidecar records that the rows are dead, the cursors release the acknowledgements of T1, and sealing
or compacting the ledger leaves the rows out.

No caller would ever see COMMITTING if every participant were always there. But a partition can be
taken away (`admin offline`, or a damaged file). Then the frame has all but that partition's part,
and T1 is COMMITTING. The decision stands, no time-out reverses it, and the marker follows when the
partition is back. The frame that brings the partition back has this and the other waiting markers,
so no reader sees the partition without them.

    OPEN ──commit──▶ COMMITTING ──▶ COMMITTED      ─┐ the two steps are in one frame
      └────abort───▶ ABORTING   ──▶ ABORTED        ─┘ unless a participant is away

How the parts depend on each other when something dies:

 1. The owner dies with T1 open. Nothing happens until the time-out has passed; then the next call
    that could meet T1 aborts it (`sweep`). Nothing runs in the background, and no caller sees a
    transaction that is overdue and still open.
 2. The owner dies during the commit. The frame is complete or absent. Asking for T1 by its id, or
    committing again, gives the same answer as the first time, from any process (`end`): an answer
    depends on the id, the action and the record only.
 3. The power fails. Sends in a transaction are not flushed one by one; the commit flushes them all.
    If the machine goes down before it, some of T1's rows may be lost, so the first writer after the
    boot aborts every open transaction (R9). Otherwise T1 could commit with less than it sent.
 4. An id is handed out and the frame that opened it is lost. Ids come from blocks that a durable
    frame reserved, and the rest of a block is skipped after a power cut (R10). So an id never names
    a second transaction while a client may still ask about the first.

One problem is left: two copies of a program that both believe they are the only one. A job is
started again while the first copy hangs in a long pause; then the copy wakes up and commits its
batch a second time. Time-outs do not help, because the copy's transaction may be young. A
transaction key does: the program connects under a name, and the connection has an epoch.

    copy 1    connect "etl" ──▶ epoch 7    begin T5    send ...   (pause)           commit T5
                                                           │                            ✗ it is
    copy 2                                      connect "etl" ──▶ epoch 8                 aborted
                                                one frame: epoch 8, T5 aborted "fenced"

One frame raises the epoch and aborts the open transaction of the earlier holder, so there is never
a moment with two holders. From then on epoch 7 can begin nothing (ProducerFenced), and T5 cannot be
committed. A transaction that was already decided is left to finish, since its owner may have seen
the answer. A deleted key keeps its epoch, because a copy of the program may pause through the
deletion, too.

Every operation in a transaction begins with `enter`: it finds the transaction and checks that it is
open, that the caller owns it, and that it is not overdue. The first operation may open the
transaction in its own frame.

Source: PIP-31; spec/transactions 4 to 6, 10, 11.

Contents:

    keys          transaction keys: connecting, beginning under one, fencing, deleting
    sweep         what each call does first: expire, drive on, forget
    transaction   entering a transaction, beginning and ending one, the ops of a late end
"""
