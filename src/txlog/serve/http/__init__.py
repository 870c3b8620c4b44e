"""HTTP of `txlog serve`: Pulsar's admin API, messages by REST, WebSocket and server-sent events,
metrics, and a live page.

Contents:

    admin/        the endpoints of Pulsar's admin API, and our own ones
    application   the ASGI application: routes, errors, headers
    core/         parts that all endpoints share: declarations, answers, limits, context
    data/         messages: REST, WebSocket, server-sent events
    listener      the address, and the application that answers there
    page/         the live page
"""
