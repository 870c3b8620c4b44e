"""Checks keys of transactions and names of producers: only the newest holder succeeds."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from tests.history.model import NEVER, Call, Finding, History, first_end_after


def check_fencing(history: History) -> Iterator[Finding]:
    """Findings about epochs, ids and fenced holders."""
    yield from reused(history)
    yield from old_connections(history)
    yield from fenced_transactions(history)
    yield from fenced_producers(history)
    yield from two_exclusive(history)


def connections(history: History) -> dict[str, list[Call]]:
    """The calls that connected each key, or began under it, with their epochs."""
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in history.calls:
        is_new = call.op == "connect_key" or (call.op == "begin" and call.args.get("epoch") is None)
        if is_new and call.args.get("key") is not None and "epoch" in call.answer:
            by_key[call.args["key"]].append(call)
    return by_key


def reused(history: History) -> Iterator[Finding]:
    """Epochs of a key, and ids of transactions, that two calls got."""
    for key, calls in connections(history).items():
        by_epoch: dict[int, Call] = {}
        for call in calls:
            epoch = call.answer["epoch"]
            if epoch in by_epoch:
                text = f"{by_epoch[epoch]} and {call} both got epoch {epoch} of {key}"
                yield Finding("epoch-reused", text, [by_epoch[epoch].start, call.start])
            by_epoch.setdefault(epoch, call)
        highest: Call | None = None
        ended = sorted(calls, key=lambda call: call.end)
        at = 0
        for call in sorted(calls, key=lambda call: call.start):
            while at < len(ended) and ended[at].end < call.start:
                if highest is None or ended[at].answer["epoch"] > highest.answer["epoch"]:
                    highest = ended[at]
                at += 1
            if highest is not None and call.answer["epoch"] < highest.answer["epoch"]:
                text = f"{call} got epoch {call.answer['epoch']} of {key}, below that of {highest}"
                yield Finding("epoch-reused", text, [highest.start, call.start])
    begun: dict[str, Call] = {}
    for call in history.by_op["begin"]:
        if call.outcome == "ok" and "txn" in call.answer:
            before = begun.setdefault(str(call.answer["txn"]), call)
            if before is not call:
                text = f"{before} and {call} both got transaction {call.answer['txn']}"
                yield Finding("epoch-reused", text, [before.start, call.start])


def old_connections(history: History) -> Iterator[Finding]:
    """Connections with an epoch that another holder, or the deletion of the key, had ended."""
    connected = connections(history)
    for call in history.by_op["connect_key"]:
        presented = call.args.get("presented")
        if presented is None or call.outcome != "ok":
            continue
        holders = connected[call.args["key"]]
        since = max((c.end for c in holders if c.answer["epoch"] == presented), default=NEVER)
        fences = [c for c in holders if c.answer["epoch"] > presented and c.end < call.start]
        fences += [
            gone
            for gone in history.by_op["delete_key"]
            if gone.args["key"] == call.args["key"]
            and gone.outcome == "ok"
            and since < gone.start
            and gone.end < call.start
        ]
        if fences:
            text = f"{call} succeeded with epoch {presented}, fenced by {fences[0]}"
            yield Finding("fenced-holder", text, [fences[0].start, *call.events])


def fenced_transactions(history: History) -> Iterator[Finding]:
    """Calls of a holder that succeeded although a newer one had connected or begun."""
    connected = connections(history)
    begun: dict[str, list[Call]] = defaultdict(list)
    for call in history.by_op["begin"]:
        if call.args.get("key") is not None and call.outcome == "ok":
            begun[call.args["key"]].append(call)
    for key, calls in begun.items():
        newest = highest_by_end(connected[key])
        for call in calls:
            epoch = call.args.get("epoch")
            by = newest(call.start)
            if epoch is not None and by is not None and by.answer["epoch"] > epoch:
                text = f"{call} succeeded with epoch {epoch} of {key}, fenced by {by}"
                yield Finding("fenced-holder", text, [by.start, *call.events])
        yield from _in_fenced(history, key, calls, [*calls, *connected[key]])
    for fence in history.by_op["connect_key"]:
        txn = history.txns.get(fence.answer.get("fenced", ""))
        for call in () if txn is None else txn.aborts:
            if call.start > fence.end and call.outcome == "ok":
                text = f"{call} succeeded, fenced by {fence}"
                yield Finding("fenced-holder", text, [fence.start, *call.events])


def highest_by_end(calls: list[Call]) -> Callable[[float], Call | None]:
    """A function from a time to the call with the highest epoch that had ended by then."""
    ordered = sorted(calls, key=lambda call: call.end)
    ends = [call.end for call in ordered]
    highest: list[Call] = []
    for call in ordered:
        is_higher = not highest or call.answer["epoch"] > highest[-1].answer["epoch"]
        highest.append(call if is_higher else highest[-1])

    def newest(time: float) -> Call | None:
        at = bisect_left(ends, time)
        return highest[at - 1] if at else None

    return newest


def _in_fenced(
    history: History, key: str, begun: list[Call], fences: list[Call]
) -> Iterator[Finding]:
    after = first_end_after(fences)
    for begin in begun:
        txn = history.txns.get(str(begin.answer.get("txn")))
        fence = after(begin.end) if txn is not None else None
        if txn is None or fence is None:
            continue
        decided = min((c.start for c in txn.commits if c.outcome != "fail"), default=NEVER)
        for call in (*txn.sends, *txn.acks, *txn.commits):
            if call.start <= fence.end or call.outcome != "ok":
                continue
            if call.op == "send" and "partition" not in call.answer:
                continue  # its message may wait in the client, and the commit fails
            if call.op == "commit" and decided < fence.end:
                continue  # it had ended before, and says so again
            text = f"{call} in transaction {txn.name} of {key} succeeded, fenced by {fence}"
            yield Finding("fenced-holder", text, [fence.start, *call.events])
            break


def fenced_producers(history: History) -> Iterator[Finding]:
    """Sends of a producer that succeeded after another had opened its name or fenced it."""
    opened: dict[tuple[str, str | None], list[Call]] = defaultdict(list)
    for call in history.by_op["open_producer"]:
        is_fencing = call.args.get("producer") is not None or _is_exclusive(call)
        if call.outcome == "ok" and is_fencing:
            opened[call.args["topic"], call.args.get("producer")].append(call)
    fences: dict[str, Call] = {}
    for calls in opened.values():
        after = first_end_after(calls)
        for call in calls:
            fence = after(call.end)
            if fence is not None:
                fences[call.args["session"]] = fence
    for call in history.by_op["send"]:
        fence = fences.get(call.args.get("session", ""))
        if fence is not None and call.outcome == "ok" and call.start > fence.end:
            text = f"{call} of producer {call.args.get('producer')} succeeded, fenced by {fence}"
            yield Finding("fenced-holder", text, [fence.start, *call.events])


def two_exclusive(history: History) -> Iterator[Finding]:
    """Exclusive producers that were opened while another of the topic certainly lived."""
    holders: dict[str, Call] = {}
    ends = [c for op in ("kill", "power_cut", "lossy") for c in history.by_op[op]]
    for call in sorted(history.by_op["open_producer"], key=lambda call: call.end):
        if call.outcome != "ok" or not _is_exclusive(call):
            continue
        topic = call.args["topic"]
        holder = holders.get(topic)
        holders[topic] = call
        if holder is None or holder.end > call.start or call.args["access"] != "exclusive":
            continue
        closes = [
            c for c in history.by_op["close_producer"]
            if c.args["session"] == holder.args["session"]
        ]  # fmt: skip
        ended = [c for c in ends if c.op != "kill" or c.process in ("", holder.process)]
        if not any(holder.start < c.start < call.end for c in (*closes, *ended)):
            text = f"{call} opened an exclusive producer of {topic} beside that of {holder}"
            yield Finding("two-exclusive-producers", text, [*holder.events, *call.events])


def _is_exclusive(call: Call) -> bool:
    return str(call.args.get("access", "shared")) != "shared"
