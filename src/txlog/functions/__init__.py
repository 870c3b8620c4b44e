"""Functions: user code between topics, exactly once, in the terms of Pulsar Functions.

    inputs ── receive ── function ── outputs ┐
                  └───── acknowledge ────────┴── one transaction a batch

One transaction acknowledges the inputs and produces the outputs, so a crash at any moment loses
and repeats nothing in the store. Other effects of a function may happen again.

Door: handlers, runner, the package, watermarked, window_state, windows.

Contents:

    attempt        one attempt at one transaction; inputs that finally fail
    committing     the transactions of a run, under a key that fences earlier runs
    context        Context: a function's second argument
    handlers       loading a function by name; calling it with a message, or with a table
    inputs         the consumers of a run: receiving and acknowledging its inputs
    options        the options, results and callbacks of a run
    outputs        results of functions, as one Arrow batch per topic
    runner         `run`: the loop that receives, calls the function and commits
    watermarked    windows of event time that close when the watermark passes them
    window_state   the messages of such open windows, in a topic of their own and in memory
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
