"""What every listener of a served store knows: the store, the options, who may do what.

Contents:

    acceptor    connections, from before TLS
    address     HOST:PORT as an option says it, and what was bound
    authority   who a client is and what it may do
    budget      how much memory clients have, and who waits for room
    census      which topics there are, and who is told when that changes
    descriptors   how many files may be open, and who gets how many
    exposure    who may be listened to, and how
    id_table    the ids of producers and consumers on a connection, and the state of each
    limits      what clients may use at most
    producer_names   who holds which name of a producer, and who may be beside whom
    service     the store and the options, for all listeners
    shares      what a role may have of transactions, keys and topics
    systemd     sockets that are handed over, and READY
    tasks       where background tasks begin, and what happens when one fails
    tls         certificates
    topic_patterns   regular expressions for topics, and what a match may cost
"""
