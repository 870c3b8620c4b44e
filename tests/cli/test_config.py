"""Settings of the store and of the user: their origins and their changes."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import txlog
from txlog.base.settings import BOUNDS, Settings
from txlog.cli.call.environment import USER_SETTINGS
from txlog.cli.main import main
from txlog.errors import LimitExceeded, NotAllowed, NotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store and a user's file that does not exist yet; nothing else is set."""
    for name in ("TXLOG_STORE", "TXLOG_PROFILE", "TXLOG_FORMAT", "NO_COLOR", "TXLOG_DURABILITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    txlog.init(str(tmp_path / "shop"), coordinators=2)
    return tmp_path / "config" / "txlog" / "config.toml"


def rows(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capfd.readouterr()
    assert main([*words, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capfd.readouterr().out)}


def test_lock_timeout_flag_beats_environment_beats_config(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 3: flag, variable, store, config.toml, built in; `config show` agrees."""

    def timeout_of(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with (config.parents[2] / "shop/lock").open("r+") as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            assert main(["-S", "shop", *words, "topic", "create", "t", "--json"]) == 5
        waited = json.loads(capfd.readouterr().err)["error"]["timeout_ms"]
        row = rows(capfd, "-S", "shop", *words, "config", "show")["lock_timeout_ms"]
        return waited, row["value"], row["origin"]

    with txlog.open("shop") as client:
        assert client.lock_timeout_ms == 30_000
    assert main(["config", "set", "--user", "lock_timeout", "2ms"]) == 0
    assert timeout_of() == (2, "2", "config.toml")
    with txlog.open("shop") as client:
        client.admin.set_setting("lock_timeout_ms", 3)
        assert client.lock_timeout_ms == 3  # at once
    assert timeout_of() == (3, "3", "store")
    monkeypatch.setenv("TXLOG_LOCK_TIMEOUT", "4ms")
    assert timeout_of() == (4, "4", "TXLOG_LOCK_TIMEOUT")
    assert timeout_of("--lock-timeout", "5ms") == (5, "5", "--lock-timeout")
    assert main(["config", "set", "--user", "lock_timeout", "soon"]) == 2


def test_show_has_every_setting_and_its_origin(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 3: flag, environment, store, config.toml, built in."""
    assert main(["config", "set", "--user", "color", "never"]) == 0
    assert main(["config", "set", "--user", "shop.store", str(Path("shop").absolute())]) == 0
    monkeypatch.setenv("TXLOG_DURABILITY", "os")
    settings = rows(capfd, "--profile", "shop", "--utc", "config", "show")
    assert set(settings) == {*USER_SETTINGS, *Settings().to_mapping()}
    assert {name: settings[name]["origin"] for name in ("store", "color", "utc", "format")} == {
        "store": "profile shop",
        "color": "config.toml",
        "utc": "--utc",
        "format": "built in",
    }
    assert settings["durability"] == {
        "name": "durability",
        "value": "os",
        "origin": "TXLOG_DURABILITY",
    }
    assert (settings["coordinators"]["value"], settings["coordinators"]["origin"]) == ("2", "store")
    assert settings["checkpoint_bytes"]["origin"] == "built in"
    monkeypatch.setenv("NO_COLOR", "1")
    assert rows(capfd, "-S", "shop", "config", "show")["color"]["origin"] == "NO_COLOR"
    settings = rows(capfd, "-S", "shop", "config", "show", "--color", "always")
    assert settings["color"]["origin"] == "--color"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.delenv("TXLOG_DURABILITY")
    assert set(rows(capfd, "config", "show")) == set(USER_SETTINGS)  # no store here


def test_setting_of_the_store_applies_to_open_clients(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("shop")
    with txlog.open(".") as other:
        assert main(["config", "set", "txn_timeout_default_ms", "5m", "--dry-run"]) == 0
        assert other.begin()["timeout_ms"] == 60_000
        assert main(["config", "set", "txn_timeout_default_ms", "5m", "--json"]) == 0
        answer = json.loads(capfd.readouterr().out)
        assert answer == {
            "name": "txn_timeout_default_ms",
            "value": "300000",
            "was": "60000",
            "changed": True,
            "dry_run": False,
        }
        other.topics()  # an open client reads it with its next call
        assert other.begin()["timeout_ms"] == 300_000
        assert main(["config", "set", "txn_timeout_default_ms", "300000"]) == 0
        assert "already" in capfd.readouterr().err
    assert main(["config", "get", "txn_timeout_default_ms"]) == 0
    assert capfd.readouterr().out == "300000\n"
    assert main(["config", "set", "deliver_at_time_strict", "false"]) == 0
    assert main(["config", "get", "deliver_at_time_strict"]) == 0
    assert capfd.readouterr().out == "false\n"


def test_bad_setting_is_refused_and_changes_nothing(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("shop")
    settings_before = rows(capfd, "config", "show")
    for words, code, message in (
        (["chekpoint_bytes", "1"], 3, "did you mean: checkpoint_bytes"),
        (["checkpoint_bytes", "1"], 2, "the smallest is"),
        (["checkpoint_bytes", "much"], 2, "not a size"),
        (["checkpoint_frames", "many"], 2, "is a number"),
        (["txn_timeout_default_ms", "2d"], 2, "more than txn_timeout_max_ms"),
        (["coordinators", "1"], 4, "may only grow"),
        (["deliver_at_time_strict", "perhaps"], 2, "true or false"),
        (["durability", "never"], 2, "sync, os"),
        (["color", "never"], 2, "--user"),
        (["--user", "checkpoint_bytes", "1"], 3, "no setting"),
        (["--user", "color", "pink"], 2, "auto|always|never"),
        (["--user", "utc", "1"], 2, "true or false"),
        (["--user", "a b.utc", "true"], 2, "profile name"),
    ):
        assert main(["config", "set", *words]) == code, words
        assert message in capfd.readouterr().err, words
    assert rows(capfd, "config", "show") == settings_before
    assert not config.exists()


def test_every_bounded_setting_accepts_its_own_value(config: Path) -> None:
    """Kills: a setting that `config show` writes in a form that `config set` does not take."""
    with txlog.open("shop") as client:
        for row in client.admin.settings():
            answer = client.admin.set_setting(row["name"], row["value"])
            assert answer["changed"] is False
        assert {row["name"] for row in client.admin.settings()} > set(BOUNDS)
        with pytest.raises(NotFound):
            client.admin.set_setting("nothing", 1)
        with pytest.raises(LimitExceeded):
            client.admin.set_setting("txn_timeout_default_ms", 1 << 40)
        with pytest.raises(NotAllowed):
            client.admin.set_setting("coordinators", 1)
        assert client.admin.set_setting("coordinators", 4)["before"] == 2
    with txlog.open("shop") as client:
        assert len(client.admin.coordinators()) == 4


def test_user_file_keeps_its_other_lines(config: Path) -> None:
    """A change keeps comments, order and other sections, and replaces a value in its line."""
    config.parent.mkdir(parents=True)
    config.write_text(
        '# mine\nutc = false  # here\n\n[shop]\nstore = "~/shop"\n\n[b]\nutc = true\n'
    )
    for words in (["utc", "true"], ["shop.color", "never"], ["c.store", 'a"b'], ["color", "auto"]):
        assert main(["config", "set", "--user", *words]) == 0
    assert config.read_text() == (
        '# mine\nutc = true\ncolor = "auto"\n\n[shop]\nstore = "~/shop"\ncolor = "never"\n\n'
        '[b]\nutc = true\n\n[c]\nstore = "a\\"b"\n'
    )
    text = config.read_text()
    assert main(["config", "set", "--user", "c.store", 'a"b']) == 0
    assert main(["config", "set", "--user", "utc", "false", "--dry-run"]) == 0
    assert config.read_text() == text
    assert tomllib.loads(text)["c"]["store"] == 'a"b'


def test_user_settings_are_the_last_default(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.parent.mkdir(parents=True)
    config.write_text('store = "shop"\nformat = "json"\ncolor = "always"\n[t]\nformat = "table"\n')
    assert main(["topic", "list"]) == 0
    assert capfd.readouterr().out == "[]\n"
    assert main(["topic", "list", "-f", "csv"]) == 0
    assert capfd.readouterr().out.startswith("topic,")
    assert main(["topic", "list", "--profile", "t"]) == 0
    assert capfd.readouterr().out.startswith("\x1b[1mTOPIC")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["topic", "list", "--profile", "t"]) == 0
    assert capfd.readouterr().out.startswith("TOPIC")
    monkeypatch.setenv("TXLOG_FORMAT", "tsv")
    assert main(["topic", "list"]) == 0
    assert capfd.readouterr().out.startswith("topic\t")


@pytest.mark.parametrize(
    "text", ["store =", "colour = 'never'", "utc = 1", "color = 'pink'", "store = ''", "\udcff"]
)
def test_a_bad_file_is_named(text: str, config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config.parent.mkdir(parents=True)
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["topic", "list"]) == 2
    assert str(config) in capfd.readouterr().err


def test_the_variable_of_diagnostics_is_as_the_flags(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 2: TXLOG_LOG; and spec/cli 4: TXLOG_NO_INPUT never asks."""
    monkeypatch.chdir("shop")
    for level, is_logged in (("info", True), ("warning", False), ("error", False), ("debug", True)):
        monkeypatch.setenv("TXLOG_LOG", level)
        assert main(["topic", "create", level]) == 0
        assert (capfd.readouterr().err != "") is is_logged
    monkeypatch.setenv("TXLOG_LOG", "loud")
    assert main(["topic", "list"]) == 2
    monkeypatch.delenv("TXLOG_LOG")
    monkeypatch.setenv("TXLOG_NO_INPUT", "1")
    capfd.readouterr()
    assert rows(capfd, "config", "show")["no_input"]["origin"] == "TXLOG_NO_INPUT"


def test_every_value_is_a_string(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """spec/cli 8.8: {name, value:s, origin:s}; an unset value is an empty string."""
    store = str(tmp_path / "s")
    assert main(["init", store]) == 0
    capfd.readouterr()
    assert main(["-S", store, "config", "show", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row for row in rows if not isinstance(row["value"], str)] == []
    assert [row for row in rows if not isinstance(row["origin"], str)] == []


def test_undo_is_a_command_that_restores_the_setting(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the old value -1: as no flag is a digit, the parser takes -1 for a value."""
    monkeypatch.setenv("TXLOG_STORE", str(config.parents[2] / "shop"))
    settings_before = rows(capfd, "config", "show")
    for name, row in settings_before.items():
        was = row["value"]
        if name not in BOUNDS or name == "coordinators" or not isinstance(was, int):
            continue
        low, high = BOUNDS[name]
        new = str(
            next(
                candidate for candidate in (was + 1, was - 1, low, high) if low <= candidate <= high
            )
        )
        assert main(["config", "set", name, new]) == 0, name
        undo = re.search(r"undo: txlog (.*)", capfd.readouterr().err)
        assert undo is not None and main(shlex.split(undo[1])) == 0, name
    assert {name: row["value"] for name, row in rows(capfd, "config", "show").items()} == {
        name: row["value"] for name, row in settings_before.items()
    }


def test_a_relative_directory_of_settings_is_ignored(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the XDG standard demands; the file below HOME holds, as without the variable."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(config.parents[2]))
    own = config.parents[2] / ".config" / "txlog" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('lock_timeout = "7ms"\n', encoding="utf-8")
    row = rows(capfd, "-S", "shop", "config", "show")["lock_timeout_ms"]
    assert (row["value"], row["origin"]) == ("7", "config.toml")
