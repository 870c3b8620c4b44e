"""Decisions about topics and subscriptions: create, delete, change, their policies and schemas."""

from txlog.engine.decide.topics.availability import partition_number, set_offline, set_online
from txlog.engine.decide.topics.create import (
    NO_POLICIES,
    accept_clock,
    create_subscription,
    create_topic,
    roll,
    scale_coordinators,
    set_isolation,
    set_setting,
    update_topic,
)
from txlog.engine.decide.topics.create import Value as SettingValue
from txlog.engine.decide.topics.create import set_policies as set_topic_policies
from txlog.engine.decide.topics.deletion import (
    DeletedSubscription,
    DeletedTopic,
    delete_subscription,
    delete_topic,
    delete_unused,
)
from txlog.engine.decide.topics.policies import (
    DELAYED,
    RETENTION,
    SCHEMA,
    SPLIT_BATCHES,
    WATERMARK,
    Policies,
    PolicyGroup,
    PolicyScope,
    ScopedPolicies,
    get_policies,
    own_policies,
    remove_policies,
    scope_of,
    set_policies,
    set_scoped_policies,
)
from txlog.engine.decide.topics.policies import Value as PolicyValue
from txlog.engine.decide.topics.schemas import add_schema, check, delete_schemas, find
from txlog.engine.decide.topics.trim import TrimmedPartition
from txlog.engine.plan.policies import delay_policy
from txlog.engine.plan.records import ValueSchema, records_as, schema_in, typing_of
