"""Parts that all listeners of a server share: connections, names, the store and its options.

Contents:

    acceptor         accepts connections, and counts each before TLS
    catalog          the topics and subscriptions of the store, and their changes
    id_table         the ids of producers and consumers on a connection, and the state of each
    producer_names   the connected producers by topic and name
    service          the store and the options for all listeners, background tasks
    sockets          addresses, sockets from systemd, and the check that no socket is exposed
    tls              certificates
"""
