"""Delayed delivery: which messages are due by now, and which are still to come.

A message may carry `deliver_at`: a shared subscription does not get it before then. The log is in
order of arrival and delivery is in order of time, so something has to sort. Keeping the waiting
messages in memory, as a priority queue, would cost every process the whole queue at start; reading
the log again at each look would cost a scan of everything not yet acknowledged. Hence an index: for
each delayed message its time and its id, sorted by time.

One rule keeps it harmless: **the log decides what exists, the cursor what is left, and the index
only when.** An extra id is dropped when the cursor is checked. A damaged file of the index is
thrown away and built again from the log.

There is one index for a partition, not one for a subscription, since the time belongs to the
message. Its parts are ranges of positions, one after the other:

    position in the partition ────────────────────────────────────────────────────▶
    ├──── bucket 3 ────┼── bucket 5 ──┼──── bucket 6 ────┼───── mutable ─────┤
      a file, sorted     a file         a file             in memory, from ops
      by time

    inside a bucket, by time:   │ 09:00 to 09:05 │ 09:05 to 09:10 │ 09:10 to ... │   segments
                                    due: read        next           not read

    mutable   the newest ids, folded from the ops that appended them; dumped with a checkpoint
    bucket    a published file with ranges of time as row groups, so that a look reads only the
              due ones; also bitmaps of its ids, which reads of the log leave out

A message sent in a transaction enters at the commit: its id is not known before. If its time has
passed by then, it does not enter.

When mutable has ids of enough ledgers, or enough ids, it is sealed into a bucket. Neighbouring
buckets are merged when there are too many. A bucket that is mostly due is written again without the
due part. A bucket is dropped when it is due as a whole, acknowledged by every subscription, or
trimmed from the log. Each step writes its file first and then switches by one frame, which is
decided on the state of that moment (`engine/decide/topics/buckets`, `engine/upkeep/delayed`). A
process that dies in between leaves a file that nothing names.

A look for a subscription asks for messages that are due at a *cutoff*: now, or one tick later where
the policy is not strict. It searches in two places, and remembers its position in both:

    mark      in the log: everything below is acknowledged, held, leased, or not due yet
    pointer   in the index: everything below is passed over, or was delivered from there

    t0   the log         1  2  D  4  5  D' 7  │ 8  9  ...           D due at 10:05, D' at 11:00
                                              mark
         delivered       1, 2, 4, 5, 7        D and D' were passed over: the index has them

    t1   10:06           the index, from the pointer: D is due, below the mark, and not leased
         delivered       D, then 8, 9 from the mark on

So each look (`due`) polls the index for messages that have become due below the mark. Then it reads
forward from the mark and leaves out messages that the index lists as not due. It changes nothing.
Neither position moves over a message that was not taken, so a failed look (a full disk, a crash, a
consumer without room) is simply repeated. A returned message moves the mark back, as on any
subscription. A seek, or ids that the index may have lost, moves it back to mark-delete.

The parts, and the failure without each:

 1. Without the mark: every look reads the log from the subscription's position, and ten million
    messages that wait for tomorrow make each `receive` of today a scan.
 2. Without the pointer: every poll of the index begins at the first id that was ever due.
 3. Without the bitmaps: reading forward has to fetch the time of each row to know whether to leave
    it out. With them it is a subtraction of sets.
 4. Without `unindexed` (the ranges where the index is known to lack something): a lost bucket would
    deliver its messages too early, since a message outside the index counts as not delayed. In
    such a range each row's own time is read, or the bucket is built again first.

Clocks. The cutoff is a time of the wall clock, and wall clocks differ and get set. The index
remembers the greatest time that it ever left out as past. A process whose clock is behind that
reads rows one by one, since a time that was past for the writer may not be past for it. A clock
that has jumped ahead in this boot is not trusted (`engine/plan/clock_trust`): it would deliver the
whole index at once.

A process holds one index per partition in memory: of each bucket the footer, the segments that are
due, and the bitmaps once a read needs them. Nothing is read before a caller needs it, and polling
removes nothing. `upcoming` looks the other way: it lists and counts messages that are not due yet.

Source: apache/pulsar#16763; spec/delayed 1, 3 to 7.

Contents:

    due        which messages of a partition are due for a subscription
    index      the delayed messages of one partition in a process: sealed buckets, and mutable
    upcoming   delayed messages as columns, for listing, counting and picking
"""
