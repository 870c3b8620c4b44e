"""The fuzzer finds each kind of finding, planted once."""

from __future__ import annotations

import gc
import os
import random
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import corpus, mutation
from tests.fuzz.engine import Campaign, Finding, Target, runner, shrunk
from tests.fuzz.targets import queries
from txlog.base.ranges import parse_size
from txlog.errors import Corruption, InternalError

_MODULES = ("txlog.base.ranges",)
_EVENT = threading.Event()


def _target(run: Callable[[bytes], object], **options: int) -> Target:
    return Target("planted", run, lambda: [b"1KiB"], _MODULES, steps=2_000, **options)  # type: ignore[arg-type]


def _found(run: Callable[[bytes], object], **options: int) -> Finding | None:
    with runner(_target(run, **options)) as running:
        return running.run(b"1KiB") or running.measure(b"1KiB")


def _endless(data: bytes) -> None:
    while True:
        parse_size("1KiB")


def _large(data: bytes) -> None:
    bytearray(64 << 20)


def _refused(data: bytes) -> None:
    raise Corruption("x is damaged")


def _bug(data: bytes) -> None:
    raise InternalError("a bug")


def _crashed(data: bytes) -> None:
    raise KeyError(data)


def _descriptor(data: bytes) -> None:
    os.open(os.devnull, os.O_RDONLY)


def _thread(data: bytes) -> None:
    threading.Thread(target=_EVENT.wait, daemon=True).start()


def _file(data: bytes) -> None:
    Path(tempfile.mkstemp()[1]).touch()


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (_endless, "steps"),
        (_large, "memory"),
        (_crashed, "test_engine_crashed_keyerror"),
        (_bug, "test_engine_bug_internalerror"),
        (_descriptor, "descriptors"),
        (_thread, "threads"),
        (_file, "descriptors"),
    ],
)
def test_planted_mistake_is_a_finding(run: Callable[[bytes], object], name: str) -> None:
    _EVENT.clear()
    gc.collect()  # else a descriptor of an earlier test may close during the run
    finding = _found(run)
    _EVENT.set()
    assert finding is not None
    assert finding.name == name


def test_refusal_is_no_finding() -> None:
    assert _found(_refused) is None
    assert _found(lambda data: parse_size(data.decode())) is None


def test_query_that_opens_a_file_is_noticed() -> None:
    watched = queries._watched()
    watched.check()
    Path(watched.path).read_text()
    with pytest.raises(AssertionError, match="opened a file"):
        watched.check()


def test_feedback_leads_to_new_lines_and_a_seed_repeats_them() -> None:
    """Kills: a trace that reports nothing, and chance that does not follow from the seed."""

    def run(data: bytes) -> None:
        parse_size(data.decode("latin-1"))

    first, second = (Campaign(_target(run), 3) for _ in range(2))
    for campaign in (first, second):
        campaign.run(400, float("inf"))
    assert len(first.inputs) > 1
    assert first.inputs == second.inputs
    assert {line for path, line in first.lines if path.endswith("ranges.py")}


def test_repetitions_of_repetitions_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a campaign that ends because a mutation takes all memory."""
    monkeypatch.setattr(mutation, "_CHANGES", [mutation._repeat])
    tracemalloc.start()
    try:
        for seed in range(200):
            mutation.mutated(random.Random(seed), b"a" * 64, [b"b"], (), 64)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_finding_is_shrunk_to_what_matters() -> None:
    def crash(data: bytes) -> None:
        if b"x" in data:
            raise KeyError

    target = _target(crash)
    with runner(target) as running:
        planted = running.run(b"abc" * 9 + b"x" + b"def" * 9)
    assert planted is not None
    assert shrunk(target, planted).data == b"x"


def test_kept_inputs_are_read_as_they_were_written() -> None:
    assert corpus.unpacked(corpus.packed(b"\0\xff" * 9)) == b"\0\xff" * 9
    assert all(path.read_text().splitlines()[0].endswith(".") for path in corpus.FOUND.iterdir())
