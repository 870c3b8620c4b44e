"""Space: files arrive here that others wrote, get smaller, move elsewhere, and go.

Contents:

    adopt              staged files become ledgers of a topic
    compact            sidecars without dead rows, in commit order
    newest_keys        which message of each key is the newest, in little memory
    notes              `_README` in the directory of each topic
    offload            sealed files move to a directory or a bucket
    retention          trimming by policy or on demand, and expiring what is past its time
    sweep              removing files that nothing names
    topic_compaction   the newest message of each key, in files that outlive the log
"""
