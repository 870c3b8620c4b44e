"""Jobs: bulk work over topics, by DuckDB in this process or by Spark.

A job is a function of a client and an engine; it returns what `txlog job NAME --json` prints. What
it computes is the same on either engine, and so is what it changes.

Contents:

    audit          `audit`: whether what is stored is what the program goes by
    engine         what a job asks of an engine: SQL over messages and over stored rows
    export_delta   `export-delta`: committed messages as a Delta table
    export_files   exporting a topic, as one file or as a directory that grows
    import_files   importing files: rows become messages, once
    lateness       `lateness`: how long after their events messages came
    loads          what is loaded in bulk: which files, which columns
    local          the engine in this process: DuckDB
    refused        which line of a file DuckDB would not take, and why
    replay         `replay`: messages of a range sent to another topic, once
    rows           columns of a source as columns of messages, in SQL
    upkeep         `compact` and `rebuild-delayed`
"""
