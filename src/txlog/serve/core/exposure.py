"""Owns the rule who may be listened to: without authentication only this machine.

    loopback            anything goes
    any other address   TLS and authentication, or a consent: --insecure

What counts is where a socket is bound, so a name is what it resolves to, and a socket that was
handed over by systemd is judged as well.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

from txlog.errors import Usage
from txlog.serve.core.address import Address


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
