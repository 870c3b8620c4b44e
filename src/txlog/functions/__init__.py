"""Owns functions: user code between topics, exactly once, in the terms of Pulsar Functions.

    inputs ── receive ── function ── outputs ┐
                  └───── acknowledge ────────┴── one transaction a batch

Inputs are acknowledged and outputs produced in one transaction, so that a death at any moment
repeats and loses nothing in the store. What a function does elsewhere may happen again.

    options    what a run is asked to do, what it did, and who listens
    outputs    what functions give back, as one Arrow batch a topic
    context    what functions get beside their input
    attempt    one attempt at one transaction; inputs that fail again and again
    handlers   a message at a time, or a table
    windows    tumbling windows by count and by event time
    watermarked, windowstate    windows that close on watermarks, and where their messages wait
    loading    MODULE:FUNCTION and FILE.py:FUNCTION
    inputs     the consumers
    committing    the transactions, under a key that fences what ran before
    runner     the loop
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
