"""Owns the calls of txlog that a crash test records, of the blocking and the asynchronous handles.

Each is replaced by a call that records itself and its effect. Inside of a call of txlog nothing is
recorded: `receive` of a handle of txlog.aio is one call, without those that it makes.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

import txlog
from txlog.client import open as opening
from txlog.client.client import Client
from txlog.client.consuming.consumer import Consumer
from txlog.client.reading.reader import Reader
from txlog.client.sending.producer import Producer
from txlog.engine.door.sending import SendFuture
from txlog.engine.door.transactions import Transaction
from txlog.errors import NotAllowed, TxlogError
from txlog.testing.crashtest.recorder import Fields, Recorder, inside, within
from txlog.testing.crashtest.trace import digest, shown

Arguments = tuple[Any, ...]
AIO: Final = "txlog.client.aio"  # only programs that use it import it
Describe = Callable[[Any, Arguments, Fields, Any], Fields]

# How long send_async keeps messages: a kill must not depend on how fast the sending thread is.
HOLD_MS: Final = 500
MESSAGES_MAX: Final = 10_000  # of a batch, recorded


class Library:
    """Replaces the calls of the library for one process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_asynchronous = False
        self._producers: WeakKeyDictionary[SendFuture, Producer] = WeakKeyDictionary()

    def replace(self) -> None:
        """Let every call of a handle record itself."""
        sending_later = {
            "send_async": ("send", self._sent_later),
            "send_batch_async": ("send", _sent_batch),
        }
        owner: type
        for owner, calls in (
            (Consumer, {**CONSUMING, "acknowledge_async": ("acknowledge", _acknowledged)}),
            (Producer, {**SENDING, **sending_later}),
            (Reader, READING),
            (
                Transaction,
                {**ENDING, "__exit__": ("commit", _ended), "commit_async": ("commit", _ended)},
            ),
            (Client, BY_ID),
        ):
            for name, (call, describe) in calls.items():
                self._blocking(owner, name, call, describe)
        self._iterated(Reader, "__iter__")
        self._iterated(Reader, "follow")
        self._hold_messages()

    def _replace_asynchronous(self) -> None:
        """The same for handles of txlog.aio, once the program has imported it."""
        self._is_asynchronous = True
        aio = importlib.import_module(AIO)
        for owner, calls in (
            (aio.Consumer, CONSUMING),
            (aio.Producer, {**SENDING, "send_later": ("send", _sent)}),
            (aio.Reader, READING),
            (aio.Transaction, {**ENDING, "__aexit__": ("commit", _ended)}),
            (aio.Client, BY_ID),
        ):
            for name, (call, describe) in calls.items():
                self._awaited(owner, name, call, describe)

    def redirect(self, store: str, copy: str, folder: str, work: str) -> None:
        """Open the copy wherever the program names the store.

        folder: what relative paths of the program start from
        work:   the directory in which the program may open any store
        raises: NotAllowed, in the program, when it opens another store to write
        """
        original = opening.open_store
        inner = os.path.join(os.path.realpath(work), "")

        @functools.wraps(original)
        def _open_copy(path: Any, *args: Any, **options: Any) -> Client:
            name = os.fspath(path)
            real = os.path.realpath(os.path.join(folder, name))
            is_own = os.path.exists(name) and os.path.realpath(name).startswith(inner)
            if real == store or os.path.realpath(name) == os.path.realpath(copy):
                name = copy
            elif not is_own and options.get("read_only"):
                name = real
            elif not is_own:
                raise NotAllowed(
                    f"the program opens {real}, and the crash test has a copy of {store} only",
                    hint="let it open the store of the crash test, or only read this one",
                    path=real,
                )
            if AIO in sys.modules and not self._is_asynchronous:
                self._replace_asynchronous()
            with within():
                return original(name, *args, **options)

        opening.open_store = _open_copy

    def _blocking(self, owner: type, name: str, call: str, describe: Describe) -> None:
        original, recorder = getattr(owner, name), self._recorder

        @functools.wraps(original)
        def _recorded(handle: Any, *args: Any, **options: Any) -> Any:
            kind = _kind(call, name, args)
            event = None if inside.get() else recorder.begin(kind, sys._getframe(1))
            if event is None:
                return original(handle, *args, **options)
            profile = sys.getprofile()
            sys.setprofile(None)
            try:
                with within():
                    answer = original(handle, *args, **options)
                    fields = describe(handle, args, options, answer)
            except BaseException as error:  # also the end of the program, or a cancellation
                recorder.failed(event, error)
                raise
            finally:
                sys.setprofile(profile)
            recorder.end(event, kind, fields)
            return answer

        setattr(owner, name, _recorded)

    def _awaited(self, owner: type, name: str, call: str, describe: Describe) -> None:
        original, recorder = getattr(owner, name), self._recorder

        @functools.wraps(original)
        async def _recorded(handle: Any, *args: Any, **options: Any) -> Any:
            kind = _kind(call, name, args)
            event = None if inside.get() else recorder.begin(kind, sys._getframe(1))
            if event is None:
                return await original(handle, *args, **options)
            try:
                with within():
                    answer = await original(handle, *args, **options)
                    fields = describe(handle, args, options, answer)
            except BaseException as error:  # also the end of the program, or a cancellation
                recorder.failed(event, error)
                raise
            recorder.end(event, kind, fields)
            return answer

        setattr(owner, name, _recorded)

    def _iterated(self, owner: type, name: str) -> None:
        original, recorder = getattr(owner, name), self._recorder

        @functools.wraps(original)
        def _recorded(handle: Any) -> Iterator[Any]:
            received = original(handle)
            while True:
                event = None if inside.get() else recorder.begin("read", sys._getframe(1))
                with within():
                    message = next(received, None)
                if event is not None:
                    recorder.end(event, "read", _received(handle, (), {}, message))
                if message is None:
                    return
                yield message

        setattr(owner, name, _recorded)

    def _sent_later(self, producer: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
        if isinstance(answer, SendFuture):
            self._producers[answer] = producer
        is_queued = isinstance(answer, SendFuture)
        return {**_sent(producer, args, options, None), "queued": is_queued}

    def _hold_messages(self) -> None:
        """Let messages that are sent without waiting stay in their queue until a caller waits."""
        open_producer, result, producers = Client.producer, SendFuture.result, self._producers

        @functools.wraps(open_producer)
        def _holding(client: Client, *args: Any, **options: Any) -> Producer:
            options.setdefault("batching_max_publish_delay_ms", HOLD_MS)
            return open_producer(client, *args, **options)

        @functools.wraps(result)
        def _hastened(future: SendFuture, timeout: float | None = None) -> Any:
            producer = producers.get(future)
            if producer is not None and not future.done():
                with within(), suppress(TxlogError):  # the future has the error, too
                    producer.flush()
            return result(future, timeout)

        client_type: Any = Client
        future_type: Any = SendFuture
        client_type.producer, future_type.result = _holding, _hastened


def _kind(call: str, name: str, args: Arguments) -> str:
    """The kind of a call: leaving a `with` block by an exception counts as an abort."""
    is_left = name in ("__exit__", "__aexit__")
    return "abort" if is_left and args and args[0] is not None else call


# --- what a call did -----------------------------------------------------------------------------


def _received(handle: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    """The ids of received messages, and the first bytes of their values."""
    received = _messages(answer)
    ids = [str(message.message_id) for message in received]
    return {"ids": ids, "values": [shown(message.value) for message in received]}


def _sent(producer: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    value = args[0] if args else options.get("value")
    is_duplicate = getattr(answer, "duplicate", False)
    return {
        "topic": _topic_of(producer),
        "outputs": [_output(options.get("key"), value)],
        "txn": _txn(options.get("txn")),
        "duplicate": is_duplicate is True,
    }


def _sent_batch(producer: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    rows = (args[0] if args else options["data"]).slice(0, MESSAGES_MAX).to_pydict()
    values = rows.get("value", [])
    keys = rows.get("key", [None] * len(values))
    return {
        "topic": _topic_of(producer),
        "outputs": [_output(key, value) for key, value in zip(keys, values, strict=True)],
        "txn": _txn(options.get("txn")),
    }


def _acknowledged(handle: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    what = args[0] if args else options.get("what", options.get("message", ()))
    return {"ids": _ids(what), "txn": _txn(options.get("txn"))}


def _cumulative(handle: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    return {**_acknowledged(handle, args, options, answer), "cumulative": True}


def _acknowledged_ids(client: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    ids = args[2] if len(args) > 2 else options.get("ids", ())
    is_all = bool(options.get("cumulative"))
    return {"ids": _ids(ids), "txn": _txn(options.get("txn")), "cumulative": is_all}


def _ended(txn: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    return {"txn": _txn(txn)}


def _ended_by_id(client: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    return {"txn": str(args[0] if args else options.get("txn_id"))}


def _plain(handle: Any, args: Arguments, options: Fields, answer: Any) -> Fields:
    return {}


CONSUMING: Final[dict[str, tuple[str, Describe]]] = {
    "receive": ("receive", _received),
    "receive_batch": ("receive", _received),
    "acknowledge": ("acknowledge", _acknowledged),
    "acknowledge_cumulative": ("acknowledge", _cumulative),
    "negative_acknowledge": ("return", _plain),
    "reconsume_later": ("acknowledge", _acknowledged),
}
SENDING: Final[dict[str, tuple[str, Describe]]] = {
    "send": ("send", _sent),
    "send_batch": ("send", _sent_batch),
    "flush": ("flush", _plain),
    "close": ("flush", _plain),
}
READING: Final[dict[str, tuple[str, Describe]]] = {
    "read_next": ("read", _received),
    "receive_batch": ("read", _received),
}
ENDING: Final[dict[str, tuple[str, Describe]]] = {
    "commit": ("commit", _ended),
    "abort": ("abort", _ended),
}
BY_ID: Final[dict[str, tuple[str, Describe]]] = {
    "commit": ("commit", _ended_by_id),
    "abort": ("abort", _ended_by_id),
    "acknowledge": ("acknowledge", _acknowledged_ids),
    "flush": ("flush", _plain),
}


def _topic_of(producer: Any) -> str:
    topic = getattr(producer, "sync", producer).topic  # a handle of txlog.aio has a blocking one
    return topic.short if hasattr(topic, "short") else str(topic)


def _messages(answer: Any) -> list[Any]:
    if answer is None:
        return []
    if not hasattr(answer, "num_rows"):
        return [answer]
    return [*txlog.messages(answer.slice(0, MESSAGES_MAX))] if answer.num_rows else []


def _ids(what: Any) -> list[str]:
    if hasattr(what, "num_rows"):
        return [str(message.message_id) for message in _messages(what)]
    # a MessageId is a tuple itself
    is_many = isinstance(what, list | tuple | set | frozenset) and not hasattr(what, "ledger")
    return [str(getattr(each, "message_id", each)) for each in (what if is_many else [what])]


def _txn(txn: Any) -> str:
    """A name for a transaction within the trace; "" without one."""
    if txn is None:
        return ""
    txn = getattr(txn, "sync", txn)  # a handle of txlog.aio has a blocking one
    return str(txn) if hasattr(txn, "sequence") else f"handle {id(txn)}"


def _output(key: Any, value: Any) -> tuple[str, str]:
    data, name = (None if part is None else _bytes(part) for part in (value, key))
    return digest(name, data), shown(data)


def _bytes(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    return bytes(part) if isinstance(part, bytes | bytearray | memoryview) else repr(part).encode()
