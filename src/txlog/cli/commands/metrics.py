"""Owns the command `metrics`: the text for Prometheus, or the textfile of its node exporter."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.line.command import Option, command, exclusive
from txlog.engine.door.disk import replace_file


@command(
    "metrics",
    "figures for Prometheus",
    examples=(
        "txlog metrics",
        "txlog metrics --textfile /var/lib/node_exporter/txlog.prom   # from cron",
    ),
    rows="store.MetricRow",
)
def metrics(
    call: Call,
    textfile: Annotated[
        str | None, Option("--textfile", metavar="PATH", help="replaced at once")
    ] = None,
) -> None:
    """Print the metrics of the store as Prometheus text, or as JSON."""
    as_json = call.output.as_json
    exclusive(textfile=textfile, json=as_json)
    families = call.client().admin.metrics()
    if as_json:
        call.output.rows(
            importlib.import_module("txlog.client.answers.metric_family").rows(families)
        )
        return
    text: str = importlib.import_module("txlog.client.answers.metrics_text").exposition(families)
    if textfile is None:
        call.output.text(text)
    else:
        replace_file(textfile, text.encode())
        call.summary(f"wrote {textfile}")
