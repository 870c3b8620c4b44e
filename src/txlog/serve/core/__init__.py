"""What every listener of a served store knows: the store, the options, who may do what.

Contents:

    address     HOST:PORT as an option says it, and what was bound
    authority   who a client is and what it may do
    service     the store and the options, for all listeners
"""
