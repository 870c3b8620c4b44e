"""Owns what systemd and a server tell each other: sockets that are handed over, and READY.

Both are plain conventions (sd_listen_fds(3), sd_notify(3)), so no library is needed.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from txlog.errors import InvalidArgument

FIRST_DESCRIPTOR: Final = 3
SOCKETS_MAX: Final = 16
NAMES: Final = ("pulsar", "http")


def systemd_sockets(environment: Mapping[str, str], pid: int) -> dict[str, list[socket.socket]]:
    """The sockets that systemd listens on, by their names; none if they are for another process.

    A name may have several, such as one for each version of IP.

    raises: InvalidArgument for a descriptor that is no listening stream socket, and for one without
            a name that is served: clients would wait there for ever
    """
    if environment.get("LISTEN_PID") != str(pid):
        return {}
    count = environment.get("LISTEN_FDS", "")
    if not count.isdecimal() or not 0 < int(count) <= SOCKETS_MAX:
        return {}
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    found = dict[str, list[socket.socket]]()
    for index in range(int(count)):
        name = names[index] if index < len(names) else ""
        if name not in NAMES:
            raise InvalidArgument(
                f"LISTEN_FDNAMES: a socket is {name[:80]!r}, which is neither pulsar nor http",
                hint="FileDescriptorName=pulsar in the unit of the socket",
            )
        found.setdefault(name, []).append(_taken(FIRST_DESCRIPTOR + index))
    return found


def _taken(descriptor: int) -> socket.socket:
    try:
        taken = socket.socket(fileno=descriptor)
        taken.set_inheritable(False)
        listens = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise InvalidArgument(f"LISTEN_FDS: descriptor {descriptor} is no socket") from error
    if taken.type != socket.SOCK_STREAM or not listens:
        taken.detach()
        raise InvalidArgument(f"LISTEN_FDS: descriptor {descriptor} does not listen")
    taken.setblocking(False)
    return taken


def notify(environment: Mapping[str, str], state: str) -> None:
    """Tell systemd, if it wants to know: READY=1, RELOADING=1, STOPPING=1, STATUS=…"""
    path = environment.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    address = f"\0{path[1:]}" if path[0] == "@" else path
    with (
        suppress(OSError),  # nobody is there to be told
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told,
    ):
        told.sendto(state.encode(), address)
