"""The Python API from a user's view: its examples, its exports, and consumers that open, close and
die.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import Bench, pending, send
from tests.harness import python, run
from txlog import messages
from txlog.client.sending.bulk import Bulk
from txlog.client.topics.subscription import SubscriptionHandle
from txlog.client.topics.topic import TopicHandle
from txlog.engine.session.reading.watermark_session import WatermarkSession
from txlog.engine.session.sending.message import SendReceipt
from txlog.engine.session.transactions.transaction import Later
from txlog.errors import (
    AlreadyClosed,
    AlreadyExists,
    ConsumerBusy,
    InvalidArgument,
    LimitExceeded,
    ReadOnlyStore,
    StoreNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1}, [("t", "s")])]
SHOWN = (
    "",
    "client.client",
    "client.consuming.consumer",
    "client.sending.producer",
    "client.reading.reader",
    "engine.session.transactions.transaction",
    "engine.session.reading.message",
    "client.topics.topic",
    "client.admin",
    "client.sending.bulk",
    "client.answers.metrics_text",
    "client.topics.subscription",
    "client.topics.watermarks",
    *(f"functions.{name}" for name in ("outputs", "context", "windows", "handlers", "runner")),
)


@pytest.mark.parametrize("name", SHOWN)
def test_examples_are_true(name: str) -> None:
    """Every public class has an example in its docstring, and the example works."""
    module = importlib.import_module("txlog" + (f".{name}" if name else ""))
    # inspecting the package would import its lazy modules and change it during the loop
    runner = doctest.DocTestRunner()
    for test_case in doctest.DocTestFinder(recurse=bool(name)).find(module):
        runner.run(test_case)
    assert runner.tries > 0
    assert runner.failures == 0


def test_every_public_name_is_documented() -> None:
    """This includes the methods of returned objects. The test of the layers covers the modules."""
    handles = (SubscriptionHandle, TopicHandle, Later, WatermarkSession, SendReceipt, Bulk)
    classes = [public for name in txlog.__all__ if inspect.isclass(public := getattr(txlog, name))]
    bare = [
        f"{public.__name__}.{name}"
        for public in (*classes, *handles)
        for name, member in inspect.getmembers(public)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
        if not inspect.getdoc(member)
    ]
    assert not bare
    functions = (
        txlog.init,
        txlog.open,
        txlog.messages,
        txlog.verify,
        txlog.repair,
        txlog.doctor,
    )
    assert all(map(inspect.getdoc, [*classes, *functions]))


def test_exports() -> None:
    """Every name in __all__ exists, and importing txlog loads no heavy module."""
    for name in txlog.__all__:
        assert getattr(txlog, name) is not None
    with pytest.raises(AttributeError):
        txlog.nothing  # noqa: B018
    code = "import sys, txlog; sys.exit('pyarrow' in sys.modules or 'duckdb' in sys.modules)"
    source = str(Path(txlog.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=False)
    assert done.returncode == 0


def test_init_and_open(tmp_path: Path) -> None:
    """A store is created once, and a directory without a store cannot be opened."""
    path = str(tmp_path / "store")
    arguments = txlog.init(path, coordinators=3)
    assert (arguments["created"], arguments["path"]) == (True, path)
    arguments_again = txlog.init(path, if_not_exists=True)
    assert (arguments_again["created"], arguments_again["uuid"]) == (False, arguments["uuid"])
    with pytest.raises(AlreadyExists):
        txlog.init(path)
    with pytest.raises(InvalidArgument):
        txlog.init(str(tmp_path / "other"), colour=1)
    with pytest.raises(LimitExceeded):
        txlog.init(str(tmp_path / "other"), coordinators=99_999)
    assert not (tmp_path / "other").exists()
    with pytest.raises(StoreNotFound):
        txlog.open(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgument):
        txlog.open(path, durability="maybe")  # type: ignore[arg-type]
    with txlog.open(path) as client:
        assert client.settings.coordinators == 3


def test_topics_and_subscriptions(bench: Bench) -> None:
    """Names are unique after case folding; if_not_exists accepts only exactly the same name."""
    client = bench.client
    assert not client.create_topic("t", if_not_exists=True)
    assert not client.create_subscription("t", "s", if_not_exists=True)
    for name in ("t", "T"):
        with pytest.raises(AlreadyExists):
            client.create_topic(name)
    with pytest.raises(AlreadyExists):
        client.create_subscription("t", "S", if_not_exists=True)
    with pytest.raises(TopicNotFound):
        client.create_subscription("nowhere", "s")
    with pytest.raises(SubscriptionNotFound):
        client.consumer("t", "nobody")
    for wrong in ("a b", "__x", "", "x" * 200):
        with pytest.raises(InvalidArgument):
            client.create_topic(wrong)
    for partitions, error in ((0, InvalidArgument), (10_001, LimitExceeded)):
        with pytest.raises(error):
            client.create_topic("other", partitions)
    client.create_topic("a/b/c", 2)
    assert [row["topic"] for row in bench.another().topics()] == ["a/b/c", "t"]
    assert [row["partitions"] for row in client.topics()] == [2, 1]


def test_an_exclusive_subscription_has_one_consumer(bench: Bench) -> None:
    """9.1: a second consumer gets ConsumerBusy, in every process; closing the first one frees the
    subscription.
    """
    client, other = bench.client, bench.another()
    first = client.consumer("t", "s", name="one")
    assert client.subscriptions("t")[0]["consumers"] == 1
    for taker in (client, other):
        with pytest.raises(ConsumerBusy) as caught:
            taker.consumer("t", "s")
        assert caught.value.fields["subscription"] == "s"
    first.close()
    first.close()
    with pytest.raises(AlreadyClosed):
        first.receive_batch(1)
    with other.consumer("t", "s"):
        pass
    assert client.subscriptions("t")[0]["consumers"] == 0
    assert list((Path(bench.path) / "consumers").iterdir()) == []


def test_dead_consumer_blocks_no_other(bench: Bench) -> None:
    """9.1, K10: the kernel frees the lock after any death, and its unacknowledged messages are
    delivered again.
    """
    send(bench.client, b"a", b"b")
    run(python("dead_consumer", bench.path), code=7)
    with bench.client.consumer("t", "s") as consumer:
        assert [m.value for m in (consumer.receive(), consumer.receive()) if m] == [b"a", b"b"]


def test_consumer_ids_are_never_reused(bench: Bench) -> None:
    """Law 6, I-1."""
    seen = set()
    for turn in range(3):
        with bench.client.consumer("t", "s") as consumer:
            seen.add(consumer.id)
        if turn == 1:
            bench.client.checkpoint()
            bench.reopen()
    assert len(seen) == 3


def test_unacknowledged_messages_go_to_the_next_consumer(bench: Bench) -> None:
    """I-12: no message is lost.

    A message that was received and given back counts as redelivered, a message that stayed in the
    queue does not.
    """
    send(bench.client, b"a", b"b", b"c")
    with bench.client.consumer("t", "s") as consumer:
        received = [consumer.receive() for _ in range(3)]
        assert received[1] is not None
        consumer.acknowledge(received[1])
        assert consumer.receive() is None
        consumer.redeliver_unacknowledged_messages()
        assert [m.value for _ in range(1) if (m := consumer.receive())] == [b"a"]
    assert [(m.value, m.redelivery_count) for m in pending(bench.client)] == [(b"a", 2), (b"c", 1)]


def test_closed_client_raises_already_closed(bench: Bench) -> None:
    """14: every call raises AlreadyClosed."""
    client = bench.another()
    producer = client.producer("t")
    client.close()
    client.close()
    for call in (client.topics, lambda: producer.send(b"x"), client.transaction, client.status):
        with pytest.raises(AlreadyClosed):
            call()


def test_a_read_only_client_reads(bench: Bench) -> None:
    """It changes no file, and its error names the path."""
    send(bench.client, b"a")
    client = bench.another(read_only=True)
    assert [m.value for m in client.reader("t")] == [b"a"]
    assert client.topics()[0]["messages"] == 1
    assert client.transactions() == []
    for call in (
        lambda: client.create_topic("x"),
        client.transaction,
        lambda: client.consumer("t", "s"),
        lambda: client.producer("t").send(b"x"),
    ):
        with pytest.raises(ReadOnlyStore):
            call()
    bench.client.create_subscription("t", "new")
    # the message does not name a removed lock file
    with pytest.raises(ReadOnlyStore, match="for reading only"):
        bench.another(read_only=True).consumer("t", "new")


def test_status(bench: Bench) -> None:
    """The summary of the store agrees with the calls that were made."""
    client = bench.client
    send(client, b"abc")
    with client.transaction() as txn:
        client.producer("t").send(b"de", txn=txn)
        txn.flush()
        client.flush()
        status = client.status()
        assert status["txns"]["open"] == 1
        assert status["topic_list"][0]["hidden_messages"] == 1
    status = client.status()
    assert status["txns"]["open"] == 0
    (row,) = status["topic_list"]
    assert (row["messages"], row["size_bytes"], row["backlog"]) == (2, 5, 2)
    assert status["journal"]["lsn"] == status["journal"]["durable_lsn"] == client.wait_for_change(0)


def test_a_consumer_of_one_partition_gets_no_other(tmp_path: Path) -> None:
    """The topic name may contain a partition; the subscription still belongs to the whole topic."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    for partition in (0, 1):
        client.producer("t").send(b"%d" % partition, partition=partition)
    for name, expected in (("t/1", [b"1"]), ("t-partition-0", [b"0"]), ("t", [b"0", b"1"])):
        with client.consumer(name, "s") as consumer:
            got = [message.value for message in messages(consumer.receive_batch(10))]
            assert sorted(value or b"" for value in got) == expected
    with pytest.raises(TopicNotFound):
        client.consumer("t/2", "s")


def test_begin_is_not_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5.2: a begin is written and not flushed; only the first one of a block waits until its
    numbers are reserved.
    """
    bench = Bench(tmp_path / "store", durability="sync", coordinators=1)
    bench.client.begin()
    flushed: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    txn = bench.client.begin()["txn"]
    assert not flushed
    assert bench.another().show_transaction(txn)["state"] == "open"


def test_names_of_consumers(bench: Bench) -> None:
    """spec/transactions 2: the rule for all names holds; the default is the user and the
    process.
    """
    for bad in ("", "a b", "__c", "-c", "a/b", "x" * 129):
        with pytest.raises(InvalidArgument, match="bad consumer name"):
            bench.client.consumer("t", "s", name=bad)
    with bench.client.consumer("t", "s", name="till-7") as consumer:
        assert consumer.name == "till-7"
    with bench.client.consumer("t", "s") as consumer:
        assert consumer.name.endswith(f"-{os.getpid()}")


def test_waiting_call_ends_when_the_store_is_removed(bench: Bench) -> None:
    """Guards against `consume -F` and `run -F` that wait for ever in a removed directory."""
    send(bench.client, b"a")
    lsn = bench.client.wait_for_change(0)
    assert bench.client.wait_for_change(lsn) == lsn
    shutil.rmtree(bench.path)
    with pytest.raises(StoreNotFound, match="was removed"):
        bench.client.wait_for_change(lsn)
    bench.clients.clear()
