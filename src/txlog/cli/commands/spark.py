"""Owns the commands about Spark: arguments for spark-submit, and a job to start from."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.line.command import command
from txlog.cli.line.declared import Option
from txlog.errors import InvalidArgument


@command(
    "spark submit-args",
    examples=(
        "spark-submit $(txlog spark submit-args) job.py ./store",
        "spark-submit --master yarn $(txlog spark submit-args --archives env.tar.gz) job.py ./s",
    ),
    fields="args",
)
def submit_args(
    call: Call,
    python: Annotated[
        str | None,
        Option("--python", metavar="PATH", help="the Python that workers run; else this one"),
    ] = None,
    archives: Annotated[
        str | None, Option("--archives", metavar="F", help="an environment made by venv-pack")
    ] = None,
) -> None:
    """Print the arguments that let spark-submit run txlog; the sources have docs/cluster.md."""
    words = importlib.import_module("txlog.lake.spark.submit").submit_args(python, archives)
    for word in words:
        if any(char.isspace() for char in word):
            raise InvalidArgument(f"a shell would split {word}")
    if call.output.as_json:
        call.output.result({"args": words})
    else:
        call.output.text(" ".join(words) + "\n")


@command(
    "spark example",
    examples=("txlog spark example --topic orders > job.py", "txlog spark example > job.py"),
)
def example(
    call: Call,
    topic: Annotated[
        list[str] | None, Option("--topic", metavar="T…", help="what it reads; else orders")
    ] = None,
    isolation: Annotated[str, Option("--isolation", metavar="I")] = "committed",
) -> None:
    """Print a job that runs unchanged."""
    call.check_choice("--isolation", isolation, ("committed", "uncommitted"))
    made = importlib.import_module("txlog.lake.spark.submit").example(
        topic or ["orders"], isolation
    )
    call.output.text(made)
