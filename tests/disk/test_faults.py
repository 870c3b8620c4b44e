"""Fault points: the call that a test names fails, and no other one."""

from __future__ import annotations

import pytest

from tests.disk.faults import FaultyDisk
from tests.disk.memory import MemoryDisk
from txlog.errors import StoreFull


def test_the_call_that_is_named_fails() -> None:
    disk = FaultyDisk(MemoryDisk())
    point = disk.fail_at("publish", StoreFull("full"), "b*", nth=2)
    for name in ("b1", "a1", "a2"):
        disk.publish(name, [b"x"])
    with pytest.raises(StoreFull):
        disk.publish("b2", [b"x"])
    disk.publish("b3", [b"x"])
    assert disk.listdir("") == ["a1", "a2", "b1", "b3"] and point.count == 3


def test_an_act_has_its_place_before_or_after_a_call_of_a_file() -> None:
    disk = FaultyDisk(MemoryDisk())
    disk.write_fresh("f", b"old")
    seen = list[bytes]()
    disk.before("pwrite", lambda: seen.append(disk.read("f")), nth=0)
    disk.after("pwrite", lambda: seen.append(disk.read("f")), nth=0)
    file = disk.open("f", write=True)
    file.pwrite(0, b"new")
    disk.clear()
    file.pwrite(0, b"end")
    assert seen == [b"old", b"new"]
