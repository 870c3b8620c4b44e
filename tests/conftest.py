"""Owns the setup and fixtures of all tests, and the options of `scripts/test`.

Hypothesis has no deadline and no database, and runs the same examples every time. With
`HYPOTHESIS_SEED_FREE=1` it draws new ones; a failure prints the blob that repeats it.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.engine_kit import Bench
from tests.rotation import Rotation
from txlog.engine.storage import frame, journal
from txlog.engine.storage.disk import posix
from txlog.engine.store import identity
from txlog.engine.upkeep import service

settings.register_profile(
    "txlog",
    deadline=None,
    database=None,
    derandomize=os.environ.get("HYPOTHESIS_SEED_FREE") != "1",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("txlog")

# The tests start several hundred processes: without bytecode each one would compile the package.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(
        tempfile.gettempdir(), f"txlog-bytecode-{os.getuid()}"
    )

# txlog records confirmed places there, and a test must not change the record of the user.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="txlog-state-")

# Programs that .ci/run has installed: if one is missing, a test fails instead of being skipped.
PROMISED = frozenset(os.environ.pop("TESTS_NEED", "").split())

# A shell starts its background jobs with SIGINT ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing; fail it where .ci/run should have installed it."""
    for mark in item.iter_markers("needs"):
        if any(map(shutil.which, mark.args)):
            continue
        if PROMISED.isdisjoint(mark.args):
            pytest.skip(f"there is no {mark.args[0]} here")
        pytest.fail(f"{mark.args[0]} was installed, and is not on PATH", pytrace=False)


# Files whose tests take seconds each: if one began last, a single worker would be busy with it.
LONG = (
    "crash/test_", "laws/", "test_help_examples", "test_golden", "test_querying", "test_man.py",
    "test_docs", "test_example_services", "test_report_browser", "test_demo",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let long tests come first, so that both workers end at the same time."""
    if config.getoption("--seconds") is None:
        paths = {item.path for item in items}
        long = {path for path in paths if any(part in str(path) for part in LONG)}
        items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while pytest makes hundreds of thousands of lasting objects.

    Each collection took half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --seconds, for --changed and one process only, and --day."""
    parser.addoption("--seconds", type=float, help="stop, without a failure, after so many")
    parser.addoption("--day", type=int, help="only those tests of tests/rotation.py of this day")


def pytest_configure(config: pytest.Config) -> None:
    if (day := config.getoption("--day")) is not None:
        config.pluginmanager.register(Rotation(day))


def pytest_sessionstart(session: pytest.Session) -> None:
    seconds = session.config.getoption("--seconds")
    if seconds is not None:
        session.config.pluginmanager.register(_Until(session, time.monotonic() + seconds))


class _Until:
    """Ends a session at a set time: after the running test, or in it, GRACE seconds later."""

    GRACE = 2

    def __init__(self, session: pytest.Session, end: float) -> None:
        self._session = session
        self._end = end
        self._is_over = False
        signal.signal(signal.SIGALRM, self._leave)
        signal.setitimer(signal.ITIMER_REAL, end - time.monotonic() + self.GRACE, 1)

    def _leave(self, number: int, frame: object) -> None:
        failed = pytest.ExitCode.TESTS_FAILED if self._session.testsfailed else pytest.ExitCode.OK
        pytest.exit("the time of --seconds is over", returncode=int(failed))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and time.monotonic() > self._end and not self._is_over:
            self._is_over = True
            self._session.shouldstop = "the time of --seconds is over"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._is_over and session.testsfailed == 0:
            session.exitstatus = pytest.ExitCode.OK


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A store as the marker `store` of the test or its module describes it.

    store(topics, subscriptions, **settings): topics: name to number of partitions; subscriptions:
    (topic, name) or (topic, name, type)
    """
    mark = request.node.get_closest_marker("store")
    topics, subscriptions = (*mark.args, [])[:2]
    opened = Bench(tmp_path / "store", **mark.kwargs)
    for name, partitions in topics.items():
        opened.client.create_topic(name, partitions)
    for topic, name, *kind in subscriptions:
        opened.client.create_subscription(topic, name, **({"type": kind[0]} if kind else {}))
    yield opened
    opened.close()


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace flushes by calls that do nothing, for tests without power cuts."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setattr(posix, "sync_file_system", lambda descriptor: True)


@pytest.fixture(autouse=True)
def checkpoints_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run automatic checkpoints within the call that begins them, so that no test races."""
    monkeypatch.setattr(service, "IN_BACKGROUND", False)


@pytest.fixture(autouse=True)
def small_reserve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores reserve little space: the reserve was four fifths of all bytes written.

    The zeros of a journal were most of the rest, and most sectors that a power cut is tried on.
    """
    if request.node.get_closest_marker("whole_reserve") is None:
        monkeypatch.setattr(identity, "RESERVE_BYTES", 64 << 10)
        for module in (journal, frame):
            monkeypatch.setattr(module, "FILL_BYTES", 64 << 10)
        monkeypatch.setattr(journal, "FILL_FRAME_BYTES_MAX", 16 << 10)
