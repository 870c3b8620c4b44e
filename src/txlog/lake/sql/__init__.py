"""SQL over a store with DuckDB, which only this package imports.

Contents:

    client_query     Query: SQL over the store of a client
    duck             DuckDB itself: the only module that imports it
    faults           errors of JSON, with the message that is to blame
    json_members     members of JSON objects as columns, where a topic has no schema
    lists            relations other than messages: the lists, as Arrow tables
    macros           bytes in SQL: text, JSON, and the message that is not JSON
    messages         a Relation written as SQL
    parts            rows of open parts and journal frames, read when DuckDB requests them
    query            the relations that a query names, their views, and the rows of the query
    records          records of typed topics as SQL: their type, and conversion of older ones
    segments         the files of a topic: their columns, row groups and rows
    spark_script     `views --spark`: a script for PySpark without txlog
    this             `this`: the relation for an inspected object, or the rows of a file
    views_script     `views`: committed messages as plain SQL over files, without txlog
    where            the condition of --where, on columns and fields of records
"""
