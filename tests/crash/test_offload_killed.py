"""An offload killed at any step: every message stays readable, and no file stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from tests.harness import KILLED, ready, run
from tests.tiers import graded
from tests.upkeep.test_offload import filled_store, near, there, values
from txlog import Client

pytestmark = pytest.mark.usefixtures("quick_disk")
# The steps of an offload; the process dies in one of them.
STEPS = ("half", "put", "check", "switch", "let go", "done")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store like those of test_offload."""
    with filled_store(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("step", graded(STEPS, 2))
def test_an_offload_killed_at_any_step(client: Client, tmp_path: Path, step: str) -> None:
    """R19. Guards against a frame before the copy, a half copy that counts as whole, and files left
    over.
    """
    archive = tmp_path / "archive"
    archive.mkdir(mode=0o700)
    values_before = values(client)
    nth = 3 if step in ("half", "put", "check") else 1
    run(ready("offload", client.path, archive, step, nth), code=KILLED)
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
