"""Every option and argument whose value is a time: one parser, for all commands (spec/cli 6)."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine_kit import Bench, read
from txlog.base.times import format_time, parse_duration, parse_time
from txlog.cli.line import catalogue, dispatch
from txlog.cli.line.command import Option
from txlog.cli.main import main
from txlog.errors import InvalidArgument

NOW = 1_763_629_924_123  # 2025-11-20T09:12:04.123Z
CALL: Any = SimpleNamespace(now_ms=lambda: NOW)
DURATIONS = {
    "5m": 300_000,
    "1h30m": 5_400_000,
    "7d": 604_800_000,
    "PT5M": 300_000,
    "P1D": 86_400_000,
}
TIMES = (
    *("2026-11-27T14:00:00Z", "2026-11-27T14:00+01:00", "2026-11-27 14:00", "2026-11-27"),
    *("yesterday 14:00", "tomorrow 9:00", "-3h", "now", "1763596800", "1763596800000"),
    *("1763596800000000", "1763596800000000000"),
)
HALF = ("yesterday 25:00", "tomorrow 9", "monday", "14:00", "2026-13-01", "1h", "5")


def declarations(word: str) -> list[tuple[str, Any]]:
    """`COMMAND OPTION` and the declaration of each parameter whose metavar names this kind."""
    return [
        (f"{path} {(info.words[0] if isinstance(info, Option) else name)}", info)
        for path, command in sorted((path, dispatch.load(path)) for path in catalogue.COMMANDS)
        for name, info in ((name, hint.__metadata__[0]) for name, hint in command.hints.items())
        if re.search(rf"(^|\|){word}($|\|)", (info.metavar or "").rstrip("…"))
    ]


def test_every_duration_of_a_command_is_read_by_the_parser() -> None:
    options = declarations("DUR")
    assert len(options) > 45
    for name, info in options:
        assert info.reads is not None, name
        for text, ms in DURATIONS.items():
            read = info.read(CALL, text)
            assert getattr(read, "ms", read) == ms == parse_duration(text), name
        for text in ("5 m", "1w", "-5m", "P1M"):
            with pytest.raises(InvalidArgument):
                info.read(CALL, text)


def test_every_instant_of_a_command_is_read_by_the_parser() -> None:
    options = declarations("TIME")
    assert {"produce --deliver-at", "produce --event-time", "txn list --since"} <= dict(
        options
    ).keys()
    assert {"consume --since", "watermark set event_time", "wait --watermark"} <= dict(
        options
    ).keys()
    for name, info in options:
        assert info.reads_now is not None, name
        for text in TIMES:
            assert info.read(CALL, text) == parse_time(text, NOW), (name, text)
        for text in HALF[:-1]:
            with pytest.raises(InvalidArgument):
                info.read(CALL, text)


def test_every_position_of_a_command_takes_a_time() -> None:
    options = declarations("BOUND")
    assert {"sub seek --to", "sub create --position", "consume --until"} <= dict(options).keys()
    for name, info in options:
        if info.reads_now is None:  # the command itself calls parse_bound
            continue
        for text in TIMES:
            assert info.read(CALL, f"@{text}").value == parse_time(text, NOW), (name, text)
            if not text.isdigit():
                assert info.read(CALL, text).value == parse_time(text, NOW), (name, text)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    """A store with a topic and a subscription, in Berlin, at 10:12 on 2025-11-20."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("orders")
    bench.client.create_subscription("orders", "billing")
    bench.client.producer("orders").send(b"one")
    monkeypatch.setenv("TXLOG_STORE", bench.path)
    monkeypatch.setenv("TXLOG_NOW", format_time(NOW))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield bench
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "text", ["yesterday 14:00", "2025-11-19 14:00", "@yesterday 14:00", "-20h"]
)
def test_a_subscription_is_replayed_from_yesterday(
    local: Bench, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["sub", "seek", "billing", "--to", text, "--yes", "--json"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "text", ["tomorrow 9:00", "2025-11-21 9:00", "tomorrow at 9am", "2025-11-21T08:00Z"]
)
def test_a_message_is_scheduled_for_tomorrow_at_nine_in_local_time(local: Bench, text: str) -> None:
    assert main(["produce", "orders", "-m", "later", "--deliver-at", text]) == 0
    [_, later] = read(local.client, "orders")
    assert later.deliver_at == parse_time("2025-11-21T09:00+01:00", NOW)


def test_a_refused_time_names_the_forms_in_one_line(
    local: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", "orders", "-m", "x", "--deliver-at", "tomorrow 25:00"]) == 2
    error, hint = capfd.readouterr().err.splitlines()
    assert 'not a time: "tomorrow 25:00"' in error
    assert "yesterday 14:00" in hint


def test_ordinary_commands_do_not_load_the_parser_of_words(local: Bench) -> None:
    code = (
        "import sys; from txlog.cli.main import main;"
        "main(['produce', 'orders', '-m', 'x', '--deliver-at', '2026-11-27 14:00']);"
        "sys.exit('dateparser' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
