"""The Python API, modelled on Pulsar's: Client, Admin, and a package of handles for each subject.

Users import it as `txlog` and `txlog.aio`. Other rooms import only the modules listed next.

Door: aio, aio/client, aio/handles, aio/worker, answers/changes, answers/delayed, answers/health,
answers/inspect, answers/integrity, answers/keys, answers/lists, answers/metric_family,
answers/metrics_text, answers/overview, answers/topics_and_txns, answers/watermarks, client,
consuming/consumer, consuming/open, databases/together, difference, open, reading/reader,
reading/record_columns, restore, search, sending/bulk, sending/producer, topic_copy, topics/created,
topics/schemas, topics/subscription, topics/topic.

Contents:

    admin           Admin: administration, reached as `client.admin`
    aio/            the same handles for programs built on an event loop
    answers/        descriptions of a store as plain values; its metrics
    client          Client: an open store, from which all handles come
    consuming/      consumers
    copy            copying a store as of one LSN, while other processes keep writing
    databases/      transactions that commit together with a database of the user
    difference      `txlog diff`: what differs between two stores
    open            `init` and `open`
    reading/        readers and table views
    restore         `restore`: a copy becomes a store in its place
    search          from the newest messages of a topic back: by key, text and time
    sending/        producers and bulk batches
    topic_copy      `copy_topic`: a topic in another store, each message once
    topics/         handles of topics and subscriptions
    wait            `client.wait`: waiting until conditions are met
"""
