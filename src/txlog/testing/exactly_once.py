"""Owns assert_exactly_once: a pipeline writes the same output wherever it dies and restarts."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import txlog
from txlog.testing.outputs import Output, described, differences, messages_of
from txlog.testing.platter import Crashed
from txlog.testing.store import TemporaryStore

if TYPE_CHECKING:
    from txlog.client.client import Client

PACKAGE = os.path.dirname(txlog.__file__) + os.sep
# between the death and the next start: transactions left open, which hold messages, time out
PAUSE = timedelta(hours=1)

Step = Callable[["Client"], object]


def assert_exactly_once(
    prepare: Step,
    pipeline: Step,
    outputs: Sequence[str],
    *,
    places: int = 100,
    seed: int = 0,
    settings: dict[str, int | str | float] | None = None,
) -> int:
    """Kill a pipeline at many places, start it again each time, and compare what it wrote.

    prepare:  makes topics, subscriptions and input, in a new store
    pipeline: works until there is nothing left to do, then returns; a new client each time
    outputs:  the topics whose messages are compared, by key and value
    places:   at most so many calls of the disk at which the pipeline dies, drawn with the seed.
              At every second place the power fails too, and unflushed writes may be lost
    settings: of the store, as of txlog.init
    returns:  how many times the pipeline died
    raises:   AssertionError: undisturbed it writes nothing to the outputs, so nothing is proved; or
              naming the first place where a message was lost or doubled, the line
              of the program that ran, and the messages

    Between a death and the next start the clock moves by an hour, so that transactions left open
    time out and return what they hold.
    """
    folder = tempfile.mkdtemp(prefix="txlog-")
    try:
        store = TemporaryStore(f"{folder}/prepared", **(settings or {}))
        with store, store.open() as client:
            prepare(client)
            prepared = messages_of(client, outputs)
        before, calls, wanted = _undisturbed(folder, pipeline, outputs)
        if wanted == prepared:
            raise AssertionError(f"the pipeline writes no message to {', '.join(outputs)}")
        chance = random.Random(seed)
        span = range(before + 1, calls + 1)
        chosen = sorted(chance.sample(span, min(places, len(span))))
        return sum(
            _dies(folder, pipeline, outputs, wanted, place, seed if number % 2 else None)
            for number, place in enumerate(chosen)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(folder: str, name: str) -> TemporaryStore:
    """A store with the content of the prepared one."""
    path = f"{folder}/{name}"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(f"{folder}/prepared", path)
    return TemporaryStore.existing(path)


def _undisturbed(folder: str, pipeline: Step, outputs: Sequence[str]) -> tuple[int, int, Output]:
    """(calls before the pipeline, calls after it, its output) of a run to the end."""
    with _copy(folder, "whole") as store:
        before = store.platter.calls
        with store.open() as client:
            pipeline(client)
        calls = store.platter.calls
        return before, calls, _written(store, outputs)


def _dies(
    folder: str,
    pipeline: Step,
    outputs: Sequence[str],
    wanted: Output,
    place: int,
    power_seed: int | None,
) -> bool:
    """Let the pipeline die at a place and run again; True if it got as far as that place."""
    with _copy(folder, "killed") as store:
        store.platter.crash_at = place
        with suppress(Crashed), store.open() as client:
            pipeline(client)
        crash, store.platter.crash_at = store.platter.crash, None
        if power_seed is None:
            store.crash()
        else:
            store.power_cut(power_seed)
        store.clock.advance(PAUSE)
        with store.open() as client:
            pipeline(client)
        written = _written(store, outputs)
    rows = differences(written, wanted)
    if rows:
        cut = "" if power_seed is None else ", and the power failed"
        where = f"killed before call {place} of the disk ({crash}){_line(crash)}{cut}"
        raise AssertionError(f"{where}: {described(rows)}")
    return crash is not None


def _written(store: TemporaryStore, outputs: Sequence[str]) -> Output:
    with store.open() as client:
        return messages_of(client, outputs)


def _line(crash: Crashed | None) -> str:
    """The innermost line of the caller's program that ran, as " at file:line"; "" in a thread."""
    line, traceback = "", None if crash is None else crash.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not path.startswith(PACKAGE):
            line = f" at {os.path.basename(path)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line
