"""Owns the commands of settings: config show, get, set, path."""

from __future__ import annotations

import difflib
import os
from typing import Annotated, Any

from txlog.base.ranges import parse_size
from txlog.base.settings import SHARES, SWITCHES
from txlog.base.suggest import command_line
from txlog.base.times import parse_duration
from txlog.cli.call import environment
from txlog.cli.call.call import Call
from txlog.cli.call.environment import USER_SETTINGS
from txlog.cli.line.command import Argument, Option, command
from txlog.errors import InvalidArgument, NotFound, StoreNotFound

Row = dict[str, Any]
Key = Annotated[str, Argument(metavar="KEY", show_default=False)]


@command(
    "config show",
    "settings of user and store, and their origins",
    examples=("txlog config show", "txlog config show --origin", "txlog config show --json"),
    rows="tool.SettingShown",
    until="value",
)
def show(
    call: Call,
    origin: Annotated[bool, Option("--origin", help="show the origin of each value")] = False,
) -> None:
    """List settings: first of this user and call, then of the store.

    A flag overrides a variable, a variable the store, the store config.toml, and config.toml the
    built-in default. Without a store only the first group is listed.
    """
    if origin and call.flags.columns is None:
        call.output.shown = ["name", "value", "origin"]
    call.output.rows(_rows(call))


@command(
    "config get",
    "the value of a setting",
    examples=("txlog config get txn_timeout_default_ms", "txlog config get store"),
    rows="tool.SettingShown",
)
def get(call: Call, key: Key) -> None:
    """Print the value of a setting, with --json also its origin."""
    rows = _rows(call)
    row = next((each for each in rows if each["name"] == key), None)
    if row is None:
        raise _unknown(key, [each["name"] for each in rows])
    if call.output.form in ("json", "ndjson", "table", "wide", "md", "tsv", "csv") and (
        call.flags.format or call.flags.json
    ):
        call.output.single(row)
    else:
        call.output.text(f"{row['value'] or ''}\n")


@command(
    "config set",
    "change a setting of the store or user",
    examples=(
        "txlog config set txn_timeout_default_ms 5m",
        "txlog config set checkpoint_bytes 128MiB --dry-run",
        "txlog config set --user color never",
        "txlog config set --user shop.store /data/shop   # --profile shop",
    ),
    rows="tool.SettingSet",
    changes=True,
    dry_run=True,
)
def set_(
    call: Call,
    key: Key,
    value: Annotated[str, Argument(metavar="VALUE", show_default=False)],
    user: Annotated[
        bool, Option("--user", help="in config.toml of this user; NAME.KEY: of the profile NAME")
    ] = False,
) -> None:
    """Change a setting of the store for all its users, or with --user one of this user.

    A setting in …_ms takes 5m, one in …_bytes takes 64MiB. A process that has the store open
    notices the change the next time it reads the store.
    """
    if user:
        _set_user(call, key, value)
        return
    if key in USER_SETTINGS:
        raise InvalidArgument(f"{key} is a setting of a user", hint="--user sets it")
    admin = call.client(write=True).admin
    settings = {row["name"]: row for row in admin.settings()}
    if key not in settings:
        raise _unknown(key, list(settings))
    answer = admin.set_setting(key, _parsed(key, value, settings[key]["value"]))
    now, was = _shown(key, answer["value"]), _shown(key, answer["before"])
    if answer["changed"]:
        undo = command_line("config set", key, was)
        way_back = "" if call.dry_run or key == "coordinators" else f"; undo: {undo}"
        call.summary(f"{key} is {now}, it was {was}{way_back}")
    else:
        call.summary(f"{key} was {now} already")
    values = {"value": now, "was": was}
    call.output.result({"name": key, "changed": answer["changed"], **values})


@command(
    "config path",
    "where the user's config.toml is",
    examples=("txlog config path", "cat $(txlog config path)"),
)
def path(call: Call) -> None:
    """Print the path of the user's config.toml, even if the file does not exist."""
    call.output.text(f"{environment.config_path(os.environ)}\n")


def _rows(call: Call) -> list[Row]:
    """Settings of the user and this call, then of the store if there is one."""
    rows = call.settings_in_force()
    try:
        store, origin = call.found_store()
    except StoreNotFound:
        return [{"name": "store", "value": "", "origin": "none found"}, *rows]
    rows = [{"name": "store", "value": os.path.abspath(store), "origin": origin}, *rows]
    listed = call.client().admin.settings()
    durability = os.environ.get("TXLOG_DURABILITY")
    for setting in listed:
        row: Row = {**setting}
        if row["name"] == "durability" and durability:
            row.update(value=durability, origin="TXLOG_DURABILITY")
        if row["name"] == "lock_timeout_ms":
            _lock_timeout(call, row)
        rows.append({**row, "value": _shown(row["name"], row["value"])})
    return rows


def _lock_timeout(call: Call, row: Row) -> None:
    """Put the lock time-out of this call, if it is not the store's, and its origin in the row."""
    if call.lock_timeout_ms is not None:
        origin = "--lock-timeout" if call.flags.lock_timeout else "TXLOG_LOCK_TIMEOUT"
        row.update(value=call.lock_timeout_ms, origin=origin)
    elif row["origin"] == "built in" and "lock_timeout" in call.user:
        row.update(value=call.usual_lock_timeout_ms(), origin=call.user["lock_timeout"][1])


def _set_user(call: Call, key: str, value: str) -> None:
    profile, _, name = key.rpartition(".")
    where = environment.config_path(os.environ)
    value_before = environment.change_config(
        os.environ, profile or None, name, value, dry_run=call.dry_run
    )
    changed = value_before != value
    change = "is set" if changed else "was so already"
    call.summary(f"{key} {change} in {where}")
    call.output.result({"name": key, "value": value, "was": value_before, "changed": changed})


def _parsed(name: str, text: str, now: object) -> int | str | float:
    """Parse the text of a value, by the setting's name and its current value.

    raises: InvalidArgument (201, 203)
    """
    if name in SWITCHES:
        if text not in ("true", "false", "0", "1"):
            raise InvalidArgument(f'{name} is true or false, not "{text[:40]}"')
        return int(text in ("true", "1"))
    if isinstance(now, str):
        return text
    try:
        return float(text) if name in SHARES else int(text)
    except ValueError:
        if name.endswith("_ms"):
            return parse_duration(text)
        if name.endswith(("_bytes", "_bytes_max", "_bytes_min")):
            return parse_size(text)
        raise InvalidArgument(f'{name} is a number, not "{text[:40]}"', setting=name) from None


def _shown(name: str, value: object) -> str:
    """The text of a value; a switch, stored as 0 or 1, is false or true."""
    return ("true" if value else "false") if name in SWITCHES else str(value)


def _unknown(key: str, names: list[str]) -> NotFound:
    near = difflib.get_close_matches(key, [*names, *USER_SETTINGS], n=1, cutoff=0.5)
    hint = f"did you mean: {near[0]}" if near else "txlog config show lists them"
    return NotFound(f"no setting {key[:60]}", hint=hint, setting=key)
