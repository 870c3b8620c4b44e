"""A function killed by SIGKILL at every step of a transaction repeats and loses no message.

Each step is tried with several transactions: a process dies there at its nth transaction, the next
one continues from the store, until a process reaches the end. Commits are in flight meanwhile,
except with the hook of the step "committing".
"""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.harness import NEVER, ready, run_until_done

COUNT = 60
STEPS = (
    "called", "begun", "produced", "acknowledged", "committing", "queued", "in flight", "flush",
    "flushed", "committed", "received", "closing",
)  # fmt: skip
MODES = ("message", "batch", "window")
QUICK = {
    ("called", "message"), ("committing", "message"), ("produced", "batch"),
    ("acknowledged", "batch"), ("committed", "batch"), ("committing", "window"),
    ("queued", "message"), ("in flight", "batch"), ("in flight", "window"), ("flushed", "message"),
}  # fmt: skip
CASES = [
    pytest.param(step, mode, marks=() if (step, mode) in QUICK else pytest.mark.slow)
    for step in STEPS
    for mode in MODES
]


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
    nth = 3 if mode == "batch" or step != "called" else 20
    nths = chain([1] if step == "closing" else [nth, nth], repeat(NEVER))
    assert run_until_done(ready("function", path, mode, step, nth) for nth in nths)
    with txlog.open(path) as client:
        good = [str(n).encode() for n in range(COUNT) if n not in (7, 31)]
        assert [m.value for m in client.reader("out")] == good
        assert [m.value for m in client.reader("other")] == good
        assert [m.value for m in client.reader("bad")] == [b"7", b"31"]
        assert client.transactions() == []
        assert [row["backlog"] for row in client.subscriptions()] == [0]
