"""A report of a store for people: one page of HTML that needs nothing but itself.

    overview    figures of the folds, all of one moment (txlog.answers.overview)
    throughput  messages by time, by txlog's own SQL, up to the LSN of that moment
    page        the document: sections of charts, and the tables behind them

The page has no script, loads nothing and forbids loading by its own policy.
"""
