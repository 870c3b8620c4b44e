"""`txlog check`: its warnings and critical states, and its output for monitors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.test_store import Tool, tool
from tests.engine_kit import Bench, begin, say, send
from txlog.errors import Corruption, InvalidArgument, TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool


def states(bench: Bench, **bounds: tuple[int | None, int | None]) -> dict[str, str]:
    answer = bench.client.admin.check(**bounds)  # type: ignore[arg-type]  # bounds only
    status_of = {row["name"]: row["status"] for row in answer["check_list"]}
    assert answer["status"] == next(
        (status for status in ("critical", "warning") if status in status_of.values()), "ok"
    )
    return status_of


def test_value_above_a_bound_raises_the_status(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    send(bench.client, b"1", b"2")
    begin(bench.client, 100_000)
    say(bench.client, "p", bench.clock.now().wall_ms - 5_000)
    bench.clock.advance(1_000)
    quiet = states(bench)
    assert quiet == dict.fromkeys(
        ["partitions", "space", "hanging", "txn-age", "backlog t/s", "lag t"], "ok"
    )
    for name, bound, value in (
        ("backlog t/s", "backlog", 2),
        ("txn-age", "txn_age_ms", 1000),
        ("lag t", "lag_ms", 6000),
    ):
        for limits, status in (
            ((value, None), "ok"),
            ((value - 1, value), "warning"),
            ((None, value - 1), "critical"),
            ((0, value - 1), "critical"),
        ):
            assert states(bench, **{bound: limits}) == {**quiet, name: status}, (name, limits)
    with pytest.raises(InvalidArgument):
        states(bench, backlog=(2, 1))
    with pytest.raises(TopicNotFound):
        bench.client.admin.check(["u"])


def test_offline_partition_and_hanging_transaction_are_warnings(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    for topic in ("t", "u"):
        bench.client.create_topic(topic)
    txn = begin(bench.client)
    bench.client.producer("t").send(b"x", txn=txn)
    bench.client.admin.set_offline("t", 0)
    bench.client.commit(txn)
    bench.clock.advance(3_600_000)
    status = states(bench)
    assert (status["partitions"], status["hanging"]) == ("warning", "warning")
    other = bench.client.admin.check(["u"])
    assert {row["status"] for row in other["check_list"]} == {"ok"}
    by_name = {row["name"]: row for row in bench.client.admin.check(["t"])["check_list"]}
    assert by_name["hanging"]["detail"] == f"{txn} (unavailable)"


def test_damage_and_a_full_disk_are_critical(tmp_path: Path) -> None:
    """A reader meets damaged bytes in a real sealed file."""
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    send(bench.client, b"1" * 1000)
    bench.client.checkpoint(roll_all=True)
    (file,) = Path(bench.path).rglob("partition=0/*.parquet")
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    with pytest.raises(Corruption):
        list(bench.client.reader("t"))
    assert states(bench)["partitions"] == "critical"
    full = Bench(tmp_path / "full", coordinators=1, free_bytes_min=1 << 60)
    assert states(full)["space"] == "critical"


@pytest.mark.parametrize(
    ("args", "code"),
    [([], 0), (["--backlog-warn", "0"], 1), (["--backlog-crit", "0"], 2), (["--no"], 3),
     (["--topic", "none"], 3), (["--backlog-warn", "x"], 3), (["-f", "nope"], 3)],
)  # fmt: skip
def test_exit_codes_follow_the_convention_of_monitors(
    tool: Tool, args: list[str], code: int
) -> None:
    """A wrong call is unknown, not critical."""
    tool.ok("sub", "create", "a=b", "-t", "orders")
    tool.ok("produce", "orders", "-m", "x")
    for style in ("text", "nagios", "prometheus", "json"):
        assert tool("check", "--style", style, *args)[0] == code


def test_a_line_of_nagios_has_figures_it_can_read(tool: Tool) -> None:
    tool.ok("sub", "create", "a=b", "-t", "orders")
    line = tool.ok("check", "--style", "nagios", "--backlog-warn", "5")
    first, _, figures = line.partition(" | ")
    assert first.startswith("TXLOG OK - ") and line.count("|") == 1
    pattern = r"'(?:[^'=]|'')+'=[0-9.]+(?:s|B)?(?:;[0-9:.]*)*"
    assert re.fullmatch(rf"{pattern}(?: {pattern})*\n", figures)
