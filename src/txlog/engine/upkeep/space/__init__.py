"""Space: adopting, compacting, moving and removing files.

Contents:

    adopt              staged files become ledgers of a topic
    compact            sidecars without dead rows, in commit order
    offload            sealed files move to a directory or a bucket
    retention          trimming by policy or on demand, and expiring old messages
    sweep              removing files that nothing names
    topic_compaction   the newest message of each key, in files that outlive the log
"""
