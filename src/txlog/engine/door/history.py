"""Checkpoints, and the history of keys, cursors, transactions and the catalog as rows."""

from txlog.engine.upkeep.changes.log import RELATIONS, of_living, read
from txlog.engine.upkeep.changes.rows import (
    CATALOG_CHANGES,
    CURSOR_CHANGES,
    KEY_CHANGES,
    SCHEMAS,
    Collected,
    name_of,
    snapshot,
    tables,
)
from txlog.engine.upkeep.checkpoint.checkpoint import CheckpointReport, checkpoint, maintenance
from txlog.engine.upkeep.checkpoint.history import component_log, transaction_rows
