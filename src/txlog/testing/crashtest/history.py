"""Owns History: which messages a traced program wrote, from which inputs, and when.

A send or an acknowledgement outside of a transaction takes effect at once, one in a transaction at
its commit, and a message in a queue at the next flush.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txlog.testing.crashtest.trace import DECIDING, EFFECT, RECEIVING, Event, Trace


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
        for digest, text in event.outputs:
            contained = [name for name in recent if _content(self.values[name]) in text]
            self.sends.append(Send(event, digest, text, contained or recent, settled))

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
