"""A run of a real machine whose power is cut, and the parts that need none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness import SEED
from tests.powercut import compare, machine
from tests.powercut.device import (
    EVENT_DISK,
    FLUSH,
    HEADER,
    KEEPS,
    SECTOR,
    STORE_DISK,
    WRITE,
    Cut,
    Disk,
    Record,
)
from tests.powercut.run import Plan, run

SECTORS = 8


# --- machines -------------------------------------------------------------------------------------


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    if lacking := machine.missing(["ext4-ordered"]):
        pytest.skip(f"not on PATH: {', '.join(lacking)}")
    return tmp_path


@pytest.mark.slow
@pytest.mark.needs("linux.uml")
def test_after_a_power_cut_the_store_has_what_was_confirmed(folder: Path) -> None:
    figures = run(Plan("ext4-ordered", cuts=10, seed=SEED, sends=60), folder)
    assert figures.faults == []
    assert figures.cuts - figures.unmounted == 10
    assert figures.confirmed > 0
    assert figures.unflushed > 0


@pytest.mark.slow
@pytest.mark.needs("linux.uml")
def test_a_flush_that_is_left_out_loses_confirmed_messages(folder: Path) -> None:
    """Kills: a machine whose disks lose nothing, and a comparison that finds nothing."""
    plan = Plan("ext4-ordered", cuts=8, seed=SEED, sends=60, leave_out=("data",))
    assert any("was confirmed and is lost" in fault for fault in run(plan, folder).faults)


@pytest.mark.slow
@pytest.mark.needs("linux.uml")
def test_stock_clients_get_what_was_confirmed_although_the_server_dies(folder: Path) -> None:
    """Kills: a message that is lost only if its server was killed before the power went."""
    plan = Plan("ext4-ordered", cuts=10, seed=SEED, sends=100, clients=True, kills=2)
    try:
        figures = run(plan, folder)
    except machine.Unavailable as error:
        pytest.skip(str(error))
    assert figures.faults == []
    assert figures.told["kill"] > 0
    assert figures.confirmed > 0


# --- disks ----------------------------------------------------------------------------------------


def record_of(path: Path, entries: Sequence[tuple[int, int, int, bytes]]) -> Record:
    """A record: kind, disk, first sector and bytes of each entry."""
    with path.open("wb") as file:
        for kind, disk, sector, data in entries:
            file.write(HEADER.pack(kind, disk, sector * SECTOR, len(data)) + data)
    return Record(path)


def sectors(text: str) -> bytes:
    """A sector for each letter."""
    return b"".join(letter.encode() * SECTOR for letter in text)


def image(folder: Path, record: Record, cut: Cut) -> str:
    """A letter for each sector of the disk after a cut; a dot for one that was never written."""
    blank = folder / "blank"
    with blank.open("wb") as file:
        file.truncate(SECTORS * SECTOR)
    Disk(record, blank, folder / "flushed").after(cut, folder / "image")
    data = (folder / "image").read_bytes()
    letters = [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]
    assert all(len({*letter}) == 1 for letter in letters)
    return "".join(chr(letter[0]) if letter[0] else "." for letter in letters)


def test_a_cut_keeps_what_was_flushed_and_any_sectors_of_the_rest(tmp_path: Path) -> None:
    entries = [
        (WRITE, STORE_DISK, 0, sectors("ab")),
        (FLUSH, STORE_DISK, 0, b""),
        (WRITE, STORE_DISK, 1, sectors("cd")),
        (WRITE, STORE_DISK, 2, sectors("ef")),
        (FLUSH, EVENT_DISK, 0, b""),
        (WRITE, STORE_DISK, 7, sectors("g")),
    ]
    record = record_of(tmp_path / "record", entries)
    seen = set()
    for keep in KEEPS:
        for seed in range(60):
            seen.add(image(tmp_path, record, Cut(5, keep, SECTOR, seed)))
    whole = {f"a{b}{c}{d}...." for b in "bc" for c in ".de" for d in ".f"}
    assert seen == whole
    assert image(tmp_path, record, Cut(5, "nothing", SECTOR, 0)) == "ab......"
    assert image(tmp_path, record, Cut(5, "everything", SECTOR, 0)) == "acef...."
    assert image(tmp_path, record, Cut(1, "nothing", SECTOR, 0)) == "........"


def test_events_come_with_the_place_of_their_last_byte(tmp_path: Path) -> None:
    line = b'{"type": "ok", "op": "flush"}\n'
    entries = [
        (WRITE, EVENT_DISK, 0, line[:10]),
        (WRITE, STORE_DISK, 0, sectors("a")),
        (WRITE, EVENT_DISK, 1, line[10:].ljust(SECTOR, b"\0")),
        (WRITE, STORE_DISK, 0, sectors("b")),
    ]
    record = record_of(tmp_path / "record", entries)
    assert [told.before for told in record.events] == [3]
    assert record.told_before(Cut(2, "nothing", SECTOR, 0)) == []
    assert record.told_before(Cut(3, "nothing", SECTOR, 0)) == [{"type": "ok", "op": "flush"}]


# --- comparison -----------------------------------------------------------------------------------


class Story:
    """Events, and a store whose contents agree with them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {
            "topics": ["orders", "bills"],
            "messages": [],
            "drained": [],
            "drained_again": 0,
            "added": [],
            "later": [],
            "verified": [],
            "numbers": {},
        }
        for topic in ("orders", "bills"):
            self.call("create_topic", {"topic": topic})
        for number in (1, 2, 3):
            value, id_ = f"s:{number}", f"1:{number}"
            args = {"topic": "orders", "value": value, "key": "k"}
            self.call("send", args, {"partition": 0, "id": id_})
            self.row("messages", "orders", value, id_)
        self.row("drained", "orders", "s:3", "1:3")
        for txn, order, end in (("0:0", "s:1", "commit"), ("0:1", "s:3", "abort")):
            self.call("send", {"topic": "bills", "value": f"{order}a", "txn": txn}, {})
            self.call("send", {"topic": "bills", "value": f"{order}b", "txn": txn}, {})
            self.call("acknowledge", {"values": [order], "txn": txn})
            self.call(end, {"txn": txn})
        self.row("messages", "bills", "s:1a", "2:0:1")
        self.row("messages", "bills", "s:1b", "2:0:2")
        self.call("send", {"topic": "bills", "value": "s:2a", "txn": "0:2"}, {})
        self.call("acknowledge", {"values": ["s:2"], "txn": "0:2"})
        self.call("commit", {"txn": "0:2"}, None)
        self.row("messages", "bills", "s:2a", "2:1:1")
        read = {"orders": {"0": [["1:1", "s:1"], ["1:2", "s:2"], ["1:3", "s:3"]]}}
        self.call("read", {"topics": ["orders"]}, {"topics": read})
        self.answer["later"] += self.answer["messages"]

    def call(self, op: str, args: dict[str, Any], answer: dict[str, Any] | None = {}) -> None:  # noqa: B006
        """A call and its answer; None: the power was cut before it."""
        same = {"call": len(self.events), "op": op}
        self.events.append({**same, "type": "invoke", "args": args})
        if answer is not None:
            self.events.append({**same, "type": "ok", "answer": answer})

    def row(self, name: str, topic: str, value: str, id_: str) -> None:
        """A message that the store has."""
        row = {"topic": topic, "partition": 0, "id": id_, "value": value, "key": "k"}
        self.answer[name].append(row)

    def lose(self, name: str, value: str) -> None:
        """Remove a message from the contents of the store."""
        self.answer[name] = [row for row in self.answer[name] if row["value"] != value]

    def faults(self) -> str:
        """The faults that the comparison finds."""
        return "\n".join(compare.faults(self.events, self.answer))


def test_a_store_that_has_what_was_told_is_right() -> None:
    assert Story().faults() == ""


def test_what_differs_from_what_was_told_is_named() -> None:
    changes: dict[Callable[[Story], object], str] = {
        lambda story: story.lose("messages", "s:3"): "s:3 of orders was confirmed and is lost",
        lambda story: story.lose("messages", "s:1"): "s:1 of orders was seen as 0 1:1",
        lambda story: story.lose("messages", "s:1a"): "0:0 was committed and has 1 of 2 messages",
        lambda story: story.row("messages", "bills", "s:3a", "2:2"): "0:1 (abort ok) has 1 message",
        lambda story: story.row("messages", "bills", "x", "2:2"): "x in bills is a phantom",
        lambda story: story.row("messages", "orders", "s:3", "1:4"): "s:3 is 2 times in orders",
        lambda story: story.answer["topics"].remove("bills"): "topic bills is lost",
        lambda story: story.lose("messages", "s:2a"): "s:2 is acknowledged by 0 committed",
        lambda story: story.lose("drained", "s:3"): "s:3 is acknowledged by 0 committed",
        lambda story: story.row("drained", "orders", "s:1", "1:1"): "s:1 is acknowledged by 1",
        lambda story: story.lose("later", "s:2"): "is not any more",
        lambda story: story.answer["messages"].reverse(): "s:2 is out of order in orders 0",
        lambda story: story.answer["verified"].append("a hole"): "verify: a hole",
        lambda story: story.answer["numbers"].update({"s": 2}): "producer s has number 2",
        lambda story: story.answer.update(error="boom"): "recovery raised boom",
    }
    for change, words in changes.items():
        story = Story()
        change(story)
        assert words in story.faults()


def test_the_checker_of_histories_judges_a_cut_as_well() -> None:
    story = Story()
    story.lose("messages", "s:3")
    assert "lost-message: " in story.faults()
