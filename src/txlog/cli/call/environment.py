"""Owns the user's environment: variables, the user's directories, the settings in config.toml.

Keys at the top of config.toml always apply; keys of a section [NAME] apply with the profile NAME,
and override.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from txlog.base.times import parse_duration
from txlog.engine.door import disk
from txlog.errors import DiskFailed, InvalidArgument, NotFound

VARIABLES: Final[dict[str, str]] = {
    "TXLOG_STORE": "the store, like -S",
    "TXLOG_PROFILE": "a section of the user's config.toml, as --profile",
    "TXLOG_TXN": "the transaction that produce, consume -s, sub ack, watermark set and idle join, "
    "and that txn commit, abort and show use when no id is given",
    "TXLOG_FORMAT": "shape of stdout, like -f; ignored by commands without that format",
    "TXLOG_READ_ONLY": "1: take no lock, write nothing",
    "TXLOG_LOCK_TIMEOUT": "how long to wait for the lock, as --lock-timeout",
    "TXLOG_DURABILITY": "sync or os, for this process",
    "TXLOG_NOW": "the clocks of this process stand still at this time, as --now",
    "TXLOG_NO_INPUT": "1: never ask",
    "TXLOG_NO_PROGRESS": "1: no progress bars",
    "TXLOG_LOG": "error, warning, info or debug: the lowest level of messages on stderr",
    "TXLOG_DEBUG": "1: a traceback after an error",
    "NO_COLOR": "no colours; also CLICOLOR=0. CLICOLOR_FORCE and FORCE_COLOR: colours everywhere",
    "COLUMNS": "width of tables on a terminal; also TERMINAL_WIDTH",
    "XDG_CONFIG_HOME": "directory of txlog/config.toml (~/.config)",
    "XDG_CACHE_HOME": "directory of txlog/, with recreatable files for Spark (~/.cache)",
    "XDG_STATE_HOME": "directory of txlog/places, the confirmed offload targets (~/.local/state)",
    "XDG_DATA_HOME": "directory of installed completions and man pages (~/.local/share)",
    "PAGER": "shows help topics and man pages on a terminal (less)",
    "JAVA_HOME": "the Java of Spark jobs; PYSPARK_PYTHON: their Python",
}

USER_SETTINGS: Final[dict[str, str]] = {
    "store": "the store, when no other is found",
    "format": "like -f, for commands with that format",
    "color": "auto, always or never",
    "utc": "true: times on a terminal in UTC",
    "log_format": "text or json",
    "log_file": "file for diagnostics",
    "lock_timeout": "how long to wait for the lock, unless the store sets it",
    "no_progress": "true: no progress bars",
    "no_pager": "true: no pager",
    "no_input": "true: never ask",
}
SWITCHES: Final = frozenset({"utc", "no_progress", "no_pager", "no_input"})
_WORDS: Final = {"color": ("auto", "always", "never"), "log_format": ("text", "json")}
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def data_home(environ: Mapping[str, str]) -> Path:
    """$XDG_DATA_HOME, or ~/.local/share."""
    return _home(environ, "XDG_DATA_HOME", ".local/share")


def config_home(environ: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME, or ~/.config."""
    return _home(environ, "XDG_CONFIG_HOME", ".config")


def _home(environ: Mapping[str, str], name: str, otherwise: str) -> Path:
    # The XDG standard says to ignore a relative path.
    folder = environ.get(name, "")
    return Path(folder) if os.path.isabs(folder) else Path("~").expanduser() / otherwise


# --- config.toml ----------------------------------------------------------------------------------


def config_path(environ: Mapping[str, str]) -> str:
    """The path of the file, even if it does not exist."""
    return str(config_home(environ) / "txlog" / "config.toml")


def read_config(
    environ: Mapping[str, str], profile: str | None
) -> dict[str, tuple[str | bool, str]]:
    """The settings that apply: name -> (value, `config.toml` or `profile NAME`).

    raises: InvalidArgument (201) when the file is not TOML or a value is not allowed;
            NotFound (308) when there is no such profile
    """
    where = config_path(environ)
    text = _text(where)
    levels: list[tuple[Mapping[str, Any], str]] = [(_parsed(text or "", where), "config.toml")]
    if profile is not None:
        section = levels[0][0].get(profile)
        if not isinstance(section, dict):
            reason = f"there is no {where}" if text is None else f"{where} has no [{profile[:40]}]"
            raise NotFound(f"no profile {profile[:40]}: {reason}", path=where)
        levels.append((section, f"profile {profile}"))
    settings: dict[str, tuple[str | bool, str]] = {}
    for level, origin in levels:
        for name, value in level.items():
            if not isinstance(value, dict):
                settings[name] = (_checked(name, value, where), origin)
    if "store" in settings:
        settings["store"] = (os.path.expanduser(str(settings["store"][0])), settings["store"][1])
    return settings


def profiles(environ: Mapping[str, str]) -> list[str]:
    """The names of the profiles."""
    where = config_path(environ)
    parsed = _parsed(_text(where) or "", where)
    return [name for name, value in parsed.items() if isinstance(value, dict)]


def change_config(
    environ: Mapping[str, str], profile: str | None, name: str, word: str, *, dry_run: bool
) -> str | None:
    """Set one setting in the file, at the top or in a profile; return its old value.

    All other lines stay as they were, comments too.
    raises: NotFound (308) for an unknown setting; InvalidArgument; DiskFailed
    """
    if name not in USER_SETTINGS:
        raise NotFound(
            f"no setting {name[:60]} of a user", hint=" ".join(USER_SETTINGS), setting=name
        )
    if profile is not None and not _BARE.fullmatch(profile):
        raise InvalidArgument(f'not a valid profile name: "{profile[:40]}"', code=202)
    value = _checked(name, _switch(word) if name in SWITCHES else word, "")
    where = config_path(environ)
    text = _text(where) or ""
    old_config = _parsed(text, where)
    level = old_config if profile is None else old_config.get(profile, {})
    was = level.get(name)
    answer = None if was is None else _word(was)
    expected = {**level, name: value}
    if profile is not None:
        expected = {**old_config, profile: expected}
    if dry_run or was == value:
        return answer
    new = _edited(text, profile, name, value)
    if _parsed(new, where) != expected:
        raise InvalidArgument(f"{where} is written in a form that txlog cannot edit", path=where)
    try:
        os.makedirs(os.path.dirname(where), exist_ok=True)
    except OSError as error:
        raise DiskFailed(f"{where}: {error.strerror or error}", path=where) from error
    disk.replace_file(where, new.encode())
    return answer


def _edited(text: str, profile: str | None, name: str, value: str | bool) -> str:
    """The text with one line replaced, or added to its section."""
    line = f"{name} = {json.dumps(value, ensure_ascii=False)}"
    lines = text.splitlines()
    begin = 0
    if profile is not None:
        heads = [n for n, text_line in enumerate(lines) if text_line.strip() == f"[{profile}]"]
        if not heads:
            return "\n".join([*lines, *([""] if lines else []), f"[{profile}]", line, ""])
        begin = heads[0] + 1
    end = next((n for n in range(begin, len(lines)) if lines[n].startswith("[")), len(lines))
    for number in range(begin, end):
        if re.match(rf"\s*{re.escape(name)}\s*=", lines[number]):
            return "\n".join([*lines[:number], line, *lines[number + 1 :], ""])
    while end > begin and not lines[end - 1].strip():
        end -= 1
    return "\n".join([*lines[:end], line, *lines[end:], ""])


def _text(where: str) -> str | None:
    try:
        with open(where, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{where} cannot be read: {error}", path=where) from error


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise InvalidArgument(f"{where} is not TOML: {error}", path=where) from error


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _switch(word: str) -> bool:
    if word not in ("true", "false"):
        raise InvalidArgument(f'true or false, not "{word[:40]}"')
    return word == "true"


def _checked(name: str, value: object, where: str) -> str | bool:
    prefix = f"{where}: " if where else ""
    if name not in USER_SETTINGS:
        raise InvalidArgument(
            f"{prefix}no setting {name[:60]}", hint=" ".join(USER_SETTINGS), path=where or None
        )
    if isinstance(value, bool) and name in SWITCHES:
        return value
    if isinstance(value, str) and value and name not in SWITCHES:
        if name == "lock_timeout":
            parse_duration(value)
        if value in _WORDS.get(name, (value,)):
            return value
        raise InvalidArgument(f"{prefix}{name} is {'|'.join(_WORDS[name])}, not {value[:40]}")
    kind = "true or false" if name in SWITCHES else "a text"
    raise InvalidArgument(f"{prefix}{name} must be {kind}", path=where or None)
