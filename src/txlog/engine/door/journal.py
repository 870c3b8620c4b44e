"""The journal and its witness, byte by byte."""

from txlog.engine.storage.journal.file import JournalName, RawFrame, list_journals
from txlog.engine.storage.journal.journal import FLUSH_LOCK, Journal, JournalMoved
from txlog.engine.storage.journal.witness import Witness, Witnessed, boot_bytes
from txlog.engine.upkeep.checkpoint.dump import (
    describe_frame,
    inspect_file,
    journal_frames,
    manifest_files,
)
