"""Owns how HTTP answers: JSON, errors with their status, a message as body and headers; and how a
body is read.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson
import pyarrow as pa
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from txlog.base.ids import MessageId, Position, TxnId
from txlog.engine.door.reading import Message
from txlog.errors import (
    AlreadyExists,
    ConsumerBusy,
    DiskFailed,
    IncompatibleSchema,
    IntegrityError,
    InvalidArgument,
    LimitExceeded,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    ReadOnlyStore,
    SqlError,
    StillInUse,
    TryAgain,
    TxlogError,
    Usage,
    WrongState,
)
from txlog.serve.core.budget import Hold

HEADER: Final = "X-Pulsar-"


class Peeked(NamedTuple):
    """A message as an answer; place: its id as Pulsar's clients have it."""

    message: Message
    place: str


class Sliced(NamedTuple):
    """An answer of JSON that is read in slices.

    pieces: each step is a short call of the store; it returns what encodes a piece of the answer
    """

    pieces: Iterator[Callable[[], bytes]]


BODY_MAX: Final = 8 << 20  # bytes of a request
VALUES_MAX: Final = 150_000  # of the JSON of a request, as `values_in` counts them
VALUE_BYTES: Final = 100  # of each in memory, beside its text
LOOP_BYTES_MAX: Final = 1 << 16  # of JSON that the event loop reads by itself
_COUNTED_BYTES: Final = 1 << 16  # at once
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_INT64: Final = range(-(1 << 63), 1 << 64)
VALUE_BYTES_MAX: Final = 64 << 20  # of a message by HTTP
# The first class that fits: what Pulsar answers, and `pulsar-admin` knows how to say.
STATUSES: Final[tuple[tuple[type[TxlogError], int], ...]] = (
    (NotFound, 404),
    (AlreadyExists, 409),
    (StillInUse, 412),
    (ConsumerBusy, 412),
    (NotAuthenticated, 401),
    (NotAllowed, 405),
    (ReadOnlyStore, 405),
    (IncompatibleSchema, 409),
    (WrongState, 409),
    (LimitExceeded, 412),
    (Usage, 400),
    (SqlError, 400),
    (TryAgain, 503),
)


async def body_of(request: Request) -> object:
    """The JSON of a request; None without any.

    raises: InvalidArgument, LimitExceeded
    """
    data = await bytes_of(request)
    if not data.strip():
        return None
    try:
        return await json_of(data, getattr(request.state, "body", None))
    except ConnectionResetError:
        raise InvalidArgument("the client has gone") from None


async def json_of(data: bytes, hold: Hold | None) -> object:
    """JSON that a client sent; the event loop reads only a short one itself.

    hold:   where its values count once they are made; None: nowhere
    raises: InvalidArgument; LimitExceeded: it has more than VALUES_MAX values;
            ConnectionResetError: the client has gone
    """
    is_short = len(data) <= LOOP_BYTES_MAX
    count = values_in(data) if is_short else await asyncio.to_thread(values_in, data)
    if count > VALUES_MAX:
        raise LimitExceeded(
            f"JSON with about {count} values, the most is {VALUES_MAX}",
            setting="values",
            limit=VALUES_MAX,
            value=count,
        )
    if hold is not None:
        await hold.reserve(count * VALUE_BYTES)
    return parsed(data) if is_short else await asyncio.to_thread(parsed, data)


def values_in(data: bytes) -> int:
    """About how many values JSON has: commas and opening brackets outside of its texts.

    It takes short steps, so that other threads go on meanwhile.
    """
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"")
    outside, count = 0, 0  # outside: 0 where a piece begins outside of a text, else 1
    for at in range(0, len(bare), _COUNTED_BYTES):
        parts = bare[at : at + _COUNTED_BYTES].split(b'"')
        between = b"".join(parts[outside::2])
        count += between.count(b",") + between.count(b"[") + between.count(b"{")
        outside = (outside + len(parts) - 1) % 2
    return count


def parsed(data: bytes) -> object:
    """JSON that a client sent. Raises InvalidArgument, also for text that UTF-8 cannot hold."""
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from error
    if _SURROGATE.search(data) is not None:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            text = "the body has half of a surrogate pair, such as a lone \\ud83d"
            raise InvalidArgument(text, hint="a text was cut within a character") from None
    return found


async def bytes_of(request: Request, most: int = BODY_MAX) -> bytes:
    """The body of a request. Raises LimitExceeded before it holds more than `most`.

    InvalidArgument: the client has gone before it was whole
    """
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > most:
                raise LimitExceeded(f"the body has more than {most} bytes", limit=most)
    except ClientDisconnect as error:
        raise InvalidArgument("the body is not whole") from error
    return bytes(data)


# --- answers ---------------------------------------------------------------------------------


def dumped(found: object) -> bytes:
    """An answer as JSON; ids as their text."""
    return orjson.dumps(found, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: object) -> object:
    if isinstance(value, MessageId | TxnId | Position):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="replace")
    raise TypeError(f"no JSON of {type(value).__name__}")


def answered(found: object) -> Response:
    """The response of what an endpoint returned: 204 for None."""
    if found is None:
        return Response(status_code=204)
    if isinstance(found, Peeked):
        return peeked(found)
    return Response(dumped(found), media_type="application/json")


def status_of(error: TxlogError) -> int:
    """The status of an error."""
    if error.code == 509:
        return 429
    if isinstance(error, NotAllowed) and {"role", "owner"} & error.fields.keys():
        return 403  # others may: 405 is for what nobody may
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def error_of(error: TxlogError, *, hides_names: bool = False) -> dict[str, object]:
    """An error as JSON: `reason`, as Pulsar calls it, beside what the command line prints.

    hides_names: no hint about what is missing, which may name what the caller must not see, and no
                 file of the machine
    """
    if hides_names and isinstance(error, IntegrityError | DiskFailed):
        error = type(error)(
            "the server cannot use a file of its store",
            hint="txlog verify says more on its machine",
            code=error.code,
        )
    said = error.as_dict()
    if hides_names and isinstance(error, NotFound):
        said["hint"] = None
    for name, value in said.items():
        if isinstance(value, int) and value not in _INT64:
            said[name] = str(value)
    return {"reason": said.pop("message"), **said}


def response_of(
    error: TxlogError, status: int | None = None, *, hides_names: bool = False
) -> Response:
    """The response for an error; status: instead of its own; hides_names: as in `error_of`."""
    status = status_of(error) if status is None else status
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    said = error_of(error, hides_names=hides_names)
    return Response(dumped(said), status, headers, "application/json")


# --- a message ---------------------------------------------------------------------------------


def check_size(table: pa.Table) -> None:
    """Raises LimitExceeded if a message has more bytes than HTTP hands out at once."""
    if table.nbytes <= VALUE_BYTES_MAX:
        return
    for value in table["value"]:
        size = value.as_buffer().size if value.is_valid else 0
        if size > VALUE_BYTES_MAX:
            raise LimitExceeded(
                f"a message of {size} bytes, HTTP hands out at most {VALUE_BYTES_MAX}",
                hint="txlog consume and clients of Pulsar's protocol get it",
                limit=VALUE_BYTES_MAX,
                value=size,
            )


def peeked(found: Peeked) -> Response:
    """The response for a message; text that no header can hold is percent-encoded."""
    message = found.message
    headers = {
        f"{HEADER}Message-ID": found.place,
        f"{HEADER}publish-time": _instant(message.publish_time),
    }
    if message.event_time is not None:
        headers[f"{HEADER}event-time"] = _instant(message.event_time)
    if message.deliver_at is not None:
        headers[f"{HEADER}deliver-at-time"] = _instant(message.deliver_at)
    if message.producer is not None:
        headers[f"{HEADER}producer-name"] = quote(message.producer)
    if message.sequence_id is not None:
        headers[f"{HEADER}sequence-id"] = str(message.sequence_id)
    if message.key is not None:
        try:
            headers[f"{HEADER}partition-key"] = quote(message.key.decode())
        except UnicodeDecodeError:
            headers[f"{HEADER}partition-key"] = base64.b64encode(message.key).decode()
            headers[f"{HEADER}partition-key-b64-encoded"] = "true"
    if message.txn is not None:
        headers[f"{HEADER}txnid-most-bits"] = str(message.txn.most)
        headers[f"{HEADER}txnid-least-bits"] = str(message.txn.least)
    if message.value is None:
        headers[f"{HEADER}null-value"] = "true"
    for name, value in message.properties.items():
        headers[f"{HEADER}PROPERTY-{quote(name)}"] = quote(value)
    return Response(message.value or b"", headers=headers, media_type="application/octet-stream")


def _instant(ms: int) -> str:
    """As Pulsar writes instants: 2026-11-20T09:12:04.000Z; beyond those of calendars, in ms."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
