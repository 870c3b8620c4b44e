"""Owns the commands about Spark: arguments for spark-submit, and an example job."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.line.command import Option, command
from txlog.errors import InvalidArgument


@command(
    "spark submit-args",
    "arguments for spark-submit",
    examples=(
        "spark-submit $(txlog spark submit-args) job.py ./store",
        "spark-submit --master yarn $(txlog spark submit-args --archives env.tar.gz) job.py ./s",
    ),
    rows="jobs.SubmitArguments",
)
def submit_args(
    call: Call,
    python: Annotated[
        str | None,
        Option("--python", metavar="PATH", help="Python of the workers; default: this one"),
    ] = None,
    archives: Annotated[
        str | None, Option("--archives", metavar="F", help="an environment made by venv-pack")
    ] = None,
) -> None:
    """Print the arguments with which spark-submit runs txlog; docs/cluster.md explains them."""
    arguments = importlib.import_module("txlog.lake.spark.submit").submit_args(python, archives)
    for word in arguments:
        if any(char.isspace() for char in word):
            raise InvalidArgument(f"a shell would split {word}")
    if call.output.as_json:
        call.output.result({"args": arguments})
    else:
        call.output.text(" ".join(arguments) + "\n")


@command(
    "spark example",
    "a job to start from",
    examples=("txlog spark example --topic orders > job.py", "txlog spark example > job.py"),
)
def example(
    call: Call,
    topic: Annotated[
        list[str] | None, Option("--topic", metavar="T…", help="topics to read; else orders")
    ] = None,
    isolation: Annotated[str, Option("--isolation", metavar="I")] = "committed",
) -> None:
    """Print a job that runs unchanged."""
    call.check_choice("--isolation", isolation, ("committed", "uncommitted"))
    program = importlib.import_module("txlog.lake.spark.submit").example(
        topic or ["orders"], isolation
    )
    call.output.text(program)
