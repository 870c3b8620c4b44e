"""Names that the program derives from the name of a topic; everything else takes them from here.

    <topic>-<subscription>-DLQ         dead letters, unless the subscription's policy names a topic
    <topic>-<subscription>-RETRY       postponed messages, unless a policy does
    <topic>-<subscription>-WINDOWS     open windows of a function; of instance I from 1 on: …-I
    function:<name>@<topic>/<sub>:<I>  transaction key of a function without a name of its own
    import-<topic>                     transaction key of an import without one

A rename takes the first three along, by `DERIVED`. Keys stay, because their holders have them: an
import looks under the earlier names of its topic, and a rename lists the keys of functions.

A function of several inputs has one state topic. When it is created, its name is derived from the
input whose name sorts first, and it stays with that input. So a run looks under the names of all
inputs: after a rename another input may sort first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from txlog.base.ids import TopicName
from txlog.base.suggest import command_line
from txlog.engine.folds.catalog import (
    Catalog,
    Subscription,
    Topic,
    directory_of,
    find_subscription,
    find_topic,
    numbers,
    topic_path,
)
from txlog.engine.plan.ack_sets import backlog
from txlog.engine.view import View
from txlog.errors import NotAllowed

DEAD: Final = "DLQ"
RETRY: Final = "RETRY"
WINDOWS: Final = "WINDOWS"


class DerivedName(NamedTuple):
    """How a derived topic is named.

    policy:   of the subscription, which names another topic instead
    is_state: it is the state of a function: the subscription itself reads it, and each instance
              from 1 on has one of its own
    """

    suffix: str
    policy: str | None = None
    is_state: bool = False


DERIVED: Final = (
    DerivedName(DEAD, "dead_letter_topic"),
    DerivedName(RETRY, "retry_topic"),
    DerivedName(WINDOWS, is_state=True),
)
_FUNCTION: Final = "function:"


def derived_text(topic: str, subscription: str, suffix: str) -> str:
    """A derived name as text, also one that is too long; topic: its full name."""
    return f"{topic}-{subscription}-{suffix}"


def derived_topic(topic: str, subscription: str, suffix: str) -> TopicName:
    """A derived topic, in the namespace of the topic. Raises InvalidArgument: it is too long."""
    return TopicName.parse(derived_text(TopicName.parse(topic).full, subscription, suffix))


# --- states of functions ----------------------------------------------------------------------


def state_topic(topic: str, subscription: str, instance: int) -> TopicName:
    """The topic of a function's open windows. Raises InvalidArgument: its name is too long."""
    suffix = f"{WINDOWS}-{instance}" if instance else WINDOWS
    return derived_topic(topic, subscription, suffix)


def states_of(catalog: Catalog, topic: Topic, subscription: str) -> Iterator[tuple[str, Topic]]:
    """The topics of open windows derived from a topic and a subscription, each with its suffix."""
    for kind in DERIVED:
        if kind.is_state:
            stem = re.escape(derived_text(topic.name, subscription, kind.suffix))
            pattern = re.compile(f"{stem}((?:-[1-9][0-9]*)?)")
            for state in catalog.topics.values():
                match = pattern.fullmatch(state.name)
                if match is not None and find_subscription(catalog, state, subscription):
                    yield kind.suffix + match[1], state


def home_of_state(catalog: Catalog, state: Topic) -> tuple[Topic, Subscription] | None:
    """The topic and subscription of the function that uses `state`; None: no function does."""
    suffixes = "|".join(kind.suffix for kind in DERIVED if kind.is_state)
    for number in state.subscriptions:
        subscription = catalog.subscriptions[number]
        end = rf"-{re.escape(subscription.name)}-(?:{suffixes})(?:-[1-9][0-9]*)?"
        match = re.fullmatch(f"(.*){end}", state.name)
        home = None if match is None else find_topic(catalog, match[1])
        if home is not None and find_subscription(catalog, home, subscription.name) is not None:
            return home, subscription
    return None


def is_in_use(view: View, state: Topic, subscription: str) -> bool:
    """True if a state has anything."""
    owner = find_subscription(view.catalog, state, subscription)
    return owner is not None and any(backlog(view, owner.number, at) for at in numbers(state))


def find_state(view: View, topics: Sequence[str], subscription: str, instance: int) -> str:
    """The short name of the topic with the open windows of a function; it may not exist yet.

    Of the topics that the inputs derive, it is the first by name that has unacknowledged messages,
    else the first.
    raises: NotAllowed (several have something, and a rename may have changed their order),
            InvalidArgument
    """
    catalog = view.catalog
    names = [state_topic(topic, subscription, instance) for topic in sorted(topics)]
    states = [state for name in names if (state := find_topic(catalog, name.full)) is not None]
    used = [state for state in states if is_in_use(view, state, subscription)]
    if len(used) > 1 and any(state.former for state in used):
        shorts = [TopicName.parse(state.name).short for state in used]
        delete = command_line("topic delete", shorts[-1], "--force")
        raise NotAllowed(
            f"{' and '.join(shorts)} store open windows of {subscription}, and one was renamed: "
            "which one belongs to this function is not certain",
            hint=f"delete the one not to count, as {delete}",
            topic=shorts[0],
            subscription=subscription,
        )
    return TopicName.parse(used[0].name).short if used else names[0].short


# --- keys and batches -------------------------------------------------------------------------


def function_name(own_name: str, topics: Iterable[str], subscription: str) -> str:
    """The name of a function for which the user chose none; topics: short names of its inputs."""
    return f"{own_name}@{min(topics)}/{subscription}"


def function_key(name: str, instance: int) -> str:
    """The transaction key of a function's instance."""
    return f"{_FUNCTION}{name}:{instance}"


def function_of_key(key: str) -> str:
    """The name of the function that has a transaction key."""
    return key.removeprefix(_FUNCTION).rpartition(":")[0]


def keys_named(view: View, before: str, now: str, keys: Iterable[str]) -> list[str]:
    """The keys of functions that may have another name since a topic was renamed.

    A key contains the least name of the function's inputs. That was the topic's earlier name, or it
    is another input's name, and the new name now comes before it.
    before, now: its short names; the view is of before or after the rename
    """
    owners: dict[str, set[str]] = {}  # subscription -> short names of topics
    for subscription in view.catalog.subscriptions.values():
        topic = TopicName.parse(view.catalog.topics[subscription.topic].name).short
        owners.setdefault(subscription.name, set()).add(topic)
    others = {
        f"@{topic}/{subscription}"
        for subscription, topics in owners.items()
        if not topics.isdisjoint((before, now))
        for topic in topics
        if now < topic < before
    }
    return [
        key
        for key in keys
        if key.startswith(_FUNCTION)
        and (f"@{before}/" in key or any(map(function_of_key(key).endswith, others)))
    ]


def import_key(topic: str) -> str:
    """The transaction key of an import into a topic, if the user gave none."""
    return f"import-{TopicName.parse(topic).short}"


def names_of(view: View, name: TopicName) -> list[str]:
    """The full names that a topic has and had, the present one first; also of a missing topic."""
    topic = find_topic(view.catalog, name.topic.full)
    return [name.topic.full, *(topic.former[::-1] if topic is not None else ())]


def lasting_name(view: View, name: TopicName) -> str:
    """A text for a topic that no rename changes, and that no other topic has at the same time.

    It is the name from which its directory is derived, else the directory; if the topic is missing,
    the given name.
    """
    topic = find_topic(view.catalog, name.topic.full)
    if topic is None or not topic.directory:
        return name.topic.full
    for former in topic.former:
        if topic_path(former) == topic.directory:
            return former
    return directory_of(topic)
