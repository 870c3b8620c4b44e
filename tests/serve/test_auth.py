"""Authentication and rules: which tokens are accepted, and the rights of each role."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from txlog.base.ids import TopicName
from txlog.clock import ManualClock
from txlog.errors import InvalidArgument, NotAllowed, NotAuthenticated
from txlog.serve.auth import ADMIN, CONSUME, LOOK, PRODUCE, STORE, AuthProvider, Caller
from txlog.serve.auth.access import ROOT, number_of_role
from txlog.serve.auth.keys import (
    JwksFile,
    SigningKey,
    SingleKey,
    read_private_key,
    read_public_key,
    read_secret,
)
from txlog.serve.auth.policy import is_role, read_policy
from txlog.serve.auth.tokens import TokenVerifier, sign

NOW_MS = 1_790_000_000_000
NOW_S = NOW_MS // 1_000
SECRET = bytes(range(32))
RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC = ec.generate_private_key(ec.SECP256R1())
RULES = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[roles.billing]
produce = ["invoices", "acme/shop/out*"]
consume = ["acme/shop/*"]
[roles.keeper]
admin = ["acme/*"]
[roles.watcher]
look = ["*"]
[roles.idle]
"""


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def private_pem(key: Any) -> bytes:
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem


def put(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.fixture
def secret(tmp_path: Path) -> SingleKey:
    return read_secret(put(tmp_path / "secret.key", SECRET))


@pytest.fixture
def guard(tmp_path: Path, secret: SingleKey) -> AuthProvider:
    return AuthProvider(put(tmp_path / "rules.toml", RULES), ManualClock(NOW_MS))


def hand_made(header: object, payload: object, signature: bytes = b"") -> str:
    """Encode a token from its parts, even if a library would refuse to make it."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    return ".".join(part(json.dumps(item).encode()) for item in (header, payload)) + (
        "." + part(signature)
    )


def with_hmac(header: dict[str, object], payload: object, key: bytes) -> str:
    """A token that is signed by HS256 with any bytes."""
    unsigned = hand_made(header, payload)[:-1]
    signature = hmac.new(key, unsigned.encode(), hashlib.sha256).digest()
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


# --- what is believed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        *((RSA, name) for name in ("RS256", "RS384", "RS512", "PS256")),
        (EC, "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ec.generate_private_key(ec.SECP521R1()), "ES512"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_public_keys_verify_their_algorithms(tmp_path: Path, key: Any, algorithm: str) -> None:
    tokens = TokenVerifier(keys=read_public_key(put(tmp_path / "public.pem", pem(key))))
    token = sign(key, algorithm, "billing", expires_ms=NOW_MS + 5_000)
    assert tokens.claims(token, NOW_MS) == ("billing", NOW_MS + 5_000)


def test_der_keys_are_read_as_pulsar_writes_them(tmp_path: Path) -> None:
    public = RSA.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    private = RSA.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    algorithm, key = read_private_key(put(tmp_path / "private.key", private))
    tokens = TokenVerifier(keys=read_public_key(put(tmp_path / "public.key", public)))
    assert tokens.claims(sign(key, algorithm, "billing"), NOW_MS) == ("billing", None)


@pytest.mark.parametrize(("size", "most"), [(32, 256), (47, 256), (48, 384), (64, 512), (100, 512)])
def test_a_secret_is_for_hashes_that_are_not_longer(tmp_path: Path, size: int, most: int) -> None:
    """RFC 7518, 3.2."""
    keys = read_secret(put(tmp_path / "secret.key", b"\xff" * size))
    allowed = [bits for bits in (256, 384, 512) if any(keys.find(f"HS{bits}", None))]
    assert allowed == [bits for bits in (256, 384, 512) if bits <= most]


# --- what is not -----------------------------------------------------------------------------


def test_token_without_a_signature_is_refused(secret: SingleKey) -> None:
    """Kills: a token with the algorithm `none`, in upper or lower case."""
    for algorithm in ("none", "None", "NONE", "nOnE", "", None, 0, ["HS256"], "hs256"):
        token = hand_made({"alg": algorithm, "typ": "JWT"}, {"sub": "boss"})
        for unsigned in (token, token + "AAAA"):
            with pytest.raises(NotAuthenticated):
                TokenVerifier(keys=secret).claims(unsigned, NOW_MS)


def test_a_public_key_is_no_secret(tmp_path: Path) -> None:
    """Kills: key confusion. HS256 with the bytes of the public key, as PEM, DER and text of it."""
    tokens = TokenVerifier(keys=read_public_key(put(tmp_path / "public.pem", pem(RSA))))
    der = RSA.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for key in (pem(RSA), pem(RSA).strip(), der, base64.b64encode(der)):
        with pytest.raises(NotAuthenticated, match="not signed"):
            tokens.claims(with_hmac({"alg": "HS256"}, {"sub": "boss"}, key), NOW_MS)


def test_keys_of_other_kinds_are_refused_as_secrets(tmp_path: Path) -> None:
    for data in (pem(RSA), private_pem(EC), b"ssh-rsa " + b"A" * 99, b'{"keys": []}' + b" " * 99):
        with pytest.raises(InvalidArgument, match="not a secret"):
            read_secret(put(tmp_path / "key", data))
    with pytest.raises(InvalidArgument, match="31 bytes"):
        read_secret(put(tmp_path / "key", b"x" * 31))
    with pytest.raises(InvalidArgument, match="private key"):
        read_public_key(put(tmp_path / "key", private_pem(EC)))
    with pytest.raises(InvalidArgument, match="neither"):
        other = ed25519.Ed25519PrivateKey.generate()
        read_private_key(put(tmp_path / "key", private_pem(other)))
    weak = put(tmp_path / "key", pem(rsa.generate_private_key(public_exponent=3, key_size=1_024)))
    with pytest.raises(InvalidArgument, match="1024 bits"):
        read_public_key(weak)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW_S}, "expired"),
        ({"exp": 0}, "expired"),
        ({"exp": "tomorrow"}, "bad exp"),
        ({"exp": True}, "bad exp"),
        ({"exp": 10**400}, "bad exp"),
        ({"exp": float("nan")}, "bad exp"),
        ({"exp": float("inf")}, "bad exp"),
        ({"nbf": NOW_S + 1}, "not valid yet"),
        ({"nbf": []}, "bad nbf"),
        ({"aud": "other"}, "audience"),
        ({"aud": ["other"]}, "audience"),
        ({"sub": None}, "no role"),
        ({"sub": ["boss"]}, "no role"),
        ({"sub": ""}, "no role"),
        ({"sub": "a&b"}, "no role"),
        ({"sub": "a\nb"}, "no role"),
        ({"sub": "a\ud800"}, "no role"),
        ({"sub": " boss"}, "no role"),
        ({"sub": "x" * 257}, "no role"),
    ],
)
def test_claims_have_to_hold(secret: SingleKey, claims: dict[str, object], reason: str) -> None:
    token = with_hmac({"alg": "HS256"}, {"sub": "billing", **claims}, SECRET)
    with pytest.raises(NotAuthenticated, match=reason):
        TokenVerifier(keys=secret).claims(token, NOW_MS)


def test_audience_issuer_and_claim_of_the_role_are_checked(secret: SingleKey) -> None:
    tokens = TokenVerifier(
        keys=secret, audience="txlog", issuer="https://login", role_claim="role", leeway_ms=2_000
    )
    good = {"role": "billing", "aud": ["other", "txlog"], "iss": "https://login", "sub": "boss"}
    late = {**good, "exp": NOW_S - 1, "nbf": NOW_S + 1}
    assert tokens.claims(jwt.encode(late, SECRET), NOW_MS) == ("billing", NOW_MS + 1_000)
    for claim in ("role", "aud", "iss"):
        with pytest.raises(NotAuthenticated):
            without = {name: value for name, value in good.items() if name != claim}
            tokens.claims(jwt.encode(without, SECRET), NOW_MS)
        with pytest.raises(NotAuthenticated):
            tokens.claims(jwt.encode({**good, claim: "a&b"}, SECRET), NOW_MS)


@pytest.mark.parametrize(
    "token",
    [
        *("", ".", "..", "...", "a.b.c", "x" * 20_000, "e30.e30.", "\x00", "bm90.bm90.bm90"),
        hand_made({"alg": "HS256", "crit": ["exp"], "exp": 1}, {"sub": "boss"}),
        hand_made({"alg": "HS256", "b64": False}, {"sub": "boss"}),
        hand_made([], {}),
        hand_made({"alg": "HS256"}, ["sub"]),
        with_hmac({"alg": "HS256"}, ["sub", "boss"], SECRET),
        with_hmac({"alg": "HS256"}, "boss", SECRET),
        with_hmac({"alg": "HS256", "zip": "DEF", "kid": 3}, {"sub": "boss"}, SECRET),
    ],
)
def test_malformed_token_is_refused_in_one_line(secret: SingleKey, token: str) -> None:
    with pytest.raises(NotAuthenticated) as caught:
        TokenVerifier(keys=secret).claims(token, NOW_MS)
    assert len(token) < 8 or token not in str(caught.value)


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_refused_as_a_token(text: str) -> None:
    secret = SingleKey(SigningKey(algorithms=("HS256",), value=SECRET))
    with pytest.raises(NotAuthenticated):
        TokenVerifier(keys=secret).claims(text, NOW_MS)


@given(st.data())
def test_a_token_with_another_byte_is_refused(data: st.DataObject) -> None:
    """Kills: a signature that is not compared as a whole. The last character has spare bits."""
    token = sign(SECRET, "HS256", "billing")
    at = data.draw(st.integers(0, len(token) - 2))
    other = data.draw(st.characters(codec="ascii").filter(lambda character: character != token[at]))
    with pytest.raises(NotAuthenticated):
        TokenVerifier(keys=SingleKey(SigningKey(algorithms=("HS256",), value=SECRET))).claims(
            token[:at] + other + token[at + 1 :], NOW_MS
        )


@given(st.text(max_size=300))
def test_a_role_is_one_printable_line(text: str) -> None:
    if is_role(text):
        assert text.isprintable()
        assert text.strip() == text
        assert 0 < len(text.encode()) <= 256
        assert "&" not in text


# --- keys of an OIDC provider ----------------------------------------------------------------


def jwk(key: Any, name: str, **more: str) -> dict[str, object]:
    kind = (
        jwt.algorithms.RSAAlgorithm
        if isinstance(key, rsa.RSAPrivateKey)
        else (jwt.algorithms.ECAlgorithm)
    )
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": name, **more}


def test_a_jwks_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = put(tmp_path / "keys.json", json.dumps({"keys": [jwk(RSA, "a"), jwk(EC, "b")]}))
    tokens = TokenVerifier(keys=JwksFile(path))
    of_rsa = jwt.encode({"sub": "x"}, RSA, "RS256", headers={"kid": "a"})
    of_ec = jwt.encode({"sub": "x"}, EC, "ES256")
    assert tokens.claims(of_rsa, NOW_MS).role == tokens.claims(of_ec, NOW_MS).role == "x"
    put(path, "{")  # a half-written file keeps the old keys, so no client is locked out
    assert tokens.claims(of_rsa, NOW_MS).role == "x"
    path.unlink()
    assert tokens.claims(of_rsa, NOW_MS).role == "x"
    put(path, json.dumps({"keys": [jwk(EC, "c")]}))
    assert tokens.claims(of_ec, NOW_MS).role == "x"
    with pytest.raises(NotAuthenticated):
        tokens.claims(of_rsa, NOW_MS)


def test_a_key_of_a_jwks_file_is_for_its_name_algorithm_and_use(tmp_path: Path) -> None:
    listed = [jwk(RSA, "a", alg="RS512"), jwk(EC, "b", use="enc"), {"kty": "OKP", "kid": "new"}]
    keys = JwksFile(put(tmp_path / "keys.json", json.dumps({"keys": listed})))
    assert [key.name for key in keys.find("RS512", None)] == ["a"]
    assert [key.name for key in keys.find("RS512", "a")] == ["a"]
    for algorithm, name in (("RS256", "a"), ("RS512", "b"), ("ES256", "b"), ("HS256", "a")):
        assert not list(keys.find(algorithm, name))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no list"),
        ('{"keys": {}}', "no list"),
        ('{"keys": [1]}', "keys\\[0\\] is not an object"),
        ('{"keys": []}', "no RSA or EC"),
        ('{"keys": [{"kty": "oct", "k": "AAAA"}]}', "is a secret"),
        ('{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}', "keys\\[0\\]"),
        ('{"keys": [{"kty": "EC", "crv": "P-256", "x": "", "y": 1}]}', "not a public key"),
        (json.dumps({"keys": [jwk(RSA, "a", alg="HS256")]}), "not of its kind"),
        (json.dumps({"keys": [{}] * 101}), "the most are 100"),
    ],
)
def test_a_bad_jwks_file_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        JwksFile(put(tmp_path / "keys.json", text))


# --- roles -----------------------------------------------------------------------------------


def caller(guard: AuthProvider, role: str, **claims: int) -> Caller:
    return guard.connected("token", jwt.encode({"sub": role, **claims}, SECRET).encode())


def test_rules_hold_for_their_resource_and_below(guard: AuthProvider) -> None:
    billing, keeper, boss = (caller(guard, role) for role in ("billing", "keeper", "boss"))
    invoices = TopicName.parse("invoices")
    allowed = [
        (PRODUCE, ("public", "default", "invoices")),
        (PRODUCE, ("acme", "shop", "out")),
        (PRODUCE, ("acme", "shop", "outbox")),
        (CONSUME, ("acme", "shop", "x")),
        (CONSUME, ("acme", "shop")),
        *((LOOK, place) for place in [("acme",), ("acme", "shop"), ("public", "default")]),
        (LOOK, ("public", "default", "invoices")),
    ]
    refused = [
        (PRODUCE, ("acme", "shop", "in")),
        (PRODUCE, ("acme", "shop")),
        (PRODUCE, ("public", "default", "invoices2")),
        (PRODUCE, ("public", "default", "Invoices")),
        (CONSUME, ("public", "default", "invoices")),
        (CONSUME, ("acme", "shop2", "x")),
        (CONSUME, ("acme",)),
        (CONSUME, STORE),
        (ADMIN, ("acme", "shop", "out")),
        (LOOK, STORE),
        (LOOK, ("acme", "other")),
        (LOOK, ("public", "default", "orders")),
    ]
    assert [pair for pair in allowed if not billing.may(*pair)] == []
    assert [pair for pair in refused if billing.may(*pair)] == []
    assert billing.may(PRODUCE, invoices)
    of_acme = [(action, place) for action, place in (*allowed, *refused) if place[:1] == ("acme",)]
    assert all(keeper.may(*pair) for pair in of_acme)
    assert not any(keeper.may(action, STORE) for action in (ADMIN, PRODUCE))
    assert all(boss.may(*pair) for pair in (*allowed, *refused))
    watcher = caller(guard, "watcher")
    assert all(watcher.may(*pair) for pair in (*allowed, *refused) if pair[0] == LOOK)
    assert not any(watcher.may(*pair) for pair in (*allowed, *refused) if pair[0] != LOOK)
    for nobody in ("idle", "unknown"):
        assert not any(caller(guard, nobody).may(*pair) for pair in (*allowed, *refused))
    with pytest.raises(NotAllowed, match="role billing may not admin acme/shop") as caught:
        billing.check(ADMIN, ("acme", "shop"))
    assert caught.value.code == 406


def test_without_rules_every_caller_acts_as_the_user() -> None:
    assert Caller().may(ADMIN, STORE)
    assert Caller().owner is None


def test_role_owns_its_transactions(guard: AuthProvider) -> None:
    """The number of a role is above all user ids of Linux, and never changes, as it is stored."""
    assert caller(guard, "billing").owner == (906_850_724_494_580_375, "billing")
    assert caller(guard, "boss").owner == ROOT
    roles = [f"role{number}" for number in range(1_000)] + ["0", "root", "1000"]
    numbers = {number_of_role(role) for role in roles}
    assert len(numbers) == len(roles)
    assert min(numbers) > 1 << 32
    assert max(numbers) < 1 << 63


def test_token_expires_for_connected_clients(tmp_path: Path, secret: SingleKey) -> None:
    clock = ManualClock(NOW_MS)
    guard = AuthProvider(put(tmp_path / "rules.toml", RULES), clock)
    boss = caller(guard, "boss", exp=NOW_S + 10)
    boss.check(ADMIN, STORE)
    clock.advance(10_000)
    assert boss.has_expired
    assert not boss.may(ADMIN, STORE)
    with pytest.raises(NotAuthenticated, match="expired"):
        boss.check(ADMIN, STORE)


def test_new_rules_apply_to_connected_clients(guard: AuthProvider, tmp_path: Path) -> None:
    idle, boss = caller(guard, "idle"), caller(guard, "boss")
    put(tmp_path / "rules.toml", RULES.replace('"boss"', '"idle"'))
    assert not idle.may(ADMIN, STORE)
    guard.reload()
    assert idle.may(ADMIN, STORE)
    assert not boss.may(LOOK, ("acme",))
    put(tmp_path / "rules.toml", "superusers = [")
    with pytest.raises(InvalidArgument, match="not TOML"):
        guard.reload()
    assert idle.may(ADMIN, STORE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "neither"),
        ("a = 1\nx =  # what\n", "not TOML: .*line 2"),
        ("super = []", "super is not known"),
        ("[tokens]", "tokens needs one of"),
        ('[tokens]\nsecret_key = "a"\njwks = "b"', "tokens needs one of"),
        ('[tokens]\nsecret_key = "missing"', "missing cannot be read"),
        ("[tokens]\nsecret_key = 1", "tokens.secret_key is not a text"),
        ('[tokens]\nsecret_key = "secret.key"\nleeway_s = true', "leeway_s"),
        ('[tokens]\nsecret_key = "secret.key"\nleeway_s = 301', "0 to 300"),
        ('[tokens]\nsecret_key = "secret.key"\naudience = []', "audience is not a text"),
        (
            '[tokens]\nsecret_key = "secret.key"\nalgorithm = "none"',
            "tokens.algorithm is not known",
        ),
        ('tokens = "secret.key"', "tokens is not a table"),
        ('[certificates]\nrole = "ou"', "neither"),
        ("[certificates]\n[roles.a]\nproduces = []", "'produces', which is not an action"),
        ("[certificates]\n[roles.a]\nproduce = 'x'", "roles.a.produce is not a list"),
        ("[certificates]\n[roles.a]\nproduce = ['a/b/c/d']", "produce\\[0\\]"),
        ("[certificates]\n[roles.a]\nproduce = ['a//c']", "produce\\[0\\]: bad namespace"),
        ("[certificates]\n[roles.a]\nproduce = ['a/*/c']", "a \\* may only be at the end"),
        ("[certificates]\n[roles.a]\nproduce = ['a/b*c*']", "a \\* may only be at the end"),
        ("[certificates]\n[roles.a]\nproduce = ['']", "produce\\[0\\]: bad topic"),
        ("[certificates]\n[roles.a]\nproduce = ['a/b']", "neither a tenant"),
        ("[certificates]\n[roles.a]\nproduce = ['a/b*']", "neither a tenant"),
        ("[certificates]\n[roles.a]\nproduce = ['a/']", "neither a tenant|bad namespace"),
        ("[certificates]\n[roles.a]\nproduce = ['a/b/c/*']", "more than tenant"),
        ("[certificates]\n[roles.'a&b']", "is not a valid role"),
        ("superusers = ['a\\nb', '']\n[certificates]", "is not a valid role"),
        ("superusers = 'boss'\n[certificates]", "not a list of texts"),
        ("a = " + "[" * 100_000, "not TOML"),
    ],
)
def test_bad_rules_are_refused_in_one_line(
    tmp_path: Path, secret: SingleKey, text: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason) as caught:
        AuthProvider(put(tmp_path / "rules.toml", text), ManualClock(NOW_MS))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_is_rules_or_one_line(text: str) -> None:
    documents: list[dict[str, object]] = [
        {"superusers": [text]},
        {"roles": {text: {}}},
        {"roles": {"a": {"admin": [text]}}},
    ]
    for document in documents:
        try:
            read_policy(document, "rules.toml")
        except InvalidArgument as error:
            assert "\n" not in str(error)


# --- how a client authenticates --------------------------------------------------------------


def test_methods_of_connect(guard: AuthProvider) -> None:
    good = jwt.encode({"sub": "billing"}, SECRET)
    assert guard.connected("token", good.encode()).role == "billing"
    assert guard.requested(f"Bearer {good}").role == "billing"
    assert guard.requested(f"bearer  {good} ").role == "billing"
    for method in ("", "none", "tls", "basic", "athenz", "Token"):
        with pytest.raises(NotAuthenticated):
            guard.connected(method, good.encode())
    for data in (b"", b"\xff\xfe", b"x" * 100_000):
        with pytest.raises(NotAuthenticated):
            guard.connected("token", data)
    for header in (None, "", "Bearer", f"Basic {good}", f"Bearer{good}", good):
        with pytest.raises(NotAuthenticated):
            guard.requested(header)


def test_certificate_is_a_role_if_the_rules_allow_it(tmp_path: Path) -> None:
    certificate = {
        "subject": ((("organizationName", "acme"),), (("commonName", "billing"),)),
        "subjectAltName": (("IP Address", "10.0.0.1"), ("URI", "urn:b"), ("DNS", "b.example")),
    }
    by_cn = AuthProvider(put(tmp_path / "cn.toml", "[certificates]"), ManualClock(NOW_MS))
    assert by_cn.connected("tls", b"", certificate).role == "billing"
    assert by_cn.connected("", b"", certificate).role == "billing"
    by_san = AuthProvider(
        put(tmp_path / "san.toml", "[certificates]\nrole='san'"), ManualClock(NOW_MS)
    )
    assert by_san.requested(None, certificate).role == "b.example"
    two_names = {"subject": ((("commonName", "a"),), (("commonName", "b"),))}
    for bad in (None, {}, {"subject": ()}, two_names):
        with pytest.raises(NotAuthenticated):
            by_cn.connected("tls", b"", bad)
    with pytest.raises(NotAuthenticated, match="does not accept tokens"):
        by_cn.connected("token", b"x")


def test_keys_are_in_no_text(tmp_path: Path, guard: AuthProvider) -> None:
    """Kills: a repr with the key, which a log or a traceback would show."""
    key = next(read_secret(tmp_path / "secret.key").find("HS256", None))
    for item in (key, guard, caller(guard, "billing")):
        assert repr(SECRET)[2:20] not in f"{item!r} {item}"
        assert os.fsdecode(SECRET[1:9]) not in f"{item!r}"
