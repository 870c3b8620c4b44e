"""Policies of a subscription: redelivery and dead letters; each may be set, changed, taken away.

    ack_timeout_ms       what is not acknowledged for so long comes again
    nack_delay_ms        a negatively acknowledged message comes again after this
    nack_backoff_max_ms  the delay doubles with each redelivery, up to this
    max_redeliver_count  one that came again more often goes to the dead-letter topic
    dead_letter_topic, retry_topic   names, else <topic>-<subscription>-DLQ and -RETRY

Source: spec/transactions 3, 9.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.model.ops import SubscriptionPolicySet
from txlog.engine.view.view import View
from txlog.errors import InvalidArgument
from txlog.ids import TopicName
from txlog.settings import INSTANT_MS_MAX

Policies = Mapping[str, int | str | None]
LEAST = {
    "ack_timeout_ms": 1000, "nack_delay_ms": 0, "nack_backoff_max_ms": 0, "max_redeliver_count": 0,
}  # fmt: skip
TOPICS = {"dead_letter_topic": "DLQ", "retry_topic": "RETRY"}


def policy_ops(
    subscription: int, topic: str, name: str, policies: Policies
) -> list[SubscriptionPolicySet]:
    """The ops of policies of a subscription; topic: its full name. Raises InvalidArgument."""
    for policy, value in policies.items():
        _check(policy, value)
        if policy in TOPICS and isinstance(value, str) and TopicName.parse(value).full == topic:
            raise InvalidArgument(
                f"{policy} is the topic itself: its messages would come again for ever",
                hint="name another topic", topic=TopicName.parse(topic).short,
            )  # fmt: skip
    if policies.get("max_redeliver_count") is not None:
        derived_topic(topic, name, "DLQ")  # one that is too long is refused now
    return [SubscriptionPolicySet(subscription, *item) for item in policies.items()]


def _check(policy: str, value: int | str | None) -> None:
    if policy in TOPICS:
        if value is not None:
            if not isinstance(value, str):
                raise InvalidArgument(f"{policy} is {value!r}, it must be a topic", code=203)
            TopicName.parse(value).check_new()
        return
    if policy not in LEAST:
        raise InvalidArgument(
            f"{policy} is not a policy of subscriptions", hint=", ".join([*LEAST, *TOPICS])
        )
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{policy} is {value!r}, it must be an integer", code=203)
    if not LEAST[policy] <= value <= INSTANT_MS_MAX:
        raise InvalidArgument(f"{policy} is {value}, the least is {LEAST[policy]}", code=203)


def derived_topic(topic: str, name: str, suffix: str) -> str:
    """`<topic>-<subscription>-<suffix>` in the namespace of the topic; raises InvalidArgument."""
    of = TopicName.parse(topic)
    return TopicName.parse(f"{of.tenant}/{of.namespace}/{of.name}-{name}-{suffix}").full


def set_policies(view: View, topic: Topic, held: Subscription, policies: Policies) -> Decision:
    """Decide policies of a subscription, None to take one away; answers those it has then."""
    ops = policy_ops(held.number, topic.name, held.name, policies)
    known = {**held.policies, **policies}
    answer = {name: value for name, value in known.items() if value is not None}
    changed = [op for op in ops if held.policies.get(op.name) != op.value]
    return Decision([*changed], None, True, answer)
