"""Reading: messages, ranges of a topic, and waiting for new messages."""

from txlog.engine.folds.buffer import Buffer, Marker, find_held, find_marker, live_rows
from txlog.engine.plan.reading.compacted import CompactedRange, is_newest, take, take_again
from txlog.engine.plan.reading.dispatch import (
    NO_MESSAGES,
    RECEIVED,
    Piece,
    Plan,
    fetch,
    first_of,
    id_of,
    plan,
    received,
    requests_of,
    rows_in,
    rows_of,
    taken_apart,
    visible_end,
    without,
)
from txlog.engine.plan.reading.newest import (
    PLACED,
    ScanSegment,
    fetched,
    in_ledgers,
    in_log,
    last_of_each,
    newest,
)
from txlog.engine.plan.reading.ranges import (
    ReadRange,
    check_retained,
    compacted_range,
    end_of,
    is_settled,
    last_compacted,
    last_message,
    partition_of,
    range_before,
    resolve_bound,
    resolve_range,
    start_of,
    stop_after,
)
from txlog.engine.plan.reading.uncommitted import START, PreviewPosition, check_isolation, preview
from txlog.engine.relation.positions import Where, bound_of, last_ids, only_one
from txlog.engine.session.reading.message import Decoder, Message, messages
from txlog.engine.session.reading.pause import (
    BY_TIME,
    POLL_SECONDS_MAX,
    REST_SECONDS_MAX,
    Concern,
    Quiet,
    Rest,
    Waiting,
    least,
    until,
    until_appended,
    until_told,
)
from txlog.engine.session.reading.unread import Part, Received, Unread
