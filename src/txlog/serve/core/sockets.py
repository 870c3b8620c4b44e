"""Owns the sockets of listeners: their addresses, sockets from systemd, and which may be exposed.

    loopback            may be served without authentication
    any other address   needs TLS and authentication, or the consent --insecure

The rule applies to the address that a socket is bound to. So a name counts as the addresses it
resolves to, and sockets from systemd are checked as well. The conventions of systemd are simple
(sd_listen_fds(3), sd_notify(3)), so this module needs no library for them.
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


def places_of(option: str, texts: Iterable[str]) -> dict[str, str]:
    """The offload places by their names, each written NAME=DIRECTORY or NAME=s3://…

    raises: InvalidArgument (201)
    """
    places = dict[str, str]()
    for text in texts:
        name, mark, address = text.partition("=")
        if not mark or not _NAME.fullmatch(name) or name in places:
            raise InvalidArgument(
                f"{option} is NAME=PLACE, each name once, not {text[:80]!r}",
                hint="such as cold=/mnt/cold or cold=s3://bucket/prefix",
            )
        if "://" not in address and not Path(address).is_absolute():
            raise InvalidArgument(f"{option} {name}: {address[:80]!r} is no absolute path")
        places[name] = address
    return places


def is_loopback(name: object) -> bool:
    """Whether only this machine reaches a socket's address; also True for a path."""
    if isinstance(name, str | bytes):
        return True  # a Unix socket
    if not isinstance(name, tuple) or not name:
        return False
    try:
        address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_wildcard(host: str) -> bool:
    """Whether a listener at this host serves all addresses of its machine: 0.0.0.0 or ::."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def check_exposed(
    option: str, bound: socket.socket, *, has_tls: bool, has_auth: bool, is_insecure: bool
) -> None:
    """Raises Usage, with the option to add, if a socket must not be exposed."""
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
    sockets: list[socket.socket] | None,
    *,
    has_tls: bool,
    has_auth: bool,
    is_insecure: bool,
) -> list[socket.socket]:
    """New sockets at all addresses of a host, which do not listen yet; or the given ones.

    raises: OSError, Usage; then nothing is open
    """
    bound = _bound(address) if sockets is None else sockets
    try:
        for item in bound:
            check_exposed(option, item, has_tls=has_tls, has_auth=has_auth, is_insecure=is_insecure)
    except Usage:
        for item in bound:
            item.close()
        raise
    return bound


def _bound(address: Address) -> list[socket.socket]:
    """New sockets. With port 0 the others get the port of the first."""
    bound = list[socket.socket]()
    port = address.port
    addresses = socket.getaddrinfo(
        address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    try:
        for family, kind, protocol, _, where in dict.fromkeys(addresses):
            item = socket.socket(family, kind, protocol)
            bound.append(item)
            item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            item.bind((where[0], port, *where[2:]))
            item.setblocking(False)
            port = item.getsockname()[1]
    except OSError:
        for item in bound:
            with suppress(OSError):
                item.close()
        raise
    return bound


FIRST_DESCRIPTOR: Final = 3
SOCKETS_MAX: Final = 16
NAMES: Final = ("pulsar", "http")


def systemd_sockets(environment: Mapping[str, str], pid: int) -> dict[str, list[socket.socket]]:
    """The sockets that systemd listens on, by their names; none if they are for another process.

    A name may have several, such as one for each version of IP.

    raises: InvalidArgument for a descriptor that is no listening stream socket, and for one without
            a name that is served: its clients would wait for ever
    """
    if environment.get("LISTEN_PID") != str(pid):
        return {}
    count = environment.get("LISTEN_FDS", "")
    if not count.isdecimal() or not 0 < int(count) <= SOCKETS_MAX:
        return {}
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    sockets = dict[str, list[socket.socket]]()
    for index in range(int(count)):
        name = names[index] if index < len(names) else ""
        if name not in NAMES:
            raise InvalidArgument(
                f"LISTEN_FDNAMES: a socket is {name[:80]!r}, which is neither pulsar nor http",
                hint="FileDescriptorName=pulsar in the unit of the socket",
            )
        sockets.setdefault(name, []).append(_inherited(FIRST_DESCRIPTOR + index))
    return sockets


def _inherited(descriptor: int) -> socket.socket:
    try:
        inherited = socket.socket(fileno=descriptor)
        inherited.set_inheritable(False)
        listens = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise InvalidArgument(f"LISTEN_FDS: descriptor {descriptor} is no socket") from error
    if inherited.type != socket.SOCK_STREAM or not listens:
        inherited.detach()
        raise InvalidArgument(f"LISTEN_FDS: descriptor {descriptor} does not listen")
    inherited.setblocking(False)
    return inherited


def notify(environment: Mapping[str, str], state: str) -> None:
    """Send a state to systemd, if it wants it: READY=1, RELOADING=1, STOPPING=1, STATUS=…"""
    path = environment.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    address = f"\0{path[1:]}" if path[0] == "@" else path
    with (
        suppress(OSError),  # systemd does not listen
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
    ):
        channel.sendto(state.encode(), address)
