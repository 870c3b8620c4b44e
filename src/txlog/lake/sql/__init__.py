"""SQL over a store with DuckDB, which only this package imports.

Contents:

    client_query     Query: SQL over the store of a client
    duck             DuckDB itself: the only module that imports it
    lists            relations that are not messages: the lists, as Arrow tables
    messages         a Relation written as SQL
    parts            Parts: the rows of open parts, read as DuckDB asks for them
    query            which relations a query names, the views that show them, its rows
    records          records of typed topics as SQL: their type, and older ones as newer
    segments         the files of a topic: their columns, row groups and rows
    spark_script     `views --spark`: a script for PySpark without txlog
    this             `this`: what an inspected thing is to SQL
    views_complete   `views --complete`: what Parquet files do not explain, resolved
    views_script     `views`: committed messages as plain SQL over files, without txlog
"""
