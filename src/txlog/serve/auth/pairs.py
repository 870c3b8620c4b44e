"""Owns the making of keys that sign tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

SECRET_BYTES = 32


class NewKey(NamedTuple):
    """A new key: what signs, what checks (empty for a secret), and by which algorithm."""

    private: bytes
    public: bytes
    algorithm: str


def create_key(kind: str, random_bytes: Callable[[int], bytes]) -> NewKey:
    """A key of the kind secret, rsa or ec."""
    if kind == "secret":
        return NewKey(random_bytes(SECRET_BYTES), b"", "HS256")
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if kind == "rsa":
        key, algorithm = rsa.generate_private_key(public_exponent=65_537, key_size=2_048), "RS256"
    else:
        key, algorithm = ec.generate_private_key(ec.SECP256R1()), "ES256"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return NewKey(private, public, algorithm)
