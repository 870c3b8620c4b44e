"""Owns the table of commands: which function answers which; and CONNECT, PING and PONG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txlog import __version__
from txlog.errors import NotAllowed, TryAgain
from txlog.serve.auth.guard import Credentials
from txlog.serve.core.authority import Caller
from txlog.serve.pulsar import consumers, producers, schemas, topics, transactions, watches
from txlog.serve.pulsar.connection import PROTOCOL_VERSION, Connection, Handler
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.messages import COMMANDS, ERRORS, FeatureFlags, Proto

if TYPE_CHECKING:
    from collections.abc import Mapping


def connect(connection: Connection, body: Proto, rest: memoryview) -> None:
    """CONNECT: who the client is; everything else comes after it."""
    login = connection.login(body.auth_method_name, body.auth_data)
    caller = _caller(connection, login)
    if caller is None or not _has_seat(connection, caller):
        return
    connection.refreshes = body.feature_flags.supports_auth_refresh
    connection.connected(login, caller, body.client_version, body.protocol_version)
    connection.send(
        "connected",
        server_version=f"txlog-{__version__}",
        protocol_version=min(PROTOCOL_VERSION, body.protocol_version),
        max_message_size=connection.message_bytes_max,
        feature_flags=FeatureFlags(
            supports_topic_watchers=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        ),
    )


def auth_response(connection: Connection, body: Proto, rest: memoryview) -> None:
    """AUTH_RESPONSE: another token, as the last one ends."""
    given = body.response
    login = connection.login(given.auth_method_name, given.auth_data)
    caller = _caller(connection, login)
    if caller is not None:
        connection.renewed(login, caller)


def _caller(connection: Connection, login: Credentials) -> Caller | None:
    """Who the client says it is; None: it is refused, and the connection ends."""
    service = connection.service
    try:
        return service.log_in(login)
    except NotAllowed as error:
        wrong = ERRORS["AuthenticationError"]
        connection.send("error", request_id=0, error=wrong, message=text_of(error))
        service.tell("refused", {"peer": connection.peer, "reason": error.message})
        connection.close()
        return None


def _has_seat(connection: Connection, caller: Caller) -> bool:
    """Take its seat among those that stay; False: there is none, and the connection ends."""
    try:
        connection.seat.take(caller.role, is_superuser=caller.is_superuser)
    except TryAgain as error:
        wrong, said = error_of(error), text_of(error)
        connection.send("error", request_id=0, error=wrong, message=said)
        facts = {"peer": connection.peer, "role": caller.role, "reason": error.message}
        connection.service.tell("refused", facts)
        connection.close()
        return False
    return True


def ping(connection: Connection, body: Proto, rest: memoryview) -> None:
    """PING: still here."""
    connection.send("pong")


def pong(connection: Connection, body: Proto, rest: memoryview) -> None:
    """PONG: that anything came is what counts."""


HANDLERS: Final[Mapping[str, Handler]] = {
    "CONNECT": connect,
    "AUTH_RESPONSE": auth_response,
    "PING": ping,
    "PONG": pong,
}
ROOMS: Final = (
    HANDLERS,
    topics.HANDLERS,
    producers.HANDLERS,
    consumers.HANDLERS,
    schemas.HANDLERS,
    transactions.HANDLERS,
    watches.HANDLERS,
)


def handlers() -> dict[int, Handler]:
    """The function for each command, by its number."""
    return {COMMANDS[name]: one for room in ROOMS for name, one in room.items()}
