"""Consuming: sessions of consumers, cursors, and the decisions that lease and acknowledge."""

from txlog.engine.decide.consuming.acknowledge import AckAnswer, Find, by_partition
from txlog.engine.decide.consuming.dead_letter_retry import (
    RETRIED,
    RetryAnswer,
    origin_topic,
    retries_of,
)
from txlog.engine.decide.consuming.dead_letters import (
    EXCEPTION,
    ORIGIN_MESSAGE_ID,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    REDELIVERY_COUNT,
    MoveResult,
    home,
    target_name,
)
from txlog.engine.decide.consuming.lease import (
    UNACKED_MAX,
    ReturnResult,
    negative_acknowledge,
    redeliver,
)
from txlog.engine.decide.consuming.position import ALL, SeekAnswer, SkipLimit, past_ttl, seek, skip
from txlog.engine.folds.cursor import BEFORE_ALL, Cursor
from txlog.engine.model.idset import covers
from txlog.engine.model.leases import Seen
from txlog.engine.plan.ack_sets import (
    backlog,
    backlog_by_ledger,
    checked_run,
    first_entry,
    is_trimmed,
    ledger_entries,
    messages_in,
    runs_of_ids,
    runs_of_table,
    through,
)
from txlog.engine.plan.consuming.choice import active_consumer
from txlog.engine.plan.derived import DEAD
from txlog.engine.session.consuming.acknowledge import (
    Acknowledgeable,
    acknowledge_later,
    acknowledge_runs,
    runs_of,
)
from txlog.engine.session.consuming.consumer import ConsumerSession
from txlog.engine.session.consuming.dead_letter_retry import (
    RetryOptions,
    Selection,
    retry,
    unsettled,
)
from txlog.engine.session.consuming.many_topics import Topics, TopicsSession
from txlog.engine.session.consuming.session import LastIds, Session
