"""The Python API, shaped like Pulsar's.

A client on a store, its administration, and the handles that the client gives out: one package for
each subject.

Door: aio, aio/client, aio/handles, aio/worker, answers/changes, answers/delayed, answers/health,
answers/inspect, answers/integrity, answers/keys, answers/lists, answers/metric_family,
answers/metrics_text, answers/overview, answers/topics_and_txns, answers/watermarks, client,
consuming/consumer, consuming/open, open, reading/reader, sending/bulk, sending/producer,
topics/created, topics/subscription, topics/topic.

Contents:

    admin           Admin: the operations of administration, reached as `client.admin`
    aio/            the same handles for programs built on an event loop
    answers/        what a store looks like, as plain values; its metrics
    client          Client: everything a program does with a store begins here
    consuming/      consumers
    copy            a copy of a store as it is at one LSN, while others keep writing
    open            `init` and `open`
    reading/        readers, messages, and what a session knows of its watermark
    sending/        producers, large messages and bulk batches
    topics/         handles of topics and subscriptions
    wait            `client.wait`: until a store has become what was asked for
"""
