"""The limits of a server: how much of each resource a client, a role and all clients may use.

Contents:

    budget    memory: reservations, and the clients that wait for room
    limits    the limits themselves, connections, quotas, rates and file descriptors
    shares    the shares of a role in transactions, keys and topics
"""
