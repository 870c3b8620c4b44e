"""Batches of any size: files staged by many processes, then stored by one frame."""

from txlog.engine.decide.sending.adopt import (
    StoredBatch,
    check_token,
    last_number,
    recorded,
)
from txlog.engine.plan.staging import ROWS_AT_ONCE, Staged, StagePlan, Stager, job_name
from txlog.engine.upkeep.space.adopt import (
    adopt_files,
    append_rows,
    remove_job,
    remove_tagged,
    stage_dir,
)
