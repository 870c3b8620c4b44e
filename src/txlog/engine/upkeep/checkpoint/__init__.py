"""The checkpoint: what the journal holds is written to files.

Contents:

    checkpoint   a checkpoint from its cut to the removal of what it replaced
    dump         what a file of a store holds, shown without the store
    history      the history of transactions, kept after its journal has gone
    quarantine   recording that a file is damaged, and checking it before its return
    seal         a closed ledger becomes one Parquet file
    unlinking    removing files that have lost their names
"""
