"""An open store: following the journal, and the write path.

Many processes share a store and no server stands between them. They share one file that is only
ever appended to, the journal, and two locks. To change something, a process takes the write lock,
reads the frames that other processes appended since it last looked, decides on that state and
appends one frame. Then it releases the write lock, and makes the frame durable under the flush
lock. A frame happens as a whole or not at all: a commit over forty partitions is one frame, and so
is a seek, or the move of a message to its dead-letter topic. Upkeep writes files as well, but a
file counts only once a frame or a manifest names it.

One call that must be durable, while another process reads:

    the caller's thread               journal and witness                    another process reads
    ─────────────────────────────     ──────────────────────────────────     ─────────────────────
    1 mutex     one thread            41 │ 0 0 0          durable 41         up to 41
    2 lock      one process           .
    3 follow    read newer frames     .
    4 sweep     overdue transactions  .
    5 decide    ops, rows, answer     .
    6 encode    to bytes              .
    7 append    pwrite at the end     41 │ 42 │ 0 0 0     durable 41         up to 41
    8 apply     the folds take it     .
    9 unlock    others append         41 │ 42 │ 43 │ 0    durable 41         up to 41
    10 flush    mark, fdatasync       41 │ 42 │ 43 │ 0    43 being flushed   up to 41
    11 witness  raised                41 │ 42 │ 43 │ 0    durable 43         up to 43
    12 answer                         .

Steps 10 and 11 need the mutex only to begin: other threads read, decide and append meanwhile.

The reason for each step:

 1. Mutex. The folds are plain Python objects; two threads would change them under each other's
    feet. It is also where threads share a flush: the thread that gets in runs every waiting call.
 2. Lock (`flock`). Two writers would append at the same offset. The kernel frees it when its holder
    dies, so no process has to guess whether the holder is still alive.
 3. Follow. Deciding on an old state would assign an entry twice, or acknowledge a message that was
    trimmed. If a dead writer left damage at the end of the journal, this step also repairs it.
 4. Sweep. Nothing runs in the background, so a transaction that timed out an hour ago is still open
    until some call looks. The sweep ends it in a frame of its own, before the call can meet it.
 5. Decide. A pure function of the view and the time. It raises an error, or returns the ops and
    rows to append. Because it changes nothing, a refusal needs no undoing.
 6. Encode, and read the ops back once. This is the last step that can refuse: a value that cannot
    be read again must not get into the journal, where every later reader would stop at it.
 7. Append. One write at the known end, into space that was filled with zeros before. A frame
    carries its LSN, its offset and the CRC of the frame before it, so half a frame is not a frame.
 8. Apply. The folds take the ops only now that they are in the journal. The other way round, a full
    disk would leave state in memory that no other process can ever see.
 9. Unlock. A flush takes as long as all other steps together, and appending does not wait for the
    disk. So other processes append meanwhile, and one flush carries the commits of several
    processes.
10. Flush, under `flush.lock`. Its holder flushes everything that is in the journal by then; the
    chain of CRCs makes frame 43 prove frame 42, and fdatasync covers the file. A process that waits
    for the lock reads the witness between two tries, and needs no flush once the witness covers its
    frame. The holder first marks the witness (LSN 43 is being flushed), and then calls fdatasync.
    The mark exists because a flush that failed may succeed the second time without having written
    anything; a mark that outlives its flush, while no process holds the lock, makes the next writer
    copy the frames to a new file instead of trusting the old pages. Frames older than this
    process's descriptor of the file are first written again in place, so that the kernel reports
    their write-back errors to this descriptor.
11. Witness. Readers go no further than its LSN, so no application acts on a message that a power
    cut can still take back. It is never flushed itself: an older copy is still true. A process that
    is about to write also reads frames above the witness. If a caller waits for such a frame to be
    durable (the frame is marked *awaited*), this process answers no call before it is, except one
    whose answer shows nothing that could be lost (`Decision.waits`; docs/design/transactions).
12. Answer. The outcome stands by now, so a failure to unlock is only a note in `reports`.

While a process waits for the write lock it follows the journal (step 3) again and again, so that
little is left to read under the lock. The writer of a frame read this way may still take it back,
if its append fails after the last byte. So the reader checks under the lock whether its last frame
still exists. A writer takes a frame back only under the flush lock, and only if no flush has
covered the frame.

Not every call waits for a flush. Beginning a transaction, sending in one, leases and plain
acknowledgements stop after step 8: they survive the death of any process, because the bytes are
with the kernel, but perhaps not a power cut. The next flush by any process covers them.

The state that remains when the call ends early:

    at            an exception                       kill -9                     a power cut
    ───────────   ────────────────────────────────   ─────────────────────────   ───────────────────
    1 to 4        nothing of the call                nothing of the call         nothing of the call
    5, 6          refused, this call alone           nothing                     nothing
    7             cut back to zeros: not done;       part of a frame, which      any of its sectors;
                  else OutcomeUnknown                the next writer cuts; or    cut the same way
                                                     all of it: then it stands
    8             OutcomeUnknown, view void          the frame stands            the frame, or not
    9             the frame stands, unflushed: the   the frame stands            the frame, or not
                  next flush by any process
                  covers it
    10            OutcomeUnknown, view void          the frame and the mark:     the frame, or not
                                                     copied to a new file
    11            OutcomeUnknown: it is durable,     the same                    a durable frame,
                  and visible once a witness                                     an older witness
                  covers it
    12            it is done                         done, without an answer     done

An interrupt (Ctrl-C, or a signal handler that raises) may end any step, also between two lines of
Python. Four rules make that harmless:

 1. The view counts as void from the first step that changes it to the last. The next call that
    finds it void throws it away and loads it again from the files, so no call continues on half a
    change (R28).
 2. Append and apply both happen, or the caller gets OutcomeUnknown, unless it is certain that
    nothing was written. An exception that is no TxlogError, as signal handlers raise, passes
    through with a note.
 3. A call that leaves frees mutex and locks twice. It asks the mutex whether its thread holds it,
    and unlocks every lock file that it may hold: an interrupt can come before a flag is set.
 4. A caller that leaves takes its undecided call out of the queue. If a leader took a call and
    could not finish it, the call goes back to its own thread, which leads next.

Group commit (R12): one thread leads, takes the lock once, and runs steps 5 to 8 for each waiting
call in turn, since the second decision must see the effect of the first. Then come one flush, one
witness record and all the answers. A refused call fails alone. Calls that arrive while a thread
flushes are decided and appended meanwhile, as a group that waits for the next flush; whichever of
its threads comes first begins it. A failed flush is the outcome of the calls whose thread flushed.
The other groups go on like groups of other processes: their frames are copied to a new file, and
if they are not there any more, the outcome is unknown.

A flush that goes on without the mutex is a Flight (storage/journal). `flock` lets another thread of
the same process in, so the Flusher keeps them apart: a thread that needs the flush lock waits for
the landing. So does a thread that loads the view again, since that closes the descriptors.

The order of locks is mutex, write lock, flush lock; never the other way round. A flight keeps only
the flush lock, and needs no other one to land.

A dry run goes through the same decisions over a view of its own, and its frames go nowhere.

Source: spec/reliability 2.2 and 3; Laws 2 and 3.

Contents:

    appender    from decisions to frames of the journal, which the folds then take; the sweep before
    confirmed   places outside the store that its user has named, for reading and for removing
    counters    delivered delayed messages and work on their index, for metrics
    identity    `txlog.toml`, the making of a new store, whether it is still there
    liveness    which process holds a lock file now; files that a running reader pins
    store       Store: a view that follows the journal, the write path, group commit; its mutex
    wakeups     events that end the waits of a store handle early
"""
