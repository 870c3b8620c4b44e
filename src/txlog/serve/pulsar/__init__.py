"""Pulsar's binary protocol: stock clients of Apache Pulsar connect to the store.

    bytes ── wire ──► frame ── listener ──► handler of the command ──► the store

**How to add a command**: write a function `(connection, body, trailer) -> None`, or a coroutine
function, in the module of its subject. Add it to that module's `HANDLERS` under the command's name;
`listener` joins these tables.

- A plain function has finished when it returns, so the client's next command runs after it. SEND,
  ACK and FLOW put their work into queues.
- A plain function may return a coroutine if it has much to do. The client's next command waits for
  that coroutine.
- A coroutine function runs as a task of its own, because its client waits for the answer anyway. If
  it raises, the connection answers ERROR with the request's id. Where the protocol has another
  command for failures, the handler sends that one itself.

A module keeps its state of a client in `connection.state`, under its own name. A module that must
clean up when the connection ends appends a coroutine function to `connection.on_close`.

A handler calls `connection.may(action, topic)`, which raises NotAllowed, before it uses the store.

Contents:

    batches      messages of a SEND as rows of Arrow, rows as messages to a consumer, chunks
    connection   one client: its frames, its answers, its end
    consumers    SUBSCRIBE, FLOW, ACK, SEEK and the other commands of consumers
    deliveries   received rows as the messages that a consumer gets
    encrypted    messages that only their clients can read
    failure      errors of the store as errors of the protocol
    group_commit   SENDs and transaction commands of all clients, stored together
    ids          message ids of the protocol
    listener     the address, its connections, the table of commands
    members      a consumer of the store, and the client's consumers that share it
    messages     the messages of the protocol, and the valid values of their fields
    producers    PRODUCER, SEND, CLOSE_PRODUCER
    schemas      schemas of a topic, by their versions
    topics       names, lookup, partitions, topics of a namespace, watchers
    transactions   begin, registration, end; keys
    wire         frames
"""
