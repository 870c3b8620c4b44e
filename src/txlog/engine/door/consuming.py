"""Consuming: sessions of consumers, cursors, and the decisions that lease and acknowledge."""

from txlog.engine.decide.consuming.acknowledge import AckAnswer, Find, by_partition
from txlog.engine.decide.consuming.dead_letters import DEAD, MoveResult, RetryOptions
from txlog.engine.decide.consuming.lease import (
    UNACKED_MAX,
    ReturnResult,
    negative_acknowledge,
    redeliver,
)
from txlog.engine.decide.consuming.seek import SeekAnswer, seek
from txlog.engine.decide.consuming.skip import ALL, SkipLimit, past_ttl, skip
from txlog.engine.folds.cursor import BEFORE_ALL, Cursor, covers
from txlog.engine.model.leases import Seen
from txlog.engine.plan.ack_sets import (
    backlog,
    checked_run,
    first_entry,
    is_trimmed,
    ledger_entries,
    messages_in,
    through,
)
from txlog.engine.plan.consuming.choice import active_consumer
from txlog.engine.plan.runs import runs_of_ids, runs_of_table
from txlog.engine.session.consuming.acknowledge import (
    Acknowledgeable,
    Through,
    acknowledge_later,
    acknowledge_runs,
    acknowledge_together,
    acknowledge_together_later,
    check_received,
    ids_of,
    runs_of,
)
from txlog.engine.session.consuming.ahead import Ahead
from txlog.engine.session.consuming.dead_letters import reconsume_later
from txlog.engine.session.consuming.membership import Membership, check_options
from txlog.engine.session.consuming.receive import Guard, Receiving, Still
