"""A function killed by SIGKILL at every step of a transaction repeats and loses no message.

Each step is tried with several transactions: a process dies there at its nth transaction, the next
one continues from the store, until a process reaches the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from scripts import ready

SOURCE = Path(txlog.__file__).resolve().parents[1]
COUNT = 60
STEPS = (
    "called", "begun", "produced", "acknowledged", "committing", "committed", "received", "closing",
)  # fmt: skip
MODES = ("message", "batch", "window")
QUICK = {
    ("called", "message"), ("committing", "message"), ("produced", "batch"),
    ("acknowledged", "batch"), ("committed", "batch"), ("committing", "window"),
}  # fmt: skip
CASES = [
    pytest.param(step, mode, marks=() if (step, mode) in QUICK else pytest.mark.slow)
    for step in STEPS
    for mode in MODES
]

WORKER = """
import os, signal, sys
import txlog
from txlog import functions
from txlog.client.consuming.consumer import Consumer
from txlog.functions import FunctionOptions, Hooks, committing
from txlog.client.sending.producer import Producer

path, step, nth, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
left = nth

def at(name):
    global left
    if name == step:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def behind(owner, attribute, name):
    original = getattr(owner, attribute)
    def call(*args, **named):
        answer = original(*args, **named)
        at(name)
        return answer
    setattr(owner, attribute, call)

behind(Producer, "send_batch_async", "produced")
behind(Consumer, "acknowledge_async", "acknowledged")
behind(Consumer, "receive_batch", "received")
behind(Consumer, "close", "closing")
behind(committing.Work, "_begin", "begun")

def one(message, context):
    at("called")
    if message.value in (b"7", b"31"):
        raise ValueError("poison")
    context.publish("other", message.value)
    return message.value

def many(rows, context):
    at("called")
    if {b"7", b"31"} & set(rows["value"].to_pylist()):
        raise ValueError("poison")
    context.publish("other", rows)
    return rows

@functions.tumbling(count=1)
def window(messages, context):
    return one(messages[0], context)

function = {"message": one, "batch": many, "window": window}[mode]
options = FunctionOptions(
    name="f", batch=mode == "batch", txn_size=8, retries=1, on_error="dead-letter",
    dead_letter_topic="bad",
)
hooks = Hooks(committing=lambda *_: at("committing"), committed=lambda _: at("committed"))
with txlog.open(path) as client:
    functions.run(client, function, "in", "out", "s", options, hooks)
"""


@pytest.mark.parametrize(("step", "mode"), CASES)
def test_a_death_at_any_step_repeats_and_loses_nothing(
    tmp_path: Path, step: str, mode: str
) -> None:
    """Guards issue 5: inputs, outputs in two topics and dead letters agree, in order."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        for topic in ("in", "out", "other", "bad"):
            client.create_topic(topic)
        client.create_subscription("in", "s")
        numbers = [str(number).encode() for number in range(COUNT)]
        client.producer("in").send_batch(pa.table({"value": pa.array(numbers, pa.binary())}))
    codes: list[int] = []
    nth = 3 if mode == "batch" or step != "called" else 20
    if step == "closing":
        nth = 1
    while not codes or codes[-1]:
        child = subprocess.run(
            [*ready.python(), "-c", WORKER, path, step, str(nth), mode],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
        )
        assert child.returncode in (0, -signal.SIGKILL), child.stderr
        codes.append(child.returncode)
        if step == "closing" or len(codes) == 2:
            nth = 1 << 30
    assert codes[0] == -signal.SIGKILL
    with txlog.open(path) as client:
        good = [str(n).encode() for n in range(COUNT) if n not in (7, 31)]
        assert [m.value for m in client.reader("out")] == good
        assert [m.value for m in client.reader("other")] == good
        assert [m.value for m in client.reader("bad")] == [b"7", b"31"]
        assert client.transactions() == []
        assert [row["backlog"] for row in client.subscriptions()] == [0]
