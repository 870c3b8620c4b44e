"""Jobs: bulk work over topics, by DuckDB in this process or by Spark.

A job is a function of a client and an engine; it returns the object that `txlog job NAME --json`
prints. Both engines give the same results and changes, except for the order of stored messages.

Contents:

    audit          `audit`: whether the stored rows agree with the store's own records
    engine         the interface of an engine: SQL over messages and over stored rows
    export_files   exports a topic, as one file or as a directory that grows
    import_files   imports files: rows become messages, once; the schema that columns imply
    lateness       `lateness`: the delays from events to publication
    local          the engine in this process: DuckDB
    mirrors/       a topic as a table that grows, for engines without txlog
    replay         `replay`: messages of a range stored in another topic, once
    sources/       the files from which a load takes its messages
    upkeep         `compact` and `rebuild-delayed`
"""
