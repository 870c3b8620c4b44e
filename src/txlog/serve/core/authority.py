"""Owns Authority: who a client is, and what it may do. This one lets everybody do everything.

Each listener asks `authenticate` once a connection or request and `check` before each call that
touches a topic, a subscription or a transaction. Both may be replaced as a whole (`Server`).
"""

from __future__ import annotations

from typing import Final

from txlog.ids import TopicName

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ADMIN: Final = "admin"
ACTIONS: Final = (PRODUCE, CONSUME, ADMIN)


class Authority:
    """Everybody is nobody in particular, and may do everything."""

    def authenticate(self, method: str, data: bytes) -> str | None:
        """The role of a client; None: no particular one.

        method: as Pulsar's auth_method_name, such as token; empty: none was given
        data:   what proves it
        raises: NotAllowed
        """
        return None

    def check(self, role: str | None, action: str, topic: TopicName | None) -> None:
        """Raises NotAllowed unless a role may do this; topic: None for what concerns none."""
