"""What a producer, a consumer, a reader or a transaction keeps between calls.

A session belongs to one handle of one process. It keeps sequence numbers, send queues, leases,
messages taken ahead and watermarks in memory, and it turns each call of its handle into a decision
or a question. What must survive the process is in the store, never here: a consumer that dies
loses its session, and its peers return what it had leased.

The Python library (`txlog.client`) and the server (`txlog.serve`) are both written over sessions.

Contents:

    consuming/      joining a subscription, leases, messages taken ahead, acknowledgements
    reading/        the message, waiting, the watermark of a reader or a consumer
    sending/        access to a topic, the queue of sends without waiting, large messages
    transactions/   an open transaction, and calls that name one by its id or key
"""
