"""Pulsar's binary protocol: stock clients of Apache Pulsar connect to the store.

    bytes ── wire ──► frame ── commands ──► handler of its kind (connection, frame) ──► the store

**How a command is added**: a function `(connection, body, rest) -> None` or a coroutine function in
the module of its room, and its line in that module's `HANDLERS`, by the command's name; `commands`
joins these tables. A plain function is done when it returns, so what a client sends after it comes
after it: SEND, ACK, FLOW join queues. One that has much to do returns a coroutine, and the next
command of its client waits for that. A coroutine function runs as a task beside what follows,
because its client waits for an answer anyway; what it raises is answered as ERROR with the
request's id, or by `answer` of its room where the protocol has another command for that. State of a
client that a room needs is in `connection.rooms`, by the room's name; a room that has something to
undo when the connection ends puts a coroutine function into `connection.farewells`.

Before it touches the store a handler asks `connection.may(action, topic)`, which raises NotAllowed.

Contents:

    batches      messages of a SEND as rows of Arrow, and rows as what a consumer is sent
    chunks       the chunks of one message that have come so far
    commands     which function answers which command
    connection   one client: its frames, its answers, its end
    consumers    SUBSCRIBE, FLOW, ACK, SEEK and the like
    deliveries   received rows as the messages that a consumer is sent
    encrypted    messages that only their clients can read
    failure      errors of the store as errors of the protocol
    fields       what a client may write into the fields of commands
    groups       what all clients want of the store in the moment, done together
    ids          the ids on the wire
    listener     the address, and the connections
    members      a consumer of the store, and the consumers of a client that it is
    messages     the messages of the protocol
    producers    PRODUCER, SEND, CLOSE_PRODUCER
    schemas      schemas of a topic, by their versions
    sends        the queues of what clients send, and how it is stored
    topics       names, lookup, partitions, topics of a namespace
    transactions   begin, registration, end; keys
    watches      clients that are told of topics by a pattern
    wire         frames
"""
