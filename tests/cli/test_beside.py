"""%g %r %[ %] %x{key}: the position of a message, and facts that its row does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_store import Tool, tool
from txlog.client.open import open_store

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool


def fill(tool: Tool) -> None:
    """Plain messages, two transactions with a key and one without, one aborted, one open."""
    with open_store(str(tool.path)) as client:
        send = client.producer("orders").send
        for number in range(3):
            send(b"plain %d" % number)
        for key in ("k1", "k2", None):
            with client.transaction(key=key) as txn:
                for number in range(2):
                    send(b"%s %d" % ((key or "none").encode(), number), txn=txn)
        lost = client.begin()["txn"]
        send(b"lost", txn=lost)
        client.abort(lost)
        send(b"open", txn=client.begin()["txn"])


@pytest.mark.parametrize("upkeep", [[], ["checkpoint"], ["checkpoint", "--roll-all"]])
def test_a_message_is_in_the_row_of_the_file(tool: Tool, upkeep: list[str]) -> None:
    """%g and %r find a message in a part, a sealed file or a sidecar; in a frame they are empty."""
    fill(tool)
    if upkeep:
        tool.ok("admin", *upkeep)
    lines = tool.ok("consume", "orders", "-f", "%g|%r|%v\\n").splitlines()
    assert len(lines) == 9
    for line in lines:
        file, row, value = line.split("|")
        if not upkeep:
            assert (file, row) == ("", "")
            continue
        answer = tool.json(
            "inspect",
            str(tool.path / file),
            "--sql",
            f"SELECT text(value) AS v FROM this LIMIT 1 OFFSET {row}",
        )
        rows = answer if isinstance(answer, list) else [answer]
        assert rows == [{"v": value}]
        assert Path(tool.path / file).is_file()


def test_keys_and_ends(tool: Tool) -> None:
    fill(tool)
    out = tool.ok("consume", "orders", "-f", "%x{key},%[,%],%%g,%v\\n", "-o", "+2")
    first = tool.json("topic", "describe", "orders")["partition_list"][0]
    ends = f"{first['first']},{first['last']}"
    assert out.splitlines() == [
        f"{key},{ends},%g,{value}"
        for key, value in [
            ("", "plain 2"),
            ("k1", "k1 0"),
            ("k1", "k1 1"),
            ("k2", "k2 0"),
            ("k2", "k2 1"),
            ("", "none 0"),
            ("", "none 1"),
        ]
    ]
    peeked = tool.ok("peek", "orders", "--last", "1", "-f", "%x{key}%[\\n")
    assert peeked == f"{first['first']}\n"
    assert tool.error("produce", "orders", "-m", "x", "--ack-format", "%g")["exit"] == 2
