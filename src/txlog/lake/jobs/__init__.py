"""Jobs: bulk work over topics, by DuckDB in this process or by Spark.

A job is a function of a client and an engine; it returns what `txlog job NAME --json` prints. What
it computes is the same on either engine, and so is what it changes.

Contents:

    audit          `audit`: whether the stored rows agree with the store's own records
    engine         what a job asks of an engine: SQL over messages and over stored rows
    export_files   exporting a topic, as one file or as a directory that grows
    import_files   importing files: rows become messages, once; the schema that columns imply
    lateness       `lateness`: how long after their events messages were published
    local          the engine in this process: DuckDB
    mirrors/       a topic as a table that grows, for engines without txlog
    replay         `replay`: messages of a range stored in another topic, once
    sources/       the files that a load takes its messages from
    upkeep         `compact` and `rebuild-delayed`
"""
