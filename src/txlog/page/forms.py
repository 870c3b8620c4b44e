"""Owns the actions of the live page as HTML: their forms, their plans, their outcomes.

An action that moves or ends something has two steps. The first answer is its plan, with the line
that would undo it, and a form that carries the plan out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from txlog.client.topics.subscription import lost_by, seek_effect, undo_of
from txlog.page.sections import section
from txlog.page.words import counted, safe

if TYPE_CHECKING:
    from txlog.base.rows.consuming import DeadLettersRetried, Redelivered, Sought
    from txlog.base.rows.transactions import TransactionEnded


def of_topic(topic: str) -> str:
    """The actions on a topic."""
    fields = (
        '<label>Key <input name="key" autocomplete="off"></label>'
        '<label class="wide">Value <textarea name="payload" rows="3" spellcheck="false"></textarea>'
        "</label>"
    )
    form = _form("publish", {"topic": topic}, fields, "Publish")
    return section("Publish a test message", form, "Consumers get it like any other message.")


def of_dead_letters(topic: str) -> str:
    """The actions on a dead-letter topic."""
    fields = (
        '<label>Messages <input name="ids" autocomplete="off" spellcheck="false"'
        ' placeholder="the oldest 1,000, or 17:4 17:9"></label>'
    )
    form = _form("retry", {"topic": topic, "plan": "yes"}, fields, "Show what goes back")
    note = "Each goes back to the topic that it came from, and leaves this one, in one step."
    return section("Retry dead letters", form, note)


def of_subscription(topic: str, subscription: str) -> str:
    """The actions on a subscription."""
    about = {"topic": topic, "subscription": subscription}
    seek_field = (
        '<label>To <input name="to" required autocomplete="off" spellcheck="false"'
        ' placeholder="start, end, 17:4, -10, @-1h"></label>'
    )
    redeliver_field = (
        '<label>Messages <input name="ids" autocomplete="off" spellcheck="false"'
        ' placeholder="all in hand, or 17:4 17:9"></label>'
    )
    return section(
        "Actions",
        "<h3>Seek</h3>"
        + _form("seek", {**about, "plan": "yes"}, seek_field, "Show what moves")
        + "<h3>Redeliver</h3>"
        + _form("redeliver", {**about, "plan": "yes"}, redeliver_field, "Show what comes again"),
    )


def of_transaction(txn: str) -> str:
    """The actions on an open transaction."""
    note = "Its messages disappear, and its acknowledgements are taken back."
    form = _form("abort", {"id": txn, "plan": "yes"}, "", "Abort…")
    return section("Abort", form, note)


def _form(act: str, hidden: Mapping[str, str], fields: str, button: str) -> str:
    values = "".join(
        f'<input type="hidden" name="{name}" value="{safe(value)}">'
        for name, value in hidden.items()
    )
    return (
        f'<form class="fields" data-act="{act}">{values}{fields}<div class="row">'
        f'<button type="submit">{safe(button)}</button></div></form>'
        '<div class="outcome" role="status"></div>'
    )


# --- plans and outcomes ----------------------------------------------------------------------


def published(answer: Mapping[str, object]) -> str:
    """The outcome of a publication."""
    results = answer["messagePublishResults"]
    assert isinstance(results, list)
    return done(f"stored as {results[0]['messageId']}")


def sought(answer: Sought, hidden: Mapping[str, str], *, is_plan: bool) -> str:
    """The plan of a seek, with the form that does it; or its outcome, with the way back."""
    lines = [
        f"partition {row['partition']}: {row['from']} → {row['to']}, {seek_effect(row)}"
        for row in answer["partition_list"]
    ]
    aborted = ", ".join(map(str, answer["aborted_list"]))
    if aborted:
        lines.append(f"aborts {aborted}")
    undo = undo_of(answer)
    paragraphs = "".join(f"<p>{safe(line)}</p>" for line in lines)
    if is_plan and not undo and not aborted:
        return paragraphs + done(f"{answer['subscription']} is already there")
    lost = [f"undo does not bring back {loss}" for loss in lost_by(answer)] if undo else []
    way = f"<pre>{chr(10).join(map(safe, [*(f'undo: {line}' for line in undo), *lost]))}</pre>"
    if is_plan:
        return paragraphs + (way if undo else "") + _form("seek", hidden, "", "Seek now")
    return done(f"{answer['subscription']} moved") + paragraphs + (way if undo else "")


def redelivered(answer: Redelivered, hidden: Mapping[str, str], *, is_plan: bool) -> str:
    """The plan of a redelivery, or its outcome."""
    number = answer["redelivered"]
    messages = counted(number, "message")
    if not is_plan:
        return done(f"{messages} will be delivered again")
    if not number:
        return done("no consumer has such a message in hand")
    paragraphs = f"<p>{safe(messages)} in the hands of consumers will be delivered again</p>"
    return paragraphs + _form("redeliver", hidden, "", "Redeliver now")


def retried(answer: DeadLettersRetried, hidden: Mapping[str, str], *, is_plan: bool) -> str:
    """The plan of a retry of dead letters, or its outcome."""
    stay = "".join(
        f"<p>{safe(counted(row['messages'], 'message'))} stay: {safe(row['reason'])}</p>"
        for row in answer["left_list"]
    )
    messages = counted(answer["retried"], "message")
    if not is_plan:
        return done(f"{messages} went back") + stay
    if not answer["retried"]:
        return done("no message goes back") + stay
    paragraphs = f"<p>{safe(messages)} will go back to the topics that they came from</p>{stay}"
    return paragraphs + _form("retry", hidden, "", "Retry now")


def abort_plan(txn: str, messages: int, acks: int) -> str:
    """The plan of an abort, with the form that does it."""
    what = f"{counted(messages, 'message')} and {counted(acks, 'acknowledgement')}"
    paragraphs = (
        f"<p>{safe(f'the abort discards {what} of transaction {txn}; nothing undoes it')}</p>"
    )
    return paragraphs + _form("abort", {"id": txn}, "", "Abort now")


def aborted(answer: TransactionEnded) -> str:
    """The outcome of an abort."""
    return done(f"transaction {answer['txn']} is {answer['state']}")


def done(text: str) -> str:
    """An outcome in a line."""
    return f'<p class="good">{safe(text)}</p>'
