"""Facts as the journal stores them: ops, sets of message ids, the columns of rows."""

from txlog.engine.model.idset import IdSet, before, each
from txlog.engine.model.ops import (
    CATALOG,
    NEW_HOLDER,
    UNNAMED,
    Acked,
    Adopted,
    Appended,
    Bucket,
    BufferAppended,
    CommitMarker,
    Component,
    ConsumerAttached,
    ConsumerDetached,
    Id,
    Mark,
    PendingAborted,
    PendingAcked,
    PendingCommitted,
    Run,
    TxnEnded,
    TxnOpened,
    decode_ops,
    members,
    peers,
)
from txlog.engine.model.schema import (
    INSTANT,
    KIND_DATA,
    MESSAGE,
    PROPERTY_MAP,
    TXN_ABORT,
    TXN_COMMIT,
    W_IDLE,
    W_SET,
    W_SNAPSHOT,
)
from txlog.engine.model.tail import repeat_runs
from txlog.engine.storage.bucket import IDS
from txlog.engine.storage.columns import schema_of
