"""Checks watermarks: a value never falls, and what comes below it is late.

A message below the value is wrong if its producer kept its promise and was active all the time.
That is certain only for a producer that announced itself before the first message of the topic,
never went idle, and had announced no higher time than the message when the message became visible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.history.model import NEVER, Call, Finding, History

CHANGES = ("seek", "unsubscribe", "delete_topic", "add_partitions")  # a subscription may fall then


def check_watermarks(history: History) -> Iterator[Finding]:
    """Findings about the values that consumers and readers got."""
    last: dict[str, Call] = {}
    handed: dict[tuple[str, str], list[Call]] = defaultdict(list)
    joined = {str(c.args.get("consumer")): c for c in history.by_op["subscribe"]}
    kinds = {c.args.get("consumer"): c.args.get("kind") for c in history.by_op["subscribe"]}
    steady = steady_producers(history) if history.by_op["watermark"] else {}
    for call in sorted(history.calls, key=lambda call: call.end):
        if call.outcome == "fail" or (call.outcome == "unknown" and call.op not in CHANGES):
            continue
        if call.op == "watermark":
            name = str(call.args.get("consumer", call.args.get("reader")))
            before = last.get(name)
            if before is not None and call.args["time_ms"] <= before.args["time_ms"]:
                text = f"{name} got {call.args['time_ms']} after {before.args['time_ms']}"
                yield Finding("wrong-watermark", text, [before.start, call.start])
            last[name] = call
            if name in joined and joined[name].args.get("kind") != "failover":
                of_subscription = handed[call.args["topic"], call.args["subscription"]]
                yield from _fallen(call, of_subscription, joined[name].start)
                of_subscription.append(call)
        elif call.op in CHANGES:
            handed.clear()
            if call.op == "seek":
                last.clear()
        elif call.op in ("receive", "read") and last:
            name = str(call.args.get("consumer", call.args.get("reader")))
            if name in last and not _sought(history, call):
                is_whole = kinds.get(name) != "failover"
                yield from _late(history, call, last[name], steady if is_whole else {})


def _fallen(mark: Call, handed: list[Call], joined: int) -> Iterator[Finding]:
    """A consumer that joined got less than others of its subscription had got before."""
    before = [each for each in handed if each.start < joined]
    highest = max(before, key=lambda each: int(each.args["time_ms"]), default=None)
    if highest is not None and mark.args["time_ms"] < highest.args["time_ms"]:
        text = f"{mark.args['consumer']} got {mark.args['time_ms']}, and before it joined"
        text += f" {highest.args['consumer']} had got {highest.args['time_ms']}"
        yield Finding("wrong-watermark", text, [highest.start, mark.start])


def _sought(history: History, call: Call) -> bool:
    """Whether a seek was under way in the call."""
    return any(
        seek.start < call.end and seek.end > call.start
        for seek in history.by_op["seek"] if seek.outcome != "fail"
    )  # fmt: skip


def _late(
    history: History, call: Call, mark: Call, steady: dict[tuple[str, str], list[Call]]
) -> Iterator[Finding]:
    if mark.start < call.start:
        value = mark.args["time_ms"]
        for message in call.answer.get("messages", ()):
            topic = message.get("topic", call.args.get("topic"))
            sends = history.sends.get((topic, message["value"]), [])
            time_ms = sends[0].args.get("event_time_ms") if len(sends) == 1 else None
            if not sends or (time_ms is None and len(sends) > 1):
                continue
            is_below = time_ms is not None and time_ms < value
            events = [mark.start, *call.events, sends[0].start]
            if "late" in message and bool(message["late"]) != is_below:
                text = f"{message['value']!r} of {time_ms} at watermark {value} has late="
                text += f"{message['late']}"
                yield Finding("wrong-watermark", text, events)
            elif is_below and not message.get("redelivered"):
                producer = (topic, str(sends[0].args.get("producer")))
                if producer in steady and _kept(history, steady[producer], sends[0]):
                    text = f"{message['value']!r} of {time_ms} came after watermark {value}"
                    yield Finding("wrong-watermark", text, events)


def _kept(history: History, announced: list[Call], send: Call) -> bool:
    """Whether a producer certainly announced nothing above a message before it was visible."""
    unit = history.unit_of(send)
    visible = unit.end if unit else NEVER
    time_ms, txn = send.args["event_time_ms"], send.args.get("txn")
    return all(
        call.start > visible
        or call.args["time_ms"] <= time_ms
        or (txn is not None and call.args.get("txn") == txn)  # it takes effect after its messages
        for call in announced
    )  # fmt: skip


def steady_producers(history: History) -> dict[tuple[str, str], list[Call]]:
    """The announcements of producers that were active before the first message, and always."""
    announced: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in history.by_op["announce"]:
        if call.outcome != "fail":
            announced[call.args["topic"], str(call.args.get("producer"))].append(call)
    first: dict[str, int] = {}
    for call in history.by_op["send"]:
        first.setdefault(call.args["topic"], call.start)
    return {
        name: calls
        for name, calls in announced.items()
        if "producer_idle_timeout_ms" not in history.settings
        and all(c.args.get("time_ms") is not None for c in calls)
        and any(
            c.outcome == "ok" and c.args.get("txn") is None and c.end < first.get(name[0], 0)
            for c in calls
        )
    }
