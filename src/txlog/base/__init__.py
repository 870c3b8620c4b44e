"""Words, values and their text: what every other room may import.

A module here knows no store and imports nothing of txlog but its neighbours, `txlog.errors` and
`txlog.clock`. All of it is open to the other rooms.

Contents:

    arguments   the error for an argument of the wrong type
    ids         names and ids: what they are, how they are written, which are refused
    ranges      ranges, times, durations and sizes as text
    rows/       the rows and answers that calls return, as types
    schemas/    typed topics: what their values are, as records and columns
    settings    the settings of a store and the hard limits, each with its name and value
    startup/    how the program starts fast
    suggest     which name was probably meant, for the hints of errors
    text/       columns of messages and of queries as text
"""
