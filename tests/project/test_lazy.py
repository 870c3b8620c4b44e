"""Lazy modules: an import finds them at once, and their first use runs them, exactly once."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import txlog
from tests.harness import python, run
from txlog.base.startup import lazy
from txlog.base.startup.lazy import LazyModule, NotThereYet

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Path]:
    """A file that is the module txlog.probe."""
    txlog.__path__.append(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path / "probe.py"
    txlog.__path__.remove(str(tmp_path))
    sys.modules.pop("txlog.probe", None)
    vars(txlog).pop("probe", None)


def ran(probe: Path) -> int:
    log = probe.with_name("log")
    return len(log.read_text()) if log.exists() else 0


def write(probe: Path, text: str) -> None:
    probe.write_text(
        f"from pathlib import Path\nwith Path({str(probe.with_name('log'))!r}).open('a') as file:\n"
        f"    file.write('x')\n{text}\n"
    )


def test_a_module_runs_when_it_is_used(probe: Path) -> None:
    """A module runs at its first use, not at its import; then it is an ordinary module."""
    write(probe, "FOUND = 7")
    module = importlib.import_module("txlog.probe")
    reimported = importlib.import_module("txlog.probe")
    assert (type(module), module is reimported, ran(probe)) == (LazyModule, True, 0)
    assert module.FOUND == 7
    assert (type(module), ran(probe)) == (ModuleType, 1)
    assert inspect.getsource(module).endswith("FOUND = 7\n")


def test_a_name_set_in_a_module_stays(probe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests patch attributes of modules: a later run must not overwrite the patch."""
    write(probe, "FOUND = 7")
    module = importlib.import_module("txlog.probe")
    monkeypatch.setattr(module, "FOUND", 8)
    assert (module.FOUND, ran(probe)) == (8, 1)


def test_a_run_that_fails_is_run_again(probe: Path) -> None:
    """Rule 2: an interrupted or failed run leaves nothing that looks like a module."""
    write(probe, "1 / 0\nFOUND = 7")
    module = importlib.import_module("txlog.probe")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            _ = module.FOUND
        assert type(module) is LazyModule
    write(probe, "FOUND = 'mended'")
    assert module.FOUND == "mended"


def test_threads_wait_for_the_one_that_runs_it(probe: Path) -> None:
    """Rule 1: no thread sees half of a module. The event lets the others come amid the run."""
    write(probe, "FIRST = 1\nimport txlog\ntxlog.probe_waits()\nLAST = 2")
    module = importlib.import_module("txlog.probe")
    amid, values = threading.Event(), []
    others = [threading.Thread(target=lambda: values.append(module.LAST)) for _ in range(4)]

    def waits() -> None:
        for thread in others:
            thread.start()
        amid.set()

    vars(txlog)["probe_waits"] = waits
    try:
        assert module.LAST == 2
    finally:
        del vars(txlog)["probe_waits"]
    for thread in others:
        thread.join()
    assert (amid.is_set(), values, ran(probe)) == (True, [2, 2, 2, 2], 1)


def interrupt_at(nth: int) -> Callable[[FrameType, str, object], Any]:
    """A trace function that raises before the nth instruction of `lazy`, as a signal handler."""
    count = 0

    def step(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count == nth:
                raise KeyboardInterrupt
        return step

    def call(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != lazy.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    return call


def use_probe(values: list[object]) -> None:
    values.append(importlib.import_module("txlog.probe").FOUND)


def test_an_interrupt_leaves_no_lock_taken(probe: Path) -> None:
    """Rule 5: whichever instruction it comes before, another thread can use the module."""
    write(probe, "FOUND = 7")
    nth, is_interrupted = 0, True
    while is_interrupted:
        nth += 1
        sys.settrace(interrupt_at(nth))
        try:
            use_probe([])
            is_interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        values: list[object] = []
        thread = threading.Thread(target=use_probe, args=[values], daemon=True)
        thread.start()
        thread.join(60)
        assert values == [7], f"instruction {nth}"
        sys.modules.pop("txlog.probe")
        vars(txlog).pop("probe", None)
    assert nth > 100


def test_unused_modules_do_not_run() -> None:
    """The client of a producer runs no upkeep, no consumer, no kernel of Arrow."""
    done = run(python("idle_modules"))
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_server_listens_before_optional_modules_run(tmp_path: Path) -> None:
    """HTTP, rules, SQL and the removal of files run at first use, not before the server listens."""
    txlog.init(str(tmp_path / "s"))
    done = run(python("idle_server", tmp_path / "s"))
    assert (done.stdout, done.stderr) == ("[] True True\n", "")


def test_command_loads_no_heavy_modules(tmp_path: Path) -> None:
    """Sending one message loads neither Typer nor modules that only inspect code or packages."""
    txlog.init(str(tmp_path / "s"))
    with txlog.open(str(tmp_path / "s")) as client:
        client.create_topic("orders")
    heavy = "typer rich inspect dataclasses importlib.metadata pathlib difflib"
    heavy += " typing_extensions argparse pyarrow.compute duckdb orjson msgspec"
    words = ("produce", "orders", "-m", "hello", "-q")
    done = run(python("loaded", heavy, *words), env={"TXLOG_STORE": str(tmp_path / "s")})
    assert (done.stdout, done.stderr) == ("", "0 ['msgspec']\n")


def test_reentry_by_the_thread_that_runs_it(probe: Path) -> None:
    """Rule 4: the collector or a signal handler may re-enter; a missing name is refused by name."""
    write(probe, "FIRST = 1\nimport txlog\ntxlog.probe_enters()\nLAST = 2")
    module = importlib.import_module("txlog.probe")
    values: list[object] = []

    def enters() -> None:
        values.append(module.FIRST)
        with pytest.raises(NotThereYet, match="has no LAST yet: the caller runs in"):
            _ = module.LAST
        values.append(hasattr(module, "LAST"))

    vars(txlog)["probe_enters"] = enters
    try:
        assert module.LAST == 2
    finally:
        del vars(txlog)["probe_enters"]
    assert (values, type(module), ran(probe)) == ([1, False], ModuleType, 1)
