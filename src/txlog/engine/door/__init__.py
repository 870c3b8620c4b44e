"""The door of the engine: the only modules of it that other packages import.

Each module is one subject and consists of imports only. Its names are those that `client`, `lake`,
`serve`, `page`, `functions` and `cli` may use of that subject. Everything else in the engine can be
moved, merged or renamed without a change outside. Add a name here when code outside needs it; a
test fails if no code outside uses a name.

A name is imported when its caller first uses it (`base/startup/lazy`), so a door costs nothing at
start-up.

Contents:

    catalog        topics, partitions and subscriptions, and finding them by name
    consuming      sessions of consumers, cursors, and the decisions that lease and acknowledge
    delayed        the index of delayed messages, its buckets, promotion and cancelling
    disk           files of the store, files of the user, offloaded files
    facts          facts as the journal stores them: ops, sets of message ids, columns of rows
    history        checkpoints, and past changes of keys, cursors, transactions and the catalog
    identity       creating a store, and the file that identifies it
    integrity      damage: finding it, recording it, repairing it
    journal        the journal and its witness, byte by byte
    keys           transaction keys: connecting, which fences the previous holder; finding, deleting
    liveness       processes that hold a lock of the store, and clocks that can be trusted
    reading        messages, ranges of a topic, and waiting for new messages
    relation       the files and rows that hold the committed messages of a topic
    segments       files of rows, and the manifest that names them
    sending        sessions of producers, routing, and the decisions that store messages
    space          trimming, compaction, offloading, removing files that nothing names
    staging        batches of any size: staged by many processes, stored by one frame
    store          the store as an open handle: views, decisions, and news from other processes
    topics         decisions about topics and subscriptions, their policies and schemas
    transactions   handles on open transactions, their states, and how they end
    watermarks     the assertions of producers, and the watermarks of readers and consumers
"""
