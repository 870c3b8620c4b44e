"""Owns the commands of tokens for `txlog serve --auth FILE`: token create-key, create, show."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

from txlog.cli.call.call import Call
from txlog.cli.line.command import Argument, Duration, Option, command
from txlog.errors import AlreadyExists, DiskFailed, InvalidArgument, MissingExtra

_KINDS: Final = ("secret", "rsa", "ec")
_TOKEN_BYTES_MAX: Final = 1 << 16


@command(
    "token create-key",
    "make a key that signs tokens",
    examples=(
        "txlog token create-key secret.key",
        "txlog token create-key private.pem --kind ec --public public.pem",
    ),
    rows="tool.SigningKeyCreated",
    loses="nothing",
)
def create_key(
    call: Call,
    path: Annotated[str, Argument(metavar="FILE", show_default=False)],
    kind: Annotated[
        str, Option("--kind", metavar="secret|rsa|ec", help="kind of the signing key")
    ] = "secret",
    public: Annotated[
        str | None, Option("--public", metavar="FILE", help="the server's key, for rsa and ec")
    ] = None,
) -> None:
    """Make a key that signs tokens, in a file that only you can read.

    With a secret key the server could make tokens itself; with rsa or ec it gets only the public
    key, which can check tokens but not make them. An existing file is never replaced.
    """
    call.check_choice("--kind", kind, _KINDS)
    if (kind == "secret") != (public is None):
        raise InvalidArgument("--public is for a key of kind rsa or ec, which need it")
    pairs = _module("txlog.serve.auth.keys")
    key_pair = pairs.create_key(kind, os.urandom)
    _write_new(path, key_pair.private, 0o600)
    if public is not None:
        _write_new(public, key_pair.public, 0o644)
    call.summary(f"{path} signs tokens by {key_pair.algorithm}")
    call.output.result(
        {"path": path, "kind": kind, "algorithm": key_pair.algorithm, "public": public}
    )


@command(
    "token create",
    "print a token for a role",
    examples=(
        "txlog token create --role billing --key signing.key",
        "txlog token create --role billing --key signing.key --expires-in 30d > billing.token",
    ),
    rows="tool.TokenCreated",
    loses="nothing",
)
def create(
    call: Call,
    role: Annotated[str, Option("--role", metavar="ROLE", help="role of the token's holder")],
    key: Annotated[
        str, Option("--key", metavar="FILE", help="a secret or private key, as PEM or DER")
    ],
    lasting_ms: Annotated[
        int | None, Duration("--expires-in", help="its lifetime; else unlimited")
    ] = None,
    audience: Annotated[
        str | None, Option("--audience", metavar="TEXT", help="audience of the server")
    ] = None,
) -> None:
    """Print a token for a role: any holder of the token can do what the role may.

    A server can revoke a token only by changing its key, so let tokens expire.
    """
    expires_ms = None if lasting_ms is None else call.clock.now().wall_ms + lasting_ms
    algorithm, private = _module("txlog.serve.auth.keys").read_private_key(Path(key))
    token = _module("txlog.serve.auth.tokens").sign(
        private, algorithm, role, expires_ms=expires_ms, audience=audience
    )
    if call.output.as_json:
        call.output.single({"role": role, "expires_at": expires_ms, "token": token})
    else:
        call.output.text(f"{token}\n")


@command(
    "token show",
    "contents and validity of a token",
    examples=(
        "txlog token show billing.token",
        "txlog token show - --auth rules.toml < billing.token",
    ),
    rows="tool.TokenShown",
)
def show(
    call: Call,
    path: Annotated[str, Argument(metavar="FILE", show_default=False)] = "-",
    auth: Annotated[
        str | None, Option("--auth", metavar="FILE", help="check it by the rules of a server")
    ] = None,
) -> None:
    """Print the contents of a token. Without --auth its signature is not checked.

    With --auth, a token that the server would refuse ends with 4 (411).
    """
    token = _given(path)
    guards = _module("txlog.serve.auth.access")
    if auth is not None:
        caller = guards.AuthProvider(Path(auth), call.clock).connected("token", token.encode())
        row = {"role": caller.role, "expires_at": caller.expires_ms, "verified": True}
    else:
        claims = _module("txlog.serve.auth.tokens").unchecked(token)
        row = {"role": claims.role, "expires_at": claims.expires_ms, "verified": False}
    call.output.single(row)


def _given(path: str) -> str:
    """Read a token from a file or stdin; all users of the machine could see it in an argument."""
    if path == "-":
        data = sys.stdin.buffer.read(_TOKEN_BYTES_MAX)
    else:
        try:
            with open(path, "rb") as file:
                data = file.read(_TOKEN_BYTES_MAX)
        except OSError as error:
            raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    return data.decode("utf-8", "replace").strip()


def _write_new(path: str, data: bytes, mode: int) -> None:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, mode), "wb") as file:
            file.write(data)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} exists; it may be the key of tokens in use") from error
    except OSError as error:
        raise DiskFailed(f"{path} cannot be written: {error.strerror}") from error


def _module(name: str) -> Any:
    """A module of txlog.serve.auth; raises MissingExtra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("jwt", "cryptography"):
            raise
        raise MissingExtra(
            f"{error.name} is not installed", hint="pip install 'txlog-store[serve]'"
        ) from error
