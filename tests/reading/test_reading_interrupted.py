"""A signal handler raises while a reader reads: its next call continues where it was.

The interpreter checks for signals after a call of C, where a loop goes back and as a function
begins. Each place of the first two kinds is tried once; then real signals come at any time.
"""

from __future__ import annotations

import dis
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench
from tests.tiers import graded
from txlog import Reader
from txlog.base import arguments

pytestmark = pytest.mark.usefixtures("quick_disk")
SOURCE = str(Path(txlog.__file__).parent)
SENT = [b"%d" % number for number in range(60)]


class Alarm(Exception):
    """The exception that the handler of a soft time limit raises."""


class Injection:
    """Raises at the nth new place where the interpreter checks for signals."""

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.where: CodeType | None = None
        self._places: set[tuple[CodeType, int]] = set()
        self._last: dict[FrameType, str] = {}  # the last instruction of each frame

    def __enter__(self) -> Injection:
        sys.settrace(self._call)
        return self

    def __exit__(self, *given_arguments: object) -> None:
        sys.settrace(None)
        self._last.clear()

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_back in self._last:
            self._last[frame.f_back] = "call of Python"
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "return":
            self._last.pop(frame, None)
        if event != "opcode":
            return self._step
        last, location = self._last.get(frame, ""), (frame.f_code, frame.f_lasti)
        now = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        self._last[frame] = now
        is_heard = last in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
        if is_heard and location not in self._places:
            self._places.add(location)
            if len(self._places) == self.nth:
                self.where = frame.f_code
                raise Alarm(f"{frame.f_code.co_qualname} line {frame.f_lineno} at {frame.f_lasti}")
        return self._step


def sent(bench: Bench, partitions: int) -> None:
    """Send the messages: some in a transaction, in frames of several sizes, the first ones
    sealed.
    """
    bench.client.create_topic("t", partitions)
    producer = bench.client.producer("t")
    producer.send_batch(table(SENT[:25]))
    bench.client.checkpoint(roll_all=True)
    with bench.client.transaction() as txn:
        producer.send_batch(table(SENT[25:35]), txn=txn)
    for value in SENT[35:40]:
        producer.send(value, properties={"n": value.decode()})
    producer.send_batch(table(SENT[40:]))


def table(values: list[bytes]) -> pa.Table:
    """Rows of a batch."""
    return pa.table({"value": values})


def by_loop(reader: Reader, values: list[bytes]) -> None:
    """Read all messages in a loop."""
    for message in reader:
        values += [message.value or b""]  # no call of C, so the list has the value at once


def one_by_one(reader: Reader, values: list[bytes]) -> None:
    """Read all by calls for one message."""
    while (message := reader.read_next()) is not None:
        values.append(message.value or b"")


def in_batches(reader: Reader, values: list[bytes]) -> None:
    """Read all in batches that end anywhere."""
    while len(rows := reader.receive_batch(7)):
        values.extend(rows.column("value").to_pylist())


def mixed(reader: Reader, values: list[bytes]) -> None:
    """Read some of the messages that were read ahead one by one, some as rows."""
    for message in reader:
        values.append(message.value or b"")
        rows = reader.receive_batch(2)
        values.extend(rows.column("value").to_pylist())


def following(reader: Reader, values: list[bytes]) -> None:
    """Read all messages in a loop that would wait after the last one."""
    while reader.has_message_available():
        for message in reader.follow():
            values += [message.value or b""]
            if message.value == SENT[-1]:
                break


WAYS = [by_loop, one_by_one, in_batches, mixed]


@pytest.mark.parametrize("is_watermarked", graded([False, True], 1))
@pytest.mark.parametrize("partitions", graded([1, 3], 1))
@pytest.mark.parametrize("read", graded(WAYS, [by_loop]))
def test_nothing_is_lost_or_doubled_wherever_it_comes(
    tmp_path: Path,
    read: Callable[[Reader, list[bytes]], None],
    partitions: int,
    is_watermarked: bool,
) -> None:
    """The only possible loss is the answer itself, if the interrupt comes as the call
    returns it.
    """
    bench = Bench(tmp_path / "store")
    sent(bench, partitions)
    of_all = arguments.explained(read).__code__  # each public method has the same code object
    giving_back = (of_all, Reader._rows.__code__)
    for nth in range(1, 100_000):
        values: list[bytes] = []
        reader = bench.client.reader("t", enable_watermarking=is_watermarked)
        with Injection(nth) as injection, suppress(Alarm):
            read(reader, values)
        if injection.where is None:
            break
        read(reader, values)
        most_lost = 0
        if injection.where in giving_back:
            most_lost = 7 if read in (in_batches, mixed) else 1
        assert len(values) == len(set(values)), (nth, injection.where)
        lost = len(SENT) - len(values)
        assert 0 <= lost <= most_lost, (nth, injection.where, lost)
        if partitions == 1:
            assert values == [value for value in SENT if value in set(values)]
    assert nth > 100
    bench.close()


@pytest.fixture
def alarms() -> Iterator[Callable[[float], object]]:
    """Let SIGALRM raise Alarm after this many seconds."""

    def raised(number: int, frame: FrameType | None) -> None:
        raise Alarm

    handler_before = signal.signal(signal.SIGALRM, raised)
    yield partial(signal.setitimer, signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler_before)


def on_time(reader: Reader, found_rows: list[tuple[int, bool]], size: int) -> None:
    """Read all in batches, and note which messages are late; an empty batch is a new watermark."""
    while True:
        watermark_before = reader.get_last_watermark()
        rows = reader.receive_batch(size).select(["event_time", "is_late"])
        if not len(rows) and reader.get_last_watermark() == watermark_before:
            return
        times = rows.column("event_time").cast(pa.int64()).to_pylist()
        found_rows.extend(zip(times, rows.column("is_late").to_pylist(), strict=True))


def one_on_time(reader: Reader, rows: list[tuple[int, bool]], size: int) -> None:
    """The same for single messages in a loop, which ignores the size."""
    del size
    for message in reader:
        rows.append((message.event_time or 0, message.is_late))


@pytest.mark.deep
@pytest.mark.parametrize("sizes", [(1000, 1000), (1000, 1), (3, 3)])
@pytest.mark.parametrize("read", [on_time, one_on_time])
def test_no_message_is_late_because_of_an_interrupt(
    tmp_path: Path, read: Callable[[Reader, list[tuple[int, bool]], int], None], sizes: Any
) -> None:
    """The watermark never passes messages that were read and not returned, whatever comes
    meanwhile.
    """
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    producer = bench.client.producer("t", "p")
    for number in range(12):
        producer.send(b"", event_time=10 * number + 5)
        producer.new_watermark().event_time(10 * number + 9).send()
    for nth in range(1, 100_000):
        rows: list[tuple[int, bool]] = []
        reader = bench.client.reader("t", enable_watermarking=True)
        with Injection(nth) as injection, suppress(Alarm):
            read(reader, rows, sizes[0])
        if injection.where is None:
            break
        bench.client.producer("t").send(b"", event_time=1_000_000)
        read(reader, rows, sizes[1])
        assert not [time for time, is_late in rows if is_late], (nth, injection.where)
    assert nth > 100
    bench.close()


@pytest.mark.deep
@pytest.mark.parametrize("is_watermarked", [False, True])
@pytest.mark.parametrize("read", [by_loop, following])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in `__del__`
def test_a_loop_over_messages_under_real_signals(
    tmp_path: Path,
    alarms: Callable[[float], object],
    read: Callable[[Reader, list[bytes]], None],
    is_watermarked: bool,
) -> None:
    """No message is lost: the loop body ran for every message that the loop took."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench = Bench(tmp_path / "store")
    sent(bench, 1)
    interrupts = 0
    while interrupts < 8000:
        values: list[bytes] = []
        reader = bench.client.reader("t", enable_watermarking=is_watermarked)
        is_done = False
        while not is_done:
            try:
                alarms(rng.uniform(20e-6, 1500e-6))
                read(reader, values)
                is_done = True
                alarms(0)
            except Alarm:
                interrupts += 1
        assert values == SENT
    bench.close()
