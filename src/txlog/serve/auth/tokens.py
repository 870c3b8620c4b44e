"""Owns tokens: JSON web tokens that carry a role and an expiry time (RFC 7519).

A token is valid if one of the server's keys signed it, with an algorithm of that key, and its
claims are true now. Time comes from our own clock, so that tests and `--now` can set it. No error
repeats a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from txlog.errors import InvalidArgument, NotAuthenticated
from txlog.serve.auth.keys import KeySource
from txlog.serve.auth.policy import is_role

TOKEN_BYTES_MAX: Final = 16 * 1024
LEEWAY_MS_MAX: Final = 300_000
_INSTANT_S_MAX: Final = 253_402_300_799  # the year 9999


class Claims(NamedTuple):
    """The role in a token, and its expiry time with the leeway (None: it does not expire)."""

    role: str
    expires_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVerifier:
    """The requirements that a token must meet.

    audience:   a token must name it; None: a token with an audience is refused
    issuer:     a token must name it; None: any issuer that has the key
    role_claim: the claim that holds the role
    leeway_ms:  how far the issuer's clock may differ from ours
    """

    keys: KeySource
    audience: str | None = None
    issuer: str | None = None
    role_claim: str = "sub"
    leeway_ms: int = 0

    def claims(self, token: str, now_ms: int) -> Claims:
        """The claims of a valid token; raises NotAuthenticated."""
        payload = self._payload(token)
        if self.issuer is not None and payload.get("iss") != self.issuer:
            raise NotAuthenticated(f"the token is not from {self.issuer}")
        self._check_audience(payload.get("aud"))
        expires_ms = _instant_ms(payload, "exp")
        if expires_ms is not None and expires_ms + self.leeway_ms <= now_ms:
            raise NotAuthenticated("the token has expired")
        begins_ms = _instant_ms(payload, "nbf")
        if begins_ms is not None and begins_ms - self.leeway_ms > now_ms:
            raise NotAuthenticated("the token is not valid yet")
        role = payload.get(self.role_claim)
        if not is_role(role):
            raise NotAuthenticated(f"the token has no role as {self.role_claim}")
        assert isinstance(role, str)
        return Claims(role, None if expires_ms is None else expires_ms + self.leeway_ms)

    def _payload(self, token: str) -> Mapping[str, Any]:
        """The claims of a token with a good signature."""
        if len(token) > TOKEN_BYTES_MAX:
            raise NotAuthenticated(f"the token has more than {TOKEN_BYTES_MAX} bytes")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise NotAuthenticated("this is not a token") from None  # the cause may repeat it
        algorithm, name = header.get("alg"), header.get("kid")
        if (
            not isinstance(algorithm, str)
            or "crit" in header
            or header.get("b64", True) is not True
        ):
            raise NotAuthenticated("the token needs an extension that is not supported")
        for key in self.keys.find(algorithm, name if isinstance(name, str) else None):
            try:
                payload: object = jwt.decode(
                    token, key.value, algorithms=[algorithm], options=_SIGNATURE_ONLY
                )
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, ValueError, RecursionError):
                break
            if isinstance(payload, dict):
                return payload
        raise NotAuthenticated("the token is not signed by a key of this server")

    def _check_audience(self, claimed: object) -> None:
        """RFC 7519, 4.1.3: a server that the token does not name must refuse it."""
        of = claimed if isinstance(claimed, list) else [] if claimed is None else [claimed]
        if self.audience is None and not of:
            return
        if self.audience is None or self.audience not in of:
            raise NotAuthenticated("the token is for another audience")


# The library checks only the signature; we compare the claims with our own clock and rules.
_SIGNATURE_ONLY: Final[Any] = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def unchecked(token: str) -> Claims:
    """The claims of a token, without any check of signature or time; raises NotAuthenticated."""
    try:
        payload: object = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict) or not is_role(payload.get("sub")):
        raise NotAuthenticated("this is not a token of a role")
    return Claims(payload["sub"], _instant_ms(payload, "exp"))


def sign(
    key: bytes | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    algorithm: str,
    role: str,
    *,
    expires_ms: int | None = None,
    audience: str | None = None,
) -> str:
    """A token of a role; raises InvalidArgument for text that cannot be a role."""
    if not is_role(role):
        raise InvalidArgument(f"{role[:40]!r} is not a valid role", code=202)
    payload: dict[str, object] = {"sub": role}
    if expires_ms is not None:
        payload["exp"] = expires_ms // 1_000
    if audience is not None:
        payload["aud"] = audience
    return jwt.encode(payload, key, algorithm)


def _instant_ms(payload: Mapping[str, Any], name: str) -> int | None:
    """A claim in seconds since 1970 as milliseconds; None without it."""
    value = payload.get(name)
    if value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value <= _INSTANT_S_MAX:  # not a number compares false
        raise NotAuthenticated(f"the token has a bad {name}")
    return int(value * 1_000)
