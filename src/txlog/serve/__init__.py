"""`txlog serve`: a store for stock clients of Apache Pulsar and for HTTP.

The server is one more process that uses the store, through the same calls as the library. Durable
data is in the store only. Its memory holds connections, permits and unacknowledged deliveries.
Losing these does no harm, so the server may be killed at any moment, and several servers may serve
one store.

Door: app, auth, auth/access, auth/keys, auth/tokens, core/sockets, core/tls, limits/limits.

Contents:

    app       the process: one event loop, its listeners, start and stop
    auth/     authentication and access rules
    core/     parts that all listeners share: connections, names, the store
    http/     Pulsar's admin API, messages by REST and WebSocket, events, metrics
    limits/   how much of each resource clients may use
    pulsar/   Pulsar's binary protocol
"""
