"""HTTP of `txlog serve`: Pulsar's admin API, messages by REST, WebSocket and server-sent events,
metrics, and a live page.

Contents:

    admin/        the endpoints of Pulsar's admin API, and ours beside them
    application   the ASGI application: routes, errors, headers
    core/         what all endpoints share: declarations, answers, rates, the gate
    data/         messages: REST, WebSocket, server-sent events
    listener      the address, and the application behind it
    page/         the live page
"""
