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
from txlog.engine.storage.segment import (
    DICTIONARY_BYTES,
    RECORD,
    FileRef,
    Records,
    arrow_module,
    gathered,
    piece_rows,
)
from txlog.engine.storage.segment_reader import SegmentReader
