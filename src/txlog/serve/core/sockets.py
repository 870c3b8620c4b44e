"""Owns Address: where a listener listens, as an option says it; and the places for offloads.

Owns the rule who may be listened to: without authentication only this machine.

    loopback            anything goes
    any other address   TLS and authentication, or a consent: --insecure

What counts is where a socket is bound, so a name is what it resolves to, and a socket that was
handed over by systemd is judged as well.


Owns what systemd and a server tell each other: sockets that are handed over, and READY.

Both are plain conventions (sd_listen_fds(3), sd_notify(3)), so no library is needed.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from txlog.errors import InvalidArgument, Usage

OFF: Final = "off"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORM = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:/\s]+)):([0-9]{1,5})")


class Address(NamedTuple):
    """A host, by name or number, and a port; port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str) -> Address | None:
        """The address written HOST:PORT or [HOST]:PORT; None for `off`.

        raises: InvalidArgument (201)
        """
        if text == OFF:
            return None
        match = _FORM.fullmatch(text)
        if match is None or int(match[3]) > 65_535:
            raise InvalidArgument(
                f"{option} is HOST:PORT or off, not {text[:80]!r}", hint="such as 127.0.0.1:6650"
            )
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def places_of(option: str, given: Iterable[str]) -> dict[str, str]:
    """The places for offloads by their names, each written NAME=DIRECTORY or NAME=s3://…

    raises: InvalidArgument (201)
    """
    places = dict[str, str]()
    for text in given:
        name, mark, place = text.partition("=")
        if not mark or not _NAME.fullmatch(name) or name in places:
            raise InvalidArgument(
                f"{option} is NAME=PLACE, each name once, not {text[:80]!r}",
                hint="such as cold=/mnt/cold or cold=s3://bucket/prefix",
            )
        if "://" not in place and not Path(place).is_absolute():
            raise InvalidArgument(f"{option} {name}: {place[:80]!r} is no absolute path")
        places[name] = place
    return places


def is_loopback(name: object) -> bool:
    """True for the address of a socket that only this machine reaches; also a path of one."""
    if isinstance(name, str | bytes):
        return True  # of the file system
    if not isinstance(name, tuple) or not name:
        return False
    try:
        address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_wildcard(host: str) -> bool:
    """True for the host of a listener at all addresses of its machine: 0.0.0.0 or ::."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def check_exposed(
    option: str, bound: socket.socket, *, has_tls: bool, has_auth: bool, is_insecure: bool
) -> None:
    """Raises Usage, in one line that says what to add, unless a socket may be listened to."""
    name = bound.getsockname()
    if is_loopback(name) or is_insecure or (has_tls and has_auth):
        return
    missing = [
        *([] if has_tls else ["--tls-cert FILE and --tls-key FILE"]),
        *([] if has_auth else ["--auth FILE"]),
    ]
    raise Usage(
        f"{option} is {name[0]}, which other machines reach: add {', and '.join(missing)}, "
        "or --insecure"
    )


def bind_sockets(
    option: str,
    address: Address,
    given: list[socket.socket] | None,
    *,
    has_tls: bool,
    has_auth: bool,
    is_insecure: bool,
) -> list[socket.socket]:
    """Sockets bound to all that a name resolves to, or those given; none listens yet.

    raises: OSError, Usage; then nothing is open
    """
    made = _bound(address) if given is None else given
    try:
        for one in made:
            check_exposed(option, one, has_tls=has_tls, has_auth=has_auth, is_insecure=is_insecure)
    except Usage:
        for one in made:
            one.close()
        raise
    return made


def _bound(address: Address) -> list[socket.socket]:
    """With port 0 all of them get the port of the first."""
    made = list[socket.socket]()
    port = address.port
    found = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, where in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((where[0], port, *where[2:]))
            one.setblocking(False)
            port = one.getsockname()[1]
    except OSError:
        for one in made:
            with suppress(OSError):
                one.close()
        raise
    return made


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
