"""Owns the SQL of the live page: one SELECT, with limits on rows, bytes, memory and time.

It is the SQL of `txlog query`: it can read only the store's files, and can write nothing. Each
statement runs in a child process (`statement`), which the server kills when its time is over.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from signal import SIGALRM
from subprocess import DEVNULL, PIPE, Popen
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from txlog import errors
from txlog.errors import InvalidArgument, SqlError, TxlogError

if TYPE_CHECKING:  # the child process does not need it
    from txlog.serve.http.core.context import HttpContext

ROWS_MAX: Final = 500
CELL_MAX: Final = 2_000  # characters
SQL_MAX: Final = 20_000
SECONDS_MAX: Final = 10.0
MEMORY_BYTES: Final = 512 << 20
AT_ONCE: Final = 2
START_SECONDS: Final = 60.0  # for the start of a process on a busy machine
# -P: files in the directory that the server was started in are not taken for modules
_COMMAND: Final = (sys.executable, "-P", "-m", "txlog.serve.http.page.statement")


class QueryRunner:
    """Runs queries, a few at the same time; the others wait."""

    def __init__(self, serving: HttpContext, seconds: float = SECONDS_MAX) -> None:
        self._serving = serving
        self._seconds = seconds
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self, sql: object) -> dict[str, object]:
        """The first rows of a SELECT, by `cell`: {columns, rows, is_cut, elapsed_ms}.

        raises: SqlError, also when it takes too long; InvalidArgument; the errors of Query
        """
        if not isinstance(sql, str) or not sql.strip():
            raise InvalidArgument('the body has to be {"sql": "SELECT ..."}')
        if len(sql) > SQL_MAX:
            raise InvalidArgument(f"the SQL has {len(sql)} characters, at most {SQL_MAX} are run")
        path = await self._serving.client.run(lambda client: client.path)
        question = {"path": path, "sql": sql, "memory_bytes": MEMORY_BYTES}
        async with self._places:
            begun = time.perf_counter()
            answer = await self._answer(orjson.dumps(question))
        if "error" in answer:
            raise _error(answer)
        return {**answer, "elapsed_ms": round((time.perf_counter() - begun) * 1000)}

    async def _answer(self, question: bytes) -> dict[str, Any]:
        """The answer of a child process. Raises SqlError: it took too long, or too much memory."""
        text = None
        while text is None:
            text = await self._asked(await _QueryProcess.taken(), question)
        if not text:
            raise SqlError("it ended before its answer: it may have taken too much memory")
        answer: dict[str, Any] = orjson.loads(text)
        return answer

    async def _asked(self, process: _QueryProcess, question: bytes) -> bytes | None:
        """The answer of a child process; empty: it has ended; None: it was ended as idle."""
        text = b""
        asking = asyncio.ensure_future(asyncio.to_thread(process.ask, question))
        try:
            text = await asyncio.wait_for(asyncio.shield(asking), self._seconds)
        except TimeoutError:
            raise SqlError(f"it took longer than {self._seconds:g} s") from None
        finally:
            process.leave(is_sound=bool(text))
            if not asking.done():  # the thread ends, because the child that it reads from has ended
                await asyncio.wait([asking])
        return None if process.was_too_idle else text


class _QueryProcess:
    """A child process that runs statements. Idle ones are kept for the next statement."""

    _idle: ClassVar[list[_QueryProcess]] = []

    def __init__(self) -> None:
        self._child = Popen(  # noqa: S603 - our own program
            _COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._questions, self._answers = self._child.stdin, self._child.stdout

    @classmethod
    async def taken(cls) -> _QueryProcess:
        """A process that is ready, started if none is idle. Raises SqlError: none starts."""
        while cls._idle:
            process = cls._idle.pop()
            if process._child.poll() is None:
                return process
            process.leave(is_sound=False)
        process = cls()
        starting = asyncio.ensure_future(asyncio.to_thread(process._answers.readline))
        try:
            if await asyncio.wait_for(asyncio.shield(starting), START_SECONDS):
                return process
        except TimeoutError:
            pass
        except BaseException:  # the request was cancelled: no other code can end this process
            process.leave(is_sound=False)
            raise
        process.leave(is_sound=False)
        raise SqlError("no process for the query starts")

    def ask(self, question: bytes) -> bytes:
        """Wait for its answer, without a time limit; empty: the process has ended."""
        try:
            self._questions.write(question + b"\n")
            self._questions.flush()
            return self._answers.readline()
        except (OSError, ValueError):
            return b""

    @property
    def was_too_idle(self) -> bool:
        """Whether the kernel ended the process because it got no statement for too long."""
        return self._child.returncode == -SIGALRM

    def leave(self, *, is_sound: bool) -> None:
        """Keep the process for the next statement, or end it."""
        if is_sound and len(self._idle) < AT_ONCE:
            self._idle.append(self)
            return
        self._child.kill()
        self._child.wait()
        for pipe in (self._questions, self._answers):
            with suppress(OSError):
                pipe.close()

    @classmethod
    def end_all(cls) -> None:
        """End the idle processes: this process ends."""
        while cls._idle:
            cls._idle.pop().leave(is_sound=False)


atexit.register(_QueryProcess.end_all)


def _error(answer: dict[str, Any]) -> TxlogError:
    """The error that a child process reported."""
    kind = getattr(errors, answer["error"], SqlError)
    if not (isinstance(kind, type) and issubclass(kind, TxlogError)):
        kind = SqlError
    code = answer["code"] if answer["code"] in kind.codes else None
    error: TxlogError = kind(answer["message"], hint=answer["hint"], code=code)
    return error


def cell(value: object) -> object:
    """A value for the page: a number if a browser can represent it, else text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 53:
        return value
    return _cut(_text(value))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value[: 4 * CELL_MAX].decode()
        except UnicodeDecodeError:
            return "0x" + value[:CELL_MAX].hex()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03d}"
    if isinstance(value, str | int | float | Decimal | date | clock_time | timedelta):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_inner(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        pairs = [item for item in value if isinstance(item, tuple) and len(item) == 2]
        if pairs and len(pairs) == len(value):  # a map, as Arrow returns it
            return "{" + ", ".join(f"{_inner(k)}: {_inner(v)}" for k, v in pairs) + "}"
        return "[" + ", ".join(map(_inner, value)) + "]"
    return str(value)


def _inner(value: Any) -> str:
    return "null" if value is None else _text(value)


def _cut(text: str) -> str:
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"
