"""Owns the causes: which line of a program loses or doubles a message, and why.

The trace of the killed process shows which calls had taken effect when it died. The trace of an
undisturbed run shows which calls would have come next. The program loses a message if it died after
it noted that it is done with an input and before it wrote the output. It doubles the message if it
died between these two steps in the other order. A send or an acknowledgement outside of a
transaction takes effect at once, one in a transaction at its commit, and a message in a queue at
the next flush.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from txlog.base.rows.jobs import CrashFinding
from txlog.testing.crashtest.state import State
from txlog.testing.crashtest.trace import DECIDING, EFFECT, RECEIVING, Event, Trace, digest, shown
from txlog.testing.outputs import Content, Difference, differences

MESSAGES_SHOWN = 5
MEMORY = "depends on what the program keeps in memory"


class Finding(msgspec.Struct):
    """A defect of a program.

    kind:    lost, doubled, changed, stuck or left
    line:    of the cause; other: the line that has to be in one step with it
    cause:   the mistake in the program, in a sentence
    example: what happened at the first point, in a sentence
    where:   the topic, the file or the subscription that differs
    outputs: the first bytes of the messages, or lines of a file, that differ
    inputs:  the ids of the messages that they were made from
    point:   the first point at which it shows; points: how many
    refused: the call at that point was refused instead of killed
    """

    kind: str
    file: str
    line: int
    other: int | None
    cause: str
    example: str
    where: str
    outputs: list[str]
    inputs: list[str]
    point: int = 0
    refused: bool = False
    points: int = 1


def row_of(finding: Finding) -> CrashFinding:
    """The finding as a plain value."""
    return {
        "kind": finding.kind,
        "file": finding.file,
        "line": finding.line,
        "other_line": finding.other,
        "cause": finding.cause,
        "example": finding.example,
        "where": finding.where,
        "output_list": finding.outputs,
        "input_list": finding.inputs,
        "point": finding.point,
        "refused": finding.refused,
        "points": finding.points,
    }


class Disturbed(msgspec.Struct):
    """What happened at one point.

    killed:  the trace of the process that died
    later:   the traces of the runs after it
    failure: why the program did not run to its end again
    """

    point: int
    refuses: bool
    killed: Trace
    later: list[Trace]
    state: State | None
    failure: str = ""
    failed_at: tuple[str, int] | None = None


class Causes:
    """Explains how the state after a disturbed run differs from the expected state."""

    def __init__(self, reference: Trace, wanted: State, disturbed: Disturbed) -> None:
        self._reference = History(reference)
        self._wanted = wanted
        self._disturbed = disturbed
        self._killed = History(disturbed.killed)
        self._later = [History(trace) for trace in disturbed.later]
        self._death = disturbed.killed.events[-1] if disturbed.killed.events else None

    def findings(self) -> list[Finding]:
        """The defects that this point shows."""
        disturbed = self._disturbed
        if disturbed.failure or disturbed.state is None:
            return [self._stuck()]
        rows = differences(disturbed.state.output, self._wanted.output)
        defects = [finding for row in rows for finding in self._of_topic(row)]
        defects += self._of_files(disturbed.state)
        defects = defects or [*self._of_backlog(disturbed.state)]
        return [*_distinct(defects)]

    # --- messages --------------------------------------------------------------------------------

    def _of_topic(self, row: Difference) -> Iterator[Finding]:
        lost = [self._lost(row.topic, content) for content in row.lost]
        if lost and row.new and all(finding.cause.endswith(MEMORY) for finding in lost):
            yield self._changed(row.topic, next(iter(row.new)))
            return
        yield from lost
        is_explained = any(finding.other is not None for finding in lost)
        for content in row.new:
            if self._wanted.output[row.topic][content]:
                yield self._doubled(row.topic, content)
            elif not is_explained:
                yield self._changed(row.topic, content)

    def _lost(self, topic: str, content: Content) -> Finding:
        name = digest(*content)
        sends = self._reference.sent(name)
        settled = {id(send.settled) for send in self._killed.sent(name) if send.settled is not None}
        send = sends[min(len(settled), len(sends) - 1)] if sends else None
        explanation = (
            self._repeated_number(name)
            or self._acknowledged_first(name, send)
            or self._position_first(send)
            or self._of_memory(send)
        )
        event, other, cause, inputs = explanation
        return self._finding("lost", topic, content, event, other, cause, inputs)

    def _repeated_number(self, name: str) -> Cause | None:
        """The restarted program numbers its messages from the start again."""
        for send in (send for history in self._later for send in history.sent(name)):
            if send.event.duplicate:
                cause = (
                    f"{_line(send.event)} sends under a sequence id that was used before the kill, "
                    "so the store takes the message for a repetition"
                )
                return send.event, None, cause, send.inputs
        return None

    def _acknowledged_first(self, name: str, send: Send | None) -> Cause | None:
        """The killed program had acknowledged an input of the message."""
        acked = self._killed.acknowledged(send.inputs if send is not None else self._killed.acks)
        if acked is None:
            return None
        message, ack = acked
        first, settled = ack.event, ack.settled
        assert settled is not None
        begun = self._killed.sent(name)
        if send is None:
            later = next(
                (e for e in self._reference.events if e.call == "send" and e.event > first.event),
                None,
            )
            if later is None:
                return None
            return (
                first,
                later,
                f"{_line(first)} acknowledges before {_line(later)} writes",
                [message],
            )
        writes = send.event
        refused = next((e for e in self._killed.events if e.error == "StoreLocked"), None)
        if self._disturbed.refuses and refused is not None and refused.event < first.event:
            cause = f"{_line(refused)} fails, and {_line(first)} acknowledges nevertheless"
            return refused, first, cause, [message]
        if begun and begun[0].event.queued and begun[0].settled is None:
            cause = f"{_line(first)} acknowledges before what {_line(writes)} sends is stored"
        elif first.txn and writes.txn and first.txn != writes.txn:
            cause = (
                f"{_line(first)} acknowledges in another transaction than {_line(writes)} writes, "
                "which commits first"
            )
        elif writes.txn:
            cause = f"{_line(first)} acknowledges outside of the transaction of {_line(writes)}"
        else:
            cause = f"{_line(first)} acknowledges before {_line(writes)} writes"
        return first, writes, cause, [message]

    def _position_first(self, send: Send | None) -> Cause | None:
        """The killed program had noted elsewhere that it is done with the message."""
        effects = self._killed.effects()
        if not effects or send is None:
            return None
        effect = effects[-1]
        cause = (
            f"{_line(effect)} keeps the position in {effect.what} before {_line(send.event)} writes"
        )
        return effect, send.event, cause, send.inputs

    def _of_memory(self, send: Send | None) -> Cause:
        event = self._death_event() if send is None else send.event
        cause = f"what {_line(event)} writes {MEMORY}"
        return event, None, cause, [] if send is None else send.inputs

    def _doubled(self, topic: str, content: Content) -> Finding:
        name = digest(*content)
        settled = [send for send in self._killed.sent(name) if send.settled is not None]
        later = [send for history in self._later for send in history.sent(name)]
        if not settled or self._killed.acknowledged(settled[0].inputs) is not None:
            send = next(iter([*later, *settled]), None)
            event = self._death_event() if send is None else send.event
            cause = (
                f"{_line(event)} writes again what it wrote before the kill: "
                "the program remembers in memory only what it has seen"
            )
            inputs = [] if send is None else send.inputs
            return self._finding("doubled", topic, content, event, None, cause, inputs)
        first = settled[0]
        event, other, cause = self._written_first(first)
        return self._finding("doubled", topic, content, event, other, cause, first.inputs)

    def _written_first(self, send: Send) -> tuple[Event, Event | None, str]:
        """The killed program had written the message, and not yet noted that."""
        line = _line(send.event)
        acked = self._reference.acknowledged(send.inputs)
        if acked is not None:
            ack = acked[1]
            settled = ack.settled
            assert settled is not None and send.settled is not None
            if ack.event.txn and send.event.txn:
                cause = (
                    f"{_line(send.settled)} commits what {line} writes before {_line(settled)} "
                    f"commits what {_line(ack.event)} acknowledges: two transactions"
                )
                return send.settled, settled, cause
            if send.event.txn:
                cause = f"{_line(ack.event)} acknowledges outside of the transaction of {line}"
                return ack.event, send.event, cause
            if ack.event.txn:
                cause = (
                    f"{line} writes outside of the transaction in which {_line(ack.event)} "
                    "acknowledges"
                )
                return send.event, ack.event, cause
            cause = (
                f"{line} writes before {_line(ack.event)} acknowledges, and not in one transaction"
            )
            return send.event, ack.event, cause
        effect = self._reference.next_effect(send.event.event)
        if effect is not None:
            cause = f"{line} writes before {_line(effect)} keeps the position in {effect.what}"
            return send.event, effect, cause
        return send.event, None, f"{line} writes, and nothing keeps how far the program has read"

    def _changed(self, topic: str, content: Content) -> Finding:
        name = digest(*content)
        sends = [send for history in (*self._later, self._killed) for send in history.sent(name)]
        event = sends[0].event if sends else self._death_event()
        inputs = sends[0].inputs if sends else []
        cause = f"what {_line(event)} writes {MEMORY}"
        return self._finding("changed", topic, content, event, None, cause, inputs)

    # --- files, backlog, failures ----------------------------------------------------------------

    def _of_files(self, state: State) -> Iterator[Finding]:
        for name in sorted({*self._wanted.files, *state.files}):
            expected, written = (files.get(name) for files in (self._wanted.files, state.files))
            lost = list(((expected or _NONE) - (written or _NONE)).elements())
            new = list(((written or _NONE) - (expected or _NONE)).elements())
            if lost or new:
                yield self._of_file(name, lost, new)

    def _of_file(self, name: str, lost: list[str], new: list[str]) -> Finding:
        effects = self._killed.effects(name)
        event = effects[-1] if effects else self._death_event()
        other: Event | None
        if lost and not new:
            other = self._reference.next_effect(event.event, name) or event
            acked = [ack.event for ack in self._killed.acks.values() if ack.settled is not None]
            event = acked[-1] if acked else event
            cause = f"{_line(event)} acknowledges before {_line(other)} changes {name}"
        else:
            other = self._reference.next_decision(event.event)
            if other is None:
                cause = f"{_line(event)} changes {name}, and nothing keeps that it did"
            elif other.call == "commit":
                cause = (
                    f"{_line(event)} changes {name} outside of the transaction that "
                    f"{_line(other)} commits"
                )
            else:
                cause = f"{_line(event)} changes {name} before {_line(other)} acknowledges"
        kind = (
            "lost"
            if lost and not new
            else "doubled"
            if _is_doubled(name, new, self._wanted)
            else "changed"
        )
        lines = (lost if kind == "lost" else new)[:MESSAGES_SHOWN]
        lacks = (
            "lacks" if kind == "lost" else "has once more" if kind == "doubled" else "has instead"
        )
        example = f"{self._how()}, {name} {lacks} {', '.join(lines)}"
        line = None if other is None else other.line
        return self._new(kind, event, line, cause, example, name, lines, [])

    def _of_backlog(self, state: State) -> Iterator[Finding]:
        for (topic, subscription), expected in self._wanted.backlog.items():
            surplus = state.backlog.get((topic, subscription), 0) - expected
            if surplus > 0:
                event = self._death_event()
                cause = f"after a kill at {_line(event)} the program does not finish {topic}"
                example = (
                    f"{self._how()}, {surplus} more messages of {topic} stay in {subscription}"
                )
                yield self._new("left", event, None, cause, example, subscription, [], [])

    def _stuck(self) -> Finding:
        event = self._death_event()
        file, line = self._disturbed.failed_at or (event.file, event.line)
        cause = f"line {line} does not run again after a kill: {self._disturbed.failure}"
        example = f"{self._how()}, the program does not start again"
        return Finding(
            "stuck", file, line, None, cause, example, "", [], [],
            self._disturbed.point, self._disturbed.refuses,
        )  # fmt: skip

    # --- words -----------------------------------------------------------------------------------

    def _death_event(self) -> Event:
        return self._death or Event(0, 0, "", "", 0)

    def _how(self) -> str:
        """How the program was disturbed, as the begin of a sentence."""
        event, point = self._death_event(), self._disturbed.point
        if self._disturbed.refuses:
            refused = (each for each in self._killed.events if each.point == point)
            return f"when {_line(next(refused, event))} was refused"
        at = next(
            (each for each in self._killed.events if point in (each.point, each.after)), event
        )
        word = "after" if at.after == point else "before"
        return f"killed {word} {_line(at)}"

    def _finding(
        self,
        kind: str,
        topic: str,
        content: Content,
        event: Event,
        other: Event | None,
        cause: str,
        inputs: list[str],
    ) -> Finding:
        output = shown(content[1])
        values = {**self._killed.values, **self._reference.values}
        subject = (
            "the message" if not inputs else f"message {inputs[0]} {values.get(inputs[0], '')}"
        )
        end = {
            "lost": f"is lost: {topic} lacks {output}",
            "doubled": f"is doubled: {topic} has {output} once more",
            "changed": f"becomes another: {topic} has {output}",
        }[kind]
        example = f"{self._how()}, {subject} {end}"
        line = None if other is None else other.line
        return self._new(kind, event, line, cause, example, topic, [output], inputs)

    def _new(
        self,
        kind: str,
        event: Event,
        other: int | None,
        cause: str,
        example: str,
        where: str,
        outputs: list[str],
        inputs: list[str],
    ) -> Finding:
        point, refuses = self._disturbed.point, self._disturbed.refuses
        return Finding(
            kind,
            event.file,
            event.line,
            other,
            cause,
            example,
            where,
            outputs,
            inputs,
            point,
            refuses,
        )


# The call to blame, the call that has to be in one step with it, the sentence, the inputs.
Cause = tuple[Event, Event | None, str, list[str]]
_NONE: Counter[str] = Counter()


def _is_doubled(name: str, new: list[str], wanted: State) -> bool:
    return all(wanted.files.get(name, _NONE)[line] for line in new)


def _line(event: Event) -> str:
    return f"line {event.line}"


def _distinct(found: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for each cause, with the outputs of all."""
    by_cause: dict[tuple[str, str], Finding] = {}
    for finding in found:
        first = by_cause.setdefault((finding.kind, finding.cause), finding)
        if first is not finding and len(first.outputs) < MESSAGES_SHOWN:
            first.outputs += finding.outputs
            first.inputs += finding.inputs
    yield from by_cause.values()


# --- what the program wrote -----------------------------------------------------------------------


class Send(NamedTuple):
    """A message that the program sent.

    inputs:  the ids of the messages that it was made from
    settled: the call by which it took effect: the send, a flush or a commit; None: it did not
    """

    event: Event
    digest: str
    text: str
    inputs: list[str]
    settled: Event | None


class Acknowledgement(NamedTuple):
    """A message that the program acknowledged, and the call by which that took effect."""

    event: Event
    settled: Event | None


class History:
    """The sends and acknowledgements of one process."""

    def __init__(self, trace: Trace) -> None:
        self.events = trace.events
        self.sends: list[Send] = []
        self.acks: dict[str, Acknowledgement] = {}
        self.values: dict[str, str] = {}
        self._received: list[str] = []
        self._commits: dict[str, list[int]] = {}
        self._flushes = [i for i, event in enumerate(self.events) if _is(event, "flush")]
        for i, event in enumerate(self.events):
            if _is(event, "commit"):
                self._commits.setdefault(event.txn, []).append(i)
        self._follow()

    def _follow(self) -> None:
        recent: list[str] = []
        has_sent = False
        for index, event in enumerate(self.events):
            if event.call in RECEIVING and event.ids:
                recent = [*event.ids] if has_sent else recent + event.ids
                has_sent = False
                self.values.update(zip(event.ids, event.values, strict=True))
                self._received += event.ids
            elif event.call == "send":
                has_sent = True
                self._sent(index, event, recent)
            elif event.call == "acknowledge":
                self._acknowledged(index, event)

    def _sent(self, index: int, event: Event, recent: list[str]) -> None:
        settled = self._settled(index, event)
        for text_digest, text in event.outputs:
            contained = [name for name in recent if _content(self.values[name]) in text]
            self.sends.append(Send(event, text_digest, text, contained or recent, settled))

    def _acknowledged(self, index: int, event: Event) -> None:
        ids = event.ids
        if event.cumulative:
            last = max(
                (self._received.index(name) for name in ids if name in self._received), default=-1
            )
            ids = self._received[: last + 1]
        settled = self._settled(index, event)
        for name in ids:
            if name not in self.acks or self.acks[name].settled is None:
                self.acks[name] = Acknowledgement(event, settled)

    def _settled(self, index: int, event: Event) -> Event | None:
        """The call by which a call took effect, None if it did not."""
        if not event.done:
            return None
        if event.txn:
            later = self._commits.get(event.txn, ())
        elif event.queued:
            later = self._flushes
        else:
            return event
        return next((self.events[i] for i in later if i > index), None)

    def sent(self, digest: str) -> list[Send]:
        """The sends of a message, in order."""
        return [send for send in self.sends if send.digest == digest]

    def acknowledged(self, ids: Iterable[str]) -> tuple[str, Acknowledgement] | None:
        """The first of the messages whose acknowledgement took effect."""
        for name in ids:
            ack = self.acks.get(name)
            if ack is not None and ack.settled is not None:
                return name, ack
        return None

    def effects(self, what: str | None = None) -> list[Event]:
        """The calls that changed something outside of the store; what: this file, or a database."""
        return [
            event
            for event in self.events
            if event.call == EFFECT
            and event.done
            and (what is None or event.what == what or event.what.startswith("sqlite3."))
        ]

    def next_effect(self, number: int, what: str | None = None) -> Event | None:
        """The first effect after a call."""
        return next((event for event in self.effects(what) if event.event > number), None)

    def next_decision(self, number: int) -> Event | None:
        """The first commit, or acknowledgement outside of a transaction, after a call."""
        return next(
            (
                event
                for event in self.events
                if event.event > number
                and event.done
                and event.call in DECIDING
                and not (event.call == "acknowledge" and event.txn)
            ),
            None,
        )


def _is(event: Event, call: str) -> bool:
    return event.call == call and event.done


def _content(value: str) -> str:
    """The text of a value without the quotes of bytes."""
    return value[2:-1] if value != "None" else "\0"
