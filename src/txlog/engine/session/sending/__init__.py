"""The sending side: producer sessions, queued messages, and values of any length.

Contents:

    access     the right of a producer to send to a topic, shared or exclusive
    lanes      what a producer keeps for its messages that wait in transactions
    large      a value of any length: a file of chunks, then one frame that names the file
    message    messages as rows, and the receipts of a message, a batch and a large message
    outbox     the queues of messages sent without waiting, their futures, and their thread
    producer   ProducerSession: rows, encoding, transactions and watermarks of one producer
    router     how a producer chooses the partition of a message that names none
"""
