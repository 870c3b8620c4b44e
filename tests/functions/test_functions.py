"""Tests of txlog.functions: outputs, failures, dead letters, fences, and one transaction for each
batch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txlog
from tests.functions.kit import MS, backlog, fill, messages, poisoned, run, values
from tests.tiers import graded
from txlog import functions
from txlog.engine.session.reading.message import Message
from txlog.errors import (
    AlreadyClosed,
    CommandFailed,
    ConsumerBusy,
    ExpiredTransaction,
    InvalidArgument,
    NotAllowed,
    NotFound,
    TopicNotFound,
    TransactionConflict,
    TxlogError,
)
from txlog.functions import Context, FunctionOptions, Hooks, Output, Summary
from txlog.functions import handlers as handlers_module

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_bytes_text_and_dicts_take_key_and_event_time_of_the_input(client: txlog.Client) -> None:
    """spec/cli 8.3: the values that a function may return."""
    client.producer("in").send(b"x", key=b"ana", event_time=MS)
    given_values: list[object] = [
        b"bytes",
        "text",
        {"a": [1]},
        Output(b"o"),
        Output("k", key="bo", event_time=None),
        None,
        Output(None, key=None, properties={"p": "q"}),
    ]
    assert run(client, lambda message: given_values).produced == 6
    got = [(m.value, m.key, m.event_time, m.properties) for m in messages(client)]
    assert got == [
        (b"bytes", b"ana", MS, {}),
        (b"text", b"ana", MS, {}),
        (b'{"a":[1]}', b"ana", MS, {}),
        (b"o", b"ana", MS, {}),
        (b"k", b"bo", None, {}),
        (None, None, MS, {"p": "q"}),
    ]


def test_none_produces_nothing_and_acknowledges(client: txlog.Client) -> None:
    fill(client, 3)
    done = run(client, lambda message: None)
    assert (done.consumed, done.produced, done.transactions, backlog(client)) == (3, 0, 1, 0)
    assert values(client) == []


def test_generators_and_tuples_are_several_outputs(client: txlog.Client) -> None:
    fill(client, 2)

    def twice(message: Message) -> Iterator[object]:
        yield message.value
        yield Output(message.value, topic="other")

    run(client, twice)
    assert (values(client), values(client, "other")) == ([b"0", b"1"], [b"0", b"1"])
    fill(client, 1)
    run(client, lambda message: (b"a", None, "b"))
    assert values(client)[2:] == [b"a", b"b"]


def test_context_describes_the_call_of_a_function(client: txlog.Client) -> None:
    """The terms of Pulsar Functions, and a logger with the function's name."""
    client.producer("in").send(b"x", key=b"k", properties={"a": "b"}, event_time=MS, partition=1)
    seen: list[object] = []

    def look(message: Message, context: Context) -> None:
        assert context.message is message
        seen.extend(
            [
                context.function_name,
                context.instance_id,
                context.input_topics,
                context.output_topic,
                context.subscription,
                context.message_key,
                context.message_properties,
                context.message_eventtime,
                context.current_message_topic_name,
                context.attempt,
                context.logger.name,
                context.window,
            ]
        )
        assert str(context.message_id) == str(message.message_id)
        context.publish("other", {"n": 1}, properties={"x": "y"})

    run(client, look)
    name = "look@in/s"
    assert seen == [
        name,
        0,
        ("in",),
        "out",
        "s",
        b"k",
        {"a": "b"},
        MS,
        "in",
        1,
        f"txlog.function.{name}",
        None,
    ]
    [published] = messages(client, "other")
    assert (published.value, published.key, published.properties) == (b'{"n":1}', b"k", {"x": "y"})
    assert isinstance(logging.getLogger(f"txlog.function.{name}"), logging.Logger)


def test_a_batch_is_one_transaction(client: txlog.Client) -> None:
    """Outputs in all topics and the acknowledgements must be in one transaction."""
    fill(client, 5)
    done = run(client, lambda m: [m.value, Output(m.value, topic="other")], txn_size=2)
    assert (done.transactions, done.consumed, done.produced) == (3, 5, 10)
    ids = [m.txn for m in messages(client)]
    assert ids == [m.txn for m in messages(client, "other")]
    assert [ids.count(count) for count in dict.fromkeys(ids)] == [2, 2, 1]
    assert done.last_txn == ids[-1]
    assert ids[0] is not None
    txn_row = client.show_transaction(ids[0])
    assert (txn_row["messages"], txn_row["acks"], txn_row["state"]) == (4, 2, "committed")


def test_table_passes_without_an_object_for_each_message(
    client: txlog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a Message object or a list of rows for each batch."""
    client.producer("in").send(b"x", key=b"k", properties={"a": "b"}, event_time=MS)
    fill(client, 500, 1)

    def no_objects(*_: object, **__: object) -> None:
        raise AssertionError("an object was made")

    with monkeypatch.context() as patched:
        patched.setattr("txlog.engine.session.reading.message.Message", no_objects)
        patched.setattr("txlog.functions.outputs._table", no_objects)
        patched.setattr(handlers_module, "messages", no_objects)
        done = run(client, lambda rows: rows, batch=True)
    assert (done.consumed, done.produced) == (501, 501)
    first = next(m for m in messages(client) if m.value == b"x")
    assert (first.key, first.properties, first.event_time) == (b"k", {"a": "b"}, MS)


def test_batches_may_publish_tables_and_rows_in_order(client: txlog.Client) -> None:
    fill(client, 2)

    def function(rows: pa.Table, context: Context) -> list[object]:
        context.publish("other", rows.slice(0, 1).select(["value"]))
        context.publish("other", b"between")
        context.publish("other", pa.table({"value": ["text"]}))
        return [rows, b"last"]

    run(client, function, batch=True)
    assert values(client, "other") == [b"0", b"between", b"text"]
    assert values(client) == [b"0", b"1", b"last"]


def test_held_messages_come_first_in_the_next_batch(client: txlog.Client) -> None:
    """Messages of hold_back stay unacknowledged and are joined with the next ones."""
    fill(client, 5)
    seen: list[list[bytes]] = []

    def pairs(rows: pa.Table, context: Context) -> pa.Table:
        seen.append(rows["value"].to_pylist())
        whole = rows.num_rows // 2 * 2
        context.hold_back(pa.array([at >= whole for at in range(rows.num_rows)]))
        return rows.slice(0, whole)

    done = run(client, pairs, batch=True, txn_size=3)
    assert seen == [[b"0", b"1", b"2"], [b"2", b"3", b"4"]]
    assert (done.consumed, values(client), backlog(client)) == (4, [b"0", b"1", b"2", b"3"], 1)


@pytest.mark.parametrize("mask", [[True], "no", pa.array([1, 2, 3])])
def test_a_wrong_mask_is_the_functions_failure(client: txlog.Client, mask: object) -> None:
    fill(client, 3)
    with pytest.raises(CommandFailed, match="hold_back takes 3 booleans"):
        run(client, lambda rows, context: context.hold_back(mask), batch=True)


WRONG: list[object] = [
    3, [3], 1.5, object(), {"a": object()}, "\ud800", Output(b"", key=3),  # type: ignore[arg-type]
    Output(b"", properties={"a": 1}), Output(b"", properties="ab"),  # type: ignore[arg-type,dict-item]
    Output(b"", event_time=True), Output(b"", deliver_at=1 << 60), Output({1, 2}),
    Output(b"", deliver_after=-1), Output(b"", deliver_after=1 << 63),
    Output(b"", deliver_after=True), Output(b"", deliver_after=0.5),  # type: ignore[arg-type]
    Output(b"", deliver_at=0, deliver_after=0),
    pa.table({"value": [b""], "deliver_after": [-1]}),
    pa.table({"value": [b""], "deliver_after": [1], "deliver_at": [1]}),
    Output(b"", topic="no-such"), Output(b"", topic=".."), Output(b"", topic=3),  # type: ignore[arg-type]
    Output(b"x" * 6_000_000), Output(b"", properties={"a": "x" * 6_000_000}),
    pa.table({"nothing": [b""]}), pa.table({"value": [b""], "odd": [1]}),
    pa.table({"value": [3.5]}), bytearray(b"x"), lambda: None,
]  # fmt: skip


@pytest.mark.parametrize("output", WRONG, ids=range(len(WRONG)))
@pytest.mark.parametrize("batch", graded([False, True], 1))
def test_invalid_output_is_a_failure_of_the_function(
    client: txlog.Client, output: object, batch: bool
) -> None:
    """The error is code 106, never a traceback, and the input stays unacknowledged."""
    fill(client, 1)
    with pytest.raises(CommandFailed):
        run(client, lambda item: output, batch=batch)
    done = run(client, lambda item: output, batch=batch, on_error="skip")
    assert (done.skipped, done.produced, backlog(client)) == (1, 0, 0)


def test_an_output_without_a_topic_needs_an_output_topic(client: txlog.Client) -> None:
    fill(client, 1)
    with pytest.raises(CommandFailed, match="names no topic"):
        functions.run(client, lambda m: b"x", "in", None, "s")
    done = functions.run(client, lambda m: Output(b"x", topic="out"), "in", None, "s")
    assert (done.produced, values(client)) == (1, [b"x"])


def test_outputs_that_only_the_store_refuses_are_searched_for(
    client: txlog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These outputs pass the checks of the outbox; then the batch is halved until they are
    found.
    """
    monkeypatch.setattr(
        "txlog.functions.outputs._COLUMNS",
        {
            "value": pa.binary(),
            "key": pa.binary(),
            "properties": pa.map_(pa.string(), pa.string()),
            "event_time": pa.timestamp("ms", "UTC"),
            "deliver_at": pa.timestamp("ms", "UTC"),
            "deliver_after": pa.int64(),
        },
    )
    fill(client, 4)
    long = b"k" * 70_000  # above the largest key, below the largest message
    done = run(
        client, lambda m: Output(m.value, key=long if m.value == b"2" else None), on_error="skip"
    )
    assert (values(client), done.skipped, backlog(client)) == ([b"0", b"1", b"3"], 1, 0)


def test_stop_ends_after_a_whole_commit(client: txlog.Client) -> None:
    """The completed work of a function is committed, and the remaining messages are not
    acknowledged.
    """
    fill(client, 5)
    seen: list[bytes | None] = []

    def function(message: Message) -> bytes | None:
        seen.append(message.value)
        return message.value

    hooks = Hooks(stop=lambda: len(seen) >= 2)
    done = functions.run(client, function, "in", "out", "s", FunctionOptions(follow=True), hooks)
    assert (done.consumed, values(client), backlog(client)) == (2, [b"0", b"1"], 3)


def test_a_transaction_takes_no_further_message_when_its_time_is_up(
    client: txlog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 8.3: --txn-time; the remaining received messages go into the next transaction."""
    ticks = iter(range(0, 10**9, 400))
    monkeypatch.setattr("txlog.functions.handlers.time.monotonic", lambda: next(ticks) / 1000)
    fill(client, 5)
    done = run(client, lambda m: m.value, txn_time_ms=1000, max_wait_ms=0)
    assert (done.transactions, done.consumed) == (2, 5)
    assert values(client) == [b"0", b"1", b"2", b"3", b"4"]


def test_limit_and_several_inputs(client: txlog.Client) -> None:
    fill(client, 4)
    client.create_subscription("other", "s")
    fill(client, 4, topic="other")
    options = FunctionOptions(limit=3)
    done = functions.run(client, lambda m: m.value, ["in", "other"], "out", "s", options)
    assert done.consumed == 3
    done = functions.run(client, lambda m: f"{m.topic} {m.value}", ["in", "other"], "out", "s")
    assert done.consumed == 5
    assert sum(row["backlog"] for row in client.subscriptions()) == 0
    fill(client, 4)
    fill(client, 4, topic="other")
    seen: list[str] = []
    functions.run(
        client,
        lambda m: seen.append(m.topic),
        ["in", "other"],
        None,
        "s",
        FunctionOptions(txn_size=2),
    )
    # neither input waits until the other one is empty
    assert seen == ["in", "in", "other", "other"] * 2
    with pytest.raises(InvalidArgument, match="each only once"):
        functions.run(client, lambda m: m.value, ["in", "in"], "out", "s")
    with pytest.raises(InvalidArgument, match="each only once"):
        functions.run(client, lambda m: m.value, [], "out", "s")


def test_an_input_may_be_one_partition(client: txlog.Client) -> None:
    fill(client, 2, 0)
    fill(client, 3, 1)
    done = functions.run(client, lambda m: f"{m.partition}", "in/1", "out", "s")
    assert (done.consumed, values(client), backlog(client)) == (3, [b"1"] * 3, 2)


def test_messages_acknowledged_meanwhile_are_not_processed_again(client: txlog.Client) -> None:
    """A conflict aborts the batch, and the function receives its remaining messages anew."""
    fill(client, 4)
    events: list[str] = []

    def function(message: Message) -> bytes | None:
        if message.value == b"2" and "conflict" not in events:
            assert message.message_id is not None
            client.acknowledge("in", "s", [message.message_id])
        return message.value

    hooks = Hooks(tell=lambda event, facts: events.append(event))
    done = functions.run(client, function, "in", "out", "s", FunctionOptions(), hooks)
    assert values(client) == [b"0", b"1", b"3"]
    assert (done.consumed, done.aborted, events) == (3, 1, ["started", "conflict"])


def test_conflicts_without_end_are_an_error(client: txlog.Client) -> None:
    """Guards against an endless loop of conflicts with a consumer that takes each message and gives
    it back.
    """
    fill(client, 1)
    with txlog.open(client.path) as other:
        txns: list[txlog.Transaction] = []

        def function(message: Message) -> bytes | None:
            assert message.message_id is not None
            txns.append(other.transaction())
            other.acknowledge("in", "s", [message.message_id], txn=txns[-1])
            return message.value

        def give_back(event: str, facts: object) -> None:
            if event == "conflict":
                txns[-1].abort()

        with pytest.raises(TransactionConflict):
            functions.run(client, function, "in", "out", "s", None, Hooks(tell=give_back))
        assert 2 < len(txns) < 30
    assert (values(client), backlog(client)) == ([], 1)


def test_a_newer_instance_fences_the_one_at_work(client: txlog.Client) -> None:
    """spec/cli 8.3: exit code 4 (404) for every further call of the old instance; no output is
    doubled.
    """
    fill(client, 3)

    def zombie(message: Message, context: Context) -> bytes | None:
        if message.value == b"1":
            with txlog.open(client.path) as newer:
                newer.connect(f"function:{context.function_name}:0")
        return message.value

    with pytest.raises(ExpiredTransaction, match="newer instance") as caught:
        run(client, zombie)
    assert caught.value.code == 404
    assert (values(client), backlog(client)) == ([], 3)
    with pytest.raises(ExpiredTransaction):
        run(client, zombie, txn_size=2)
    assert backlog(client) == 3
    done = run(client, lambda m: m.value, name="zombie@in/s")
    assert (done.consumed, values(client)) == (3, [b"0", b"1", b"2"])


def test_a_fence_between_two_batches_and_while_idle_is_noticed(client: txlog.Client) -> None:
    fill(client, 2)
    with txlog.open(client.path) as newer:
        hooks = Hooks(committed=lambda done: newer.connect("k"))
        options = FunctionOptions(transaction_key="k", txn_size=1, max_in_flight=1)
        with pytest.raises(ExpiredTransaction):
            functions.run(client, lambda m: m.value, "in", "out", "s", options, hooks)
        assert values(client) == [b"0"]
        options = FunctionOptions(transaction_key="k", follow=True)
        with pytest.raises(ExpiredTransaction):
            functions.run(client, lambda m: m.value, "in", "out", "s", options, hooks)
        assert values(client) == [b"0", b"1"]

        def delete(done: Summary) -> None:
            newer.admin.delete_transaction_key("k")

        fill(client, 1)
        with pytest.raises(ExpiredTransaction):
            functions.run(
                client, lambda m: m.value, "in", "out", "s", options, Hooks(committed=delete)
            )


def test_a_stranger_on_the_subscription_is_busy_at_once(client: txlog.Client) -> None:
    with client.consumer("in", "s"), pytest.raises(ConsumerBusy):
        run(client, lambda m: m.value)


def test_a_successor_waits_for_the_subscription(client: txlog.Client) -> None:
    """An older instance is fenced first, and gets time to release the subscription."""
    fill(client, 1)
    run(client, lambda m: m.value, name="f")
    fill(client, 1)
    consumer = client.consumer("in", "s")
    lines: list[str] = []

    def tell(event: str, facts: object) -> None:
        lines.append(event)
        if event == "waiting":
            consumer.close()

    options = FunctionOptions(name="f")
    done = functions.run(client, lambda m: m.value, "in", "out", "s", options, Hooks(tell=tell))
    assert (lines, done.consumed) == (["waiting", "started"], 1)
    with client.consumer("in", "s"), pytest.raises(ConsumerBusy):
        run(client, lambda m: m.value, name="f", take_over_ms=0)


@pytest.mark.parametrize(
    "function",
    [lambda: 1, lambda a, b, c: 1, lambda a, b, *, c: 1, 3, None],
    ids=["none", "three", "keyword", "number", "nothing"],
)
def test_object_that_cannot_be_called_is_refused(client: txlog.Client, function: Any) -> None:
    with pytest.raises(InvalidArgument):
        run(client, function)


def test_function_with_a_context_argument_gets_it(client: txlog.Client) -> None:
    """A second argument with a default is left alone, unless it is called context."""
    seen: list[object] = []
    fill(client, 1)

    async def asynchronous(message: object) -> None:
        """Never awaited."""

    def scaled(message: object, factor: int = 2) -> None:
        seen.append(factor)

    def optional(message: object, context: Context | None = None) -> None:
        seen.append(context is None)

    class Total:
        """A class as in Pulsar Functions."""

        def process(self, message: object, context: Context) -> None:
            """Add the value to the total."""
            seen.append(context.function_name)

    with pytest.raises(InvalidArgument, match="asynchronous"):
        run(client, asynchronous)
    run(client, scaled)
    fill(client, 1)
    run(client, optional)
    fill(client, 1)
    run(client, functions.handlers.as_function(Total, "m:Total"), name="t")
    fill(client, 1)
    # the signature of this object cannot be read, and asking for it fails
    run(client, len, on_error="skip")
    assert seen == [2, False, "t"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"txn_size": 0}, "txn_size"), ({"txn_time_ms": 0}, "txn_time_ms"),
        ({"retries": -1}, "retries"), ({"instance": -1}, "negative"), ({"limit": -1}, "negative"),
        ({"on_error": "panic"}, "on_error"), ({"on_error": "dead-letter"}, "belong together"),
        ({"dead_letter_topic": "bad"}, "belong together"),
    ],
)  # fmt: skip
def test_senseless_options_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        FunctionOptions(**options)


def test_missing_topics_are_reported_before_an_instance_is_fenced(client: txlog.Client) -> None:
    with pytest.raises(TopicNotFound):
        functions.run(client, len, "in", "no", "s")
    with pytest.raises(TopicNotFound):
        functions.run(
            client,
            len,
            "in",
            "out",
            "s",
            FunctionOptions(on_error="dead-letter", dead_letter_topic="no"),
        )
    assert client.admin.transaction_keys() == []
    with pytest.raises(NotFound):
        functions.run(client, len, "in", "out", "no")


def test_only_committed_messages_are_processed(client: txlog.Client) -> None:
    client.create_subscription("in", "u", isolation="uncommitted")
    with pytest.raises(NotAllowed):
        functions.run(client, len, "in", "out", "u")


def test_a_closed_client_is_an_error_and_not_a_failure(client: txlog.Client) -> None:
    """Guards against an error of the store that is taken for a failure of the function, and
    skipped.
    """
    fill(client, 1)

    def close(message: Message) -> None:
        client.close()

    with pytest.raises(AlreadyClosed):
        run(client, close, on_error="skip")


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("no_colon", InvalidArgument, "names no function"),
        (":f", InvalidArgument, "names no function"),
        ("no_such_module:f", InvalidArgument, "no module"),
        ("os.no_such:f", InvalidArgument, "no module"),
        ("textwrap:nothing", InvalidArgument, "has no nothing"),
        ("string:digits", InvalidArgument, "not a function"),
        ("no/such.py:f", NotFound, "no file"),
        ("broken.py:f", CommandFailed, "SyntaxError"),
        ("raises.py:f", CommandFailed, "ZeroDivisionError"),
        ("leaves.py:f", CommandFailed, "SystemExit"),
        ("needs.py:f", CommandFailed, "no_such_dependency"),
        ("needs:f", CommandFailed, "no_such_dependency"),
        ("good.py:Bad", CommandFailed, "made wrongly"),
    ],
)
def test_functions_that_cannot_be_loaded(
    name: str, error: type[TxlogError], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """201 for a wrong name, 106 for code that fails; the traceback shows no line of txlog."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(2)\n")
    (tmp_path / "needs.py").write_text("import no_such_dependency\n")
    (tmp_path / "good.py").write_text(
        "class Bad:\n    def __init__(self): raise ValueError('made wrongly')\n"
    )
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    with pytest.raises(error, match=text):
        functions.load(name, [str(tmp_path)])


def test_files_modules_and_classes_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dataclasses in a file find their module; a dotted name works, and so does a class with a
    method `process`.
    """
    text = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Price:
    value: int
class F:
    def process(self, message, context):
        return Price(3).value
    class Inner:
        @staticmethod
        def deep(message):
            return 4
"""
    (tmp_path / "prices_of_a_test.py").write_text(text)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert functions.load(f"{tmp_path}/prices_of_a_test.py:F")(None, None) == 3
    assert "prices_of_a_test" not in sys.modules  # a module of that name can still be imported
    deep = functions.load("prices_of_a_test:F.Inner.deep", [str(tmp_path)])
    assert deep(None) == 4


@pytest.mark.deep
@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 30), min_size=2, max_size=2),
    poison=st.sets(st.integers(0, 29), max_size=8),
    size=st.integers(1, 40),
    retries=st.integers(0, 2),
    batch=st.booleans(),
    stop_after=st.integers(0, 4),
)
def test_every_input_ends_once_in_its_place(
    counts: list[int],
    poison: set[int],
    size: int,
    retries: int,
    batch: bool,
    stop_after: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Good messages arrive in out, poison in bad, in the order of each partition, also after a
    restart.
    """
    path = str(tmp_path_factory.mktemp("f") / "store")
    txlog.init(path, coordinators=1)
    with txlog.open(path, durability="os") as client:
        for topic, partitions in (("in", 2), ("out", 1), ("bad", 1)):
            client.create_topic(topic, partitions)
        client.create_subscription("in", "s")
        expected: list[list[bytes]] = []
        for partition, count in enumerate(counts):
            texts = [b"%d:%d" % (partition, n) for n in range(count)]
            expected.append(texts)
            if texts:
                client.producer("in").send_batch(
                    pa.table(
                        {"value": pa.array(texts, pa.binary()), "partition": [partition] * count}
                    )
                )
        bad = {b"%d:%d" % (p, n) for n in poison for p in (0, 1)}

        def one(message: Message) -> bytes | None:
            if message.value in bad:
                raise ValueError("poison")
            return message.value

        function: Any = poisoned(*bad) if batch else one
        commits = 0

        def committed(done: Summary) -> None:
            nonlocal commits
            commits += 1
            if commits == stop_after:
                raise KeyboardInterrupt

        options = FunctionOptions(
            batch=batch,
            txn_size=size,
            retries=retries,
            on_error="dead-letter",
            dead_letter_topic="bad",
            name="f",
        )
        for _ in range(2):
            try:
                functions.run(
                    client, function, "in", "out", "s", options, Hooks(committed=committed)
                )
            except KeyboardInterrupt:
                continue
        good, dead = values(client), values(client, "bad")
        for partition, texts in enumerate(expected):
            mark = b"%d:" % partition
            assert [v for v in good if v and v.startswith(mark)] == [
                text for text in texts if text not in bad
            ]
            assert [v for v in dead if v and v.startswith(mark)] == [
                text for text in texts if text in bad
            ]
        assert backlog(client) == 0
        assert client.transactions() == []


def test_a_function_may_send_one_round_again_itself(client: txlog.Client) -> None:
    """The run refuses only loops that it makes itself; the topic of an Output is the function's
    choice.
    """
    client.create_topic("round")
    client.create_subscription("round", "s")
    client.producer("round").send(b"3")

    def count_down(message: Message) -> Output | None:
        rounds = int(message.value or b"0")
        return Output(str(rounds - 1), topic="round") if rounds else None

    done = functions.run(client, count_down, "round", None, "s")
    assert (done.consumed, done.produced) == (4, 3)
