"""The checkpoint and recovery: how the journal becomes files, and how a store opens again.

The journal has all ops, and state is the fold over them. With the journal alone, opening the store
would replay its whole history, slower every day. A checkpoint writes the state and the rows of the
journal up to one LSN, the cut, into files of their own. From then on opening costs the live state
and the journal since the cut.

                       cut
    journal  ───────────┼──────────────▶
    files         1     │     2                   journal file 1 is closed at the cut; 2 takes over
                        │
    manifest g     ─────┼──── valid ────┐
    manifest g+1        │               └─ published: from here on stores open with g+1
                        │
    writers      ═══════╪═════════════════════▶   held up at the cut only
    checkpoint          ├ dumps ─ state ─ parts ─ history ─ manifest ─ unlink ─▶

The steps:

 1. The cut, under the write lock: flush, publish an empty new journal file, switch to it. Other
    processes append to it at once. This process also writes the dumps of its loaded folds that have
    changed, because they are about to move on.
 2. Without any lock: dumps of the folds that are not loaded, made from the previous dump and the
    ops since; one state file with all the dumps; a *part*, one Arrow file, for every ledger that
    gained rows; the history of transactions and the logs of changes.
 3. The manifest g+1. It names every file of the checkpoint with its size and checksum, and the LSN
    of the cut. The link of this file commits the checkpoint.
 4. Files that only g-1 needed are removed, once the readers' grace period is over.

A published file never changes: a temporary name, fsync, read back, link to a name never used
before, fsync of the directory. So a file is never half new.

    a crash after            leaves                                       the next opening uses
    ──────────────────────   ──────────────────────────────────────────   ─────────────────────────
    1  the cut               two journal files, manifest g                g, then both files
    2  parts, dumps          files that nothing names                     g; they are swept
    3  the manifest          g or g+1, each complete                      whichever exists
    4  some of the unlinks   files that nothing names                     g+1; they are swept

Two manifests are kept, with the journals that the older one needs. If the newest turns out damaged,
the previous manifest and the journal lead to the same state; that costs time and loses nothing. For
the same reason no checkpoint is written while a dump that it would name is missing: it would push
out the very manifest from which the dump can be made again.

Generation numbers are never reused. A checkpoint that died may have left files with its number in
their names, and a manifest may have been lost; the next one takes the number after the highest
found in any name. Otherwise a reader might mistake a leftover for the file the manifest means.

A ledger has many parts. When it is closed and all its rows are in parts, `seal` rewrites them as
one Parquet file, and a frame switches to it. A sidecar's ledger waits until no open transaction has
rows in it, and is then sorted in commit order.

Recovery is not a mode. Opening a store and writing to it take the same steps every time, and
usually find nothing to do:

    open     newest good manifest (cut M) ─▶ its catalog ─▶ the journal's frames up to the witness
             other folds are loaded from their dumps on first use
    write    under the lock, read to the end of the chain (LSN V), and compare with D, the
             greatest LSN known to be durable: from M, the witness, or any frame

    V = D, then zeros          clean
    V > D, then zeros          a writer died before its flush; the frames are whole and count
    V > D, a flush was cut     the next writer copies the frames to a new journal file: pages of a
           short or failed     failed flush may say "clean" without having reached the disk (R13)
    V ≥ D, then other bytes    a torn frame. No caller got an answer for it. It is copied
                               to quarantine/ and zeroed
    V < D                      frames reported as durable cannot be read. That is damage, not a
                               crash: Corruption with file, byte and LSN, and nothing is overwritten

Why compare with D: after a power cut, a valid chain that ends early looks exactly like a clean one.
Without D the store would silently open without its last messages. Each frame's header has the LSN
that its writer knew to be durable. So a later frame proves that an earlier one was lost, even if
the witness is lost too (R8).

After a boot, or a failed flush, frames that were answered without a flush may be missing. So a
lossy recovery first writes one durable frame: it aborts every open transaction, and skips the ids
that the missing frames may have given out (R9, R10).

A process that finds a damaged file records it (`quarantine`). The partition still yields every good
entry, then an error at the bad one; the rest of the store keeps working. Repair is a command of its
own (`engine/upkeep/repair`), because it may lose messages and a user has to agree.

An automatic checkpoint runs in its own thread and may fail: the failure becomes a note, and the
next try waits. Only the duration of the next opening depends on it.

Source: spec/reliability 2.3, 2.4, 3; Law 5.

Contents:

    checkpoint   a checkpoint from its cut to the removal of the files that it replaced
    dump         the contents of a file of a store, shown without the store
    history      the history of transactions, kept after its journal is deleted
    quarantine   recording that a file is damaged, and checking it before its return
    seal         a closed ledger becomes one Parquet file
"""
