"""Owns a short notation of histories, for tests: a line is a call, or the begin or end of one.

    send m1 key=k -> 1:0            a call that returned: of topic t, partition 0, by process p
    p2/send u.1/m2 ! StoreFull      by process p2, to partition 1 of topic u; it failed
    send m3 ?                       its outcome is unknown
    x: commit txn=A                 a call begins; x names it
    x ->                            and returns; `x !Error` and `x ?` end it otherwise
    * power_cut                     an event; `* p2/kill` is one of process p2
    read -> 1:0/m1 u.1/2:0/m2       a read shows m1 in t/0, m2 in u/1
    read u. -> u.0/                 and this one that u/0 is empty
    receive c1 -> 1:0/m1            consumer c1 of subscription s receives m1
    receive c1 -> 1:0/m1+2          as its second redelivery
    acknowledge c1 1:0 1:1          and acknowledges two messages

The times of calls are `at=` in ms, of the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.history.events import Event, Recorder

OF_CONSUMER = ("receive", "acknowledge", "nack", "redeliver", "reconsume_later", "close")


def place(word: str) -> tuple[str, int, str]:
    """The topic and partition before a slash, and the rest; t/0 if there are none."""
    head, dot, rest = word.partition("/")
    topic, _, number = head.partition(".")
    if dot and "." in head and number.isdigit():
        return topic, int(number), rest
    return "t", 0, word


def plain(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The words `name=value` as a dict, and the other words."""
    named: dict[str, Any] = {}
    others = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            others.append(word)
            continue
        try:
            named[name] = json.loads(value)
        except ValueError:
            named[name] = value
    return named, others


def arguments(op: str, words: list[str]) -> dict[str, Any]:
    """The arguments of an operation."""
    named, others = plain(words)
    if op == "send":
        topic, partition, value = place(others[0])
        return {"topic": topic, "value": value, "partition": partition, **named}
    if op in OF_CONSUMER:
        ids = {"ids": others[1:]} if others[1:] else {}
        where = {} if op == "close" else {"topic": "t", "subscription": "s"}
        return {"consumer": others[0], **where, **ids, **named}
    if op in ("subscribe", "seek", "unsubscribe", "final_drain", "watermark"):
        name = {"seek": "to"}.get(op, "consumer")
        first = {name: others[0]} if others else {}
        return {"topic": "t", "subscription": "s", **first, **named}
    if op in ("trim", "create_topic", "delete_topic", "announce", "open_producer"):
        return {"topic": others[0] if others else "t", **named}
    return named


def answer(op: str, args: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The answer of an operation."""
    named, others = plain(words)
    if op == "send":
        number = {"partition": args["partition"]} if "txn" not in args or others else {}
        return {**number, **({"id": others[0]} if others else {}), **named}
    if op in ("receive", "final_drain"):
        messages = []
        for word in others:
            topic, partition, rest = place(word)
            id_, _, value = rest.partition("/")
            value, plus, count = value.partition("+")
            message = {"partition": partition, "id": id_, "value": value.rstrip("~")}
            message |= {"late": value.endswith("~")} if args.get("has_late") else {}
            message |= {"redelivered": int(count)} if plus else {}
            messages.append(message if topic == args.get("topic") else {"topic": topic, **message})
        return {"messages": messages, **named}
    if op in ("read", "final_read"):
        topics: dict[str, dict[str, list[list[str]]]] = {}
        for word in others:
            topic, partition, rest = place(word)
            rows = topics.setdefault(topic, {}).setdefault(str(partition), [])
            id_, _, value = rest.partition("/")
            if rest:
                rows.append([id_, value])
        return {"topics": topics or {"t": {"0": []}}, **named}
    if op == "begin":
        return {"txn": others[0], **named}
    return named


class Reading:
    """Makes the events of lines."""

    def __init__(self) -> None:
        self._now: int | None = None
        self.recorder = Recorder(lambda: self._now)
        self._open: dict[str, tuple[int, str, dict[str, Any]]] = {}

    def line(self, line: str) -> None:
        """Add the events of a line."""
        words = line.split("#")[0].split()
        times = [word for word in words if word.startswith("at=")]
        words = [word for word in words if not word.startswith("at=")]
        self._now = int(times[0][3:]) if times else None
        if not words:
            return
        if words[0] == "*":
            process, op, args = self._call(words[1:])
            self.recorder.event(op, process=process if "/" in words[1] else "", **args)
            return
        if words[0] in self._open:
            self._end(words[0], words[1:])
            return
        name = words.pop(0)[:-1] if words[0].endswith(":") else None
        end = next((at for at, word in enumerate(words) if word in ("->", "!", "?")), len(words))
        process, op, args = self._call(words[:end])
        call = self.recorder.invoke(process, op, **args)
        self._open[name or ""] = (call, op, args)
        if name is None:
            self._end("", words[end:] or ["->"])

    def _call(self, words: list[str]) -> tuple[str, str, dict[str, Any]]:
        process, slash, op = words[0].partition("/")
        if not slash:
            process, op = "p", words[0]
        return process, op, arguments(op, words[1:])

    def _end(self, name: str, words: list[str]) -> None:
        call, op, args = self._open.pop(name)
        ends: dict[str, Callable[[], Event]] = {
            "->": lambda: self.recorder.ok(call, **answer(op, args, words[1:])),
            "!": lambda: self.recorder.fail(call, words[1]),
            "?": lambda: self.recorder.unknown(call, *words[1:]),
        }
        ends[words[0]]()


def history(text: str) -> list[Event]:
    """The events of a text in this notation."""
    reading = Reading()
    for line in text.splitlines():
        reading.line(line)
    return reading.recorder.events
