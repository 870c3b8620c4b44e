"""Owns one attempt at one transaction: its outputs, and the inputs that finally fail (on_error).

stop         the run aborts the transaction and ends
skip         the run acknowledges the input, without an output
dead-letter  the run acknowledges the input and copies it to a topic, in the batch's transaction
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from txlog.base.text.previews import preview
from txlog.engine.door.reading import Decoder, messages
from txlog.errors import CommandFailed, TxlogError
from txlog.functions.context import Context
from txlog.functions.options import DEAD_LETTER, STOP, FunctionOptions
from txlog.functions.outputs import Mark, Outbox

# Exceptions that end a function: an error of its own, or sys.exit.
FAILURES: Final = (Exception, SystemExit)
_TEXT_MAX: Final = 300

Tell = Callable[[str, Mapping[str, object]], object]


class GivenUp(Exception):
    """An input has finally failed and on_error is stop; error: what `run` then raises."""

    def __init__(self, error: TxlogError) -> None:
        super().__init__(str(error))
        self.error = error


class Unsettled(Exception):
    """A batch has failed, and the failing input is unknown."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Attempt:
    """The outputs of one transaction, and counts of its inputs.

    late:  messages whose window was closed
    aside: rows in the outbox that are copies of inputs: dead letters, and messages for a late topic
    """

    __slots__ = (
        "_options",
        "_tell",
        "aside",
        "context",
        "dead_lettered",
        "decoder",
        "late",
        "outbox",
        "skipped",
    )

    def __init__(
        self,
        options: FunctionOptions,
        context: Context,
        outbox: Outbox,
        tell: Tell,
        decoder: Decoder,
    ) -> None:
        self._options = options
        self._tell = tell
        self.context = context
        self.outbox = outbox
        self.decoder = decoder
        self.skipped = self.dead_lettered = self.late = self.aside = 0
        context.begin(outbox)

    def repeat(
        self, rows: pa.Table, call: Callable[[], None], mark: Mark, error: BaseException
    ) -> None:
        """Repeat a call that failed for these rows; give the rows up when no attempts remain.

        mark:   end of the outbox before the first attempt; error: what that attempt raised
        raises: GivenUp
        """
        attempts = 1
        while attempts <= self._options.retries:
            attempts += 1
            self._tell("retry", {"attempt": attempts, **named(rows), "reason": reason(error)})
            self.outbox.rollback(mark)
            self.context.attempt = attempts
            try:
                call()
                return
            except FAILURES as again:
                error = again
        self.outbox.rollback(mark)
        self.give_up(rows, error, attempts)

    def give_up(self, rows: pa.Table, error: BaseException, attempts: int) -> None:
        """Treat finally failed rows as on_error says; raises GivenUp."""
        options = self._options
        if options.on_error == STOP:
            raise GivenUp(failure_of(self.context.function_name, error, rows)) from error
        if options.on_error == DEAD_LETTER:
            letters = dead_letters(rows, self.context.subscription, error, attempts)
            self.outbox.add_table(options.dead_letter_topic, letters)
            self.dead_lettered += rows.num_rows
            self.aside += rows.num_rows
        else:
            self.skipped += rows.num_rows
        self._tell(
            "dead-lettered" if options.on_error == DEAD_LETTER else "skipped",
            {"messages": rows.num_rows, **named(rows), "reason": reason(error)},
        )


def reason(error: BaseException) -> str:
    """An exception as one short line."""
    if isinstance(error, TxlogError):
        text = error.message
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


def as_ours(name: str, error: BaseException) -> TxlogError:
    """Convert a failure of user code to our error, with the line of the user's code."""
    if isinstance(error, CommandFailed):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[-1] if frames else None
    hint = error.hint if isinstance(error, TxlogError) else None
    failed = CommandFailed(f"{name} failed: {reason(error)}", hint=hint)
    if frame is not None and not isinstance(error, TxlogError):
        failed.hint = f"{frame.filename}:{frame.lineno} in {frame.name}"
        failed.fields = {"path": frame.filename, "line": frame.lineno}
    return failed


def failure_of(name: str, error: BaseException, rows: pa.Table) -> TxlogError:
    """As `as_ours`, with the messages that the function failed on."""
    ours = as_ours(name, error)
    which = _described(rows)
    if not which:
        return ours
    failed = CommandFailed(f"{ours.message} ({which})", hint=ours.hint)
    failed.fields = {**ours.fields, **named(rows)}
    return failed


def named(rows: pa.Table) -> dict[str, object]:
    """The first message, for a log: its id, topic, key and the beginning of its value."""
    for message in messages(rows.slice(0, 1)):
        facts = {
            "message_id": None if message.message_id is None else str(message.message_id),
            "topic": message.topic,
            "key": preview(message.key),
            "value": preview(message.value),
        }
        return {name: fact for name, fact in facts.items() if fact is not None}
    return {}


def _described(rows: pa.Table) -> str:
    facts = named(rows)
    if not facts:
        return ""
    which = f"{facts.get('message_id')} of {facts['topic']}"
    if rows.num_rows > 1:
        return f"{rows.num_rows:,} messages from {which}"
    shown = "".join(f", {name} {facts[name]}" for name in ("key", "value") if name in facts)
    return f"message {which}{shown}"


def dead_letters(
    rows: pa.Table, subscription: str, error: BaseException, attempts: int
) -> pa.Table:
    """Copies of failed inputs; their properties name origin and error."""
    columns: dict[str, list[object]] = {"value": [], "key": [], "properties": [], "event_time": []}
    for message in messages(rows):
        origin = {
            "REAL_TOPIC": message.topic,
            "REAL_SUBSCRIPTION": subscription,
            "ORIGIN_MESSAGE_ID": str(message.message_id),
            "RECONSUMETIMES": str(attempts),
            "EXCEPTION": reason(error),
        }
        columns["value"].append(message.value)
        columns["key"].append(message.key)
        columns["properties"].append(list({**message.properties, **origin}.items()))
        columns["event_time"].append(message.event_time)
    return pa.table(
        {
            "value": pa.array(columns["value"], pa.binary()),
            "key": pa.array(columns["key"], pa.binary()),
            "properties": pa.array(columns["properties"], pa.map_(pa.string(), pa.string())),
            "event_time": pa.array(columns["event_time"], pa.timestamp("ms", "UTC")),
        }
    )
