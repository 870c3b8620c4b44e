"""The bytes of a store: every file, what it begins with, how it is written and checked.

No module here knows what a message means.

Contents:

    bucket/          files of the delayed index
    checked          reading published files with every byte checked
    chunks           the file of a large message, chunk by chunk
    columns          the columns of a stored row
    disk/            every file effect, and what replaces it in tests
    journal/         frames, the journal and the witness
    late_values      values decoded when they are asked for
    manifest         the manifest: the file that names every live file of a checkpoint
    remote           sealed files that were moved to a directory or to S3
    row_groups       the row groups of a file that a user gets
    scratch          bytes put aside for a while, in a file without a name
    section          what one process at a time does, under a lock file
    segment          segment files: the rows of a ledger as bytes, and back
    segment_reader   reading a segment file: checked groups, decoded once, wanted rows cut out
    staged           files waiting to be adopted, written as their rows come
    user_files       files outside any store that the user named
"""
