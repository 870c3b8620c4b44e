"""Owns how `inspect` looks: what the store answers, with a message in the form of a record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from txlog.cli.options import Call
from txlog.cli.records import json_record, rows_of


def show(call: Call, what: str | None) -> None:
    """Print what a word means in the store."""
    answer: dict[str, Any] = dict(call.client().inspect(what))
    record = answer.pop("record", None)
    if isinstance(record, pa.Table):
        rows = [json_record(row, embed=False) for row in rows_of(record)]
        answer = {**(rows[0] if rows else {}), **answer}
        if len(rows) > 1:  # a marker's own id stands for all its messages
            answer["messages"] = len(rows)
    call.output.single(answer)
