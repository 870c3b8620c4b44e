"""Functions: user code between topics, exactly once, in the terms of Pulsar Functions.

    inputs ── receive ── function ── outputs ┐
                  └───── acknowledge ────────┴── one transaction a batch

Inputs are acknowledged and outputs produced in one transaction, so a crash at any moment loses
and repeats nothing in the store. Other effects of a function may happen again.

Door: handlers, runner, the package, watermarked, window_state, windows.

Contents:

    attempt        one attempt at one transaction; inputs that fail repeatedly
    committing     the transactions of a run, under a key that fences earlier runs
    context        Context: a function's second argument
    handlers       loading a function; ways to call it: with a message, or with a table
    inputs         the consumers
    options        the options, results and callbacks of a run
    outputs        results of functions, as one Arrow batch per topic
    runner         the loop
    watermarked    windows of event time that close when the watermark passes them
    window_state   the messages of such windows while they wait: a topic of its own
    windows        tumbling windows, by count and by event time
"""

from __future__ import annotations

from txlog.functions.context import Context, Window
from txlog.functions.handlers import load
from txlog.functions.options import FunctionOptions, Hooks, Summary
from txlog.functions.outputs import Output
from txlog.functions.runner import run
from txlog.functions.windows import tumbling

__all__ = [
    "Context", "FunctionOptions", "Hooks", "Output", "Summary", "Window", "load", "run", "tumbling",
]  # fmt: skip
