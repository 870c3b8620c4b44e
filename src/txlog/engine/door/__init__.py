"""The door of the engine: the only modules of it that other packages import.

Each module is one subject and consists of imports alone. `client`, `lake`, `serve`, `page`,
`functions` and `cli` may use these names, and no others of the engine. So the rest of the engine
can be moved, merged or renamed without a look outside. A door gets a name when another room needs
it; a test fails for a name that no other room uses.

A name is imported when its caller first uses it (`base/startup/lazy`), so a door costs nothing at
start-up.

Contents:

    catalog        topics, partitions and subscriptions, and finding them by name
    consuming      sessions of consumers, cursors, and the decisions that lease and acknowledge
    delayed        the index of delayed messages, its buckets, promotion and cancelling
    disk           files of the store, files of users, and remote files
    facts          ops, sets of message ids, and the columns of rows
    history        checkpoints, and past changes of keys, cursors, transactions and the catalog
    identity       making a store, and reading its identity
    integrity      damage: finding it, recording it, repairing what can be repaired
    journal        the journal and its witness, byte by byte
    keys           transaction keys: connecting one, which fences its previous holder
    liveness       processes that hold a lock of the store, and clocks that can be trusted
    reading        messages, ranges of a topic, and waiting for changes
    relation       the files and rows that hold the committed messages of a topic
    segments       files of rows, and the manifest that names them
    sending        sessions of producers, routing, and the decisions that store messages
    space          trimming, compaction, offloading, and removing files that nothing names
    staging        batches of any size: staged by many processes, stored by one frame
    store          the store as an open handle: views, decisions, and news from other processes
    topics         decisions about topics and subscriptions, their policies and schemas
    transactions   handles on open transactions, their states, and how they end
    watermarks     the assertions of producers, and the watermarks of readers and consumers
"""
