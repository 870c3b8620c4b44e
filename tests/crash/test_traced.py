"""Real processes under strace: their system calls, and their death at any call with an effect.

spec/reliability 5.3. strace sends SIGKILL before a call is done. So every place between two calls
with an effect is tried on the real interpreter, file system and locks.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import send, send_txn, values
from tests.harness import run, txlog_of

pytestmark = pytest.mark.needs("strace")
PRODUCE = ("produce", "t", "--txn", "-q")
CHECKPOINT = ("admin", "checkpoint", "--roll-all", "-q")
NEW = [b"1", b"2", b"3"]
EFFECTS = ("pwrite64", "fdatasync", "fsync", "linkat", "unlinkat", "flock")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with plain messages and transactions, in files and in frames."""
    path = tmp_path / "store"
    txlog.init(str(path), coordinators=1)
    with txlog.open(str(path)) as client:
        client.checkpoint_automatically = False
        client.create_topic("t")
        client.create_subscription("t", "s")
        send(client, b"a")
        client.checkpoint()
        send_txn(client, b"x", b"y")
        send(client, b"b")
    return path


def traced(store: Path, command: tuple[str, ...], *options: str) -> tuple[int, list[str]]:
    """(exit code, the calls that were traced) of a command; 137: it was killed."""
    out = store.with_name("trace")
    words = ["strace", "-f", "-qq", "-o", str(out), *options, *txlog_of(store, *command)]
    env = {"HOME": str(store.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run(words, code=None, input="1\n2\n3\n", env=env)
    return done.returncode, out.read_text(errors="replace").splitlines()


def test_a_process_writes_by_names_below_the_store_and_asks_no_network(store: Path) -> None:
    """R1: no library opens a path of the store, no process writes outside of it or uses the
    network.
    """
    for command in (PRODUCE, CHECKPOINT):
        code, calls = traced(store, command, "-e", "trace=%file,%network,fsync")
        assert code == 0, command
        # glibc asks nscd for a user's name through AF_UNIX
        assert not [call for call in calls if "AF_INET" in call]
        written = [call for call in calls if re.search(r"O_(WRONLY|RDWR|CREAT)", call)]
        assert written
        for call in written:  # below a descriptor, by one name
            assert re.search(r'openat\(\d+, "[^/"]+", [\w|]*O_NOFOLLOW', call), call
        opened = [
            call for call in calls if re.search(r"\bopen(at2?)?\(", call) and f'"{store}' in call
        ]
        assert opened
        assert all("O_DIRECTORY" in call for call in opened), opened


@pytest.mark.slow
@pytest.mark.parametrize("call", EFFECTS)
@pytest.mark.parametrize("command", [PRODUCE, CHECKPOINT], ids=["produce", "checkpoint"])
def test_a_process_that_is_killed_at_any_call(
    store: Path, command: tuple[str, ...], call: str
) -> None:
    """kill -9 at the N-th call, for each N: all or nothing, no damage, and the store goes on."""
    with txlog.open(str(store), read_only=True) as client:
        values_before = values(client)
    number = 0
    while True:
        number += 1
        copy = store.with_name(f"{call}{number}")
        shutil.copytree(store, copy)
        code, _ = traced(copy, command, "-e", f"inject={call}:signal=KILL:when={number}")
        where = f"{command[0]} killed at {call} {number}: {code}"
        assert code in (0, 137, -9), where
        report = txlog.verify(str(copy), deep=True)
        assert report["errors"] == 0, (where, report["problem_list"])
        with txlog.open(str(copy)) as client:
            client.checkpoint_automatically = False
            values_after = values(client)
            assert values_after in (values_before, values_before + NEW), where
            if code == 0:
                assert (values_after == values_before + NEW) is (command is PRODUCE), where
            send_txn(client, b"goes", b"on")
            client.checkpoint(roll_all=True)
            assert values(client) == [*values_after, b"goes", b"on"], where
        assert txlog.verify(str(copy), deep=True)["errors"] == 0, where
        shutil.rmtree(copy)
        if code == 0:
            break
    assert number > 1 or (command is PRODUCE and call in ("fsync", "linkat", "unlinkat"))
