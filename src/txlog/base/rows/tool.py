"""What `txlog` prints about itself: settings of a call, tokens, files that it installs."""

from typing import Annotated, TypedDict

from txlog.base.rows import fields


class SettingShown(TypedDict):
    """Of `txlog config show` and `txlog config get`."""

    name: fields.Name
    value: Annotated[str, "its value"]
    origin: Annotated[str, "where it is set: a flag, a variable, config.toml, the store"]


class SettingSet(TypedDict):
    """Of `txlog config set`."""

    name: fields.Name
    value: Annotated[str, "its value"]
    was: Annotated[str | None, "its value before, null if it had none"]
    changed: fields.Changed


class SigningKeyCreated(TypedDict):
    """Of `txlog token create-key`."""

    path: fields.Path
    kind: fields.Kind
    algorithm: Annotated[str, "algorithm that signs the tokens"]
    public: Annotated[str | None, "the file of the public key, null for a secret"]


class TokenCreated(TypedDict):
    """Of `txlog token create`."""

    role: fields.Role
    expires_at: fields.ExpiresAt | None
    token: Annotated[str, "the token itself: keep it secret"]


class TokenShown(TypedDict):
    """Of `txlog token show`."""

    role: fields.Role
    expires_at: fields.ExpiresAt | None
    verified: Annotated[bool, "a server with these rules accepts it"]


class FileInstalled(TypedDict):
    """Of `txlog completion install` and `txlog man install`."""

    path: fields.Path
    changed: fields.Changed
