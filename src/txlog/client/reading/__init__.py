"""Reading committed messages without a subscription.

Contents:

    reader       Reader, for one topic, and Readers, for several
    search       from the newest messages of a topic back, by key, text and time, within a budget
    sql_result   SqlResult: the rows of a SELECT, as columns, tuples or a drawing
    table_view   TableView: the newest value of each key of a topic, in memory
"""
