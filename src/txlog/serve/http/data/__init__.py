"""Messages over HTTP: sent and read by REST, by Pulsar's WebSocket protocol, and as events.

Contents:

    events       server-sent events: a tail of a topic
    messages     a message as JSON; sending in one transaction a request, reading; ids
    websocket    Pulsar's producer, consumer and reader
"""
