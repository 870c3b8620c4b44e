"""Space: adopting, compacting, offloading, trimming and removing files of messages.

Contents:

    adopt              staged files become ledgers of a topic
    compact            closed sidecar ledgers without dead rows, in commit order
    offload            sealed files move to a directory or an object store
    retention          trimming by policy or on demand, and expiring old messages
    sweep              removing files that nothing names; the note in each topic's directory
    topic_compaction   the newest message of each key, in files that outlive the log
"""
