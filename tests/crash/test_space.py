"""Producers and consumers at work while another process compacts and trims, and is killed
meanwhile.

All loops are bounded by counts; the parent waits only for lines and for ends of processes.
`TXLOG_SEED` repeats the choices; when a signal arrives is up to the machine.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import txlog
from tests.crash.test_processes import together
from tests.harness import SEED
from tests.tiers import graded
from txlog.engine.session.reading.message import messages


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that keeps no file for older readers and rolls over often."""
    path = tmp_path / "store"
    txlog.init(
        str(path),
        checkpoint_frames=60,
        coordinators=2,
        reader_grace_ms=0,
        ledger_entries_max=9,
        durability="os",
    )
    with txlog.open(str(path)) as client:
        client.create_topic("t", 2)
        client.create_subscription("t", "s")
    return path


def pairs(lines: list[str]) -> list[tuple[str, str]]:
    """(id, value) of each message that a process printed."""
    return [
        (word.partition("=")[0], word.partition("=")[2]) for line in lines for word in line.split()
    ]


@pytest.mark.parametrize("killed", graded([True, False], 0))
def test_space_is_given_back_while_others_work(store: Path, killed: bool) -> None:
    """I-12, I-20: a consumer gets every committed message once, under one id, in order."""
    rng = random.Random(f"{SEED} {killed}")
    print("seed", SEED)
    count = 16
    kill_after = rng.randrange(1, 10) if killed else None
    jobs = [
        ("half", "x", count, None),
        ("half", "y", count, None),
        ("take", "c", 30, None),
        ("read", "r", 20, None),
        ("give_space_back", "m", 12, kill_after),
    ]
    _, _, lines, read, _ = together(store, jobs)
    together(store, [("give_space_back", "n", 2, None)])
    with txlog.open(str(store)) as client:
        with client.consumer("t", "s") as consumer:
            while (table := consumer.receive_batch(50)).num_rows:
                consumer.acknowledge(table)
                lines.append(
                    " ".join(
                        f"{m.message_id}={(m.value or b'').decode().strip()}"
                        for m in messages(table)
                    )
                )
        assert client.subscriptions("t")[0]["backlog"] == 0
    got = pairs(lines)
    expected = [
        f"{name}:{number}:{part}"
        for name in "xy"
        for number in range(1, count + 1, 2)
        for part in range(4)
    ]
    assert sorted(value for _, value in got) == sorted(expected), f"seed {SEED}"
    id_of = {value: message_id for message_id, value in got}
    assert len(set(id_of.values())) == len(id_of)
    for message_id, value in pairs(read):
        assert id_of[value] == message_id, f"seed {SEED}: {value} changed its id"
    for name in "xy":
        for partition in range(2):
            values = [value for _, value in got if value.startswith(f"{name}:")]
            here = [value for value in values if int(value[-1]) % 2 == partition]
            assert here == sorted(here, key=lambda value: tuple(map(int, value.split(":")[1:])))
    check_given_back(store)


SEGMENTS = (".arrow", ".parquet")


def check_given_back(store: Path) -> None:
    """Every message is acknowledged, so after a trim the disk has no row left."""
    with txlog.open(str(store)) as client:
        client.admin.trim("t", txlog.Bound("end"))
        client.admin.compact("t")
        client.admin.gc(apply=True, keep_ms=0)
    files = [path for path in Path(store, "topics").rglob("*") if path.suffix in SEGMENTS]
    assert not files, os.fspath(files[0])
