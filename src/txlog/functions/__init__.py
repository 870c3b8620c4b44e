"""Functions: user code between topics, exactly once, in the terms of Pulsar Functions.

    inputs ── receive ── function ── outputs ┐
                  └───── acknowledge ────────┴── one transaction a batch

Inputs are acknowledged and outputs produced in one transaction, so a death at any moment loses
nothing in the store and repeats nothing. What a function does elsewhere may happen again.

Contents:

    attempt        one attempt at one transaction; inputs that fail again and again
    committing     the transactions of a run, under a key that fences what ran before
    context        Context: what a function gets besides its input
    handlers       how a function is called: with a message, or with a table
    inputs         the consumers
    loading        finding a function: MODULE:FUNCTION or FILE.py:FUNCTION
    options        what a run is asked to do, what it did, and who listens
    outputs        what functions give back, as one Arrow batch a topic
    runner         the loop
    watermarked    windows of event time that close when the watermark passes them
    window_state   where the messages of such windows wait: a topic of its own
    windows        tumbling windows, by count and by event time
"""

from __future__ import annotations

from txlog.functions.context import Context, Window
from txlog.functions.loading import load
from txlog.functions.options import FunctionOptions, Hooks, Summary
from txlog.functions.outputs import Output
from txlog.functions.runner import run
from txlog.functions.windows import tumbling

__all__ = [
    "Context", "FunctionOptions", "Hooks", "Output", "Summary", "Window", "load", "run", "tumbling",
]  # fmt: skip
