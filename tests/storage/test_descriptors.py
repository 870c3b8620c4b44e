"""A process keeps few files open, however many a store has, and reopens them on demand.

RLIMIT_NOFILE of the processes here is below the number of files.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, ids, send, values
from tests.harness import python, run
from txlog.base.ranges import Bound
from txlog.engine.storage.disk import posix as disk_module
from txlog.engine.view import OpenFiles, View
from txlog.errors import NoResources

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s")], ledger_entries_max=1, reader_grace_ms=0),
]

LEDGERS, LIMIT = 70, 64


@pytest.mark.deep
def test_more_files_than_a_process_may_have_open(bench: Bench) -> None:
    """Reading, consuming, verifying, sealing, compacting and SQL: half the limit is enough."""
    send(bench.client, *(b"%d" % number for number in range(LEDGERS)))
    bench.client.checkpoint()
    path = bench.path
    assert len(list(Path(path).rglob("*.parquet"))) >= LEDGERS - 1
    bench.close()
    done = run(
        python("descriptors", path, LEDGERS),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)),
    )
    assert int(done.stdout) <= LIMIT // 2


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let a disk allow so many open files."""
    return lambda most: monkeypatch.setattr(disk_module, "KEPT_MAX", most)


def test_closed_and_removed_file_is_found_by_the_newest_manifest(
    bench: Bench, kept: Callable[[int], None]
) -> None:
    """R21: a view older than another process's checkpoint finds its rows in the newer files."""
    kept(2)
    other = bench.another()
    send(bench.client, *(b"%d" % number for number in range(6)))
    bench.client.checkpoint()
    assert values(other) == [b"%d" % number for number in range(6)]
    opened: OpenFiles = other.store.read(lambda view: view.files.opened)
    assert len(opened) == 2
    ledgers = other.store.read(lambda view: sorted(view.manifest.files))
    bench.client.admin.trim("t", Bound("id", ids(bench.client)[2]), force_unacked=True)
    bench.client.checkpoint(roll_all=True)
    bench.client.checkpoint()
    removed = bench.client.store.read(lambda view: set(ledgers) - set(view.manifest.files))
    assert removed

    def rows(view: View) -> list[Any]:
        return [view.ledger_table(ledger, 0, 1) for ledger in ledgers if view.files.of(ledger)]

    assert sum(table.num_rows for table in other.store.read(rows, fresh=False)) == 6 - len(removed)


def test_all_are_closed_where_the_program_has_used_up_its_descriptors(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NoResources only if closing all kept files does not help."""
    send(bench.client, *(b"%d" % number for number in range(5)))
    bench.client.checkpoint()
    view = bench.client.store.read(lambda view: view)
    opened, disk = view.files.opened, bench.client.store.disk
    assert values(bench.client)[0] == b"0"
    real = type(disk).open
    assert len(opened) > 1
    view.files.close()

    def none_left(self: Any, path: str, write: bool = False) -> Any:
        if path.startswith("topics/") and len(opened) >= failures:
            raise NoResources("too many open files")
        return real(self, path, write)

    failures = 1
    monkeypatch.setattr(type(disk), "open", none_left)
    assert values(bench.client) == [b"%d" % number for number in range(5)]
    assert len(opened) == 1
    failures = 0
    with pytest.raises(NoResources):
        values(bench.client)
