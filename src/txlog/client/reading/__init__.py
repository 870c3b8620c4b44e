"""Reading committed messages without a subscription.

Contents:

    preview      the newest messages as HTML, for notebooks
    reader       Reader, for one topic, and Readers, for several
    table_view   TableView: the newest value of each key of a topic, in memory
"""
