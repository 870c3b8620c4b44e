"""Owns the shares of roles in open transactions, keys and topics of a store.

The store has one bound for all users. A role has its share of it (`limits.has_fair_share`), so that
no role, whatever its rights, keeps the others from their work. No share limits superusers, and
commands and programs on the store's machine: they may use everything that is left.

The functions run in the store's thread, for the owner that the task acts for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from txlog.base.settings import TOPICS_MAX
from txlog.engine.door import keys
from txlog.engine.door.keys import home
from txlog.errors import TryAgain
from txlog.serve.auth.access import is_number_of_role
from txlog.serve.limits.limits import has_fair_share, too_many_error

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.engine.door.store import Store, View

KEYS_MAX: Final = 100_000  # of all roles; a deleted key leaves a tombstone, and counts
# Topics that only superusers, commands and programs can create.
TOPICS_RESERVED: Final = TOPICS_MAX // 8
Owner = tuple[int, str]


class OpenTransactions:
    """Open transactions by owner, including those that the current group begins."""

    def __init__(self, store: Store, coordinator: int, more: int) -> None:
        """coordinator: it has a bound of its own; more: how many the group begins at most"""
        self._limit = store.settings.txn_active_max  # 0: unlimited
        self._by_owner = Counter[int]()

        def count(view: View) -> int:
            unfinished = view.coordinator(coordinator).unfinished
            used = len(unfinished)
            if self._limit and not has_fair_share(used + more, used + more, self._limit):
                self._by_owner.update(txn.owner_uid for txn in unfinished.values())
            return used

        self._used = store.read(count, fresh=False)

    def take(self, owner: Owner) -> None:
        """Count one more. Raises TryAgain (509) if its role has used up its share."""
        uid, role = owner
        own_count = self._by_owner[uid]
        if (
            self._limit
            and is_number_of_role(uid)
            and not has_fair_share(own_count, self._used, self._limit)
        ):
            raise too_many_error(f"open transactions of role {role}", own_count)
        self._by_owner[uid] += 1
        self._used += 1


def check_key_share(client: Client, key: str) -> int:
    """Check the share of the caller's role in keys; returns the number of the key's coordinator.

    raises: TryAgain (509) for a new key of a role that has used up its share
    """
    uid, role = client.store.disk.owner()

    def look(view: View) -> tuple[int, bool, int, int]:
        number = home(view, client.settings, uid, key)
        is_new = keys.find(view.keys(number), uid, key) is None
        counts = _keys_by_role(view) if is_new else Counter[int]()
        return number, is_new, counts[uid], counts.total()

    number, is_new, own_count, used = client.store.read(look)
    if is_new and is_number_of_role(uid) and not has_fair_share(own_count, used, KEYS_MAX):
        raise too_many_error(f"transaction keys of role {role}", own_count)
    return number


def _keys_by_role(view: View) -> Counter[int]:
    """The number of keys of each role, tombstones included."""
    counts = Counter[int]()
    for kind, number, _ in view.known():
        if kind == "key":
            for uid, of_owner in view.keys(number).of.items():
                if is_number_of_role(uid):
                    counts[uid] += len(of_owner)
    return counts


def check_topic_share(client: Client) -> None:
    """Raises TryAgain (509) if roles may make no more topics: the rest is reserved."""
    uid, _ = client.store.disk.owner()
    count = client.store.read(lambda view: len(view.catalog.topics), fresh=False)
    if is_number_of_role(uid) and count >= TOPICS_MAX - TOPICS_RESERVED:
        raise TryAgain(f"the store has {count} topics, and roles may make no more", code=509)
