"""The files and rows with the committed messages of a topic at one LSN.

SQL and Spark read these files; neither DuckDB nor Spark is imported here. Code outside the engine
imports it from `engine/door/relation`.

Contents:

    build       making the relation of a topic
    files       checking files before others read them, and rows in place of unreadable ones
    frames      rows in journal frames, read a piece at a time
    positions   positions in the form of the API, and last messages
    progress    a stream over a topic: its position, its next batch, lost messages
    reader      an open store, for readers of its files: SQL, Spark, completion and shells
    relation    Relation: the files and rows of committed messages; spans of partitions
    scans       a relation in pieces that any process can read by itself
    stored      every stored row of a topic, and the claims of folds and manifest about it
"""
