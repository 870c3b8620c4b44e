"""Text of an instant without an offset is local time in `import`, as in every other place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from txlog.base.times import format_time, local_zone_name, parse_time
from txlog.cli.main import main

Zone = Callable[[str], None]


@pytest.fixture
def zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    monkeypatch.chdir(tmp_path)
    txlog.init("s")
    monkeypatch.setenv("TXLOG_STORE", "s")
    with monkeypatch.context() as patch:

        def choose(name: str) -> None:
            patch.setenv("TZ", name)
            time.tzset()

        yield choose
    time.tzset()


def imported(name: str) -> list[str | None]:
    assert main(["import", name, name, "--event-time-column", "event_time", "--create", "-q"]) == 0
    with txlog.open("s", read_only=True) as client:
        times = [message.event_time for message in client.reader(name)]
    return [None if at is None else format_time(at) for at in times]


TEXTS = [
    "2026-11-27 14:00", "2026-07-01T14:00:05.25", "2026-11-27", "2026-11-27 14:00Z",
    "2026-11-27 14:00+05:00", "2026-03-29 03:00", "2026-10-25 01:59:59", "1795165924",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]
)
def test_texts_mean_what_options_mean(zone: Zone, name: str) -> None:
    zone(name)
    assert local_zone_name() is not None
    Path("a.csv").write_text("value,event_time\nx," + "\nx,".join(TEXTS) + "\nx,\n")
    members = [f'{{"event_time":"{text}"}}\n' for text in TEXTS]
    Path("a.ndjson").write_text("".join(members) + '{"event_time":null}\n')
    pq.write_table(pa.table({"value": [b"x"] * 9, "event_time": [*TEXTS, None]}), "a.parquet")
    expected = [*(format_time(parse_time(text, 0)) for text in TEXTS), None]
    for file in ("a.csv", "a.ndjson", "a.parquet"):
        assert imported(file) == expected, file


def test_a_timestamp_without_a_zone_in_a_file_is_no_text(zone: Zone) -> None:
    zone("Europe/Berlin")
    at = datetime(2026, 11, 27, 14, tzinfo=UTC)
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        column = pa.array([at.replace(tzinfo=None)], pa.timestamp("us")).cast(kind)
        name = f"{len(str(kind))}.parquet"
        pq.write_table(pa.table({"value": [b"x"], "event_time": column}), name)
        assert imported(name) == ["2026-11-27T14:00:00.000Z"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("Europe/Berlin", "2026-03-29 02:30", "skip it: add an offset"),
        ("Europe/Berlin", "2026-10-25 02:30", "show it twice: add an offset"),
        ("CET-1CEST", "2026-11-27 14:00", "the local zone has no name: set TZ"),
    ],
)
def test_a_text_that_names_no_instant_is_refused(
    zone: Zone, name: str, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    zone(name)
    Path("a.csv").write_text(f"value,event_time\nx,{text}\n")
    assert main(["import", "a.csv", "a", "--create"]) != 0
    err = capsys.readouterr().err
    assert f'not a time: "{text}"' in err and reason in err
    Path("b.csv").write_text(f"value,event_time\nx,{text}Z\n")
    assert imported("b.csv") == [f"{text.replace(' ', 'T')}:00.000Z"]
