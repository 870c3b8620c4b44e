"""Which files and rows hold the committed messages of a topic at one LSN.

SQL and Spark read by its answer; neither DuckDB nor Spark is imported here.

Contents:

    build         making the relation of a topic
    checks        checking files before others read them by path
    frames        rows that lie in journal frames, read a piece at a time
    hidden        rows that no marker makes visible
    instants      instants as DuckDB and Delta hold them
    positions     positions as the API takes and gives them
    progress      a stream over a topic: where it stands, what comes next, what is lost
    reader        an open store, for those who read its files
    relation      Relation: the files and rows of a topic's committed messages
    remote_rows   files that DuckDB cannot read itself, as tables
    scans         a relation in pieces that any process can read by itself
    spans         which stretch of each partition is wanted
    stored        every stored row of a topic, and what folds and manifest say of it
"""
