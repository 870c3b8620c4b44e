"""Sessions: the state that a producer, consumer, reader or transaction keeps between calls.

A session belongs to one handle of one process. It keeps send queues, positions, messages taken
ahead and watermarks in memory, and it turns each call of its handle into a decision or a question.
State that must survive the process is in the store. When a consumer dies, its session is lost, and
its peers return the messages that were leased to it.

The Python library (`txlog.client`) and the server (`txlog.serve`) import them from `engine/door`.

Contents:

    consuming/      joining a subscription, leases, messages taken ahead, acknowledgements
    reading/        the message, waiting, the watermark of a reader or a consumer
    sending/        access to a topic, the queue of sends without waiting, large messages
    transactions/   an open transaction, and calls that name one by its id or key
"""
