"""Decisions about topics and subscriptions: create, delete, change, their policies and schemas."""

from txlog.engine.decide.topics.availability import partition_number, set_offline, set_online
from txlog.engine.decide.topics.catalog import (
    NO_POLICIES,
    DeletedSubscription,
    DeletedTopic,
    accept_clock,
    add_schema,
    check,
    create_subscription,
    create_topic,
    delete_schemas,
    delete_subscription,
    delete_topic,
    delete_unused,
    find,
    roll,
    scale_coordinators,
    set_isolation,
    set_setting,
    update_topic,
)
from txlog.engine.decide.topics.catalog import Value as SettingValue
from txlog.engine.decide.topics.catalog import set_policies as set_topic_policies
from txlog.engine.decide.topics.ledgers import TrimmedPartition
from txlog.engine.decide.topics.policies import (
    ALERT,
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
from txlog.engine.decide.topics.rename import RenamedTopic, rename_topic
from txlog.engine.plan.derived import (
    find_state,
    function_key,
    function_name,
    function_of_key,
    import_key,
    keys_named,
    lasting_name,
    names_of,
    state_topic,
)
from txlog.engine.plan.policies import delay_policy
from txlog.engine.plan.records import ValueSchema, records_as, records_for, schema_in, typing_of
