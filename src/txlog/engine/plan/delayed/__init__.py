"""Delayed delivery: which messages are due by now, and which are still to come.

A message may carry `deliver_at`: until then a shared subscription does not get it. The log is in
order of arrival and delivery is in order of time, so something has to sort. Keeping the waiting
messages in memory, as a priority queue, would cost every process the whole queue at start; reading
the log again at each look would cost a scan of everything not yet acknowledged. Hence an index: for
each delayed message its time and its id, sorted by time.

One rule keeps it harmless: **the log says what exists, the cursor says what is left, and the index
says only when.** An id missing from the index costs time, never a message. An id too many is
dropped when the cursor is asked. A damaged file of the index is thrown away and built again from
the log.

There is one index for a partition, not one for a subscription, since the time belongs to the
message. Its parts are ranges of positions, one after the other:

    position in the partition ────────────────────────────────────────────────────▶
    ├──── bucket 3 ────┼── bucket 5 ──┼──── bucket 6 ────┼───── mutable ─────┤
      a file, sorted     a file         a file             in memory, from ops
      by time

    inside a bucket, by time:   │ 09:00 to 09:05 │ 09:05 to 09:10 │ 09:10 to ... │   segments
                                    due: read        next           not read

    mutable   the newest ids, folded from the ops that appended them; dumped with a checkpoint
    bucket    a published file with ranges of time as row groups, so that a look reads what is due
              and no more; also bitmaps of its ids, for what must be left out

A message sent in a transaction enters at the commit: its id is not known before. One whose time has
passed by then does not enter at all.

When mutable has ids of enough ledgers, or enough ids, it is sealed into a bucket. Neighbouring
buckets are merged when there are too many. One that is mostly due is written again without that
part, and one that is due altogether, acknowledged by every subscription, or trimmed from the log is
dropped. Each step makes its file first and then switches by one frame, which is decided again on
the state of that moment (`engine/decide/topics/buckets`, `engine/upkeep/delayed`). A process that
dies in between leaves a file that nothing names.

A look for a subscription asks for messages that are due at a *cutoff*: now, or one tick later where
the policy is not strict. It has two places to look, and remembers where it stands in both:

    mark      in the log: everything below is acknowledged, held, in a hand, or not due yet
    pointer   in the index: everything below is passed over, or was delivered from there

    t0   the log         1  2  D  4  5  D' 7  │ 8  9  ...           D due at 10:05, D' at 11:00
                                              mark
         delivered       1, 2, 4, 5, 7        D and D' were passed over: the index has them

    t1   10:06           the index, from the pointer: D is due, below the mark, and in no hand
         delivered       D, then 8, 9 from the mark on

So each look (`due`) polls the index for what has become due below the mark, then reads forward from
the mark and leaves out what the index says is not due. It changes nothing. Neither place moves over
a message that was not taken, so a look that comes to nothing (a full disk, a crash, a consumer that
had no room) is simply repeated. A message that comes back to the subscription pulls the mark back,
like any other return; a seek, and anything the index may have lost, pulls it back to mark-delete.

What goes wrong without the parts:

 1. Without the mark: every look reads the log from the subscription's position, and ten million
    messages that wait for tomorrow make each `receive` of today a scan.
 2. Without the pointer: every poll of the index begins at the first id that was ever due.
 3. Without the bitmaps: reading forward has to fetch the time of each row to know whether to leave
    it out. With them it is a subtraction of sets.
 4. Without `unindexed` (the ranges where the index is known to lack something): a lost bucket would
    deliver its messages too early, since what is not in the index counts as not delayed. In such a
    range each row's own time is read, or the bucket is built again first.

Clocks. The cutoff is a time of the wall, and clocks differ and get set. The index remembers the
greatest time that it has ever left out as past; a process whose clock is behind that reads rows one
by one, since what was past for the writer may not be past for it. A clock that has jumped ahead is
not believed until it is confirmed (`engine/plan/clock_trust`), or it would deliver the whole index
at once.

In memory a process holds one timetable for a partition: per bucket its footer, the segments that
are due, its bitmaps once a read passes by. Nothing is read before it is asked for, and polling
takes nothing out. `upcoming` is the view from the other side: what is still to come, for listing
and counting, without moving anything.

Source: apache/pulsar#16763; spec/delayed 1, 3 to 7.

Contents:

    due               what of a partition is due for a subscription
    timetable         the delayed index of one partition, as a process holds it
    timetable_parts   its parts: sealed buckets, and the mutable one above them
    upcoming          delayed messages as columns, for listing, counting and picking
"""
