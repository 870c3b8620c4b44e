"""Owns Authority: who a client is, and what it may do. Without rules everybody may do everything.

Each listener asks `authenticate` once a connection or request, and `check` before each call that
touches a topic, a subscription or a transaction. `become` makes what a task begins its client's:
transactions and keys belong to the role, and nobody else may use them.
"""

from __future__ import annotations

from typing import Final

from txlog.base.ids import TopicName
from txlog.engine.door.disk import ACTING
from txlog.errors import NotAuthenticated
from txlog.serve.auth import ADMIN, ANYONE, CONSUME, LOOK, PRODUCE, STORE, Caller, Guard, Place
from txlog.serve.auth.guard import Certificate

ACTIONS: Final = (PRODUCE, CONSUME, ADMIN)

__all__ = ["ACTIONS", "ADMIN", "CONSUME", "LOOK", "PRODUCE", "Authority", "Caller"]


class Authority:
    """Judges clients by rules; without rules everybody is the user of the server."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard

    def authenticate(
        self, method: str, data: bytes, certificate: Certificate | None = None
    ) -> Caller:
        """Who a client is.

        method:      as Pulsar's auth_method_name, such as token; empty: none was given
        data:        what proves it
        certificate: what TLS has verified
        raises:      NotAuthenticated
        """
        if self.guard is None:
            return ANYONE
        return self.guard.connected(method, data, certificate)

    def check(self, caller: Caller | None, action: str, place: TopicName | Place | None) -> None:
        """Raises NotAllowed unless a client may do this; place: None for the whole store."""
        if caller is None:
            if self.guard is None:
                return
            raise NotAuthenticated("nobody has said who this is")
        caller.check(action, STORE if place is None else place)

    def become(self, caller: Caller) -> None:
        """Make a client the owner of what this task, and tasks that it starts, begin from now on.

        The store asks at each call who the owner is, so a superuser that is none any more loses its
        power at once.
        """
        ACTING.set(lambda: caller.owner)
