"""`produce --txn-every` with commits in flight always stores a prefix of the input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.cli.test_store import Tool, signal_after, tool
from tests.harness import KILLED, ready, run
from txlog.cli.produce import columns, work
from txlog.engine.session.transactions.commits import CommitFuture
from txlog.errors import OutcomeUnknown, TryAgain

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool
COUNT = 60


def written(path: Path, count: int = COUNT) -> str:
    """A file of so many numbered lines."""
    path.write_text("".join(f"{number}\n" for number in range(count)))
    return str(path)


def stored(tool: Tool) -> list[bytes]:
    """The messages of the topic."""
    with txlog.open(tool.path) as client:
        assert client.transactions() == []
        return [message.value or b"" for message in client.reader("orders")]


def prefix(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def futures(monkeypatch: pytest.MonkeyPatch) -> list[CommitFuture]:
    """The commits that do not wait."""
    futures: list[CommitFuture] = []
    commit = txlog.Client.commit_async

    def counted(client: txlog.Client, *args: Any) -> CommitFuture:
        assert sum(not future.done() for future in futures) < 8
        futures.append(commit(client, *args))
        return futures[-1]

    monkeypatch.setattr(txlog.Client, "commit_async", counted)
    return futures


def test_commits_do_not_wait_and_the_summary_counts_them(
    tool: Tool, tmp_path: Path, futures: list[CommitFuture]
) -> None:
    lines = written(tmp_path / "lines")
    code, out, _ = tool("produce", "orders", "--txn-every", "4", lines, "--json")
    [answer] = [json.loads(line) for line in out.splitlines()]
    assert (code, answer["messages"], answer["transactions"]) == (0, COUNT, 15)
    assert (answer["txn_state"], len(futures)) == ("committed", 15)
    assert answer["txn"] == str(futures[-1].result().txn_id)
    assert stored(tool) == prefix(COUNT)


def test_acknowledgement_lines_come_in_order_with_their_ids(tool: Tool, tmp_path: Path) -> None:
    lines = written(tmp_path / "lines")
    words = ["produce", "orders", "--txn-every", "4", lines, "--ack-format", "ndjson"]
    code, out, _ = tool(*words)
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, len(rows)) == (0, COUNT)
    with txlog.open(tool.path) as client:
        ids = [str(message.message_id) for message in client.reader("orders")]
    assert [row["message_id"] for row in rows] == ids


def test_a_bad_record_keeps_what_was_committed_before_it(tool: Tool, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("".join(f'{{"a":{number}}}\n' for number in range(30)) + "{bad\n")
    error = tool.error(
        "produce", "orders", "--txn-every", "4", "--batch", "4", "--in", "ndjson", str(path)
    )
    assert error["done"] == [{"name": "orders", "messages": 28}]
    assert len(stored(tool)) == 28


@pytest.mark.parametrize("nth", [2, 5])
def test_a_failed_commit_in_the_middle(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Those behind it are aborted: the messages before it are stored, and no other."""
    lines = written(tmp_path / "lines")
    commit = txlog.Client.commit_async
    calls: list[Any] = []

    def fenced(client: txlog.Client, txn: Any, after: Any = None) -> CommitFuture:
        calls.append(txn)
        if len(calls) == nth:
            client.abort(txn)
        return commit(client, txn, after)

    monkeypatch.setattr(txlog.Client, "commit_async", fenced)
    error = tool.error("produce", "orders", "--txn-every", "4", lines)
    assert error["done"] == [{"name": "orders", "messages": 4 * (nth - 1)}]
    assert error["txn"] == str(calls[nth - 1])
    assert stored(tool) == prefix(4 * (nth - 1))


def test_a_newer_holder_of_the_key_in_the_middle(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = written(tmp_path / "lines")
    commit = txlog.Client.commit_async
    calls: list[Any] = []

    def fenced(client: txlog.Client, txn: Any, after: Any = None) -> CommitFuture:
        calls.append(txn)
        if len(calls) == 6:
            client.connect("k")
        return commit(client, txn, after)

    monkeypatch.setattr(txlog.Client, "commit_async", fenced)
    error = tool.error("produce", "orders", "--txn-every", "4", "--transaction-key", "k", lines)
    assert error["done"] == [{"name": "orders", "messages": 20}]
    assert stored(tool) == prefix(20)


def test_an_unknown_outcome_in_the_middle_is_asked_for(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit and those behind it are repeated, in their order."""
    lines = written(tmp_path / "lines")
    results = CommitFuture.result
    failures = [OutcomeUnknown("the flush failed"), TryAgain("one before it is unknown")]

    def unsure(future: CommitFuture, timeout: float | None = None) -> Any:
        answer = results(future, timeout)
        if failures and answer.txn_id is not None and answer.txn_id.sequence > 0:
            raise failures.pop(0)
        return answer

    monkeypatch.setattr(CommitFuture, "result", unsure)
    code, out, _ = tool("produce", "orders", "--txn-every", "4", lines, "--json")
    assert code == 0 and json.loads(out)["transactions"] == 15
    assert stored(tool) == prefix(COUNT)


def test_a_signal_waits_for_the_commits_in_flight(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = written(tmp_path / "lines")
    signal_after(monkeypatch, columns, "send", 7)
    code, _, err = tool("produce", "orders", "--txn-every", "4", "--batch", "4", lines, "--json")
    fields = json.loads(err)["interrupted"]
    messages = fields["messages"]
    assert (code, fields["transactions"]) == (130, messages // 4)
    assert messages in (24, 28)
    assert stored(tool) == prefix(messages)


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_kill_leaves_a_prefix_of_the_input(tmp_path: Path, nth: int) -> None:
    """SIGKILL at a flush, with several commits in flight: the rest of the input completes it."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("orders")
    lines = written(tmp_path / "lines")
    run(ready("produce_killed", path, lines, nth), code=KILLED)
    with txlog.open(path) as client:
        values = [message.value for message in client.reader("orders")]
        assert values == prefix(len(values))
        assert len(values) % 4 == 0


# --- the failed flush of a peer, whose recovery aborts the open transactions of all ---------------


@pytest.fixture
def peer_fails(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets a flush of another process fail before some sends of the command, and as often."""
    tool.ok("topic", "create", "peer")
    send = columns.send
    sends: list[None] = []

    def before(*numbers: int) -> None:
        def watched(*arguments: Any) -> Any:
            sends.append(None)
            if len(sends) in numbers:
                assert run(ready("failing_flush", tool.path, "peer")).stdout == "1001\n"
            return send(*arguments)

        monkeypatch.setattr(columns, "send", watched)

    return before


@pytest.mark.parametrize("numbers", [(6,), (9, 10)])
@pytest.mark.parametrize("every", [("--txn-every", "8"), ("--txn",)])
def test_what_a_recovery_aborts_is_sent_again(
    tool: Tool,
    tmp_path: Path,
    peer_fails: Callable[..., None],
    every: tuple[str, ...],
    numbers: tuple[int, ...],
) -> None:
    """Each record is stored once and in order, also if a second recovery aborts the repetition."""
    lines = written(tmp_path / "lines")
    peer_fails(*numbers)
    words = ("produce", "orders", *every, "--batch", "4", lines, "--ack-format", "ndjson")
    code, out, err = tool(*words)
    assert code == 0, err
    assert err.count("are sent again") == len(numbers), err
    assert stored(tool) == prefix(COUNT)
    with txlog.open(tool.path) as client:
        ids = [str(message.message_id) for message in client.reader("orders")]
    assert [json.loads(line)["message_id"] for line in out.splitlines()] == ids


def test_bad_records_and_watermarks_are_sent_again(
    tool: Tool, tmp_path: Path, peer_fails: Callable[..., None]
) -> None:
    tool.ok("topic", "create", "bad")
    path = tmp_path / "input"
    rows = [f"{number},{10**12 + number}" for number in range(12)]
    rows.insert(5, "bad,1,2")
    path.write_text("\n".join(["value,event_time", *rows, ""]))
    peer_fails(3)
    words = ["--txn-every", "8", "--batch", "4", "--watermark-from", "event-time"]
    words += ["--watermark-every", "1", "--on-error", "dead-letter:bad", "--in", "csv"]
    answer = tool.json("produce", "orders", *words, str(path))
    assert (answer["messages"], answer["dead_lettered"], answer["transactions"]) == (12, 1, 2)
    assert len(stored(tool)) == 12
    with txlog.open(tool.path) as client:
        assert [message.value for message in client.reader("bad")] == [b"bad,1,2"]
        assert client.topic("orders").watermarks.show()["watermark"] == 10**12 + 11


def test_a_transaction_above_the_bound_is_not_sent_again(
    tool: Tool, tmp_path: Path, peer_fails: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed stays, and the error says that nothing of the last one is stored."""
    monkeypatch.setattr(work, "KEPT_BYTES_MAX", 10)
    lines = written(tmp_path / "lines")
    peer_fails(6)
    error = tool.error("produce", "orders", "--txn-every", "8", "--batch", "4", lines)
    assert "aborted by the recovery of the store" in error["message"]
    assert error["hint"] == "send what was not stored: the transaction stored nothing"
    assert stored(tool) == prefix(16)


def test_a_joined_transaction_is_not_sent_again(
    tool: Tool, tmp_path: Path, peer_fails: Callable[..., None]
) -> None:
    """Others have written in it, too."""
    lines = written(tmp_path / "lines")
    txn = tool.json("txn", "begin")["txn"]
    peer_fails(6)
    error = tool.error("produce", "orders", "--txn-id", txn, "--batch", "4", lines)
    assert (error["class"], error["reason"], error["txn"]) == ("InvalidTxnStatus", "recovery", txn)
    assert error["hint"] == "nothing of it is stored: do its work again in another transaction"
    assert stored(tool) == []
