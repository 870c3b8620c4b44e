"""A driver of Spark that dies by SIGKILL while it writes: the job that is run again stores once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import txlog
from tests.harness import Child, python, run

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def held(store: str) -> list[int]:
    """The numbers that the topic holds."""
    with txlog.open(store) as client:
        tables = list(client.read("orders"))
        return sorted(int(value) for table in tables for value in table["value"].to_pylist())


def test_driver_that_is_killed_before_its_commit(tmp_path: Path) -> None:
    """A task waits at its last row while the driver dies; the next driver stores it, once."""
    store, gate = str(tmp_path / "store"), tmp_path / "gate"
    txlog.init(store, durability="os")
    with txlog.open(store) as client:
        client.create_topic("orders", partitions=2)
    onward = Path(f"{gate}.on")
    os.mkfifo(gate)
    os.mkfifo(onward)
    held_open = os.open(onward, os.O_RDWR)  # so that a worker without a driver can end
    with Child(python("spark_sink", store, gate), group=True) as driver:
        with gate.open() as file:
            assert file.read(4) == "here"
        driver.kill()
        os.write(held_open, b"on")
    os.close(held_open)
    assert held(store) == []
    assert run(python("spark_sink", store, "")).stdout == "written\n"
    assert held(store) == [*range(1000)]
    stage = next(Path(store).glob("topics/**/_stage"))
    remaining = [path for path in stage.iterdir()]
    assert len(remaining) <= 1, "what the killed driver left goes with a checkpoint, by its age"
