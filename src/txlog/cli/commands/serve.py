"""Owns the command `serve`: the store for clients of Apache Pulsar and of HTTP."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from txlog.base.times import format_time
from txlog.cli.call.call import Call
from txlog.cli.line.command import Option, command
from txlog.cli.terminal import say
from txlog.engine.door.disk import PidFile
from txlog.errors import InvalidArgument, MissingExtra, OutcomeUnknown, Usage, printable

_PACKAGES = ("google", "starlette", "uvicorn", "websockets", "jwt", "cryptography", "h11")
_LINES_PER_SECOND_MAX: Final = 20
_AUDIT: Final = "action"  # log lines about actions of users on the live page; -q keeps them
_WARNINGS: Final = frozenset({"refused", "dropped", "failed"})

PulsarOption = Annotated[
    str, Option("--pulsar", metavar="HOST:PORT", help="for Pulsar's clients; or off")
]
HttpOption = Annotated[str, Option("--http", metavar="HOST:PORT", help="for REST; or off")]
CreationOption = Annotated[
    bool, Option("--topic-creation/--no-topic-creation", help="create topics at their first use")
]
AuthOption = Annotated[
    str | None, Option("--auth", metavar="FILE", help="rules for clients and their rights")
]
CertOption = Annotated[
    str | None, Option("--tls-cert", metavar="FILE", help="certificate, with its chain, as PEM")
]
KeyOption = Annotated[
    str | None, Option("--tls-key", metavar="FILE", help="its private key, as PEM")
]
ClientsOption = Annotated[
    str | None, Option("--tls-client-ca", metavar="FILE", help="CA of clients' certificates")
]
InsecureOption = Annotated[
    bool, Option("--insecure", help="let other machines in without --tls-cert or --auth")
]
LimitOption = Annotated[
    list[str] | None, Option("--limit", metavar="NAME=VALUE", help="limit for clients; repeatable")
]
ActionsOption = Annotated[
    bool, Option("--allow-actions", help="let the live page publish, seek, redeliver, retry, abort")
]
OffloadOption = Annotated[
    list[str] | None,
    Option("--offload-to", metavar="NAME=PLACE", help="offload target for HTTP; repeatable"),
]
PidOption = Annotated[
    str | None, Option("--pidfile", metavar="FILE", help="holds the process id while it serves")
]


@command(
    "serve",
    "serve clients of Apache Pulsar, and HTTP",
    examples=(
        "txlog serve",
        "txlog serve --pulsar 0.0.0.0:6651 --tls-cert cert.pem --tls-key key.pem --auth rules.toml",
        "txlog serve --allow-actions",
        "txlog serve --no-topic-creation --limit connections=100 --limit memory_bytes=64MiB",
    ),
    changes=True,
)
def serve(
    call: Call,
    pulsar: PulsarOption = "127.0.0.1:6650",
    http: HttpOption = "127.0.0.1:8080",
    topic_creation: CreationOption = True,
    auth: AuthOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    client_ca: ClientsOption = None,
    insecure: InsecureOption = False,
    limit: LimitOption = None,
    offload_to: OffloadOption = None,
    allow_actions: ActionsOption = False,
    pidfile: PidOption = None,
) -> None:
    """Serve the store to stock clients of Apache Pulsar, and by HTTP.

    Once it listens, it prints its addresses on stderr; port 0 is any free one. SIGTERM and SIGINT
    end it within 10 s: it first answers calls that have begun, and a second signal stops that.
    SIGHUP makes it read rules, keys and certificates again, and end connections that they no longer
    allow. It keeps no state: you may kill it, several servers may serve one store, and commands and
    programs can go on using the store.

    Only this machine can connect, unless there are --tls-cert, --tls-key and --auth.
    """
    sockets = _module("txlog.serve.core.sockets")
    pulsar_at = sockets.Address.parse("--pulsar", pulsar)
    http_at = sockets.Address.parse("--http", http)
    if pulsar_at is None and http_at is None:
        raise Usage("--pulsar and --http are both off")
    app = _module("txlog.serve.app")
    with _with_extra():
        make = app.ServerOptions  # a module of txlog runs when it is used
    tell = _log(call)
    options = make(
        pulsar_at,
        http_at,
        topic_creation,
        tls=_tls(cert, key, client_ca, has_auth=auth is not None),
        limits=_module("txlog.serve.limits.limits").Limits.parse("--limit", limit or ()),
        places=sockets.places_of("--offload-to", offload_to or ()),
        is_insecure=insecure,
        sockets=sockets.systemd_sockets(os.environ, os.getpid()),
        tell=tell,
        allows_actions=allow_actions,
    )
    authority = _module("txlog.serve.auth").AccessControl(_guard(call, auth))

    with _pidfile(pidfile) as pid_file, _with_extra():
        announce = partial(_announce, call, tell, pid_file)
        give_up = partial(_give_up, tell, pid_file)
        app.serve(call.client(write=True), options, announce, authority, give_up)
        sockets.notify(os.environ, "STOPPING=1")


def _announce(
    call: Call,
    tell: Callable[[str, Mapping[str, object]], None],
    pid_file: PidFile | None,
    places: list[str],
) -> None:
    """Say that the server listens: in its pid file, on stderr, to systemd."""
    if pid_file is not None:
        pid_file.write()
    if call.flags.log_format == "json":
        tell("serving", {"store": call.store_path(), "urls": places})
    else:
        call.say(f"serving {call.store_path()} at {' and '.join(places)}")
    notify = _module("txlog.serve.core.sockets").notify
    notify(os.environ, f"READY=1\nMAINPID={os.getpid()}")


def _give_up(tell: Callable[[str, Mapping[str, object]], None], pid_file: PidFile | None) -> None:
    """End the process although calls still run; their clients do not learn the outcome."""
    tell("failed", {"reason": "the server did not end in time: it drops the calls of its clients"})
    if pid_file is not None:
        pid_file.end()
    os._exit(OutcomeUnknown.exit)


@contextmanager
def _with_extra() -> Iterator[None]:
    """In the block, turn a failed import of an optional package into MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _PACKAGES:
            raise
        raise MissingExtra(
            f"{error.name} is not installed", hint="pip install 'txlog-store[serve]'"
        ) from error


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _guard(call: Call, auth: str | None) -> Any:
    """Return the authentication by the rules in the file; None without a file."""
    if auth is None:
        return None
    return _module("txlog.serve.auth.access").AuthProvider(Path(auth), call.clock)


def _tls(cert: str | None, key: str | None, client_ca: str | None, *, has_auth: bool) -> Any:
    """Return the TLS context from PEM files; None without files. Raises InvalidArgument."""
    if cert is None or key is None:
        if cert or key or client_ca:
            raise InvalidArgument("--tls-cert and --tls-key go together, --tls-client-ca with both")
        return None
    ca = None if client_ca is None else Path(client_ca)
    # without rules, only a certificate authenticates a client
    return _module("txlog.serve.core.tls").TlsContext(
        Path(cert), Path(key), ca, needs_certificate=not has_auth
    )


@contextmanager
def _pidfile(path: str | None) -> Iterator[PidFile | None]:
    """Hold the file with the process id; remove it at the end if it is still ours.

    raises: AlreadyExists: another server holds it, or the file has other content
    """
    if path is None:
        yield None
        return
    pid_file = PidFile(path)
    try:
        pid_file.begin()
        yield pid_file
    finally:
        pid_file.end()


def _log(call: Call) -> Callable[[str, Mapping[str, object]], None]:
    """Return the function that logs an event as a line on stderr; JSON with --log-format json.

    Above a number of warnings per second it counts them, and the next line has their number.
    """
    since, printed, untold = 0, 0, 0

    def tell(event: str, facts: Mapping[str, object]) -> None:
        nonlocal since, printed, untold
        level = "warning" if event in _WARNINGS else "info"
        if call.flags.quiet >= (1 if level == "info" and event != _AUDIT else 2):
            return
        second = call.now_ms() // 1_000
        since, printed = (since, printed + 1) if second == since else (second, 1)
        if printed > _LINES_PER_SECOND_MAX and level == "warning":
            untold += 1
            return
        if untold:
            facts, untold = {**facts, "untold": untold}, 0
        known_facts = {name: value for name, value in facts.items() if value is not None}
        if call.flags.log_format == "json":
            at = format_time(call.now_ms())
            line = json.dumps(
                {"level": level, "time": at, "event": event, **known_facts}, default=str
            )
        else:
            text = ", ".join(f"{name} {value}" for name, value in known_facts.items())
            line = printable(f"{event}: {text}")
        if call.flags.log_file is not None:
            say.log(call.flags.log_file, line)
        else:
            say.say(line + "\n")

    return tell
