"""Run a function, and die at a step of it: STORE KIND STEP NTH.

KIND is message, batch or window, where two messages are poison; or timed, windows on watermarks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pyarrow as pa

import txlog
from tests.children import dying
from txlog import Message, Transaction, functions
from txlog.client.consuming.consumer import Consumer
from txlog.client.sending.producer import Producer
from txlog.functions import Context, FunctionOptions, Hooks, committing

POISON = {b"7", b"31"}
path, kind, aim, nth = sys.argv[1:]


def one(message: Message, context: Context) -> bytes | None:
    """Give a message to two topics."""
    dying.step("called")
    if message.value in POISON:
        raise ValueError("poison")
    context.publish("other", message.value)
    return message.value


def many(rows: pa.Table, context: Context) -> pa.Table:
    """Give a batch to two topics."""
    dying.step("called")
    if POISON & set(rows["value"].to_pylist()):
        raise ValueError("poison")
    context.publish("other", rows)
    return rows


@functions.tumbling(count=1)
def window(messages: list[Message], context: Context) -> bytes | None:
    """Give a window of one message to two topics."""
    return one(messages[0], context)


@functions.tumbling(duration_ms=100, watermarks=True, late_topic="late")
def timed(messages: list[Message], context: Any) -> dict[str, Any]:
    """Give the numbers of a window."""
    dying.step("called")
    values = [int(message.value or b"") for message in messages]
    return {"start": context.window.start, "values": values}


dying.around(Producer, "send_batch_async", after="produced")
dying.around(Consumer, "acknowledge_async", after="acknowledged")
dying.around(Consumer, "receive_batch", after="received")
dying.around(Consumer, "close", after="closing")
dying.around(committing.Work, "_begin", after="begun")
dying.around(Transaction, "commit_async", "queued", "in flight")
if aim in ("flush", "flushed"):
    dying.around(os, "fdatasync", "flush", "flushed")
if kind == "timed":
    dying.around(os, "pwrite", "disk", "disk")
    dying.around(os, "fdatasync", "disk", "disk")
    options = FunctionOptions(name="f", txn_size=30)
else:
    options = FunctionOptions(
        name="f", batch=kind == "batch", txn_size=8, retries=1, on_error="dead-letter",
        dead_letter_topic="bad",
    )  # fmt: skip
hooks = Hooks(committed=lambda _: dying.step("committed"))
if aim == "committing":  # with this hook commits do not overlap
    hooks = Hooks(committing=lambda *_: dying.step(aim))
function: Any = {"message": one, "batch": many, "window": window, "timed": timed}[kind]
dying.at(aim, int(nth))
with txlog.open(path) as client:
    functions.run(client, function, "in", "out", "s", options, hooks)
