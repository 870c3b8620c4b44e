"""`txlog serve`: a store for stock clients of Apache Pulsar and for HTTP, one more process of it.

The server holds no truth. What is durable is in the store, by the calls that the library offers;
what is in its memory (connections, permits, what was delivered and not acknowledged) is lost
without harm, so it may be killed at any moment, and several may serve one store.

Contents:

    app       one asyncio process: its listeners, and how it stops
    auth/     who a caller is, and what it may do
    core/     what every listener knows: the store, who may do what
    http/     Pulsar's admin API, messages by REST and WebSocket, events, metrics
    pulsar/   Pulsar's binary protocol
"""
