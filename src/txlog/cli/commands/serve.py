"""Owns the command `serve`: the store for clients of Apache Pulsar and of HTTP."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.line.command import command
from txlog.cli.line.declared import Option
from txlog.errors import MissingExtra, Usage

_PACKAGES = ("google", "starlette", "uvicorn", "websockets", "jwt")


@command(
    "serve",
    examples=(
        "txlog serve",
        "txlog serve --pulsar 127.0.0.1:6651 --http off",
        "txlog serve --no-topic-creation   # clients use the topics that there are",
    ),
    changes=True,
)
def serve(
    call: Call,
    pulsar: Annotated[
        str, Option("--pulsar", metavar="HOST:PORT", help="for Pulsar's clients; or off")
    ] = "127.0.0.1:6650",
    http: Annotated[
        str, Option("--http", metavar="HOST:PORT", help="for REST; or off")
    ] = "127.0.0.1:8080",
    topic_creation: Annotated[
        bool,
        Option("--topic-creation/--no-topic-creation", help="make topics at their first use"),
    ] = True,
) -> None:
    """Serve the store to stock clients of Apache Pulsar, and by HTTP.

    It says on stderr what it serves where, once it listens; port 0 is any free one. SIGTERM and
    SIGINT end it: what was begun is answered first. It keeps nothing of its own, so it may also be
    killed, several may serve one store, and commands and programs go on using it.
    """
    address = importlib.import_module("txlog.serve.core.address").Address
    pulsar_at, http_at = address.parse("--pulsar", pulsar), address.parse("--http", http)
    if pulsar_at is None and http_at is None:
        raise Usage("--pulsar and --http are both off")
    try:
        app = importlib.import_module("txlog.serve.app")
        run = app.serve  # a module of txlog runs when it is used
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _PACKAGES:
            raise
        raise MissingExtra(
            f"{error.name} is not installed", hint="pip install 'txlog[serve]'"
        ) from error
    options = app.Options(pulsar_at, http_at, topic_creation)

    def told(places: list[str]) -> None:
        call.say(f"serving {call.store_path()} at {' and '.join(places)}")

    run(call.client(write=True), options, told)
