"""The files and rows that hold the committed messages of a topic, for SQL and Spark."""

from txlog.engine.relation.build import content, contents, segments
from txlog.engine.relation.frames import Frames
from txlog.engine.relation.hidden import HIDDEN
from txlog.engine.relation.instants import bounded
from txlog.engine.relation.progress import (
    Places,
    are_rows_between,
    check_there,
    first_place,
    first_places,
    indexes_of,
    last_before,
    last_places,
    next_places,
    watermark_at,
)
from txlog.engine.relation.reader import RelationReader, open_relations
from txlog.engine.relation.relation import ALL, COMMITTED, Content, Relation, Source, adopted_lsns
from txlog.engine.relation.remote_rows import dataset_of, numbered_rows
from txlog.engine.relation.scans import (
    MESSAGES,
    UNCOMMITTED,
    Ends,
    Scan,
    grouped,
    read_scan,
    scans_of,
)
from txlog.engine.relation.spans import Span, Wanted
from txlog.engine.relation.stored import (
    ROW_COLUMNS,
    ROWS,
    StoredFrames,
    StoredRows,
    part_rows,
    paths_below,
    place,
    stored,
)
