"""The bytes of a store: the format of every file, and how it is written, read and checked.

Modules here know files, frames and rows; `model` and `folds` know what an op means.

Contents:

    bucket           files of the delayed index: bitmaps, segments, writing and reading
    checked          reading published files with every byte checked
    chunks           the file of a large message, chunk by chunk
    columns          the columns of a stored row
    disk/            every file effect, behind a protocol that tests can replace
    frame            the bytes of the journal: frames, their file, the witness
    journal          the chain of files: following, appending, flushing, recovering
    late_values      values decoded at first use
    manifest         the manifest: the file that names every live file of a checkpoint
    remote           sealed files that were moved to a directory or to S3
    segment          segment files: the rows of a ledger as bytes, and back
    segment_reader   reading a segment file: checked groups, decoded once; rows as slices
    user_files       files outside any store that the user named
"""
