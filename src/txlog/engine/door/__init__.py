"""The door of the engine: the only modules of it that other packages import.

Each module is one subject and consists of imports alone: its names are what `client`, `lake`,
`serve`, `page`, `functions` and `cli` may use of that subject. Everything else in the engine can be
moved, merged or renamed without a look outside. A name enters a door when somebody outside needs
it, and a test removes it from here when nobody does.

A name is imported when its caller first uses it (`base/startup/lazy`), so a door costs nothing at
start-up.

Contents:

    catalog        topics, partitions and subscriptions, and finding them by name
    consuming      sessions of consumers, cursors, and the decisions that lease and acknowledge
    delayed        the index of delayed messages, its buckets, promotion and cancelling
    disk           files: those of the store, those of the user, and those that lie elsewhere
    facts          facts as the journal stores them: ops, sets of message ids, columns of rows
    history        checkpoints, and past changes of keys, cursors, transactions and the catalog
    identity       making a store, and what its own files say it is
    integrity      damage: finding it, recording it, repairing what can be repaired
    journal        the journal and its witness, byte by byte
    keys           transaction keys: connecting one, which fences its previous holder
    liveness       processes that hold a lock of the store, and clocks that can be trusted
    reading        messages, ranges of a topic, and waiting for what comes next
    relation       the files and rows that hold the committed messages of a topic
    segments       files of rows, and the manifest that names them
    sending        sessions of producers, routing, and the decisions that store messages
    space          trimming, compaction, offloading, and removing files that nothing names
    staging        batches of any size: staged by many processes, stored by one frame
    store          the store as an open handle: its view, decisions, and waiting for news
    topics         decisions about topics and subscriptions, their policies and schemas
    transactions   handles on open transactions, their states, and how they end
    watermarks     the assertions of producers, and what follows for readers and consumers
"""
