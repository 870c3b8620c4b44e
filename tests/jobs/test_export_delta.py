"""Tests of the job export-delta: the table has each message once, whatever happened between."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import txlog
from tests.sql.test_querying import FIRST, STEPS, History
from txlog import Client
from txlog.errors import InvalidArgument, NotAllowed, TopicNotFound, TryAgain
from txlog.jobs.engine import Engine
from txlog.jobs.export_delta import export_delta
from txlog.jobs.local import Local

pytestmark = pytest.mark.usefixtures("quick_disk")
SAME = (
    "partition", "key", "value", "properties", "publish_time", "event_time", "deliver_at",
    "producer", "sequence_id",
)  # fmt: skip

WITHOUT_TRIMS = (
    "send", "send_in_txn", "send_large", "commit", "abort", "checkpoint", "roll", "compact",
    "reopen",
)  # fmt: skip


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Return a client of a store with a topic `orders` of one partition."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders")
        yield opened


def in_table(path: Path) -> list[tuple[object, ...]]:
    """The messages of a table: id, visible time and what the sender gave, in order of id."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sorted(
        (
            (
                row["marker_ledger"] or row["ledger"],
                row["entry"] if row["marker_entry"] is None else row["marker_entry"],
                row["txn_index"] or 0,
            ),
            row["visible_time"] or row["publish_time"],
            *(plain(row[name]) for name in SAME),
        )
        for row in rows
    )


def in_topic(client: Client, topic: str) -> list[tuple[object, ...]]:
    """The same of a topic, by a reader."""
    rows = [row for table in client.read(topic) for row in table.to_pylist()]
    return sorted(
        (
            (row["ledger"], row["entry"], row["index"] or 0),
            row["visible_time"],
            *(plain(row[name]) for name in SAME),
        )
        for row in rows
    )


def plain(value: Any) -> object:
    """Properties as text: Delta gives a map back as it likes."""
    return sorted(dict(value).items()) if isinstance(value, list | dict) else value


def step(history: History, rng: random.Random, names: tuple[str, ...]) -> None:
    """One random step of these kinds."""
    name = rng.choice(names)
    history.trace.append(name)
    getattr(history, name)(rng)


def exported(folder: Path, seed: str, engine: Engine) -> int:
    """Run one history, exporting on the way, and compare at the end; how many files were linked."""
    history, linked = History(folder, seed), 0
    table = folder / f"table-{seed}"
    try:
        for number in range(STEPS):
            rng = random.Random(f"{seed}:{number}")
            step(history, rng, WITHOUT_TRIMS)
            if number % 12 == 11:
                linked += export_delta(history.client, "t", str(table), engine)["linked"]
        export_delta(history.client, "t", str(table), engine)
        wanted = in_topic(history.client, "t")
        assert wanted
        assert in_table(table) == wanted
        again = export_delta(history.client, "t", str(table), engine)
        assert (again["already"], again["files"]) == (True, 0)
    except BaseException:
        print(f"seed {seed!r}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()
    return linked


def test_table_has_each_message_once(tmp_path: Path) -> None:
    """API = Delta, whatever happened between exports; kills a message twice, late or lost."""
    assert sum(exported(tmp_path, str(seed), Local()) for seed in range(FIRST, FIRST + 2)) > 0


@pytest.mark.slow
def test_table_has_each_message_once_in_many_histories(tmp_path: Path) -> None:
    """The same, 40 more."""
    for seed in range(FIRST + 3000, FIRST + 3040):
        exported(tmp_path, str(seed), Local())


def test_file_of_plain_messages_is_linked(client: Client, tmp_path: Path) -> None:
    """Kills: a copy where none is needed, and a link to a ledger with a marker in it."""
    for value in (b"a", b"b"):
        client.producer("orders").send(value)
    client.checkpoint(roll_all=True)
    with client.transaction() as txn:
        client.producer("orders").send(b"c", txn=txn)
    client.checkpoint(roll_all=True)
    answer = export_delta(client, "orders", str(tmp_path / "d"), Local())
    assert (answer["messages"], answer["files"], answer["linked"]) == (3, 2, 2)
    [plain_ledger] = (tmp_path / "d").glob("*/partition=0/ledger=1/*.parquet")
    [of_txn] = (tmp_path / "d").glob("*/partition=0/ledger=__HIVE*/*.parquet")
    direct = [source.ref.path for source in client._relation("orders").direct]
    for link in (plain_ledger, of_txn):
        [stored] = [path for path in direct if Path(path).name == link.name]
        assert link.samefile(Path(client.path, stored))
    assert in_table(tmp_path / "d") == in_topic(client, "orders")


def test_dry_run_changes_nothing(client: Client, tmp_path: Path) -> None:
    client.producer("orders").send(b"a")
    answer = export_delta(client, "orders", str(tmp_path / "d"), Local(), dry_run=True)
    assert (answer["messages"], answer["version"], answer["already"]) == (1, None, False)
    assert not (tmp_path / "d").exists()


def test_export_that_another_overtook_adds_nothing(client: Client, tmp_path: Path) -> None:
    """Kills: a commit that looks at the table of before, and has all messages twice."""
    client.producer("orders").send(b"a")
    path = str(tmp_path / "d")
    export_delta(client, "orders", path, Local())
    client.producer("orders").send(b"b")

    class Slow(Local):
        """Another export is done while this one writes."""

        def export(self, *arguments: Any) -> None:
            export_delta(client, "orders", path, Local())
            super().export(*arguments)

    with pytest.raises(TryAgain, match="another"):
        export_delta(client, "orders", path, Slow())
    assert in_table(tmp_path / "d") == in_topic(client, "orders")
    assert export_delta(client, "orders", path, Local())["already"]
    assert len(list((tmp_path / "d").glob("txlog-*"))) == 2


def test_two_applications_are_two_exports(client: Client, tmp_path: Path) -> None:
    client.producer("orders").send(b"a")
    path = str(tmp_path / "d")
    export_delta(client, "orders", path, Local(), app_id="one")
    assert not export_delta(client, "orders", path, Local(), app_id="two")["already"]
    assert len(in_table(tmp_path / "d")) == 2


def test_table_of_something_else_is_refused(client: Client, tmp_path: Path) -> None:
    """Kills: two topics mixed in one table, and LSNs of another store taken for ours."""
    client.producer("orders").send(b"a")
    export_delta(client, "orders", str(tmp_path / "d"), Local())
    client.create_topic("other")
    with pytest.raises(NotAllowed, match="something else"):
        export_delta(client, "other", str(tmp_path / "d"), Local())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(NotAllowed, match="not empty"):
        export_delta(client, "orders", str(tmp_path / "full"), Local())
    for bad in ("s3://bucket/table", ""):
        with pytest.raises(InvalidArgument):
            export_delta(client, "orders", bad, Local())
    with pytest.raises(TopicNotFound):
        export_delta(client, "nope", str(tmp_path / "n"), Local())
    assert not (tmp_path / "n").exists()


KILLED = """
import os, signal, sys
import txlog
from txlog.jobs import export_delta as job
from txlog.jobs.local import Local
at = int(sys.argv[3])
steps = ["_link", "_added", "_commit"]
name = steps[at // 2]
known = getattr(job, name)
def stop(*arguments):
    if at % 2:
        known(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(job, name, stop)
with txlog.open(sys.argv[1]) as client:
    job.export_delta(client, "orders", sys.argv[2], Local())
"""


@pytest.mark.deep
def test_export_killed_anywhere_is_done_once(client: Client, tmp_path: Path) -> None:
    """SIGKILL before and after each step; the next export adds what is missing, and no more."""
    path = str(tmp_path / "d")
    for at in range(6):
        client.checkpoint(roll_all=True)
        client.producer("orders").send(b"plain %d" % at)
        client.checkpoint(roll_all=True)
        client.producer("orders").send(b"more %d" % at)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, client.path, path, str(at)],
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == -signal.SIGKILL
        answer = export_delta(client, "orders", path, Local())
        assert answer["already"] is (at == 5)
        assert in_table(tmp_path / "d") == in_topic(client, "orders")


@pytest.mark.parametrize("word", ["\udcff", "a\x1b[31m", "a\nb"])
def test_what_delta_cannot_hold_is_an_argument(client: Client, tmp_path: Path, word: str) -> None:
    """Kills: a bug of txlog: UnicodeEncodeError; nothing is made."""
    for path, app_id in ((str(tmp_path / word), "a"), (str(tmp_path / "d"), word)):
        with pytest.raises(InvalidArgument, match="UTF-8 without control characters"):
            export_delta(client, "orders", path, Local(), app_id=app_id)
    assert not (tmp_path / "d").exists()
