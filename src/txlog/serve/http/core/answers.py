"""Owns the bodies and answers of HTTP: JSON, errors with their status, a message as body and
headers.
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
from txlog.serve.limits.budget import Reservation

HEADER: Final = "X-Pulsar-"


class MessageAnswer(NamedTuple):
    """A message as an answer.

    place: its id as Pulsar's clients know it
    """

    message: Message
    place: str


class SlicedAnswer(NamedTuple):
    """An answer of JSON that is read in slices.

    pieces: each step is a short call of the store; it returns a function that encodes a piece of
            the answer
    """

    pieces: Iterator[Callable[[], bytes]]


BODY_MAX: Final = 8 << 20  # bytes of a request
VALUES_MAX: Final = 150_000  # of the JSON of a request, as `count_values` counts them
VALUE_BYTES: Final = 100  # of each in memory, besides its text
LOOP_BYTES_MAX: Final = 1 << 16  # of JSON that the event loop reads by itself
_COUNTED_BYTES: Final = 1 << 16  # at once
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_INT64: Final = range(-(1 << 63), 1 << 64)
VALUE_BYTES_MAX: Final = 64 << 20  # of a message by HTTP
# The first class that fits decides. Pulsar answers so, and `pulsar-admin` can explain it.
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


async def read_json(request: Request) -> object:
    """The JSON of a request; None without any.

    raises: InvalidArgument, LimitExceeded
    """
    data = await read_body(request)
    if not data.strip():
        return None
    try:
        return await decode_json(data, getattr(request.state, "body", None))
    except ConnectionResetError:
        raise InvalidArgument("the client has disconnected") from None


async def decode_json(data: bytes, hold: Reservation | None) -> object:
    """Parse JSON from a client; the event loop parses only short JSON itself.

    hold:   the reservation for the parsed values; None: they are not counted
    raises: InvalidArgument; LimitExceeded: it has more than VALUES_MAX values;
            ConnectionResetError: the client has disconnected
    """
    is_short = len(data) <= LOOP_BYTES_MAX
    count = count_values(data) if is_short else await asyncio.to_thread(count_values, data)
    if count > VALUES_MAX:
        raise LimitExceeded(
            f"JSON with about {count} values, the most is {VALUES_MAX}",
            setting="values",
            limit=VALUES_MAX,
            value=count,
        )
    if hold is not None:
        await hold.reserve(count * VALUE_BYTES)
    return parse_json(data) if is_short else await asyncio.to_thread(parse_json, data)


def count_values(data: bytes) -> int:
    """About how many values JSON has: commas and opening brackets outside of its strings.

    It works in short steps, so that other threads can run in between.
    """
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"")
    outside, count = 0, 0  # outside: 0 if a piece begins outside of a string, else 1
    for at in range(0, len(bare), _COUNTED_BYTES):
        parts = bare[at : at + _COUNTED_BYTES].split(b'"')
        between = b"".join(parts[outside::2])
        count += between.count(b",") + between.count(b"[") + between.count(b"{")
        outside = (outside + len(parts) - 1) % 2
    return count


def parse_json(data: bytes) -> object:
    """Parse JSON. Raises InvalidArgument, also for text that UTF-8 cannot encode."""
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from error
    if _SURROGATE.search(data) is not None:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            text = "the body has half of a surrogate pair, such as a lone \\ud83d"
            raise InvalidArgument(text, hint="a text was cut within a character") from None
    return value


async def read_body(request: Request, most: int = BODY_MAX) -> bytes:
    """The body of a request. Raises LimitExceeded beyond `most`; InvalidArgument if it is cut."""
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


def to_json(value: object) -> bytes:
    """An answer as JSON; ids as their text."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: object) -> object:
    if isinstance(value, MessageId | TxnId | Position):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="replace")
    raise TypeError(f"no JSON of {type(value).__name__}")


def response_for(result: object) -> Response:
    """The response for the value that an endpoint returned: 204 for None."""
    if result is None:
        return Response(status_code=204)
    if isinstance(result, MessageAnswer):
        return message_response(result)
    return Response(to_json(result), media_type="application/json")


def status_of(error: TxlogError) -> int:
    """The status of an error."""
    if error.code == 509:
        return 429
    if isinstance(error, NotAllowed) and {"role", "owner"} & error.fields.keys():
        return 403  # another role may do it: 405 is for requests that no role may make
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def error_of(error: TxlogError, *, hides_names: bool = False) -> dict[str, object]:
    """An error as JSON: `reason`, as Pulsar calls it, and the fields that the command line prints.

    hides_names: leave out hints about missing things, which may name what the caller must not see,
                 and files of the machine
    """
    if hides_names and isinstance(error, IntegrityError | DiskFailed):
        error = type(error)(
            "the server cannot use a file of its store",
            hint="txlog verify says more on its machine",
            code=error.code,
        )
    fields = error.as_dict()
    if hides_names and isinstance(error, NotFound):
        fields["hint"] = None
    for name, value in fields.items():
        if isinstance(value, int) and value not in _INT64:
            fields[name] = str(value)
    return {"reason": fields.pop("message"), **fields}


def response_of(
    error: TxlogError, status: int | None = None, *, hides_names: bool = False
) -> Response:
    """The response for an error; status: instead of its own; hides_names: as in `error_of`."""
    status = status_of(error) if status is None else status
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    fields = error_of(error, hides_names=hides_names)
    return Response(to_json(fields), status, headers, "application/json")


# --- a message ---------------------------------------------------------------------------------


def check_size(table: pa.Table) -> None:
    """Raises LimitExceeded if a message has more bytes than HTTP returns in one answer."""
    if table.nbytes <= VALUE_BYTES_MAX:
        return
    for value in table["value"]:
        size = value.as_buffer().size if value.is_valid else 0
        if size > VALUE_BYTES_MAX:
            raise LimitExceeded(
                f"a message of {size} bytes, HTTP returns at most {VALUE_BYTES_MAX}",
                hint="read it by Pulsar's protocol, or with txlog consume TOPIC",
                limit=VALUE_BYTES_MAX,
                value=size,
            )


def message_response(answer: MessageAnswer) -> Response:
    """The response for a message; text that no header can hold is percent-encoded."""
    message = answer.message
    headers = {
        f"{HEADER}Message-ID": answer.place,
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
    """An instant as Pulsar writes it: 2026-11-20T09:12:04.000Z; else in milliseconds."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
