"""The files and rows with the committed messages of a topic at one LSN.

SQL and Spark read these files; neither DuckDB nor Spark is imported here.

Contents:

    build         making the relation of a topic
    checks        checking files before others read them by path
    frames        rows in journal frames, read a piece at a time
    hidden        rows that no marker makes visible
    instants      instants in the form of DuckDB and Delta
    positions     positions in the form of the API
    progress      a stream over a topic: its position, its next batch, lost messages
    reader        an open store, for readers of its files
    relation      Relation: the files and rows of a topic's committed messages
    remote_rows   files that DuckDB cannot read itself, as tables
    scans         a relation in pieces that any process can read by itself
    spans         the range of each partition that a reader asks for
    stored        every stored row of a topic, and the claims of folds and manifest about it
"""
