"""Records the calls of real processes: each appends to a file of its own, in one common order.

The order is the clock since boot, which all processes of a machine share. An invocation is in the
file before the call begins and its answer after it, so that a SIGKILL leaves a call without an end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.history.events import Event, Recorder, merged, save
from txlog.errors import OutcomeUnknown, TxlogError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".history"
Record = dict[str, Any]


def now_ms() -> int:
    """The wall clock, which also decides when a delayed message is due."""
    return time.time_ns() // 1_000_000


class Calls:
    """Records the calls of one thread of a process."""

    def __init__(self, where: Path, name: str, process: str) -> None:
        self._stream = (where / f"{name}{SUFFIX}").open("a")
        self.process = process
        self._recorder = Recorder(now_ms, self._stream, time.monotonic_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def __call__(
        self,
        op: str,
        args: Record,
        act: Callable[[], Any],
        answer: Callable[[Any], Record] = lambda _: {},
    ) -> Any:
        """Make a call, and record it with its answer or error."""
        call = self._recorder.invoke(self.process, op, **args)
        try:
            result = act()
        except TxlogError as error:
            end = (
                self._recorder.unknown if isinstance(error, OutcomeUnknown) else self._recorder.fail
            )
            end(call, error)
            raise
        self._recorder.ok(call, **answer(result))
        return result

    def together(self, op: str, args: list[Record], act: Callable[[], Any]) -> None:
        """Record one call as several of the same op; an error leaves them without an end."""
        calls = [self._recorder.invoke(self.process, op, **each) for each in args]
        act()
        for call in calls:
            self._recorder.ok(call)

    def event(self, op: str, process: str) -> None:
        """Record what happens to a process."""
        self._recorder.event(op, process=process)

    @contextmanager
    def killing(self, process: str) -> Iterator[None]:
        """The block kills a process, and waits until it is dead."""
        call = self._recorder.invoke(process, "kill")
        yield
        self._recorder.ok(call)


def received(table: pa.Table) -> Record:
    """The messages of a table as the answer of `receive`."""
    import txlog

    return {
        "messages": [
            {
                "partition": message.partition,
                "id": str(message.message_id),
                "value": (message.value or b"").decode(),
                **({} if message.key is None else {"key": message.key.decode()}),
            }
            for message in txlog.messages(table)
        ]
    }


def contents(client: Any, topics: dict[str, int]) -> Record:
    """All messages of topics with these numbers of partitions, as the answer of `final_read`."""
    import txlog

    shown: dict[str, dict[str, list[list[str]]]] = {}
    for topic, partitions in topics.items():
        shown[topic] = {str(number): [] for number in range(partitions)}
        for table in client.read(topic):
            for message in txlog.messages(table):
                row = [str(message.message_id), (message.value or b"").decode()]
                shown[topic][str(message.partition)].append(row)
    return {"topics": shown}


def checked(where: Path) -> list[Event]:
    """The history of all files in a folder. Raises AssertionError if it breaks a promise."""
    from tests.history.checker import check  # not in a process that only records

    events = merged(where.glob(f"*{SUFFIX}"))
    findings = check(events)
    if findings:
        path = where / "findings.jsonl"
        save(events, path)
        text = "\n".join(map(str, findings[:20]))
        raise AssertionError(f"{len(findings)} findings in {path}:\n{text}")
    return events
