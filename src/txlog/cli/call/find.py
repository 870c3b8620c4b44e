"""Finds the user's settings and the store of a call (spec/cli 3)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Final, Protocol

from txlog.errors import InvalidArgument, NotFound, StoreNotFound

STORE_FILE: Final = "txlog.toml"
STORE_DEFAULT: Final = "txlog-store"
UserSettings = Mapping[str, tuple[str | bool, str]]


class _Flags(Protocol):
    store: str | None
    profile: str | None


def profile_of(flags: _Flags) -> str | None:
    """The profile that a flag names, else the one that a variable names."""
    return flags.profile or os.environ.get("TXLOG_PROFILE") or None


def user_settings(profile: str | None) -> UserSettings:
    """The settings of config.toml, name -> (value, origin); without a file no reader is imported.

    raises: InvalidArgument (201) for a bad file; NotFound (308) for a missing profile
    """
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    if profile is None and not os.path.exists(os.path.join(home, "txlog", "config.toml")):
        return {}
    reader = importlib.import_module("txlog.cli.call.user_config")
    settings: UserSettings = reader.read(os.environ, profile)
    return settings


def find_store(flags: _Flags, user: UserSettings) -> tuple[str, str]:
    """The path of the store, and the flag, variable, file or default that named it.

    raises: StoreNotFound (301); NotFound (308) for a profile without a store
    """
    if flags.store:
        return flags.store, "-S"
    if os.environ.get("TXLOG_STORE"):
        return os.environ["TXLOG_STORE"], "TXLOG_STORE"
    if flags.store == "":
        raise InvalidArgument("the path of the store is empty")
    try:
        directory = here = os.getcwd()
    except FileNotFoundError as error:
        raise StoreNotFound(
            "no store here: the working directory was deleted", hint="-S PATH names one"
        ) from error
    while not os.path.isfile(os.path.join(directory, STORE_FILE)):
        above = os.path.dirname(directory)
        if above == directory:
            break
        directory = above
    else:
        return directory, "directory"
    if "store" in user:
        value, origin = user["store"]
        return str(value), origin
    if profile_of(flags) is not None:
        raise NotFound(f"profile {profile_of(flags)} names no store", setting="store")
    if os.path.isfile(os.path.join(here, STORE_DEFAULT, STORE_FILE)):
        return os.path.join(here, STORE_DEFAULT), "built in"
    raise StoreNotFound("no store here", hint="txlog init creates one; -S PATH names one")
