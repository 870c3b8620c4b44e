"""Owns the shares of roles in what a store has room for: open transactions, keys and topics.

The store knows one bound for all. A role has its share of it (`limits.has_share`), so that
none of them, with whatever rights, keeps the others from their work. Superusers, commands and
programs on the machine of the store have no share: they may use what is left.

The functions run in the thread of the store, for the owner that the task acts for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from txlog.base.settings import TOPICS_MAX
from txlog.engine.door import keys
from txlog.engine.door.keys import home
from txlog.errors import TryAgain
from txlog.serve.auth.guard import is_number_of_role
from txlog.serve.core.limits import has_share, too_many

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.engine.door.store import Store, View

KEYS_MAX: Final = 100_000  # of all roles; one that was deleted leaves a tombstone, and counts
# Topics that only superusers, commands and programs can make.
TOPICS_KEPT: Final = TOPICS_MAX // 8
Owner = tuple[int, str]


class OpenTxns:
    """Transactions that have not ended, by owner; those that a group begins are counted as well."""

    def __init__(self, store: Store, coordinator: int, more: int) -> None:
        """Of one coordinator, which has a bound of its own; more: how many may be begun now."""
        self._limit = store.settings.txn_active_max  # 0: there is none
        self._by_owner = Counter[int]()

        def count(view: View) -> int:
            unfinished = view.coordinator(coordinator).unfinished
            used = len(unfinished)
            if self._limit and not has_share(used + more, used + more, self._limit):
                self._by_owner.update(txn.owner_uid for txn in unfinished.values())
            return used

        self._used = store.read(count, fresh=False)

    def take(self, owner: Owner) -> None:
        """Count one more. Raises TryAgain (509) where a role has its share."""
        uid, role = owner
        own = self._by_owner[uid]
        if self._limit and is_number_of_role(uid) and not has_share(own, self._used, self._limit):
            raise too_many(f"open transactions of role {role}", own)
        self._by_owner[uid] += 1
        self._used += 1


def check_key(client: Client, key: str) -> int:
    """The coordinator of a key.

    raises: TryAgain (509) for a new one of a role that has its share
    """
    uid, role = client.store.disk.owner()

    def look(view: View) -> tuple[int, bool, int, int]:
        number = home(view, client.settings, uid, key)
        is_new = keys.find(view.keys(number), uid, key) is None
        counts = _keys_by_role(view) if is_new else Counter[int]()
        return number, is_new, counts[uid], counts.total()

    number, is_new, own, used = client.store.read(look)
    if is_new and is_number_of_role(uid) and not has_share(own, used, KEYS_MAX):
        raise too_many(f"transaction keys of role {role}", own)
    return number


def _keys_by_role(view: View) -> Counter[int]:
    """How many keys each role has, tombstones included."""
    counts = Counter[int]()
    for kind, number, _ in view.known():
        if kind == "key":
            for uid, of_owner in view.keys(number).of.items():
                if is_number_of_role(uid):
                    counts[uid] += len(of_owner)
    return counts


def check_topic(client: Client) -> None:
    """Raises TryAgain (509) if roles may make no more topics: the last ones are not for them."""
    uid, _ = client.store.disk.owner()
    count = client.store.read(lambda view: len(view.catalog.topics), fresh=False)
    if is_number_of_role(uid) and count >= TOPICS_MAX - TOPICS_KEPT:
        raise TryAgain(f"the store has {count} topics, and roles may make no more", code=509)
