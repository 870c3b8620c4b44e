"""Leftovers in a store's directories: verify names each, upkeep removes what the store made.

R19, Law 5. No leftover is real, so a store with leftovers answers like one without.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import Bench, send, send_txn, values
from tests.upkeep.test_compact import bench_of, mixed
from txlog.base.ranges import END
from txlog.base.settings import DAY_MS
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPIC = "topics/public/default/t"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A store with a topic, two checkpoints, and a consumer that has left."""
    new_bench = Bench(tmp_path / "store", coordinators=1)
    client = new_bench.client
    client.create_topic("t")
    client.create_subscription("t", "s")
    client.consumer("t", "s").close()
    send(client, b"a")
    client.checkpoint()
    send(client, b"b")
    client.checkpoint()
    return new_bench


def codes(bench: Bench) -> dict[str, str]:
    """The codes of the findings of verify, by path."""
    report = txlog.verify(bench.path, deep=True, clock=bench.clock)
    assert report["errors"] == 0, report["problem_list"]
    return {str(problem["path"]): problem["code"] for problem in report["problem_list"]}


def put(bench: Bench, path: str, data: bytes = b"left") -> Path:
    file = Path(bench.path, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    "stray",
    ["notes.txt", "topics/x", "topics/public/x", "topics/public/default/x", f"{TOPIC}/x",
     f"{TOPIC}/partition=0/x", f"{TOPIC}/partition=0/_delayed", f"{TOPIC}/_stage",
     f"{TOPIC}/_stage/x/y", f"{TOPIC}/other/y", "system/x", "consumers/x"],
)  # fmt: skip
def test_a_stray_file_stops_no_upkeep(bench: Bench, stray: str) -> None:
    """A file of a desktop or a mail program, for example: upkeep skips it and leaves it there."""
    file = put(bench, stray)
    named_codes = next(path for path in codes(bench) if stray.startswith(path))
    assert codes(bench)[named_codes] == "foreign"
    bench.client.admin.gc(apply=True, keep_ms=0)
    bench.client.create_topic("more")
    assert not bench.client.checkpoint()["skipped"]
    assert file.exists()
    assert txlog.repair(bench.path, clock=bench.clock)["action_list"] == []
    assert values(bench.reopen()) == [b"a", b"b"]
    bench.close()


def test_a_link_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    """spec/reliability 7.2: a sweep that follows links would list directories outside the store."""
    away = tmp_path / "away" / "default" / "t" / "partition=0"
    away.mkdir(parents=True)
    outside_file = away / "ledger-000000000001.0000000001.parquet"
    outside_file.write_bytes(b"somebody's")
    Path(bench.path, "topics", "elsewhere").symlink_to(tmp_path / "away")
    assert codes(bench) == {"topics/elsewhere": "foreign"}
    bench.client.admin.gc(apply=True, keep_ms=0)
    assert outside_file.exists()
    bench.close()


@pytest.mark.parametrize("by", ["gc", "checkpoint", "repair"])
def test_the_lock_of_a_consumer_that_was_killed_goes_once_it_has_left(
    bench: Bench, by: str
) -> None:
    """R26: a number is used once, so no other process can hold the lock.

    The lock of an attached consumer stays.
    """
    consumer = bench.client.consumer("t", "s")
    (own_name,) = (path.name for path in Path(bench.path, "consumers").iterdir())
    stray_lock = put(bench, "consumers/1.lock", b"")
    next_one = put(bench, "consumers/3.lock", b"")
    assert (own_name, codes(bench)) == ("2.lock", {"consumers/1.lock": "unnamed"})
    swept(bench, by)
    assert (stray_lock.exists(), next_one.exists()) == (False, True)
    assert Path(bench.path, "consumers", own_name).exists()
    assert codes(bench) == {}
    consumer.close()
    bench.close()


def test_a_manifest_that_a_dead_checkpoint_left_is_named_and_goes(bench: Bench) -> None:
    """R16: two manifests stay; the process died before it unlinked the third one."""
    kept_name = max(Path(bench.path, "manifest").iterdir()).name
    copies = Path(bench.path).parent / "copies"
    shutil.copytree(Path(bench.path, "manifest"), copies)
    for name in ("x", "y"):
        bench.client.create_topic(name)
        bench.client.checkpoint()
    shutil.copy(copies / kept_name, Path(bench.path, "manifest", kept_name))
    assert codes(bench) == {f"manifest/{kept_name}": "unnamed"}
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert [action["action"] for action in done["action_list"]] == ["sweep"]
    assert codes(bench) == {}
    shutil.copy(copies / kept_name, Path(bench.path, "manifest", kept_name))
    bench.client.create_topic("z")
    bench.client.checkpoint()
    assert codes(bench) == {}
    bench.close()


@pytest.mark.parametrize("by", ["checkpoint", "repair"])
def test_staged_files_are_named_once_their_job_cannot_end(bench: Bench, by: str) -> None:
    """The job may run until stage_ttl_ms; a name that no job uses is foreign at once."""
    job = f"{TOPIC}/_stage/{bench.clock.now().wall_ms:015d}-a1b2"
    file = put(bench, f"{job}/p0-ff.parquet")
    other = put(bench, f"{job}/p0.csv")
    assert codes(bench) == {f"{job}/p0.csv": "foreign"}
    other.unlink()
    assert codes(bench) == {}
    bench.clock.advance(DAY_MS - 1)
    assert codes(bench) == {}
    bench.clock.advance(1)
    assert codes(bench) == {job: "staged"}
    swept(bench, by)
    assert not file.parent.exists()
    assert codes(bench) == {}
    bench.close()


def test_files_dropped_without_a_grace_are_no_finding(tmp_path: Path) -> None:
    """R18: the older manifest names rows that frames have dropped; verify of a sound store is
    silent.
    """
    bench = bench_of(tmp_path)
    mixed(bench)
    bench.client.checkpoint()
    bench.client.admin.compact("t")
    assert codes(bench) == {}
    for _ in range(2):
        bench.client.admin.trim("t", END, force_unacked=True)
        send(bench.client, b"next")
        bench.client.checkpoint()
        assert codes(bench) == {}
    bench.close()
    paths = sorted(Path(bench.path, "topics").rglob("*.arrow"))
    paths[-1].unlink()
    assert txlog.verify(bench.path, clock=bench.clock)["errors"] == 1


def test_a_removed_sidecar_ledger_has_no_owner(tmp_path: Path) -> None:
    """Each large message is a ledger, so the catalog would grow by every large message
    ever sent.
    """
    bench = bench_of(tmp_path, max_message_bytes=1000)
    client = bench.client
    open_one = mixed(bench)
    for number in range(5):
        client.producer("t", chunking=True).send(b"%d" % number * 3000)
    client.checkpoint()
    client.admin.compact("t")
    client.commit(open_one)
    client.admin.trim("t", END, force_unacked=True)
    send_txn(client, b"last")
    client.checkpoint(roll_all=True)

    def owned(view: View) -> tuple[set[int], set[int]]:
        owners = view.catalog.owners.items()
        ends = view.buffer(1).ledgers
        return {ledger for ledger, own_items in owners if own_items[1] == "s"}, {
            end.ledger for end in ends
        }

    for each_client in (client, bench.another()):
        own_owners, known_owners = each_client.store.read(owned)
        assert own_owners == known_owners
        assert len(known_owners) == 2
    assert codes(bench) == {}
    bench.close()


def swept(bench: Bench, by: str) -> None:
    """Remove the unnamed files by upkeep, by gc or by a repair."""
    if by == "gc":
        bench.client.admin.gc(apply=True)
    elif by == "checkpoint":
        bench.client.checkpoint()
    else:
        done = txlog.repair(bench.path, apply=True, clock=bench.clock)
        assert [action["action"] for action in done["action_list"]] == ["sweep"]
