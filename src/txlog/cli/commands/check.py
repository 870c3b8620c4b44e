"""Owns the command `check`: the health of a store, in monitors' words and exit codes."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from txlog.cli.call.call import Call
from txlog.cli.line.command import Duration, Option, command, exclusive
from txlog.cli.terminal import fields, tables
from txlog.engine.door.disk import replace_file
from txlog.errors import Corruption, TxlogError, Usage

if TYPE_CHECKING:
    from txlog.base.rows.store import Check, CheckRow


EXITS: Final = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
_STYLES: Final = ("text", "nagios", "prometheus", "json")
# For values of a check: the unit that monitors use, and the factor from our unit to it.
_UNITS: Final = {
    "txn-age": ("s", 0.001), "lag": ("s", 0.001), "space": ("B", 1),
    "backlog-age": ("s", 0.001), "no-consumer-for": ("s", 0.001), "backlog-bytes": ("B", 1),
}  # fmt: skip


@command(
    "check",
    "report the store's health to monitors",
    examples=(
        "txlog check --backlog-warn 10000 --backlog-crit 100000",
        "txlog check --style nagios --txn-age-warn 5m --txn-age-crit 1h",
        "txlog check --style prometheus --outfile /var/lib/node_exporter/txlog_check.prom",
        "txlog check --topic orders --lag-crit 10m --json",
    ),
    rows="store.Check",
)
def check(
    call: Call,
    topics: Annotated[
        list[str] | None,
        Option("--topic", "-t", metavar="T", help="only this topic; repeatable"),
    ] = None,
    backlog_warn: Annotated[
        int | None, Option("--backlog-warn", metavar="N", help="messages in a backlog")
    ] = None,
    backlog_crit: Annotated[
        int | None, Option("--backlog-crit", metavar="N", help="the same, critical")
    ] = None,
    txn_age_warn: Annotated[
        int | None, Duration("--txn-age-warn", help="age of a transaction")
    ] = None,
    txn_age_crit: Annotated[
        int | None, Duration("--txn-age-crit", help="the same, critical")
    ] = None,
    lag_warn: Annotated[int | None, Duration("--lag-warn", help="lag behind the clock")] = None,
    lag_crit: Annotated[int | None, Duration("--lag-crit", help="the same, critical")] = None,
    style: Annotated[
        str, Option("--style", metavar="text|nagios|prometheus|json", help="shape of the answer")
    ] = "text",
    outfile: Annotated[
        str | None, Option("--outfile", metavar="PATH", help="file, replaced in one step")
    ] = None,
) -> None:
    """Check whether a store is healthy: 0 ok, 1 warning, 2 critical, 3 unknown or an error.

    It reports values above a bound. It always checks for offline partitions, disk space and
    hanging transactions. Backlog, age and lag are shown even without bounds.
    """
    call.check_choice("--style", style, _STYLES)
    as_json = call.output.as_json
    exclusive(style=style not in ("text", "json") and style, json=as_json)
    bounds = {
        "backlog": _bounds("backlog", backlog_warn, backlog_crit),
        "txn_age_ms": _bounds("txn-age", txn_age_warn, txn_age_crit),
        "lag_ms": _bounds("lag", lag_warn, lag_crit),
    }
    try:
        answer = call.client().admin.check(topics or [], **bounds)
    except TxlogError as error:
        answer = _failed(error)
    call.exit = EXITS[answer["status"]]
    form = "json" if as_json else style
    text = _PRINTED[form](call, answer)
    if outfile is not None:
        replace_file(os.path.abspath(outfile), text.encode())
        call.summary(f"{answer['status']}: wrote {outfile}")
    else:
        call.output.text(text)


def _bounds(name: str, warn: int | None, crit: int | None) -> tuple[int | None, int | None]:
    if warn is not None and crit is not None and warn > crit:
        raise Usage(f"--{name}-warn is above --{name}-crit")
    return warn, crit


def _failed(error: TxlogError) -> Check:
    """The answer for a store that cannot be opened or checked: one check, `store`."""
    status = "critical" if isinstance(error, Corruption) else "unknown"
    detail = error.message if error.hint is None else f"{error.message} ({error.hint})"
    row: CheckRow = {
        "name": "store",
        "status": status,
        "value": error.exit,
        "warn": None,
        "crit": None,
        "detail": detail,
    }
    return {"status": status, "check_list": [row]}


def _json(call: Call, answer: Check) -> str:
    picked = fields.select(answer, call.command.fields)
    return json.dumps(picked, ensure_ascii=False, separators=(",", ":")) + "\n"


def _text(call: Call, answer: Check) -> str:
    rows = answer["check_list"]
    width = max(len(row["name"]) for row in rows)
    lines = [
        f"{row['status']:<8}  {row['name']:<{width}}  {_shown(row)}  {row['detail']}".rstrip()
        for row in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def _shown(row: CheckRow) -> str:
    unit, value = _UNITS.get(_kind(row), ("", 1))[0], row["value"]
    if value is None:
        return "-"
    if unit == "B":
        return tables.size(value)
    return tables.duration(value) if unit else f"{value:,}"


def _kind(row: CheckRow) -> str:
    """The measure of a check: the first word of its name; of an alert, the second."""
    words = str(row["name"]).split(" ")
    return words[1] if words[0] == "alert" else words[0]


def _nagios(call: Call, answer: Check) -> str:
    rows = answer["check_list"]
    wrong = [row for row in rows if row["status"] != "ok"]
    summary = "; ".join(f"{row['name']}: {_said(row)}" for row in wrong[:3])
    figures = " ".join(_perfdata(row) for row in rows if row["name"] != "store")
    first = f"TXLOG {answer['status'].upper()} - {summary or f'{len(rows)} checks'}"
    more = [f"{row['status'].upper()} {row['name']}: {row['detail']}" for row in wrong[3:]]
    # Every monitor reads the first line. A bar in it would start the figures.
    lines = [line.replace("|", "/").replace("\n", " ") for line in (first, *more)]
    lines[0] += f" | {figures}" if figures else ""
    return "".join(f"{line}\n" for line in lines)


def _said(row: CheckRow) -> str:
    return str(row["detail"]) if row["name"] == "store" else f"{_shown(row)}, {row['detail']}"


def _perfdata(row: CheckRow) -> str:
    """Performance data of Nagios: 'label'=value[unit];warn;crit; N: is a lower bound."""
    kind = _kind(row)
    unit, factor = _UNITS.get(kind, ("", 1))
    below = ":" if kind == "space" else ""
    warn, crit = (
        "" if bound is None else f"{_number(bound * factor)}{below}"
        for bound in (row["warn"], row["crit"])
    )
    label = str(row["name"]).replace("'", "''").replace("=", "_")
    value = "U" if row["value"] is None else f"{_number(row['value'] * factor)}{unit}"
    return f"'{label}'={value};{warn};{crit};;".rstrip(";")


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _prometheus(call: Call, answer: Check) -> str:
    family = importlib.import_module("txlog.client.answers.metric_family").Family
    legend = "0 ok, 1 warning, 2 critical, 3 unknown"
    rows = answer["check_list"]
    statuses = [("", {"check": row["name"]}, EXITS[row["status"]]) for row in rows]
    values = [
        ("", {"check": row["name"]}, row["value"])
        for row in rows
        if row["name"] != "store" and row["value"] is not None
    ]
    families = [
        family(
            "txlog_check",
            "gauge",
            f"Worst of all checks: {legend}.",
            [("", {}, EXITS[answer["status"]])],
        ),
        family("txlog_check_status", "gauge", f"One check: {legend}.", statuses),
        family("txlog_check_value", "gauge", "The measured value: messages, ms or bytes.", values),
    ]
    text: str = importlib.import_module("txlog.client.answers.metrics_text").exposition(families)
    return text


_PRINTED: Final[dict[str, Callable[[Call, Check], str]]] = {
    "text": _text, "json": _json, "nagios": _nagios, "prometheus": _prometheus,
}  # fmt: skip
