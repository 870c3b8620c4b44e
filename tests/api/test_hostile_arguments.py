"""Invalid arguments of the public library raise only errors of txlog.

Each public call gets, for each of its parameters, a list of hostile values. The call succeeds, or
raises a TxlogError; a wrong type is InvalidArgument, which is also a ValueError and a TypeError. A
call that was refused for a type has stored no data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench
from tests.tiers import graded
from txlog.base.arguments import fits
from txlog.engine.session.reading.message import Message
from txlog.errors import InvalidArgument, TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")

HOSTILE: Final[dict[str, Any]] = {
    "None": None,
    "text": "no such",
    "bytes": b"\xff",
    "float": 1.5,
    "object": object(),
    "surrogate": "a\ud800",
    "2**63": 1 << 63,
    "bool": True,
    "-1": -1,
    "nan": float("nan"),
    "empty": "",
    "zero byte": "a\0b",
    "list": [object()],
    "dict": {1: 2},
    "function": lambda *_: 1 / 0,
    "table": pa.table({"x": [[1]]}),
    "list column": pa.table({"value": [["a"]]}),
    "date": datetime(2026, 11, 20, tzinfo=UTC),
    "huge": -(1 << 200),
}
FEW: Final = ("None", "text", "float", "surrogate", "list column")
WAITS: Final = ("timeout_ms", "wait_ms", "max_wait_ms")  # None is for ever
# Valid arguments, by the name of the parameter.
RIGHT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "topic": lambda its: "t",
    "subscription": lambda its: "s",
    "topics": lambda its: ["t"],
    "name": lambda its: "n",
    "value": lambda its: b"v",
    "key": lambda its: "k",
    "data": lambda its: pa.table({"value": [b"v"]}),
    "what": lambda its: its.message,
    "message": lambda its: its.message,
    "txn": lambda its: its.txn,
    "txn_id": lambda its: its.txn,
    "ids": lambda its: [its.message.message_id],
    "to": lambda its: "earliest",
    "partitions": lambda its: 2,
    "event_time": lambda its: 1,
    "policies": lambda its: {},
}
HANDLES: Final[dict[str, Callable[[Any], Any]]] = {
    "client": lambda its: its.client,
    "admin": lambda its: its.client.admin,
    "producer": lambda its: its.client.producer("t"),
    "builder": lambda its: its.client.producer("t").new_message(),
    "watermark builder": lambda its: its.client.producer("t", "w").new_watermark(),
    "consumer": lambda its: its.client.consumer("t", "s"),
    "several": lambda its: its.client.consumer(["t", "u"], "s"),
    "reader": lambda its: its.client.reader("t"),
    "transaction": lambda its: its.client.transaction(),
    "transaction builder": lambda its: its.client.new_transaction(),
    "topic": lambda its: its.client.topic("t"),
    "subscription": lambda its: its.client.subscription("t", "s"),
    "watermarks": lambda its: its.client.topic("t").watermarks,
}


class Its:
    """A store with two topics, a message, a transaction and a subscription."""

    def __init__(self, path: Path) -> None:
        self.bench = Bench(path / "store")
        self.client = self.bench.client
        for topic in ("t", "u"):
            self.client.create_topic(topic, 2)
            self.client.create_subscription(topic, "s", type="shared")
        self.client.producer("t").send(b"a", key=b"k")
        [self.message] = [message for message in self.client.reader("t")]
        self.txn = self.client.begin()["txn"]

    def close(self) -> None:
        self.bench.close()


def public(handle: object) -> Iterator[tuple[str, inspect.Signature]]:
    """The public methods of a handle that take arguments."""
    for name in dir(type(handle)):
        item = inspect.getattr_static(type(handle), name)
        if name.startswith("_") or not callable(item):
            continue
        signature = inspect.signature(getattr(handle, name))
        if signature.parameters:
            yield name, signature


def trial(
    its: Its, call: Callable[..., Any], signature: inspect.Signature, at: str, odd: Any
) -> str:
    """Make a call with one odd argument. Returns the fault in its answer, or an empty text."""
    fields: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if name == at:
                return ""
        elif name == at:
            fields[name] = odd
        elif parameter.default is parameter.empty:
            if name not in RIGHT:
                return ""
            fields[name] = RIGHT[name](its)
        elif name in WAITS:
            fields[name] = 0
    positional = [
        fields.pop(name)
        for name, one in signature.parameters.items()
        if one.kind is one.POSITIONAL_ONLY and name in fields
    ]
    try:
        answer = call(*positional, **fields)
        if inspect.isgenerator(answer):
            next(answer, None)
        if hasattr(answer, "result"):
            answer.result()
    except TxlogError as error:
        if isinstance(error, InvalidArgument):
            assert {ValueError, TypeError} < set(type(error).__mro__)
        return ""
    except ZeroDivisionError:
        return ""  # the error comes from the test's function, and is passed on
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if hasattr(answer, "close"):
        with suppress(TxlogError):
            answer.close()
    return ""


def is_whole(its: Its) -> bool:
    """Whether the last call deleted none of the things that the next call needs."""
    try:
        return all(its.client.subscriptions(topic) for topic in ("t", "u"))
    except TxlogError:
        return False


@pytest.mark.parametrize(
    "handle", graded(HANDLES, ("producer", "consumer", "topic", "transaction"))
)
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(FEW, id="few"),
        pytest.param([one for one in HOSTILE if one not in FEW], id="rest", marks=pytest.mark.deep),
    ],
)
def test_hostile_arguments_are_refused_with_a_txlog_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handle: str, values: list[str]
) -> None:
    wrong: list[str] = []
    monkeypatch.chdir(tmp_path)  # some of the words are paths
    its = Its(tmp_path)
    for name, signature in list(public(HANDLES[handle](its))):
        for at in signature.parameters:
            for word in values:
                if at in WAITS and word in ("None", "2**63"):
                    continue
                target = HANDLES[handle](its)
                fault = trial(its, getattr(target, name), signature, at, HOSTILE[word])
                if fault:
                    wrong.append(f"{handle}.{name}({at}={word}): {fault}")
                if hasattr(target, "close") and target is not its.client:
                    with suppress(TxlogError):
                        target.close()
                if not is_whole(its):
                    its.close()
                    its = Its(tmp_path / f"{name}-{at}-{values.index(word)}")
    its.close()
    assert wrong == []


def test_functions_of_the_package_too(tmp_path: Path) -> None:
    for function in (txlog.open, txlog.init):
        for odd in HOSTILE.values():
            if not isinstance(odd, str):
                with pytest.raises(InvalidArgument):
                    function(odd)


def test_text_is_bytes_wherever_a_message_is_made(tmp_path: Path) -> None:
    """A key that is text is routed as its bytes are."""
    its = Its(tmp_path)
    producer = its.client.producer("t")
    places = {producer.send("é", key=key).partition for key in ("é", "é".encode())}
    assert len(places) == 1
    assert [message.value for message in its.client.reader("t")].count("é".encode()) == 2
    its.close()


def test_a_message_has_a_hash_and_a_short_repr(tmp_path: Path) -> None:
    its = Its(tmp_path)
    its.client.producer("t").send(b"x" * 1_000_000, key=b"k", properties={"a": "b"})
    *_, message = its.client.reader("t")
    assert len(repr(message)) < 400 and "1,000,000 bytes" in repr(message)
    assert len({message, Message(**{**message_fields(message)})}) == 1
    its.close()


def message_fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in Message.__slots__}


@pytest.mark.parametrize(
    ("value", "kind", "is_right"),
    [
        (1, int, True),
        (True, int, False),
        (1 << 63, int, False),
        (1, float, True),
        ("a", str, True),
        ("\ud800", str, False),
        (b"a", bytes | None, True),
        (None, bytes | None, True),
        ("a", list[str], False),
        (["a"], list[str], True),
        ([1], list[str], False),
        ({"a": 1}, Mapping[str, str], False),
        ((1, "a"), tuple[int, str], True),
        ((1, 2), tuple[int, str], False),
        (object(), Any, True),
    ],
)
def test_values_that_fit_a_type(value: object, kind: Any, is_right: bool) -> None:
    assert fits(value, kind) is is_right
