"""Files of rows, and the manifest that names them."""

from txlog.engine.storage.checked import said_by_arrow
from txlog.engine.storage.manifest import (
    ChangeRef,
    Manifest,
    changes_of,
    generations,
    manifest_path,
    read_manifest,
)
from txlog.engine.storage.row_groups import DICTIONARY_BYTES, gathered
from txlog.engine.storage.segment import RECORD, FileRef, arrow_module, piece_rows
from txlog.engine.storage.segment_reader import SegmentReader
