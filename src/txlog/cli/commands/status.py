"""Owns the output of `status`: a paragraph and a table on a terminal, one object otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txlog.cli.call.call import Call
from txlog.cli.call.repetition import repeat
from txlog.cli.terminal import fields, tables
from txlog.errors import printable

if TYPE_CHECKING:
    from txlog.client.client import Client

_TOPIC_FIELDS = (
    "topic partitions messages size_bytes open_txns hidden_messages delayed backlog "
    "watermark".split()
)


def show(call: Call, client: Client, pause_ms: int | None) -> None:
    """Print the status; with a pause, repeat that."""

    def print_once() -> None:
        answer = client.status()
        if call.output.form in ("table", "wide"):
            call.output.drawn(_text(call, answer))
        else:
            call.output.single(answer)

    repeat(call, pause_ms, print_once)


def _checkpoint(call: Call, checkpoint: Mapping[str, Any]) -> str:
    """The newest checkpoint, and on a terminal its age."""
    if not checkpoint["generation"]:
        return "no checkpoint"
    summary, at_ms = f"checkpoint {checkpoint['generation']}", checkpoint["written_time"]
    if at_ms is None or not call.output.look.human:
        return summary
    return f"{summary}, {tables.duration(max(0, call.now_ms() - at_ms))} ago"


def _text(call: Call, answer: Mapping[str, Any]) -> str:
    look = call.output.look
    store, journal, txns = answer["store"], answer["journal"], answer["txns"]
    messages = sum(row["messages"] for row in answer["topic_list"])
    facts = [
        tables.size(store["size_bytes"]),
        tables.counted(messages, "message"),
        f"durable to LSN {journal['durable_lsn']:,}",
        _checkpoint(call, answer["checkpoint"]),
    ]
    lines = ["   ".join([printable(store["path"]), *facts])]
    if look.width and len(lines[0]) > look.width:
        lines = [printable(store["path"]), "   ".join(facts)]
    open_txns = [
        f"{txns[name]} {name}" for name in ("open", "overdue", "prepared", "committing", "aborting")
    ]
    lines.append(f"transactions: {', '.join(open_txns)}")
    lines += [f"problem: {printable(p['message'])}" for p in answer["problem_list"]]
    rows = [fields.select(row, _TOPIC_FIELDS) for row in answer["topic_list"]]
    text = "".join(f"{line}\n" for line in lines)
    return text + (tables.table(_TOPIC_FIELDS, rows, look, importance={}) if rows else "")
