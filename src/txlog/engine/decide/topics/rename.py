"""Renaming a topic: one frame changes its name, and everything in the store that has the old one.

The folds know a topic by its number: ledgers, subscriptions, cursors, open transactions, policies,
schemas, delayed messages and watermarks go with it. Its files stay in their directory, because a
published file never moves. The frame also makes three changes:

    derived topics  dead-letter topics, retry topics and open windows of functions whose names are
                    derived from the old name (`plan/derived`) get names derived from the new one;
                    so do topics whose names are derived from theirs
    policies        a policy of any subscription that names a renamed topic gets the new name
    subscriptions   if the dead-letter or retry topic of a subscription is renamed, and the name
                    was derived from a topic that keeps its own, the subscription gets a policy
                    with the new name, and so goes on using that topic

So after any crash either all of this is done or nothing, and a message that is given up or
postponed goes to the topic where the earlier ones are. A dead letter names its origin in a
property, which does not change: the topic keeps its earlier names (`dead_letter_retry`). Open
windows are not renamed alone, because their function would not find them.

A topic stays in its namespace, whose policies apply to it. Names of the store's system and of
sidecars are no names of topics (`TopicName.check_new`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from txlog.base.ids import TopicName
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.policies import TOPICS
from txlog.engine.folds.catalog import (
    Subscription,
    Topic,
    directory_of,
    find_subscription,
    topic_path,
)
from txlog.engine.model.ops import Op, SubscriptionPolicySet, TopicRenamed
from txlog.engine.plan.derived import (
    DEAD,
    RETRY,
    derived_text,
    derived_topic,
    home_of_state,
    is_in_use,
    states_of,
)
from txlog.engine.view import View
from txlog.errors import AlreadyExists, NotAllowed


class RenamedTopic(msgspec.Struct, frozen=True, gc=False):
    """The result of a rename.

    topic, before: its short names now and before
    directory:     of its files, below the store
    along:         (name before, name now) of topics with derived names that were renamed, too
    subscriptions: TOPIC/SUBSCRIPTION whose policies name another topic now
    """

    topic: str
    before: str
    directory: str
    along: list[tuple[str, str]]
    subscriptions: list[str]


class _Names:
    """The topics to rename, and the new name for each name in a policy."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.of: dict[int, str] = {}  # topic -> its new full name, in the order of the ops
        self.now: dict[str, str] = {}  # full name before -> now, also of topics still to be made

    def add(self, topic: Topic, name: TopicName) -> None:
        """Rename a topic, and those whose names are derived from its name."""
        self._check_free(topic, name)
        self.of[topic.number] = self.now[topic.name] = name.full
        catalog = self.view.catalog
        for subscription in map(catalog.subscriptions.__getitem__, topic.subscriptions):
            for policy, suffix in TOPICS.items():
                before = derived_text(topic.name, subscription.name, suffix)
                policy_topic = subscription.policies.get(policy)
                if policy_topic is not None and TopicName.parse(str(policy_topic)).full != before:
                    _check_other(topic, subscription, policy, str(policy_topic), name)
                    continue
                number = catalog.by_name.get(before.casefold())
                is_made = number is not None and catalog.topics[number].name == before
                if not is_made and "max_redeliver_count" not in subscription.policies:
                    continue  # a name that is too long has no effect
                derived = derived_topic(name.full, subscription.name, suffix)
                self.now[before] = derived.full
                if number is not None and is_made and number not in self.of:
                    self.add(catalog.topics[number], derived)
            for suffix, state in [*states_of(catalog, topic, subscription.name)]:
                if state.number not in self.of:
                    self.add(state, derived_topic(name.full, subscription.name, suffix))

    def _check_free(self, topic: Topic, name: TopicName) -> None:
        catalog = self.view.catalog
        there = catalog.by_name.get(name.full.casefold(), topic.number)
        if there != topic.number:
            raise AlreadyExists(
                f"topic {_short(catalog.topics[there])} exists already, and {_short(topic)} cannot "
                "get its name",
                hint="choose another name, or rename that topic first",
                topic=name.short,
            )


def rename_topic(view: View, topic: Topic, name: TopicName) -> Decision[RenamedTopic]:
    """Decide another name of a topic; durable.

    raises: AlreadyExists (it is the name of another topic, also after case folding, or a derived
            name is), NotAllowed (another namespace; a subscription would give its messages to its
            own topic; open windows of a function), InvalidArgument
    """
    before = TopicName.parse(topic.name)
    if (name.tenant, name.namespace) != (before.tenant, before.namespace):
        own = TopicName(before.tenant, before.namespace, name.name).full
        raise NotAllowed(
            f"{before.short} cannot move to the namespace {name.tenant}/{name.namespace}: other "
            "policies apply there",
            hint=f"name it in its own namespace, as {TopicName.parse(own).short}",
            topic=before.short,
        )
    if name.full == topic.name:
        return Decision(
            [], None, True, RenamedTopic(name.short, name.short, directory_of(topic), [], [])
        )
    _check_state(view, topic)
    names = _Names(view)
    names.add(topic, name.check_new())
    topics = view.catalog.topics
    renames: list[Op] = [
        TopicRenamed(number, full, _directory(topics[number], full))
        for number, full in names.of.items()
    ]
    policies = [*_policies(view, names)]
    owners = {op.subscription: view.catalog.subscriptions[op.subscription] for op in policies}
    answer = RenamedTopic(
        name.short,
        before.short,
        directory_of(topic),
        [
            (_short(topics[number]), TopicName.parse(full).short)
            for number, full in names.of.items()
            if number != topic.number
        ],
        sorted(f"{_called(view, names, owner.topic)}/{owner.name}" for owner in owners.values()),
    )
    return Decision([*renames, *policies], None, True, answer)


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short


def _called(view: View, names: _Names, number: int) -> str:
    return TopicName.parse(names.of.get(number) or view.catalog.topics[number].name).short


def _directory(topic: Topic, full: str) -> str:
    """The directory of a renamed topic: the one it has; empty if the new name leads there, too."""
    path = topic.directory or topic_path(topic.name)
    return "" if path == topic_path(full) else path


def _check_other(
    topic: Topic, subscription: Subscription, policy: str, given: str, name: TopicName
) -> None:
    """Raise NotAllowed when a policy of a topic's own subscription has the topic's new name."""
    if TopicName.parse(given).full == name.full:
        raise NotAllowed(
            f"{policy} of {_short(topic)}/{subscription.name} is {name.short}: its messages would "
            "come again forever",
            hint="choose another name, or change the policy first",
            topic=_short(topic),
            subscription=subscription.name,
        )


def _check_state(view: View, topic: Topic) -> None:
    """Raise NotAllowed for open windows, which their function finds by the name of its input."""
    owner = home_of_state(view.catalog, topic)
    if owner is not None and is_in_use(view, topic, owner[1].name):
        home, subscription = _short(owner[0]), owner[1].name
        raise NotAllowed(
            f"{_short(topic)} stores open windows of a function of {home}/{subscription}, which "
            "would not find them",
            hint=f"rename {home}: this topic is renamed with it",
            topic=_short(topic),
            subscription=subscription,
        )


def _policies(view: View, names: _Names) -> Iterator[SubscriptionPolicySet]:
    """The policies that get a new name, in place of an earlier name or of a derived one."""
    catalog = view.catalog
    for subscription in catalog.subscriptions.values():
        changed: dict[str, str] = {}
        for policy, suffix in TOPICS.items():
            home = catalog.topics[subscription.topic]
            policy_topic = subscription.policies.get(policy)
            if policy_topic is not None:
                before = TopicName.parse(str(policy_topic)).full
            elif subscription.topic in names.of:
                continue  # its derived name changes with it
            else:
                before = derived_text(home.name, subscription.name, suffix)
            if before in names.now:
                changed[policy] = TopicName.parse(names.now[before]).short
        yield from (SubscriptionPolicySet(subscription.number, *item) for item in changed.items())
        if "retry_topic" in changed and "retry_topic" not in subscription.policies:
            yield from _for_retries(view, subscription, changed)


def _for_retries(
    view: View, subscription: Subscription, changed: dict[str, str]
) -> Iterator[SubscriptionPolicySet]:
    """The policies for the subscription on a retry topic whose name is no longer derived.

    Until now it took the policies of the home subscription, by the derived name
    (`dead_letters.policies`). Here it gets a copy of them.
    """
    catalog = view.catalog
    home = catalog.topics[subscription.topic]
    number = catalog.by_name[derived_text(home.name, subscription.name, RETRY).casefold()]
    retries = find_subscription(catalog, catalog.topics[number], subscription.name)
    if retries is None:
        return
    dead = derived_text(home.name, subscription.name, DEAD)
    inherited = {"dead_letter_topic": dead, **subscription.policies, **changed}
    for policy, value in inherited.items():
        if policy not in retries.policies:
            yield SubscriptionPolicySet(retries.number, policy, value)
