"""Messages over HTTP: sent and read by REST, by Pulsar's WebSocket protocol, and as events.

Contents:

    events       server-sent events: a tail of a topic
    messages     a message as JSON, ids as WebSocket writes them
    rest         sending in one transaction a request, reading
    websocket    Pulsar's producer, consumer and reader
"""
