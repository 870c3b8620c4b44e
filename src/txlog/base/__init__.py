"""Words, values and their text: modules that every other room may import.

A module here knows no store and imports nothing of txlog except its neighbours, `txlog.errors` and
`txlog.clock`. Other rooms may import all modules.

Contents:

    arguments         the error for an argument of the wrong type
    choices           the words that calls take, as types: isolation, types of subscriptions, …
    ids               names and ids: their structure, their text, the rules for names
    logs              what happens to a store, for the standard `logging`
    message_columns   the columns of messages: their types, their meaning, the rows that have them
    ranges            ranges and sizes as text
    rows/             the rows and answers that calls return, as types
    schemas/          typed topics: what their values are, as records and columns
    settings          the settings of a store and the hard limits, each with its name and value
    startup/          tricks that make the program start fast
    suggest           the nearest existing name, for the hints of errors
    text/             Arrow columns to the text of records and rows, and back
    times             instants and durations: their text, Python's values for them, the local zone
"""
