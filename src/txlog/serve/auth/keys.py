"""Owns the keys of tokens (a secret, a public key or a JWKS file) and checks of certificates.

The key decides which algorithms it is for. A token that names another algorithm, `none` for
example, matches no key. So an attacker cannot use a public key as if it were a secret (RFC 8725,
3.1 and 3.2).

    secret        HS256, from 48 bytes on HS384 too, from 64 HS512   (RFC 7518, 3.2)
    RSA           RS256 RS384 RS512 PS256 PS384 PS512, at least 2,048 bits
    EC            ES256 for P-256, ES384 for P-384, ES512 for P-521
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from txlog.base.settings import MIB
from txlog.errors import InvalidArgument, TxlogError

SECRET_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2_048
KEY_FILE_BYTES_MAX: Final = MIB
JWKS_KEYS_MAX: Final = 100
# Keys of a JWKS file that are tried for one token.
KEYS_TRIED_MAX: Final = 8

_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SigningKey:
    """One key and all algorithms it may be used with; its repr never shows the key."""

    algorithms: tuple[str, ...]
    value: bytes | PublicKey
    name: str | None = None  # `kid` of a JWKS file


class SingleKey:
    """One key that never changes: a shared secret, or a public key."""

    __slots__ = ("_key",)

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    def find(self, algorithm: str, name: str | None) -> Iterator[SigningKey]:
        """The key, if it is for the algorithm; the token's key id does not matter."""
        if algorithm in self._key.algorithms:
            yield self._key

    def reload(self) -> None:
        """Do nothing: reading the rules again makes a new SingleKey."""

    def on_change(self, listener: Callable[[], object]) -> None:
        """Do nothing: the key never changes."""


class JwksFile:
    """The keys of a JWKS file (RFC 7517), read again when the file changes."""

    __slots__ = ("_keys", "_listener", "_path", "_seen")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _stamp(path)
        self._keys = _read_jwks(path)
        self._listener: Callable[[], object] = list

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call a function after each change of the keys, in the thread that read the file."""
        self._listener = listener

    def find(self, algorithm: str, name: str | None) -> Iterator[SigningKey]:
        """The keys that may have signed a token of this algorithm and `kid`."""
        self._look()
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if name is not None:
            fitting = [key for key in fitting if key.name == name]
        yield from fitting[:KEYS_TRIED_MAX]

    def reload(self) -> None:
        """Read the file; if it cannot be read the keys stay as they are. Raises InvalidArgument."""
        self._keys = _read_jwks(self._path)
        self._listener()

    def _look(self) -> None:
        """Read the file if it has changed. A bad file is not read again until it changes again."""
        try:
            seen = _stamp(self._path)
            if seen != self._seen:
                self._seen = seen
                self.reload()
        except InvalidArgument:
            return  # to see the error, the operator sends SIGHUP


KeySource = SingleKey | JwksFile


def read_secret(path: Path) -> SingleKey:
    """The secret in a file: all of its bytes; raises InvalidArgument."""
    data = _read(path)
    if _is_public_or_private(data):
        raise InvalidArgument(
            f"{path} holds a key pair or a certificate, not a secret", hint="name it as public_key"
        )
    if len(data) < SECRET_BYTES_MIN:
        raise InvalidArgument(
            f"the secret in {path} has {len(data)} bytes, it needs {SECRET_BYTES_MIN}",
            hint="make one: txlog token create-key FILE",
        )
    return SingleKey(SigningKey(algorithms=algorithms_of_secret(data), value=data))


def read_public_key(path: Path) -> SingleKey:
    """The public key in a file, as PEM or DER; raises InvalidArgument."""
    data = _read(path)
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            key: object = serialization.load_pem_public_key(data)
        else:
            key = serialization.load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        problem = "a private key" if b"PRIVATE KEY" in data else "not a public key as PEM or DER"
        raise InvalidArgument(f"{path} is {problem}") from error
    return SingleKey(_public(key, str(path)))


def read_private_key(
    path: Path,
) -> tuple[str, bytes | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey]:
    """The algorithm and the key that sign tokens: a private key, or else a secret.

    raises: InvalidArgument
    """
    data = _read(path)
    if not _is_public_or_private(data):
        read_secret(path)
        return algorithms_of_secret(data)[-1], data
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            key: object = serialization.load_pem_private_key(data, None)
        else:
            key = serialization.load_der_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidArgument(f"{path} is not a private key without a password") from error
    if isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        return _public(key.public_key(), str(path)).algorithms[0], key
    raise InvalidArgument(f"{path} is neither an RSA nor an EC key")


def algorithms_of_secret(data: bytes) -> tuple[str, ...]:
    """The algorithms whose hash is not longer than the secret."""
    return tuple(f"HS{8 * size}" for size in (32, 48, 64) if len(data) >= size)


def _public(key: object, source: str) -> SigningKey:
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise InvalidArgument(
                f"the key of {source} has {key.key_size} bits, it needs {RSA_BITS_MIN}"
            )
        return SigningKey(algorithms=_RSA_ALGORITHMS, value=key)
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVE_ALGORITHMS:
        return SigningKey(algorithms=(_CURVE_ALGORITHMS[key.curve.name],), value=key)
    raise InvalidArgument(f"the key of {source} is neither RSA nor EC over P-256, P-384 or P-521")


def _read_jwks(path: Path) -> list[SigningKey]:
    """The keys for signatures; keys of unknown kinds are left out."""
    try:
        document = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not JSON: {str(error)[:200]}") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise InvalidArgument(f'{path} is not a JWKS file: it has no list "keys"')
    if len(listed) > JWKS_KEYS_MAX:
        raise InvalidArgument(f"{path} has {len(listed)} keys, the most are {JWKS_KEYS_MAX}")
    keys = []
    for index, item in enumerate(listed):
        source = f"{path}: keys[{index}]"
        if not isinstance(item, dict):
            raise InvalidArgument(f"{source} is not an object")
        if item.get("kty") == "oct":
            raise InvalidArgument(
                f"{source} is a secret: every reader of the file could make tokens"
            )
        if item.get("kty") in ("RSA", "EC") and item.get("use", "sig") == "sig":
            keys.append(_key_of(item, source))
    if not keys:
        raise InvalidArgument(f"{path} has no RSA or EC key for signatures")
    return keys


def _key_of(jwk: Mapping[str, Any], source: str) -> SigningKey:
    algorithm = jwt.algorithms.RSAAlgorithm if jwk["kty"] == "RSA" else jwt.algorithms.ECAlgorithm
    try:
        key = _public(algorithm.from_jwk(dict(jwk)), source)
    except (jwt.InvalidKeyError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, TxlogError):
            raise
        raise InvalidArgument(f"{source} is not a public key: {str(error)[:100]}") from error
    pinned = jwk.get("alg")
    if pinned is not None and pinned not in key.algorithms:
        raise InvalidArgument(f"{source} has alg {str(pinned)[:40]}, which is not of its kind")
    name = jwk.get("kid")
    return SigningKey(
        algorithms=key.algorithms if pinned is None else (pinned,),
        value=key.value,
        name=name if isinstance(name, str) else None,
    )


def _is_public_or_private(data: bytes) -> bool:
    """Whether data that should be a secret is a public or private key."""
    if data.lstrip().startswith((b"-----BEGIN", b"ssh-", b"ecdsa-", b"{")):
        return True
    for load in (serialization.load_der_public_key, serialization.load_ssh_public_key):
        try:
            load(data)
        except (ValueError, UnsupportedAlgorithm):
            continue
        return True
    try:
        serialization.load_der_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > KEY_FILE_BYTES_MAX:
        raise InvalidArgument(f"{path} has more than {KEY_FILE_BYTES_MAX} bytes")
    return data


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def is_issued_by(certificate: bytes, authorities: bytes, now_ms: int) -> bool:
    """Whether one of the authorities signed the certificate itself, and both are valid now.

    certificate: a client's, as DER
    authorities: certificates as PEM

    Intermediate authorities are not followed: the client sent them in its handshake, and Python
    does not keep them.
    """
    now = datetime.datetime.fromtimestamp(now_ms / 1_000, datetime.UTC)
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        issuers = x509.load_pem_x509_certificates(authorities)
    # OpenSSL accepted the certificate, and this library does not: the client has to connect again
    except ValueError:
        return False
    for authority in issuers:
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        if all(
            each.not_valid_before_utc <= now <= each.not_valid_after_utc
            for each in (leaf, authority)
        ):
            return True
    return False


SECRET_BYTES = 32


class NewKey(NamedTuple):
    """A new key: private and public part (empty for a secret), and its algorithm."""

    private: bytes
    public: bytes
    algorithm: str


def create_key(kind: str, random_bytes: Callable[[int], bytes]) -> NewKey:
    """A new key of the kind secret, rsa or ec; random_bytes: makes the bytes of a secret."""
    if kind == "secret":
        return NewKey(random_bytes(SECRET_BYTES), b"", "HS256")
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if kind == "rsa":
        key, algorithm = rsa.generate_private_key(public_exponent=65_537, key_size=2_048), "RS256"
    else:
        key, algorithm = ec.generate_private_key(ec.SECP256R1()), "ES256"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return NewKey(private, public, algorithm)
