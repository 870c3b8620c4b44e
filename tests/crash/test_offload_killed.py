"""An offload killed at any step: every message stays readable, and no file stays behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from scripts import ready
from tests.upkeep.test_offload import filled_store, near, there, values
from txlog import Client

pytestmark = pytest.mark.usefixtures("quick_disk")
# The steps of an offload; the process dies in one of them.
STEPS = ("half", "put", "check", "switch", "let go", "done")
KILLED = """
import os, signal, sys, txlog
from txlog.client.answers import space as spacing
from txlog.engine.storage import remote as far
from txlog.engine.store.store import Store
path, to, step, left = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
def passed(here):
    global left
    if here == step:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
def halved(pieces):
    for piece in pieces:
        yield piece[: len(piece) // 2]
        passed("half")
        yield piece[len(piece) // 2 :]
put, check, write = far.put, far.check, spacing.write_checkpoint
def putting(place, name, pieces):
    put(place, name, halved(pieces))
    passed("put")
def checking(*args):
    check(*args)
    passed("check")
def letting_go(*args, **more):
    passed("switch")
    answer = write(*args, **more)
    passed("let go")
    return answer
far.put, far.check, spacing.write_checkpoint = putting, checking, letting_go
with txlog.open(path) as client:
    client.checkpoint_automatically = False
    client.admin.offload("orders", to)
    client.checkpoint()
    passed("done")
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store like those of test_offload."""
    with filled_store(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("step", STEPS)
def test_an_offload_killed_at_any_step(client: Client, tmp_path: Path, step: str) -> None:
    """R19. Guards against a frame before the copy, a half copy that counts as whole, and files left
    over.
    """
    archive = tmp_path / "archive"
    archive.mkdir(mode=0o700)
    values_before = values(client)
    often = 2 if step in ("half", "put", "check") else 0
    command = [*ready.python(), "-c", KILLED, client.path, str(archive), step, str(often)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with txlog.open(client.path) as other:
        other.checkpoint_automatically = False
        assert values(other) == values_before
        other.checkpoint()
        other.create_topic("later")
        other.checkpoint()  # this manifest no longer names the files that were copied
        other.admin.gc(True, 0)
        done = 5 if step not in ("half", "put", "check") else 2
        assert (len(near(other)), len(there(archive))) == (5 - done, done)
        assert other.admin.offload("orders", str(archive))["files"] == 5 - done
        other.checkpoint()
        other.create_topic("latest")
        other.checkpoint()
        assert (len(near(other)), len(there(archive))) == (0, 5)
        assert values(other) == values_before
