"""Reading committed messages without a subscription.

Contents:

    reader           Reader, for one topic, and Readers, for several
    record_columns   the column `record` of received messages of typed topics
    search           from the newest messages of a topic back, within a budget
    sql_result       SqlResult: the rows of a SELECT, as columns, tuples or a drawing
    table_view       TableView: the newest value of each key of a topic, in memory
"""
