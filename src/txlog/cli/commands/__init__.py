"""The commands: one module for each noun or large verb.

Each command is its options over one call of the API. `produce`, `consume` and `run` have packages
of their own.

Contents:

    admin         checkpoint, coordinators, keys, partitions
    admin_space   free disk space: compact, offload, confirm, trim, gc; and accept-clock
    admin_stats   shows coordinators, sidecars, pending acknowledgements and locks
    bench         `bench`
    check         `check`: the health of a store, in a monitor's words and exit codes
    completion    completion scripts, printed or installed
    config        the settings of a store and of the user
    delay         delayed messages: list them, deliver or cancel them, maintain their index
    demo          `demo`
    inspect       how `inspect` shows the object that a word or file names
    job           `job`: audit, lateness, replay, compact and the others; which engine runs them
    man           manual pages: installed, shown, found
    metrics       `metrics`: text for Prometheus, or a file for its node exporter
    policy        policies of alerts, delayed delivery, retention, schemas and watermarks
    query         `query`: SQL over the messages of a store
    report        `report`: a page of HTML
    segment       the files that hold a topic's rows
    serve         `serve`: the store for clients of Apache Pulsar, and by HTTP
    spark         arguments for spark-submit, and a job to start from
    status        the output of `status`
    store         init, copy, restore, diff, status, inspect, du
    sub           subscriptions, their dead letters, and `top`
    token         tokens for clients of `txlog serve`
    topic         topics, and their schemas
    transfer      `import` and `export`
    txn           transactions
    verify        verify, doctor and repair
    views         `views`: a script that shows the messages of a store to a stock DuckDB
    wait          `wait`: until conditions on a store hold
    watermark     event-time watermarks
"""
