"""Every crash while logs of changes get fewer files: by the merge, the seal or the reduction.

A store has as many files of each log as it takes until the next checkpoint merges or seals them.
That checkpoint, or `admin compact-changes`, runs once. Before each of its calls with an effect the
test keeps the disk as the death of the process leaves it, and as a power cut may leave it. Then the
relations may neither lack a change nor have it twice, verify must find no error, and the next run
must make the same files as in a store without a crash. `TXLOG_SEED` repeats a run.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any

import pytest

from tests.crash.contents import content
from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.disk.memory import MemoryDisk
from tests.engine_kit import send
from tests.tiers import graded
from txlog.base.settings import Settings
from txlog.client.answers.changes import log
from txlog.client.answers.integrity import verify_disk
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.storage.manifest import ChangeRef, changes_of
from txlog.engine.upkeep.changes import log as changelog
from txlog.engine.upkeep.changes.rows import SCHEMAS
from txlog.errors import TxlogError

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
IMAGES = int(os.environ.get("TXLOG_IMAGES", "1"))
SETTINGS = Settings(coordinators=1, reader_grace_ms=0)
YEAR_MS = 365 * 24 * 3_600_000
ROUNDS, OWN_ROWS = 4, 3
# Warnings about leftovers: the next checkpoint, or after a power cut the next writer, removes them.
REMAINS = frozenset({"temporary", "unnamed", "witness"})
Rows = dict[str, list[dict[str, Any]]]
Step = Callable[[Client], object]


def merge(client: Client) -> None:
    """A checkpoint that merges all files into one Arrow file."""
    client.checkpoint()


def seal(client: Client) -> None:
    """A checkpoint that seals the files; busy cursors get files of their own."""
    client.checkpoint()


def compact(client: Client) -> None:
    """Reduce each log to the newest row of each key."""
    client.admin.compact_changes()


def expire(client: Client) -> None:
    """A checkpoint after the retention: it keeps the newest row of each key of all older files."""
    client.checkpoint()


STEPS: dict[str, Step] = {"merge": merge, "seal": seal, "compact": compact, "expire": expire}
REDUCES = frozenset({"compact", "expire"})


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Lower the limits, so that a few files and rows are enough to make the step do work."""
    sealed = request.node.callspec.params["name"] == "seal"
    monkeypatch.setattr(changelog, "PARTS_MAX", ROUNDS)
    monkeypatch.setattr(changelog, "SEALED_BYTES", 12_000 if sealed else 1 << 20)
    monkeypatch.setattr(changelog, "OWN_ROWS", OWN_ROWS)


def late_ms(name: str) -> int:
    """The ms from the earlier files to the step."""
    return SETTINGS.change_retention_ms + 60_000 if name == "expire" else 0


def clock_of(name: str) -> ManualClock:
    """The clock at which a step runs."""
    clock = ManualClock(START_MS)
    clock.advance(late_ms(name))
    return clock


@cache
def prepared(name: str) -> MemoryDisk:
    """The disk of a store in which the step has work to do for every log; all of it is durable."""
    disk = new_disk(SETTINGS)
    clock = ManualClock(START_MS)
    client = open_client(disk, clock)
    client.create_topic("t", 2)
    for each in ("s", "quiet", "_ä"):
        client.create_subscription("t", each)
    for number in range(ROUNDS):
        change(client, number)
        client.checkpoint()
    clock.advance(late_ms(name))
    change(client, ROUNDS)
    client.store.flush()
    client.close()
    return disk


def change(client: Client, number: int) -> None:
    """Make one or more changes of each log."""
    client.connect(f"k{number % 2}")
    client.set_policies("t", ttl_ms=YEAR_MS + number)
    client.create_topic(f"u{number}")
    if number == 2:
        client.admin.delete_topic("u0")
        client.admin.delete_transaction_key("k1")
    for partition in (0, 1):
        client.acknowledge("t", "s", send(client, b"a", b"b", partition=partition)[1:])
        client.acknowledge("t", "_ä", send(client, b"c", partition=partition))


def told(client: Client) -> Rows:
    """The rows of each log, in an order that does not depend on files."""
    out: Rows = {}
    for kind in SCHEMAS:
        table = client.store.read(partial(log, kind=kind))
        out[kind] = sorted(table.to_pylist(), key=repr)
    return out


def refs_of(client: Client) -> list[ChangeRef]:
    """The files that the newest manifest names."""
    return changes_of(client.store.read(lambda view: view.manifest)).refs


def left_over(disk: MemoryDisk, client: Client) -> set[str]:
    """Files in the directories of the logs that the newest manifest does not name."""
    home = "topics/public/default/t"
    logs = (*(f"{directory}/" for directory in changelog.DIRECTORIES.values()), f"{home}/")
    paths = {
        path
        for path in disk.files()
        if path.startswith(logs[:-1])
        or (path.startswith(home) and f"/{changelog.CURSORS_DIR}/" in path)
    }
    return paths - {ref.path for ref in refs_of(client)}


def outcomes(name: str) -> tuple[Rows, Rows]:
    """The rows of the logs before the step and after it, without any crash."""
    disk = prepared(name).copy()
    client = open_client(disk, clock_of(name))
    rows_before, files = told(client), len(refs_of(client))
    STEPS[name](client)
    rows_after, refs = told(client), refs_of(client)
    assert refs and len(refs) < files, (name, refs)
    if name == "seal":
        assert {ref.kind for ref in refs if ref.path.endswith(".parquet")} >= {"cursor"}
        assert any(ref.subscription for ref in refs)
    assert (rows_before != rows_after) is (name in REDUCES)
    assert verify_disk(disk, clock_of(name), deep=True)["problem_list"] == []
    client.close()
    return rows_before, rows_after


def crashes(name: str, rng: random.Random) -> Iterator[tuple[MemoryDisk, ManualClock, str]]:
    """The disk before each call of the step, after a kill and after a power cut, and once at the
    end.
    """
    disk, clock = prepared(name).copy(), clock_of(name)
    client = open_client(disk, clock)
    found: list[tuple[MemoryDisk, ManualClock, str]] = []

    def collect(op: str, path: str, **info: int) -> None:
        where = f"{name}, seed {SEED}: before {op} {path}"
        found.append((disk.fork_kill(), clock_of(name), where))
        for number, image in enumerate(disk.images(rng, IMAGES)):
            other = after_reboot()
            other.set_wall(clock.now().wall_ms + 1_000)
            found.append((image, other, f"{where}, image {number}"))

    disk.step = collect
    STEPS[name](client)
    collect("", "the end")
    yield from found


def check(
    disk: MemoryDisk, clock: ManualClock, name: str, expected: tuple[Rows, Rows], where: str
) -> None:
    """Read what a crash left, recover it, and run the step again."""
    reader = open_client(disk.process(read_only=True), clock)
    seen = told(reader)
    assert seen in expected, f"{where}: {differing(seen, expected)}"
    client = open_client(disk, clock)
    client.store.flush()
    assert told(client) == seen, f"{where}: the recovery changed what the logs tell"
    report = verify_disk(disk, clock, deep=True)
    wrong = [problem for problem in report["problem_list"] if problem["code"] not in REMAINS]
    assert not wrong, f"{where}: {wrong}"
    STEPS[name](client)
    assert told(client) == expected[1], f"{where}: {differing(told(client), expected[1:])}"
    client.producer("t").send(b"behind", partition=0)
    client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    assert told(client) == expected[1], where
    assert not left_over(disk, client), where
    client.close()
    report = verify_disk(disk, clock, deep=True)
    assert report["problem_list"] == [], where


def happen(op: str, path: str, **info: int) -> None:
    """Let every call pass."""


def differing(seen: Rows, expected: tuple[Rows, ...]) -> str:
    """The rows that are missing or superfluous against each expected outcome."""
    out = []
    for at, relations in enumerate(expected):
        for kind in SCHEMAS:
            out += [f"{at}: lacks {row}" for row in relations[kind] if row not in seen[kind]]
            out += [f"{at}: has {row}" for row in seen[kind] if row not in relations[kind]]
    return "; ".join(out[:6])


def swept(name: str, stride: int) -> int:
    """Check each `stride`-th of the different crashes; returns the number of different ones."""
    rng, expected, seen = random.Random(f"{SEED} {name}"), outcomes(name), set[object]()
    for disk, clock, where in crashes(name, rng):
        state = (content(disk), clock.now().boot_id)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) % stride:
            continue
        try:
            check(disk, clock, name, expected, where)
        except TxlogError as error:
            raise AssertionError(f"{where}: {error!r}") from error
    print(f"{name}: {len(seen)} different crashes, seed {SEED}")
    assert len(seen) > 40
    return len(seen)


@pytest.mark.parametrize(
    "stride", [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.deep)]
)
@pytest.mark.parametrize("name", graded(STEPS, ("seal",)))
def test_a_crash_of_a_merge_or_seal_keeps_every_change_once(name: str, stride: int) -> None:
    """Law 5, R18: a file belongs to a log only when the manifest refers to it."""
    swept(name, stride)


@pytest.mark.parametrize(
    ("number", "stride"),
    [
        pytest.param(errno.EIO, 41, id="some"),
        pytest.param(errno.EIO, 2, id="all-EIO", marks=pytest.mark.deep),
        pytest.param(errno.ENOSPC, 2, id="all-ENOSPC", marks=pytest.mark.deep),
    ],
)
@pytest.mark.parametrize("name", graded(STEPS, ("seal",)))
def test_a_call_of_a_merge_or_seal_may_fail(name: str, number: int, stride: int) -> None:
    """A failed step changes nothing or is complete; the same process goes on."""
    expected, at = outcomes(name), 5
    while True:
        disk, clock = prepared(name).copy(), clock_of(name)
        client, calls = open_client(disk, clock), 0

        def fail(op: str, path: str, *, last: int = at, **info: int) -> None:
            nonlocal calls
            calls += 1
            if calls == last:
                raise OSError(number, os.strerror(number))

        disk.step = fail
        with suppress(TxlogError):
            STEPS[name](client)
        disk.step = happen
        if calls < at:
            break
        where = f"{name}, call {at} with {errno.errorcode[number]}"
        check(disk.fork_kill(), clock, name, expected, where)
        at += stride
    assert at > 40
