"""Owns authentication and authorization: the file of rules, callers, and the listeners' checks.

    [tokens]                          JSON web tokens; set one of the first three keys
    secret_key = "secret.key"         HS256, HS384, HS512
    public_key = "public.pem"         RS*, PS*, ES*
    jwks = "keys.json"                public keys of an OIDC provider; read again when they change
    audience = "txlog"
    issuer = "https://login.example"
    role_claim = "sub"
    leeway_s = 30

    [certificates]                    TLS clients
    role = "cn"                       or "san": the first DNS name, or else URI or e-mail

    superusers = ["admin"]
    [roles.billing]
    produce = ["invoices", "acme/shop/*"]
    consume = ["orders"]

Paths are relative to the file. `reload` reads the whole file again; a file that cannot be read
changes nothing. Every check uses the rules of the moment, so a role that was removed loses its
rights at once.

Each listener calls `AccessControl.authenticate` once for a connection or request, and `check`
before each call that uses a topic, a subscription or a transaction. `become` makes the client the
owner of everything that the task begins: transactions and keys belong to the role, and no other
role may use them.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from txlog.base.ids import TopicName
from txlog.base.settings import MIB
from txlog.base.suggest import suggestion
from txlog.clock import Clock
from txlog.engine.door.disk import ACTING
from txlog.errors import InvalidArgument, NotAllowed, NotAuthenticated
from txlog.serve.auth import keys as signing  # these modules load their libraries on first use
from txlog.serve.auth import tokens as signed
from txlog.serve.auth.policy import STORE, AccessPolicy, Resource, is_role, read_policy, resource_of

if TYPE_CHECKING:
    from txlog.serve.auth.keys import KeySource
    from txlog.serve.auth.tokens import TokenVerifier

RULES_BYTES_MAX: Final = 4 * MIB
ROOT: Final = (0, "root")
_FIRST_ROLE_NUMBER: Final = 1 << 32  # uids of Linux are lower
_ROLE_NUMBER_BITS: Final = 62
_KEYS: Final = ("secret_key", "public_key", "jwks")
_WORDS: Final = {
    "": ("superusers", "roles", "tokens", "certificates"),
    "tokens": (*_KEYS, "audience", "issuer", "role_claim", "leeway_s"),
    "certificates": ("role",),
}
_NAMES_OF_CERTIFICATE: Final = ("cn", "san")

# The value that ssl.SSLSocket.getpeercert returns.
Certificate = Mapping[str, Any]


class Credentials(NamedTuple):
    """The credentials that a client presents; the server keeps them for later checks.

    method:     as Pulsar's auth_method_name, such as token; empty without a proof
    data:       the proof, such as a token
    ssl_object: the TLS session of its connection, which may have a verified certificate
    """

    method: str = ""
    data: bytes = b""
    ssl_object: object = None

    def __repr__(self) -> str:
        return f"<login by {self.method[:40] or 'nothing'}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The content of the file of rules after one reading."""

    policy: AccessPolicy
    tokens: TokenVerifier | None
    name_of_certificate: str | None


class AuthProvider:
    """Authenticates and authorizes callers by a file of rules."""

    __slots__ = ("_clock", "_listener", "_path", "_rules")

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises InvalidArgument: one line that names the position in the file."""
        self._path, self._clock = path, clock
        self._listener: Callable[[], object] = list
        self._rules = read_rules(path)

    @property
    def takes_certificates(self) -> bool:
        """Whether a TLS certificate can authenticate a client."""
        return self._rules.name_of_certificate is not None

    @property
    def takes_tokens(self) -> bool:
        """Whether a token can authenticate a client."""
        return self._rules.tokens is not None

    def reload(self) -> None:
        """Read the file again; raises InvalidArgument, and then nothing has changed."""
        self._rules = read_rules(self._path)
        self.on_change(self._listener)

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call a function when keys changed without `reload`: a JWKS file is read when it changes.

        listener: runs in the thread that logs a client in
        """
        self._listener = listener
        if self._rules.tokens is not None:
            self._rules.tokens.keys.on_change(listener)

    def connected(self, method: str, data: bytes, certificate: Certificate | None = None) -> Caller:
        """Authenticate a client of the binary protocol, by its CONNECT or AUTH_RESPONSE.

        method:      `auth_method_name`: token, tls, or nothing
        certificate: the client's verified certificate, if it has one
        raises:      NotAuthenticated
        """
        if method == "token":
            if len(data) > signed.TOKEN_BYTES_MAX:
                raise NotAuthenticated(f"the token has more than {signed.TOKEN_BYTES_MAX} bytes")
            try:
                return self._by_token(data.decode("ascii"))
            except UnicodeDecodeError:
                raise NotAuthenticated("this is not a token") from None
        if method in ("", "none", "tls"):
            return self._by_certificate(certificate)
        raise NotAuthenticated(f"authentication by {method[:40]!r} is not supported", hint=_HINT)

    def requested(
        self, authorization: str | None, certificate: Certificate | None = None
    ) -> Caller:
        """Authenticate an HTTP request.

        authorization: the header: `Bearer TOKEN`
        raises:        NotAuthenticated
        """
        if authorization is None:
            return self._by_certificate(certificate)
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise NotAuthenticated("authentication is by Bearer", hint=_HINT)
        return self._by_token(token.strip())

    def may(self, role: str, action: str, resource: Resource) -> bool:
        """Whether the current rules allow a role to do this."""
        return self._rules.policy.may(role, action, resource)

    def acts(self, role: str) -> bool:
        """Whether a role may produce, consume or administer anything."""
        return self._rules.policy.acts(role)

    def is_superuser(self, role: str) -> bool:
        """Whether a role may do everything."""
        return role in self._rules.policy.superusers

    def now_ms(self) -> int:
        """The clock that decides when tokens expire."""
        return self._clock.now().wall_ms

    def _by_token(self, token: str) -> Caller:
        if self._rules.tokens is None:
            raise NotAuthenticated("this server does not accept tokens", hint=_HINT)
        claims = self._rules.tokens.claims(token, self.now_ms())
        return Caller(claims.role, claims.expires_ms, self)

    def _by_certificate(self, certificate: Certificate | None) -> Caller:
        name_kind = self._rules.name_of_certificate
        if name_kind is None:
            raise NotAuthenticated("a token is needed", hint=_HINT)
        if not certificate:
            raise NotAuthenticated("a token or a certificate is needed", hint=_HINT)
        role = role_of_certificate(certificate, name_kind)
        if not is_role(role):
            raise NotAuthenticated(f"the certificate has no {name_kind} that is a valid role")
        assert role is not None
        return Caller(role, None, self)


_HINT: Final = "log in with a token: txlog token create --role ROLE --key FILE"


class Caller:
    """The role behind a connection or a request; without rules, the user of the server."""

    __slots__ = ("_guard", "expires_ms", "role")

    def __init__(
        self,
        role: str | None = None,
        expires_ms: int | None = None,
        guard: AuthProvider | None = None,
    ) -> None:
        self.role, self.expires_ms, self._guard = role, expires_ms, guard

    def __repr__(self) -> str:
        return f"<caller {self.role}>"

    @property
    def owner(self) -> tuple[int, str] | None:
        """The owner of its transactions and keys; None: the user of the server.

        A superuser counts as root, which may end the transactions of all owners.
        """
        if self.role is None or self._guard is None:
            return None
        if self.is_superuser:
            return ROOT
        return number_of_role(self.role), self.role

    @property
    def is_superuser(self) -> bool:
        """Whether the current rules let it do everything."""
        return (
            self.role is not None
            and self._guard is not None
            and self._guard.is_superuser(self.role)
        )

    @property
    def left_ms(self) -> int | None:
        """How long its token is still valid; None: it does not expire."""
        if self._guard is None or self.expires_ms is None:
            return None
        return max(0, self.expires_ms - self._guard.now_ms())

    @property
    def has_expired(self) -> bool:
        """Whether it has to authenticate again."""
        if self._guard is None or self.expires_ms is None:
            return False
        return self._guard.now_ms() >= self.expires_ms

    def may(self, action: str, resource: Resource | TopicName) -> bool:
        """Whether the current rules allow it to do this."""
        if self.role is None or self._guard is None:
            return True
        at = resource_of(resource) if isinstance(resource, TopicName) else resource
        return not self.has_expired and self._guard.may(self.role, action, at)

    def check_any(self) -> None:
        """Raises NotAllowed without any right to act, NotAuthenticated if its token has expired."""
        if self.has_expired:
            raise NotAuthenticated("the token has expired", hint=_HINT)
        if self.role is not None and self._guard is not None and not self._guard.acts(self.role):
            reason = f"role {self.role} may neither produce nor consume anywhere"
            raise NotAllowed(reason, role=self.role)

    def check(self, action: str, resource: Resource | TopicName) -> None:
        """Raises NotAllowed if it may not, NotAuthenticated if its token has expired."""
        if self.has_expired:
            raise NotAuthenticated("the token has expired", hint=_HINT)
        if not self.may(action, resource):
            at = (
                resource.full
                if isinstance(resource, TopicName)
                else "/".join(resource) or "the store"
            )
            raise NotAllowed(f"role {self.role} may not {action} {_on(action)}{at}", role=self.role)


def _on(action: str) -> str:
    return {"produce": "to ", "consume": "from ", "admin": "", "look": "at "}[action]


ANYONE: Final = Caller()  # the caller of a server without rules


@lru_cache(1024)
def number_of_role(role: str) -> int:
    """The uid of a role as an owner: above all uids of Linux, and always the same."""
    digest = hashlib.sha256(role.encode()).digest()[:8]
    number = int.from_bytes(digest, "big") & ((1 << _ROLE_NUMBER_BITS) - 1)
    return _FIRST_ROLE_NUMBER + number


def is_number_of_role(uid: int) -> bool:
    """Whether a uid belongs to a role, not to a user of Linux."""
    return uid >= _FIRST_ROLE_NUMBER


def role_of_certificate(certificate: Certificate, name_kind: str) -> str | None:
    """The name in a verified certificate; None if it has none, or several common names."""
    if name_kind == "cn":
        names = [
            value
            for part in certificate.get("subject", ())
            for key, value in part
            if key == "commonName"
        ]
        return names[0] if len(names) == 1 else None
    listed = certificate.get("subjectAltName", ())
    for kind in ("DNS", "URI", "email"):
        for key, value in listed:
            if key == kind:
                return str(value)
    return None


def read_rules(path: Path) -> Rules:
    """The rules in a file. Raises InvalidArgument: one line that names the position in it."""
    document = _document(path)
    _check_words(document, "", path)
    tokens, certificates = (_table(document, name, path) for name in ("tokens", "certificates"))
    name_kind = None if certificates is None else certificates.get("role", "cn")
    if name_kind is not None and name_kind not in _NAMES_OF_CERTIFICATE:
        raise InvalidArgument(f'{path}: certificates.role is neither "cn" nor "san"')
    if tokens is None and name_kind is None:
        raise InvalidArgument(
            f"{path} has neither [tokens] nor [certificates]: no client could log in"
        )
    return Rules(
        policy=read_policy(document, str(path)),
        tokens=None if tokens is None else _tokens(tokens, path),
        name_of_certificate=name_kind,
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(RULES_BYTES_MAX + 1)
        if len(data) > RULES_BYTES_MAX:
            raise InvalidArgument(f"{path} has more than {RULES_BYTES_MAX} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not UTF-8, at byte {error.start}") from error
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise InvalidArgument(f"{path} is not TOML: {str(error)[:200]}") from error


def _tokens(table: Mapping[str, Any], path: Path) -> TokenVerifier:
    key_names = [name for name in _KEYS if name in table]
    if len(key_names) != 1:
        raise InvalidArgument(f"{path}: tokens needs one of {', '.join(_KEYS)}")
    for name in (*key_names, "audience", "issuer", "role_claim"):
        if name in table and (not isinstance(table[name], str) or not table[name]):
            raise InvalidArgument(f"{path}: tokens.{name} is not a text")
    leeway_s = table.get("leeway_s", 0)
    is_number = isinstance(leeway_s, int) and not isinstance(leeway_s, bool)
    if not is_number or not 0 <= leeway_s * 1_000 <= signed.LEEWAY_MS_MAX:
        raise InvalidArgument(
            f"{path}: tokens.leeway_s is not 0 to {signed.LEEWAY_MS_MAX // 1_000}"
        )
    return signed.TokenVerifier(
        keys=_keys(key_names[0], path.parent / table[key_names[0]]),
        audience=table.get("audience"),
        issuer=table.get("issuer"),
        role_claim=table.get("role_claim", "sub"),
        leeway_ms=leeway_s * 1_000,
    )


def _keys(name: str, path: Path) -> KeySource:
    if name == "secret_key":
        return signing.read_secret(path)
    return signing.read_public_key(path) if name == "public_key" else signing.JwksFile(path)


def _table(document: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any] | None:
    table = document.get(name)
    if table is None:
        return None
    if not isinstance(table, dict):
        raise InvalidArgument(f"{path}: {name} is not a table")
    _check_words(table, name, path)
    return table


def _check_words(table: Mapping[str, Any], name: str, path: Path) -> None:
    for word in table:
        if word not in _WORDS[name]:
            path_of_key = f"{name}.{word}" if name else word
            words = _WORDS[name]
            raise InvalidArgument(
                f"{path}: {path_of_key} is not known",
                hint=suggestion(word, words, f"known are {', '.join(words)}"),
            )


class AccessControl:
    """Authenticates and authorizes clients; without rules each is the user of the server."""

    def __init__(self, guard: AuthProvider | None = None) -> None:
        self.guard = guard

    def authenticate(
        self, method: str, data: bytes, certificate: Certificate | None = None
    ) -> Caller:
        """The caller behind a client's proof.

        method:      as Pulsar's auth_method_name, such as token; empty: the client sent none
        data:        the proof
        certificate: the certificate that TLS has verified
        raises:      NotAuthenticated
        """
        if self.guard is None:
            return ANYONE
        return self.guard.connected(method, data, certificate)

    def check(
        self, caller: Caller | None, action: str, resource: TopicName | Resource | None
    ) -> None:
        """Raises NotAllowed unless a client may do this; NotAuthenticated if `caller` is None.

        resource: None for the whole store. Without rules a client may do everything.
        """
        if caller is None:
            if self.guard is None:
                return
            raise NotAuthenticated("the client has not authenticated")
        caller.check(action, STORE if resource is None else resource)

    def become(self, caller: Caller) -> None:
        """Make a client the owner of everything that this task, and tasks that it starts, begin
        from now on.

        The store reads the owner at each call, so a role that is no longer superuser loses its
        power at once.
        """
        ACTING.set(lambda: caller.owner)
