"""Windows that close on watermarks, over random histories, against a direct computation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txlog
from tests.watermarks.test_windows import END, STATE, backlog, late, made, results, run, say, summed
from txlog.functions import Hooks, Summary, tumbling

pytestmark = pytest.mark.usefixtures("quick_disk")


@dataclass
class Model:
    """Where each message must end up, for any batches: the window of each value, if it is certain.

    surely_late: its window was closed by a value that was delivered before it was sent
    maybe_late: its window was closed by a value of any earlier position; one producer is always
      active, as otherwise an idle partition would not hold the value for its messages
    """

    times: dict[str, int | None] = field(default_factory=dict)
    handed: int = 0
    most: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    surely_late: set[str] = field(default_factory=set)
    maybe_late: set[str] = field(default_factory=set)

    def value(self) -> int:
        """The least time of an active producer."""
        return min(at for at in self.times.values() if at is not None)

    def say(self, who: str, at: int | None) -> None:
        """A watermark; None: it is idle."""
        self.times[who] = None if at is None else max(at, self.times.get(who) or 0)
        self.most = max(self.most, self.value())

    def send(self, at: int, lateness: int) -> str:
        """Add a message; returns its payload."""
        name = f"{len(self.sent)}"
        self.sent[name] = at
        closes = at // 100 * 100 + 100 + lateness
        if closes <= self.handed:
            self.surely_late.add(name)
        if closes <= self.most:
            self.maybe_late.add(name)
        return name


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 999), st.integers(0, 1)),
        st.tuples(st.just("say"), st.integers(1, 1000), st.sampled_from("AB")),
        st.tuples(st.just("idle"), st.just(0), st.just("B")),
        st.tuples(st.just("run"), st.integers(0, 4), st.integers(1, 12)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=8)
@given(steps=STEPS, lateness=st.sampled_from([0, 30]), to_topic=st.booleans())
def test_every_message_is_in_its_window_or_late_once(
    steps: list[tuple[str, int, Any]],
    lateness: int,
    to_topic: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """With deaths after any commit: a window comes once, whole, and not too early."""
    path = str(tmp_path_factory.mktemp("w") / "store")
    txlog.init(path, coordinators=1)
    function = tumbling(
        duration_ms=100,
        lateness_ms=lateness,
        watermarks=True,
        late_topic="late" if to_topic else None,
    )(summed)
    model = Model()
    last: list[tuple[str, int, Any]] = [("say", END, "A"), ("say", END, "B"), ("run", 0, 100)]
    with txlog.open(path, durability="os") as client:
        made(client)
        for act, number, more in [("say", 1, "A"), *steps, *last]:
            if act == "send":
                name = model.send(number, lateness)
                client.producer("in").send(name.encode(), event_time=number, partition=more)
            elif act == "say":
                model.say(more, number)
                say(client, number, more)
            elif act == "idle":
                model.say(more, None)
                say(client, None, more)
            elif act == "checkpoint":
                client.checkpoint(roll_all=True)
            elif run_until(client, function, deaths=number, size=more):
                model.handed = max(model.handed, model.value())
        found_results = results(client)
        is_stored = any(not row["late"] for row in found_results)
        assert (backlog(client), backlog(client, STATE)) == (0, is_stored)
        check(model, found_results, late(client), lateness)


def run_until(client: txlog.Client, function: Any, deaths: int, size: int) -> bool:
    """Run the function; it dies after `deaths` commits, or 0: it reaches its end."""

    def committed(done: Summary) -> None:
        if done.transactions == deaths:
            raise KeyboardInterrupt

    try:
        run(client, function, Hooks(committed=committed), txn_size=size, name="w")
    except KeyboardInterrupt:
        return False
    return True


def check(model: Model, rows: list[dict[str, Any]], aside: list[str], lateness: int) -> None:
    """Compare the outputs with a direct computation."""
    on_time_rows = [row for row in rows if not row["late"]]
    came_late = aside + [value for row in rows if row["late"] for value in row["values"]]
    everything = Counter(came_late) + Counter(
        value for row in on_time_rows for value in row["values"]
    )
    assert everything == Counter(list(model.sent))
    assert model.surely_late <= set(came_late) <= model.maybe_late
    expected: dict[int, set[str]] = {}
    for name, at in model.sent.items():
        if name not in came_late:
            expected.setdefault(at // 100 * 100, set()).add(name)
    assert len({row["start"] for row in on_time_rows}) == len(on_time_rows)
    assert {row["start"]: set(row["values"]) for row in on_time_rows} == expected
    for row in rows:
        assert row["end"] + lateness <= row["watermark"]
        assert {model.sent[value] // 100 * 100 for value in row["values"]} == {row["start"]}
