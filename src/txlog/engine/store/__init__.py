"""An open store: following the journal, and the write path.

Many processes share a store and no server stands between them. They share one file that is only
ever appended to, the journal, and two locks. To change something a process takes the first, reads
what others have appended since it last looked, decides on that state and appends one frame. Then it
lets others in, and makes the frame durable under the second. A frame happens as a whole or not at
all: a commit over forty partitions is one frame, and so is a seek, or the move of a message to its
dead-letter topic. Upkeep writes files as well, but a file counts only once a frame or a manifest
names it.

One call that must be durable, while another process reads:

    the caller's thread               journal and witness                    another process reads
    ─────────────────────────────     ──────────────────────────────────     ─────────────────────
    1 mutex     one thread            41 │ 0 0 0          durable 41         up to 41
    2 lock      one process           .
    3 follow    frames of others      .
    4 sweep     what is overdue       .
    5 decide    ops, rows, answer     .
    6 encode    to bytes              .
    7 append    pwrite at the end     41 │ 42 │ 0 0 0     durable 41         up to 41
    8 apply     the folds take it     .
    9 unlock    others append         41 │ 42 │ 43 │ 0    durable 41         up to 41
    10 flush    mark, fdatasync       41 │ 42 │ 43 │ 0    43 being flushed   up to 41
    11 witness  says so               41 │ 42 │ 43 │ 0    durable 43         up to 43
    12 answer                         .

Why each step is there:

 1. Mutex. The folds are plain Python objects; two threads would change them under each other's
    feet. It is also where threads share a flush: whoever gets in runs every call that is waiting.
 2. Lock (`flock`). Two writers would append at the same offset. The kernel frees it when its holder
    dies, so nobody ever has to guess whether the holder is still alive.
 3. Follow. Deciding on an old state would give an entry out twice, or acknowledge a message that
    was trimmed. Whatever a dead writer left at the end of the journal is put in order here too.
 4. Sweep. Nothing runs in the background, so a transaction that timed out an hour ago is still open
    until somebody looks. It is ended in a frame of its own, before the call can meet it.
 5. Decide. A pure function of the view and the time. It refuses, or it says what to append; because
    it changes nothing, a refusal needs no undoing.
 6. Encode, and read the ops back once. This is the last step that can refuse: a value that cannot
    be read again must not get into the journal, where every later reader would stop at it.
 7. Append. One write at the known end, into space that was filled with zeros before. A frame
    carries its LSN, its offset and the CRC of the frame before it, so half a frame is not a frame.
 8. Apply. The folds take the ops only now that they are in the journal. The other way round, a full
    disk would leave state in memory that no other process can ever see.
 9. Unlock. A flush takes as long as all the rest together, and appending needs no disk. So others
    append meanwhile, and one flush carries the commits of several processes.
10. Flush, under `flush.lock`. Whoever has it flushes everything that is in the journal by then; the
    chain of CRCs makes frame 43 prove frame 42, and fdatasync covers the file. Whoever waits for it
    looks at the witness between two tries, and needs no flush once that covers its frame. First the
    witness is marked (LSN 43 is being flushed), and then comes fdatasync. The mark is there because
    a flush that failed may succeed the second time without having written anything; a mark that
    outlives its flush, while nobody holds the lock, makes the next writer copy the frames to a new
    file instead of trusting the old pages. Frames that are older than this process's descriptor of
    the file are written again in place first, so that their write-back errors are ours to hear.
11. Witness. Readers go no further than it says, so nobody acts on a message that a power cut can
    still take back. It is never flushed itself: an older copy is still true. A process that has
    read a frame above it, because it was about to write, answers no call before that frame is
    durable, if somebody is waiting for it to be (frames say so: they are *awaited*).
12. Answer. What has been decided stays decided, so a failure to unlock is a note.

While a process waits for the first lock it follows the journal (step 3) again and again, so that
little is left under the lock. A frame it reads then may still be taken back, if its append fails
after the last byte: under the lock it looks whether the last one is still there, and taking back
asks, under the flush lock, whether a flush has found the frame whole.

Not every call waits for a flush. Beginning a transaction, sending in one, leases and plain
acknowledgements stop after step 8: they survive the death of any process, because the bytes are
with the kernel, but perhaps not a power cut. The next flush of anyone takes them along.

What is left when the call ends early:

    at            an exception                       kill -9                     a power cut
    ───────────   ────────────────────────────────   ─────────────────────────   ───────────────────
    1 to 4        nothing of the call                nothing of the call         nothing of the call
    5, 6          refused, this call alone           nothing                     nothing
    7             cut back to zeros: not done;       part of a frame, which      any of its sectors;
                  else OutcomeUnknown                the next writer cuts; or    cut the same way
                                                     all of it: then it stands
    8             OutcomeUnknown, view void          the frame stands            the frame, or not
    9             the frame stands, unflushed: the   the frame stands            the frame, or not
                  next flush of anyone covers it
    10            OutcomeUnknown, view void          the frame and the mark:     the frame, or not
                                                     copied to a new file
    11            OutcomeUnknown: it is durable,     the same                    a durable frame,
                  and shown once a witness says so                               an older witness
    12            it is done                         done, and nobody was told   done

An interrupt (Ctrl-C, or a signal handler that raises) may end any step, also between two lines of
Python. Four rules make that harmless:

 1. The view counts as void from the first step that changes it to the last. Whoever finds it void
    throws it away and loads it again from the files; nobody goes on with half of a change (R28).
 2. Append and apply both happen, or the caller hears OutcomeUnknown, unless it is certain that
    nothing was written. An exception that is not ours, as handlers raise, passes with a note.
 3. Mutex and locks are freed by whoever leaves, twice over, by what is really held and not by what
    was noted: an interrupt can come between taking a lock and noting that it was taken.
 4. A call that nobody has decided leaves the queue with its caller. One that a leader took and
    could not finish goes back to its own thread, which leads next.

Group commit (R12): one thread leads, takes the lock once, and runs steps 5 to 8 for each waiting
call in turn, since the second decision must see what the first one did. Then comes one flush, one
witness, and all the answers. A refused call fails alone; a failed flush is everybody's, of every
process that waited for it. Whoever has an answer goes on with it at once, although the next leader
has the mutex by then: those that come while it flushes are the group after its own.

The order of locks is mutex, write lock, flush lock; never the other way round.

A dry run goes through the same decisions over a view of its own, and its frames go nowhere.

Source: spec/reliability 2.2 and 3; Laws 2 and 3.

Contents:

    appender   from decisions to frames of the journal, which the folds then take
    confirmed   places outside the store that its user has named, for reading and for removing
    counters   what this process counted, for its metrics
    identity   `txlog.toml`, the making of a new store, whether it is still there
    liveness   who holds a lock file now, by the kernel's word
    mutex      one call at a time in a process, whatever ends the call
    pins       files that a running reader needs stay
    space      room on the disk, and the reserve that lets cleaning finish
    store      Store: a view that follows the journal, the write path, group commit among threads
    sweeper    whether the sweep before a call has anything to look for
    wakeups    what ends the waits of a store handle before their time
"""
