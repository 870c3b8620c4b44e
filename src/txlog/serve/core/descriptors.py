"""Owns the descriptors of the process: how many it may have, and how many clients get of them.

A connection is one descriptor, and so is a consumer, which holds a lock file. Without a descriptor
the store cannot open its journal, so a part is kept back for its files.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from txlog.engine.door.disk import descriptor_limit
from txlog.serve.core.limits import Limits, too_many

WANTED_MAX: Final = 1 << 20
KEPT_MAX: Final = 512  # for files of the store, and for what the process itself has open
KEPT_PART: Final = 3  # of so few descriptors that this is less: a third
CONNECTING_PART, CONSUMERS_PART = 8, 3  # of what is left, where that is too little for the limits


def raised() -> int:
    """How many descriptors the process may have, after its limit was raised as far as it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_MAX if hard == resource.RLIM_INFINITY else min(hard, WANTED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return WANTED_MAX if soft == resource.RLIM_INFINITY else soft


def check_room() -> None:
    """Raises TryAgain (509) if clients have all descriptors but those for files of the store.

    The kernel gives the lowest number that is free, so the number of a new one says how many are
    open at least.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        number = probe.fileno()
    if not is_for_clients(number, descriptor_limit()):
        raise too_many("open files", number)


def is_for_clients(number: int, descriptors: int) -> bool:
    """Whether a descriptor of this number leaves enough for the files of the store."""
    return number < descriptors - min(KEPT_MAX, descriptors // KEPT_PART) // 2


def fitted(
    limits: Limits, descriptors: int, tell: Callable[[str, dict[str, object]], object]
) -> Limits:
    """The limits, lowered where the process has too few descriptors for what they allow.

    tell: is told of each that is lower
    """
    room = descriptors - min(KEPT_MAX, descriptors // KEPT_PART)
    connecting = min(limits.connecting, max(1, room // CONNECTING_PART))
    consumers = min(limits.consumers_in_all, max(1, room // CONSUMERS_PART))
    connections = min(limits.connections, max(1, room - connecting - consumers))
    consumers = min(limits.consumers_in_all, max(consumers, room - connecting - connections))
    lower = {
        "connecting": connecting,
        "connections": connections,
        "connections_per_address": min(limits.connections_per_address, connections),
        "consumers_in_all": consumers,
    }
    for name, value in lower.items():
        if value < getattr(limits, name) and name != "connections_per_address":
            reason = f"the process may open {descriptors} files"
            tell("lowered", {"limit": name, "to": value, "reason": reason})
    return replace(limits, **lower)
