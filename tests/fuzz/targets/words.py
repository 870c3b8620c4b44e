"""Text from elsewhere: ids, times, ranges, sizes, cursors in URLs, formats, tokens, rules."""

from __future__ import annotations

import json
import tempfile
from base64 import urlsafe_b64decode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fuzz.engine import Target
from txlog.base import ids, ranges, times
from txlog.cli.input.percent import InputFormat
from txlog.errors import InvalidArgument, NotAuthenticated, TxlogError
from txlog.serve.auth import access, keys, tokens
from txlog.serve.http.core import answers
from txlog.serve.http.data import events, messages, websocket

NOW_MS = 1_700_000_000_000
_SECRET = b"a secret of more than thirty-two bytes"
_PARSERS: tuple[Callable[[str], object], ...] = (
    ids.TxnId.parse,
    ids.MessageId.parse,
    ids.TopicName.parse,
    lambda text: ids.TopicName.parse(text, allow_partition=True),
    lambda text: ids.check_name("topic", text),
    times.parse_duration,
    lambda text: times.parse_time(text, NOW_MS),
    lambda text: times.parse_time_or_end(text, NOW_MS),
    lambda text: times.parse_stored(text, NOW_MS),
    times.is_distance,
    times.is_time,
    times.duration_ms,
    times.instant_ms,
    lambda text: ranges.parse_bound(text, NOW_MS),
    lambda text: ranges.parse_range(text, NOW_MS),
    ranges.parse_size,
    messages.decode_id,
    events.positions_in,
    lambda text: messages.number_in({"n": text}, "n"),
    messages.decode_base64,
    websocket._start,
    InputFormat,
)
_SEEDS = (
    *("3:18", "(844424930131968,18)", "1:2:3", "persistent://a/b/c", "t/1", "a/b/c-partition-1"),
    *("1h30m", "250ms", "2d", "-5m", "now", "@2026-01-02T03:04:05Z", "2026-01-02", "end", "start"),
    *("1700000000000", "2026-01-02 03:04:05.678+01:00", "yesterday", "12:30", "@-1h", "-100"),
    *("1:2..3:4", "@-1h..@now", "after=1:2", "1KiB", "5MB", "1.5GiB", "CAEQAg==", "0=1:17,1=2:3"),
    *(
        "%k=%v\\n",
        "%K{ascii}%k%V{big32}%v",
        "%H{3}%h{%k=%v }\\n",
        "%d{rfc3339} %v\\n",
        "inf",
        "1e400",
    ),
)


def _text(data: bytes) -> None:
    """Every parser reads the text; only its own refusal may come of it."""
    text = data.decode("utf-8", "surrogateescape")
    refusal: TxlogError | None = None
    for parse in _PARSERS:
        try:
            parse(text)
        except TxlogError as error:
            refusal = error
            assert "\n" not in error.message
    if refusal is not None:
        raise refusal


def _body(data: bytes) -> None:
    """The JSON of a request, and the members that the data endpoints take from it."""
    answers.count_values(data)
    value = answers.parse_json(data)
    rows = value.get("messages") if isinstance(value, dict) else value
    for row in rows if isinstance(rows, list) else [value]:
        if isinstance(row, dict):
            messages.value_of(row)
            messages.decode_id(row.get("messageId"))
            messages.number_in(row, "deliverAt")
            messages._options(row)


def _token(data: bytes) -> None:
    text = data.decode("latin-1")
    source = keys.SingleKey(keys.SigningKey(algorithms=("HS256",), value=_SECRET))
    for audience in (None, "a"):
        verifier = tokens.TokenVerifier(keys=source, audience=audience)
        with suppress(NotAuthenticated):
            verifier.claims(text, NOW_MS)
    tokens.unchecked(text)


def _signed(data: bytes) -> bytes:
    """The same claims with a valid signature."""
    _, _, rest = data.partition(b".")
    body, _, _ = rest.partition(b".")
    try:
        payload = urlsafe_b64decode(body + b"=" * (-len(body) % 4))
    except ValueError:
        payload = rest
    signed = jwt.api_jws.encode(payload, _SECRET, "HS256")
    return signed.encode()


def _token_seeds() -> list[bytes]:
    claims: list[dict[str, object]] = [
        {"sub": "role"},
        {"sub": "role", "exp": 1_800_000_000, "nbf": 1, "aud": ["a", "b"], "iss": "i"},
        {"sub": "role", "exp": 1e308, "aud": "a"},
    ]
    return [jwt.encode(claim, _SECRET, "HS256").encode() for claim in claims]


def _in_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], None]:
    """A target of a function that takes a path."""

    def run(data: bytes) -> None:
        folder = Path(tempfile.gettempdir())
        path, secret = folder / name, folder / "secret"
        path.write_bytes(data)
        secret.write_bytes(_SECRET)
        try:
            read(path)
        finally:
            path.unlink()
            secret.unlink()

    return run


def _key_file(path: Path) -> None:
    """A file of any kind of key, read as each kind."""
    for read in (keys._read_jwks, keys.read_secret, keys.read_public_key, keys.read_private_key):
        with suppress(InvalidArgument):
            read(path)


def _key_seeds() -> list[bytes]:
    """The same key in every process, in each form."""
    key = ec.derive_private_key(12_345, ec.SECP256R1())
    coding, private, public = (
        serialization.Encoding,
        serialization.PrivateFormat,
        serialization.PublicFormat,
    )
    plain = serialization.NoEncryption()
    return [
        _SECRET,
        key.private_bytes(coding.PEM, private.PKCS8, plain),
        key.private_bytes(coding.DER, private.PKCS8, plain),
        key.public_key().public_bytes(coding.PEM, public.SubjectPublicKeyInfo),
        key.public_key().public_bytes(coding.DER, public.SubjectPublicKeyInfo),
        json.dumps({"keys": [json.loads(_JWK)]}).encode(),
    ]


_JWK = (
    '{"kty":"EC","crv":"P-256","kid":"1","use":"sig","alg":"ES256",'
    '"x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",'
    '"y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}'
)
_RULES = b"""superusers = ["admin"]

[tokens]
secret = "secret"
audience = "a"
leeway_s = 5
role_claim = "sub"

[certificates]
role = "cn"

[roles.writer]
produce = ["public/default/*"]
consume = ["a/b/c"]
"""


_B, _A = "txlog.base.", "txlog.serve.auth."
TARGETS = (
    Target(
        "text",
        _text,
        lambda: [text.encode() for text in _SEEDS],
        (f"{_B}ids", f"{_B}times", f"{_B}ranges", "txlog.serve.http.data.events"),
        words=tuple(text.encode() for text in _SEEDS),
        first=b"yesterday",
        size_max=4096,
    ),
    Target(
        "json_body",
        _body,
        lambda: [
            b'{"messages":[{"payload":"a","key":"k","properties":{"a":"b"},"deliverAt":5}]}',
            b'[{"payloadBase64":"YQ==","messageId":"CAEQAg==","eventTime":"7","sequenceId":1}]',
        ],
        ("txlog.serve.http.core.answers", "txlog.serve.http.data.messages"),
        words=(b"\\ud83d", b'"payload":', b'{"a":', b"[", b"1e999", b'"deliverAfterMs":'),
    ),
    Target(
        "token",
        _token,
        _token_seeds,
        (f"{_A}tokens",),
        repair=_signed,
        words=(b"=", b"eyJhbGciOiJub25lIn0", b"."),
    ),
    Target(
        "rules",
        _in_file(access.read_rules, "rules.toml"),
        lambda: [_RULES],
        (f"{_A}access", f"{_A}policy"),
    ),
    Target("keys", _in_file(_key_file, "key"), _key_seeds, (f"{_A}keys",)),
)
