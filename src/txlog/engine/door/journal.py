"""The journal and its witness, byte by byte."""

from txlog.engine.storage.frame import (
    JournalName,
    RawFrame,
    Witness,
    WitnessRecord,
    boot_bytes,
    list_journals,
)
from txlog.engine.storage.journal import FLUSH_LOCK, Journal, JournalMoved
from txlog.engine.upkeep.checkpoint.dump import (
    describe_frame,
    inspect_file,
    journal_frames,
    manifest_files,
)
