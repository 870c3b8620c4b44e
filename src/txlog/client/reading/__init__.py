"""Reading committed messages without a subscription.

Contents:

    preview          the newest messages as HTML, for notebooks
    reader           Reader, for one topic, and Readers, for several
    record_columns   the column `record` of received messages of typed topics
    sql_result       SqlResult: the rows of a SELECT, as columns, tuples or a drawing
    table_view       TableView: the newest value of each key of a topic, in memory
"""
