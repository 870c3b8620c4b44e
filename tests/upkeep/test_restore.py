"""A copy becomes a store in one step, stays as it is, and a killed restore goes on."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import Bench, begin, send, values
from tests.harness import KILLED, ready, run
from tests.tiers import graded
from tests.upkeep.test_copy import bench as bench
from tests.upkeep.test_copy import check
from txlog import Bound, Client
from txlog.cli.main import main
from txlog.errors import AlreadyExists, Corruption, InvalidArgument, NotAllowed, StoreNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def backup(bench: Bench, tmp_path: Path) -> str:
    """A copy that was made while a transaction was open; afterwards the store got a message."""
    bench.client.producer("t").send(b"open", partition=0, txn=begin(bench.client))
    bench.client.copy(str(tmp_path / "backup"))
    send(bench.client, b"after the backup")
    return str(tmp_path / "backup")


def contents(path: str | Path) -> dict[str, str]:
    """The files below a directory, by their checksums."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(Path(path).rglob("*"))
        if file.is_file()
    }


def opened(path: str, bench: Bench) -> Client:
    return txlog.open(path, clock=bench.clock)


def test_copy_becomes_a_store_in_a_new_place_and_stays_as_it_is(
    bench: Bench, backup: str, tmp_path: Path
) -> None:
    before, place = contents(backup), str(tmp_path / "new")
    steps: list[tuple[int, int]] = []
    answer = txlog.restore(
        backup,
        place,
        verify=True,
        tell=lambda done, of: steps.append((done, of)),
        clock=bench.clock,
    )
    assert (answer["path"], answer["replaced"], answer["copied"]) == (place, None, True)
    assert steps[-1][0] == steps[-1][1] == answer["size_bytes"]
    assert contents(backup) == before
    check(place)
    with opened(place, bench) as client:
        assert values(client) == [v for v in values(bench.client) if v != b"after the backup"]
        send(client, b"new")
        [report] = client.reports()
        assert "copy" in report and "lost" not in report
    assert sorted(Path(backup).parent.glob("new*")) == [Path(place)]


def test_copy_replaces_a_store_which_keeps_another_name(bench: Bench, backup: str) -> None:
    with pytest.raises(AlreadyExists):
        txlog.restore(backup, bench.path)
    newest = values(bench.client)
    answer = txlog.restore(backup, bench.path, replace=True, clock=bench.clock)
    assert answer["replaced"] == f"{bench.path}.replaced"
    assert not answer["copied"], "it is the store again, so it owns what it has offloaded"
    with pytest.raises(StoreNotFound, match="replaced"):
        send(bench.client, b"into nowhere")
    with opened(bench.path, bench) as client:
        assert b"after the backup" not in values(client)
    with opened(f"{bench.path}.replaced", bench) as client:
        assert values(client) == newest
    with pytest.raises(AlreadyExists, match="replaced"):
        txlog.restore(backup, bench.path, replace=True)


def test_places_that_cannot_be_are_refused(bench: Bench, backup: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(AlreadyExists):
        txlog.restore(backup, str(tmp_path / "full"))
    with pytest.raises(InvalidArgument):
        txlog.restore(backup, str(Path(backup) / "inside"))
    with pytest.raises(StoreNotFound):
        txlog.restore(str(tmp_path / "full"), str(tmp_path / "new"))
    with pytest.raises(NotAllowed, match="mounted"):
        txlog.restore(backup, "/proc")
    assert not Path("/proc.restoring").exists()
    (tmp_path / "empty").mkdir()
    txlog.restore(backup, str(tmp_path / "empty"))
    check(str(tmp_path / "empty"))


def test_link_leads_to_the_new_store(bench: Bench, backup: str, tmp_path: Path) -> None:
    """Restore replaces the link's target in place, which may be on another file system."""
    link, empty = tmp_path / "links" / "store", tmp_path / "links" / "empty"
    link.parent.mkdir()
    for path, target in ((link, bench.path), (empty, tmp_path / "disk" / "new")):
        path.symlink_to(target)
    (tmp_path / "disk" / "new").mkdir(parents=True)
    answer = txlog.restore(backup, str(link), replace=True, clock=bench.clock)
    assert (answer["path"], answer["replaced"]) == (bench.path, f"{bench.path}.replaced")
    txlog.restore(backup, str(empty), clock=bench.clock)
    for path in (link, empty):
        assert path.is_symlink()
        check(str(path))
        with opened(str(path), bench) as client:
            assert b"after the backup" not in values(client)
    assert sorted(link.parent.iterdir()) == [empty, link]


def test_name_that_a_restore_works_under_is_never_removed(
    bench: Bench, backup: str, tmp_path: Path
) -> None:
    """A copy or a store that a user named so stays as it is."""
    named = str(tmp_path / "new.restoring")
    for source in (named, backup):
        bench.client.copy(named)
        before = contents(named)
        with pytest.raises((InvalidArgument, AlreadyExists), match="restoring"):
            txlog.restore(source, str(tmp_path / "new"), clock=bench.clock)
        assert contents(named) == before
        shutil.rmtree(named)


@pytest.mark.parametrize("nth", graded(range(1, 40, 2), (5,)))
def test_restore_goes_on_wherever_the_second_try_was_killed(
    bench: Bench, backup: str, nth: int
) -> None:
    """The first try died just before the exchange, when its directory was no copy any more."""
    stage = Path(f"{bench.path}.restoring")
    for first in range(320, 400, 2):
        run(ready("restore_store", backup, bench.path, first), code=KILLED)
        if (stage / "restored").exists() and not (stage / "copied").exists():
            break
    assert not (stage / "copied").exists()
    run(ready("restore_store", backup, bench.path, nth), code=None)
    txlog.restore(backup, bench.path, replace=True, clock=bench.clock)
    check(bench.path)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("nth", graded(range(1, 260, 3), (22, 205)))
def test_restore_that_is_killed_leaves_the_old_or_the_new_store_and_goes_on(
    bench: Bench, backup: str, tmp_path: Path, nth: int, is_there: bool
) -> None:
    place = bench.path if is_there else str(tmp_path / "new")
    old = values(bench.client)
    restored = [value for value in old if value != b"after the backup"]
    child = run(ready("restore_store", backup, place, nth), code=None)
    assert child.returncode in (0, KILLED), child.stderr
    if is_there or Path(place).exists():
        with opened(place, bench) as client:
            assert values(client) in ((old, restored) if is_there else (restored,))
    if child.returncode:
        txlog.restore(backup, place, replace=is_there, clock=bench.clock)
    with opened(place, bench) as client:
        assert values(client) == restored
    check(place)
    if is_there:
        with opened(f"{place}.replaced", bench) as client:
            assert values(client) == old
    assert not Path(f"{place}.restoring").exists()


def test_rest_of_another_copy_is_not_used(bench: Bench, backup: str, tmp_path: Path) -> None:
    place = str(tmp_path / "new")
    assert run(ready("restore_store", backup, place, 60), code=None).returncode == KILLED
    bench.client.copy(str(tmp_path / "second"))
    txlog.restore(str(tmp_path / "second"), place, clock=bench.clock)
    check(place)
    with opened(place, bench) as client:
        assert values(client) == values(bench.client)


def test_copy_that_is_not_good_is_no_store(bench: Bench, backup: str, tmp_path: Path) -> None:
    """A part that no reference names with a checksum is found by --verify only."""
    [journal, *_] = sorted(Path(backup, "journal").glob("*.journal"))[-1:]
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.chmod(0o600)
    journal.write_bytes(data)
    place = str(tmp_path / "new")
    with pytest.raises(Corruption):
        txlog.restore(backup, place, verify=True, clock=bench.clock)
    assert not Path(place).exists()
    assert not Path(f"{place}.restoring", "txlog.toml").exists()


def test_offloaded_files_stay_with_the_original(bench: Bench, backup: str, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    bench.client.admin.offload("u", str(tmp_path / "far"))
    outside = contents(tmp_path / "far")
    bench.client.copy(str(tmp_path / "second"))
    answer = txlog.restore(str(tmp_path / "second"), str(tmp_path / "new"), clock=bench.clock)
    assert (answer["offloaded"], answer["copied"]) == (len(outside), True)
    with opened(str(tmp_path / "new"), bench) as client:
        client.admin.trim("u", Bound("end"), force_unacked=True)
        client.checkpoint()
        client.admin.gc(apply=True, keep_ms=0)
    assert contents(tmp_path / "far") == outside


def test_command_restores(backup: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "new")
    assert main(["restore", backup, place]) == 0
    assert main(["restore", backup, place]) == 4
    assert "--replace" in capfd.readouterr().err
    assert main(["restore", backup, place, "--replace", "--verify", "--yes", "--json"]) == 0
    assert f'"replaced":"{place}.replaced"' in capfd.readouterr().out


def test_commands_say_what_a_copy_is(
    bench: Bench, backup: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A backup is a store that writes change; a store in use as the source of a restore is not."""
    assert main(["copy", str(tmp_path / "second"), "-S", bench.path]) == 0
    assert "a whole store, which any write changes" in capfd.readouterr().err
    assert main(["restore", backup, str(tmp_path / "new")]) == 0
    assert "is no copy" not in capfd.readouterr().err
    assert main(["restore", bench.path, str(tmp_path / "twin")]) == 0
    assert "is no copy but a store that programs may use" in capfd.readouterr().err
    check(str(tmp_path / "twin"))
