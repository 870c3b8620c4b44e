"""How many modules a call goes through: each trip has a budget, which may only be lowered.

A trip through many modules is a long read for whoever wants to know what a command does. Counted
are modules of txlog in which a function runs, in a process of its own that has loaded all of them
before (scripts/ready): what runs while a module is loaded is left out.
"""

from __future__ import annotations

import subprocess

import pytest

import txlog
from scripts import ready
from txlog.api.open import open_store
from txlog.clock import ManualClock

COUNT = """
import sys, threading
seen = set()
def note(frame, event, arg):
    if event == "call" and frame.f_code.co_name != "<module>":
        seen.add(frame.f_code.co_filename)
def trip():
    {trip}
threading.setprofile(note)
sys.setprofile(note)
trip()
sys.setprofile(None)
ours = [name.partition("/src/txlog/")[2] for name in seen if "/src/txlog/" in name]
print(*sorted(ours), sep="\\n", file=sys.stderr)
"""
COMMAND = "from txlog.cli.main import main; main(['-q', '-S', {store!r}, *{words!r}])"
READ = """import txlog
    from txlog.relation.scans import scans_of
    with txlog.open({store!r}, read_only=True) as client:
        assert scans_of(client._content("orders").relation)"""
"""The driver's side of a Spark read, without Spark."""
HOUR_MS = 3_600_000
BUDGETS = {
    # Typed topics, access modes and the look at whether the store is there raised them once.
    "produce orders -m x": 86,
    "txn commit TXN": 68,
    "consume orders -s late": 103,
    "txn list": 55,
    "read": 46,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small store: an open transaction, and a delayed message that is due."""
    path = str(tmp_path_factory.mktemp("trips") / "store")
    txlog.init(path)
    clock = ManualClock(1_700_000_000_000)
    with open_store(path, clock=clock) as client:
        client.create_topic("orders", partitions=2)
        client.create_subscription("orders", "late")
        client.producer("orders").send(b"later", deliver_after=1_000)
        client.producer("orders").send(b"now")
    return path


@pytest.mark.parametrize("trip", BUDGETS)
def test_a_trip_keeps_within_its_budget(store: str, trip: str) -> None:
    with txlog.open(store) as client:
        txn = str(client.begin(timeout_ms=HOUR_MS)["txn"])  # no sweep, however slow the machine
    words = [txn if word == "TXN" else word for word in trip.split()]
    code = READ.format(store=store) if trip == "read" else COMMAND.format(store=store, words=words)
    done = subprocess.run(
        [*ready.python(), "-c", COUNT.format(trip=code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = [line for line in done.stderr.splitlines() if line.endswith(".py")]
    assert 10 < len(modules) <= BUDGETS[trip], "\n".join(modules)
