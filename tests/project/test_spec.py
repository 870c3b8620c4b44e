"""The specifications in docs/spec are compared with the program, table by table.

The tests ask the program for the facts of a table (a setting, a metric, the fields of a command),
or do them in a store (the conflict matrix, the epochs of a key). Every rule and law names tests
that exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.consuming.test_acknowledge import Board
from tests.engine_kit import Bench, begin, send
from tests.source_tree import ROOT, SOURCE
from tests.transactions import test_end_table as ends
from txlog import Client, MessageId
from txlog.base import settings
from txlog.base.choices import SubscriptionType
from txlog.base.settings import BOUNDS, Settings
from txlog.cli.line import catalogue, dispatch
from txlog.client.answers.metric_family import Family
from txlog.client.answers.metrics import STATUSES
from txlog.engine.folds import coordinator
from txlog.engine.folds.delayed import Delayed
from txlog.engine.folds.watermark import Watermark, WatermarkState
from txlog.engine.model import ops, schema
from txlog.errors import (
    ConsumerBusy,
    InvalidArgument,
    NotAllowed,
    TransactionConflict,
    TxlogError,
    error_classes,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s", "shared")], coordinators=2),
]
SPEC = ROOT / "docs" / "spec"
TRANSACTIONS, DELAYED, WATERMARKS = "transactions", "delayed", "watermarks"
RELIABILITY = "reliability"
PAGES = (TRANSACTIONS, DELAYED, WATERMARKS, RELIABILITY)
Row = dict[str, str]
PREPARING = (coordinator.OPEN, coordinator.PREPARED)  # an arrow of another op


@cache
def text(name: str) -> str:
    return (SPEC / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, number: str) -> str:
    """The text below the heading with a number, up to the next heading of its level or above."""
    heading = re.search(rf"^(#+) {re.escape(number)}\.? .*$", text(name), re.MULTILINE)
    assert heading is not None, f"{name} has no section {number}"
    remainder = text(name)[heading.end() :]
    stop = re.search(rf"^#{{1,{len(heading[1])}}} ", remainder, re.MULTILINE)
    return remainder[: stop.start()] if stop else remainder


def table(name: str, number: str, first: str) -> list[Row]:
    """The rows of the table whose first column has this name, as cells by column name."""
    for block in re.findall(r"(?:^\|.*\n)+", section(name, number), re.MULTILINE):
        lines = [
            [cell.strip() for cell in line.strip().strip("|").split(" |")]
            for line in block.splitlines()
        ]
        if lines[0][0] == first:
            rows = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
            assert rows
            return rows
    raise AssertionError(f"{name} {number} has no table of {first!r}")


def bare(cell: str) -> str:
    return cell.replace("`", "")


def names(cell: str) -> list[str]:
    return [bare(word) for word in cell.split(", ") if word]


@cache
def known_tests() -> frozenset[str]:
    tests: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests.update(re.findall(r"^ *def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE))
    return frozenset(tests)


# --- rules, laws, invariants -----------------------------------------------------------------


def test_every_rule_and_law_names_tests_that_exist() -> None:
    headings = re.findall(r"^#+ (R\d+|Law \d+)\. ", text(RELIABILITY), re.MULTILINE)
    assert headings == [f"R{n}" for n in range(1, 35)] + [f"Law {n}" for n in range(1, 9)]
    for heading in headings:
        match = re.search(r"^Shown by (.*?)\.$", section(RELIABILITY, heading), re.S | re.M)
        assert match is not None, f"{heading} does not say what shows it"
        there = re.findall(r"`(\w+)`", match[1])
        assert there, heading
        assert not set(there) - known_tests(), heading


def test_every_suite_names_tests_that_exist() -> None:
    suites = re.findall(r"^### (5\.\d) ", text(RELIABILITY), re.MULTILINE)
    for number in suites:
        there = re.findall(r"`(test_\w+)`", section(RELIABILITY, number).partition("Tests:")[2])
        assert there, number
        assert not set(there) - known_tests(), number
    for row in table(RELIABILITY, "6", "#"):
        for test in names(row["shown by"]):
            is_there = test in suites or bool(section(RELIABILITY, test)) if "/" not in test else (
                ROOT / test
            ).is_file()  # fmt: skip
            assert is_there, test


def test_every_crash_window_has_its_tests() -> None:
    windows = [row["#"] for row in table(TRANSACTIONS, "13", "#")]
    assert windows == [f"K{n}" for n in range(1, 13)]
    for window in windows:
        assert any(name.startswith(f"test_{window.lower()}_") for name in known_tests())


CITED = {"I-": 24, "R": 34, "Law ": 8}  # the highest number of each


@pytest.mark.parametrize("kind", CITED)
def test_cited_invariants_rules_and_laws_exist(kind: SubscriptionType) -> None:
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", section(TRANSACTIONS, "17"), re.M)]
    assert numbers == list(range(1, CITED["I-"] + 1))
    cited = {
        int(number)
        for folder in (SOURCE, ROOT / "tests")
        for path in folder.rglob("*.py")
        for number in re.findall(rf"\b{kind}(\d+)\b", path.read_text(encoding="utf-8"))
    }
    assert cited
    assert cited <= set(range(1, CITED[kind] + 1))


# --- settings, policies, limits --------------------------------------------------------------

SETTINGS = ((TRANSACTIONS, "3"), (DELAYED, "10"), (WATERMARKS, "11"))


def shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def test_settings_match_the_program() -> None:
    rows = [row for location in SETTINGS for row in table(*location, "setting")]
    defaults = Settings()
    documented = {
        bare(row["setting"]): (row["default"], row["smallest"], row["largest"]) for row in rows
    }
    assert len(documented) == len(rows)
    assert documented == {
        name: (shown(getattr(defaults, name)), *map(shown, BOUNDS.get(name, ("", ""))))
        for name in defaults.to_mapping()
    }


def test_hard_limits_match_the_program() -> None:
    units = {"MiB": settings.MIB, "KiB": settings.KIB, "GiB": settings.GIB, "bytes": 1}
    values: list[int] = []
    for row in table(RELIABILITY, "7.5", "limit"):
        number, _, unit_and_less = row["value"].partition(" ")
        unit, _, less = unit_and_less.partition(" - ")
        values.append(int(number.replace(",", "")) * units.get(unit, 1) - int(less or 0))
    assert values == [
        settings.MESSAGE_BYTES_MAX, settings.CHUNKED_MESSAGE_BYTES_MAX, settings.RECEIVE_BYTES_MAX,
        settings.KEY_BYTES_MAX, settings.PROPERTIES_MAX, settings.TRANSACTION_KEY_BYTES_MAX,
        settings.TXN_MESSAGES_MAX, settings.TOPICS_MAX, settings.PARTITIONS_MAX,
    ]  # fmt: skip


def test_policies_of_a_subscription(bench: Bench) -> None:
    handle = bench.client.subscription("t", "s")
    with pytest.raises(InvalidArgument) as caught:
        handle.set_policies(none=1)
    rows = table(TRANSACTIONS, "3", "policy")
    assert ", ".join(bare(row["policy"]) for row in rows) == caught.value.hint
    for row in rows:
        if row["smallest"]:
            smallest = int(row["smallest"].replace(",", ""))
            handle.set_policies(**{bare(row["policy"]): smallest})
            with pytest.raises(InvalidArgument):
                handle.set_policies(**{bare(row["policy"]): smallest - 1})


def test_policies_of_delays_and_watermarks(bench: Bench) -> None:
    admin = bench.client.admin
    pattern = r"policies of a topic or namespace as well: (.*?)\. "
    policies = re.search(pattern, section(DELAYED, "10"), re.DOTALL)
    assert policies is not None
    policies_of_topic = list(admin.get_delayed_policies()["policies"])
    documented = re.findall(r"`(\w+)`(?:\s\(`\w+`\))?", policies[1])
    assert documented == policies_of_topic
    prefix = "watermark_"
    settings_of = [bare(row["setting"]) for row in table(WATERMARKS, "11", "setting")]
    assert all(name.startswith(prefix) for name in settings_of)
    assert [name.removeprefix(prefix) for name in settings_of] == list(
        admin.get_watermark_policies()["policies"]
    )


# --- errors, commands, metrics ---------------------------------------------------------------


def test_errors_match_the_program() -> None:
    documented = {
        row["class"]: (row["codes"], row["exit"], row["kind"])
        for row in table(RELIABILITY, "4", "class")
    }
    assert documented == {
        error_class.__name__: (
            ", ".join(map(str, error_class.codes)),
            str(error_class.exit),
            error_class.kind,
        )
        for error_class in error_classes()
    }
    raised = [
        error_class
        for row in table(TRANSACTIONS, "14", "class")
        for error_class in names(row["class"])
    ]
    assert len(set(raised)) == len(raised)
    assert set(raised) <= set(documented)


def test_admin_operations_match_the_program(bench: Bench) -> None:
    for row in table(TRANSACTIONS, "15", "command"):
        command = dispatch.load(bare(row["command"]))
        assert names(row["fields"]) == [field for field in command.fields if field != "dry_run"]
        target: object = bench.client
        for part in bare(row["Python"]).split("."):
            target = getattr(target, part)
        assert callable(target)


@pytest.mark.parametrize("name", PAGES)
def test_names_in_a_page_exist(name: str) -> None:
    """Commands in code, and classes: ops, errors, handles, or words that the program answers."""
    for words in re.findall(r"`txlog ([a-z][\w-]*(?: [a-z][\w-]*)*)", text(name)):
        first = words.split()
        nouns = {path.split()[0] for path in catalogue.COMMANDS}
        assert first[0] in nouns, f"{name} names txlog {words}"
        if first[0] in catalogue.NOUNS and len(first) > 1:
            paths = [" ".join(first[:n]) for n in (2, 3)]
            is_known = any(path in catalogue.COMMANDS or path in catalogue.NOUNS for path in paths)
            assert is_known, f"{name} names txlog {words}"
    for word in set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", text(name))):
        pattern = rf'(?m)^ *class {word}\b|"{word}"'
        assert re.search(pattern, program()), f"{name} names {word}"


@cache
def program() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")))


@pytest.mark.parametrize(("name", "number", "noun"), [(DELAYED, "9", "delay"),
                                                      (WATERMARKS, "11", "watermark")])  # fmt: skip
def test_commands_match_the_program(bench: Bench, name: str, number: str, noun: str) -> None:
    rows = table(name, number, "command")
    assert [bare(row["command"]) for row in rows] == [
        path for path in catalogue.COMMANDS if path.startswith(f"{noun} ")
    ]
    handle = bench.client.topic("t")
    assert all(callable(getattr(handle, bare(row.get("Python", "stats")))) for row in rows)


def used(client: Client) -> list[Family]:
    """The metrics of a store in which each metric has a value."""
    producer = client.producer("t", name="p")
    producer.new_watermark().event_time(5).send()
    producer.send(b"x", deliver_after=10_000)
    client.create_topic("waiting")  # a message due on a subscription without a consumer
    client.create_subscription("waiting", "late")
    client.producer("waiting").send(b"y")
    client.admin.set_alert_policies("waiting", backlog_messages=0)
    with client.consumer("t", "s", type="shared", enable_watermarking=True) as consumer:
        consumer.receive()
        client.commit(client.begin(key="k")["txn"])
        return client.admin.metrics()


def test_metrics_match_the_program(bench: Bench) -> None:
    rows = [
        row
        for location in ((TRANSACTIONS, "16"), (DELAYED, "12"), (WATERMARKS, "13"))
        for row in table(*location, "metric")
    ]
    documented = {bare(row["metric"]): (row["type"], set(names(row["labels"]))) for row in rows}
    assert len(documented) == len(rows)
    collected = {
        family.name: (family.type, {label for _, labels, _ in family.samples for label in labels})
        for family in used(bench.client)
    }
    late = "txlog_watermark_late_messages_total"  # it has a sample from the first late message on
    assert not collected[late][1]
    collected[late] = ("counter", {"topic", "partition", "subscription"})
    assert documented == {
        name: (kind, labels - {"le", "quantile"}) for name, (kind, labels) in collected.items()
    }


def test_buckets_of_the_histogram() -> None:
    match = re.search(r"end at (.*) seconds", section(TRANSACTIONS, "16"), re.DOTALL)
    assert match is not None
    numbers = [float(number) for number in re.split(r",\s|\sand\s", match[1])]
    assert numbers == [bound / 1000 for bound in coordinator.DURATION_BOUNDS_MS]


# --- transactions ----------------------------------------------------------------------------


def test_states_of_a_transaction(bench: Bench) -> None:
    rows = table(TRANSACTIONS, "4", "from")
    assert {(row["from"], row["to"]) for row in rows} == coordinator.ARROWS | {PREPARING}
    (by_reason,) = (
        family
        for family in used(bench.client)
        if family.name == "txlog_txn_aborted_by_reason_total"
    )
    reasons = [bare(row["reason"]) for row in table(TRANSACTIONS, "4", "reason")]
    assert reasons == [labels["reason"] for _, labels, _ in by_reason.samples]


def test_the_decision_table() -> None:
    """The table agrees, cell by cell, with the one of test_end_table, which asks the program."""
    documented: dict[str, tuple[str, ...]] = {}
    for row in table(TRANSACTIONS, "5", "recorded state"):
        state, _, reasons = row.pop("recorded state").partition(": ")
        for name in state.split(" or "):
            for reason in reasons.split(", "):
                documented[f"{name} {reason}".strip()] = tuple(row.values())
    assert documented == {
        state: tuple("done" if error is None else error.__name__ for error in cells)
        for state, cells in ends.TABLE.items()
    }


def test_frames_of_an_end_name_ops() -> None:
    op_names = {op.__name__ for op in vars(ops).values() if isinstance(op, type)}
    for place in ((TRANSACTIONS, "5.1"), (DELAYED, "4")):
        cited = re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", section(*place))
        assert cited
        assert set(cited) <= op_names


def test_types_of_subscriptions(bench: Bench) -> None:
    client = bench.client
    with pytest.raises(InvalidArgument) as caught:
        client.create_subscription("t", "x", type="none")  # type: ignore[arg-type]
    rows = table(TRANSACTIONS, "9.1", "type")
    hint = caught.value.hint or ""
    assert {row["type"] for row in rows} == set(hint.split(", "))
    (message,) = send(client, b"m")
    for row in rows:
        kind = row["type"]
        client.create_subscription("t", kind, type=kind)  # type: ignore[arg-type]
        with client.consumer("t", kind, type=kind):  # type: ignore[arg-type]
            if row["consumers"].startswith("one; a second gets ConsumerBusy"):
                with pytest.raises(ConsumerBusy):
                    client.consumer("t", kind, type=kind)  # type: ignore[arg-type]
            else:
                client.consumer("t", kind, type=kind).close()  # type: ignore[arg-type]
        if row["cumulative acknowledgement"] == "NotAllowed":
            with pytest.raises(NotAllowed):
                client.acknowledge("t", kind, [message], cumulative=True)
        else:
            assert row["cumulative acknowledgement"] == "yes"
            client.acknowledge("t", kind, [message], cumulative=True)


@pytest.mark.parametrize("column", ["plain send", "send in a transaction"])
def test_deduplication(bench: Bench, column: str) -> None:
    cells = {row[""]: row[column] for row in table(TRANSACTIONS, "7", "")}
    client = bench.client
    producer = client.producer("t", name="p")
    txn = None if column == "plain send" else begin(client)
    receipts = [producer.send(b"m", sequence_id=number, txn=txn) for number in (5, 9, 9)]
    assert [receipt.duplicate for receipt in receipts] == [False, False, True]
    newest = "**the id of the newest**, else null" if txn is None else "the I of the newest"
    assert receipts[2][:3] == receipts[1][:3]
    assert cells["sequence that is stored"] == f"not stored; success, `duplicate`, {newest}"
    older = producer.send(b"m", sequence_id=5, txn=txn)
    assert older == older._replace(message_id=None, txn_index=None, duplicate=True)
    assert not producer.send(b"m", sequence_id=7, txn=txn).duplicate
    assert cells["sequence that is not stored"].startswith(("stored, also below", "the same"))
    producer.send(b"m", txn=txn)
    assert producer.send(b"m", sequence_id=10, txn=txn).duplicate  # the one before was last + 1
    assert cells["without explicit sequence"].startswith(("last + 1", "the same"))
    other = begin(client)  # the scopes never meet
    assert not producer.send(b"m", sequence_id=5, txn=other).duplicate
    assert "transaction, " in table(TRANSACTIONS, "7", "")[0]["send in a transaction"]


NAMED = {"NotInPendingAck": "PENDING", "PendingAck": "PENDING_ACK", "MarkDelete": "DELETED"}


def test_states_of_a_message(bench: Bench) -> None:
    client = bench.client

    def state(message: MessageId) -> str:
        return NAMED[client.admin.position_in_pending_ack("t", "s", message)["state"]]

    for row in table(TRANSACTIONS, "9.2", "from"):
        (message,) = send(client, b"m")
        txn = begin(client)
        if row["from"] == "PENDING_ACK":
            client.acknowledge("t", "s", [message], txn=txn)
        elif row["from"] == "DELETED":
            client.acknowledge("t", "s", [message])
        assert state(message) == row["from"]
        if row["by"] == "plain acknowledgement":
            client.acknowledge("t", "s", [message])
        elif row["by"] == "acknowledgement in a transaction":
            client.acknowledge("t", "s", [message], txn=txn)
        else:
            (client.commit if row["by"] == "commit" else client.abort)(txn)
        assert state(message) == row["to"], row


CONFLICT, DROPPED = "conflict", "dropped"
# text of a cell: the outcomes for p = p1 and for p = p3 behind p1; None: the cell has none
CELLS: dict[str, tuple[str | int, str | int | None]] = {
    "conflict": (CONFLICT, 1),
    "same p: conflict": (CONFLICT, 1),
    "p ≤ q conflict; p > q ok": (CONFLICT, 1),
    "conflict if all ≤ p are deleted; deleted ones among them are skipped": (CONFLICT, 4),
    "ok, absorbed": (1, 5),
    "conflict if any of Y is ≤ p": (CONFLICT, CONFLICT),
    "p > q ok, extends; p ≤ q conflict": (CONFLICT, 4),
    "conflict, whatever q": (CONFLICT, CONFLICT),
    "success, nothing": (0, None),
    "same p: dropped": (DROPPED, 1),
    "p ≤ q dropped; else deletes": (DROPPED, 1),
    "deletes every PENDING ≤ p, leaves pending ones": (1, 5),
    "deletes those in (q, p]": (DROPPED, 4),
}
NEW = ("individual p by X", "cumulative p by X", "plain individual p", "plain cumulative p")
EXISTING = (
    "p DELETED", "individual of X", "individual of Y", "cumulative of X at q",
    "cumulative of Y at q",
)  # fmt: skip


def outcome(board: Board, new: str, existing: str, positions: str) -> str | int:
    """Acknowledge after an existing acknowledgement of p1, or of p0 and p1; returns the outcome."""
    x, y = begin(board.client), begin(board.client)
    if existing == "p DELETED":
        board.ack("p0 p1")
    else:
        holder = x if " of X" in existing else y
        board.ack("p1", holder, cumulative=existing.startswith("cumulative"))
    txn = x if new.endswith("by X") else None
    try:
        acked, _, dropped = board.ack(positions, txn, cumulative="cumulative" in new)
    except TransactionConflict:
        return CONFLICT
    return DROPPED if dropped and not acked else acked


@pytest.mark.parametrize("new", NEW)
def test_the_conflict_matrix(tmp_path: Path, new: str) -> None:
    rows = {
        row.pop("new ↓ / existing →"): row
        for row in table(TRANSACTIONS, "9.3", "new ↓ / existing →")
    }
    assert tuple(rows) == NEW
    last = ""
    for existing, cell in rows[new].items():
        assert existing in EXISTING
        last = last if cell == "same" else cell
        for position, expected in zip(("p1", "p3"), CELLS[last], strict=True):
            board = Board(Bench(tmp_path / f"{existing}-{position}"))
            actual = outcome(board, new, existing, position)
            board.bench.close()
            assert expected in (None, actual), f"{new}, {existing}, {position}: {actual}"


PRESENTED = {"presented -1": (-1, -1), "presented s": (2, 2), "below s": (0, 1), "above s": (3, 9)}


def test_epochs_of_a_key(tmp_path: Path) -> None:
    """The stored epoch is 2. Without a stored one, a client presents only -1 or a greater one."""
    for row in table(TRANSACTIONS, "10", "stored epoch"):
        stored = row.pop("stored epoch")
        assert tuple(row) == tuple(PRESENTED)
        for column, cell in row.items():
            for presented in set(PRESENTED[column]) if cell != "-" else ():
                bench = Bench(tmp_path / f"{stored}{column}{presented}", coordinators=2)
                for _ in range(0 if stored == "none" else 3):
                    bench.client.connect("k")
                if stored.startswith("tombstone"):
                    bench.client.admin.delete_transaction_key("k")
                try:
                    answer = str(bench.client.connect("k", presented)["epoch"])
                except TxlogError as error:
                    answer = type(error).__name__
                assert answer == cell.replace("s+1", "3"), (stored, column)
                bench.close()
    with pytest.raises(InvalidArgument):
        Bench(tmp_path / "last").client.connect("k", -2)


# --- delayed delivery, watermarks ------------------------------------------------------------


def test_state_of_the_folds() -> None:
    for place, fold in (((DELAYED, "3"), Delayed), ((WATERMARKS, "4"), Watermark)):
        documented = [item for row in table(*place, "name") for item in names(row["name"])]
        assert sorted(documented) == sorted(fold.__slots__)


def test_ops_of_delayed_delivery() -> None:
    for row in table(DELAYED, "4", "op"):
        assert names(row["fields"]) == list(getattr(ops, bare(row["op"])).__struct_fields__)
    *causes, last = (row["cause"] for row in table(DELAYED, "4", "cause"))
    assert f"cause: {', '.join(causes)} or {last}." in (ops.BucketDeleted.__doc__ or "")


def test_rows_of_watermarks() -> None:
    kinds = {
        bare(row["row"]): int(row["kind"]) for row in table(WATERMARKS, "3", "row")
    }  # fmt: skip
    assert kinds == {
        name: value for name, value in vars(schema).items() if re.fullmatch(r"W_[A-Z]+", name)
    }
    assert re.search(rf"`TXN_COMMIT`,\skind\s{schema.TXN_COMMIT}\b", section(WATERMARKS, "3"))


def test_statuses_of_watermarks() -> None:
    documented = [row["status"] for row in table(WATERMARKS, "8", "status")]
    assert tuple(documented) == STATUSES
    assert documented[:1] == [WatermarkState().status]
    numbered = ", ".join(f"{number} {status}" for number, status in enumerate(STATUSES))
    assert f"`status` is {numbered}" in " ".join(section(WATERMARKS, "13").split())


def test_bad_delays_and_looks(bench: Bench) -> None:
    """Each bad call raises the class that the table names, and stores nothing."""
    client = bench.client
    client.create_subscription("t", "alone")
    client.admin.set_delayed_policies(topic="t", max_delivery_delay_ms=50_000)
    producer, topic = client.producer("t"), client.topic("t")
    producer.send(b"x", deliver_after=10_000)
    (delayed,) = (MessageId(row["ledger"], row["entry"]) for row in topic.delayed().to_pylist())
    transaction = begin(client)
    client.acknowledge("t", "s", [delayed], txn=transaction)
    nowhere = MessageId(delayed.ledger, delayed.entry + 9)
    acts: dict[str, Callable[[], object]] = {
        "negative `deliver_after`": lambda: producer.send(b"y", deliver_after=-1),
        "delay above the maximum": lambda: producer.send(b"y", deliver_after=60_000),
        "promote or cancel of an unknown": lambda: topic.promote([nowhere], subscription="s"),
        "promote or cancel of one that": lambda: topic.promote([delayed], subscription="s"),
        "promote for exclusive": lambda: topic.promote([delayed], subscription="alone"),
    }
    _raises(table(DELAYED, "11", "situation"), acts)
    assert client.topic("t").delayed().num_rows == 1


def test_bad_watermarks(bench: Bench) -> None:
    bench.client.admin.set_watermark_policies(topic="t", producers_max=1)
    first, second = (bench.client.producer("t", name=name) for name in ("a", "b"))
    first.new_watermark().event_time(5).send()
    acts: dict[str, Callable[[], object]] = {
        "neither or both": lambda: first.new_watermark().send(),
        "a producer beyond": lambda: second.new_watermark().event_time(5).send(),
    }
    _raises(table(WATERMARKS, "12", "situation"), acts)
    with pytest.raises(InvalidArgument):
        first.new_watermark().event_time(0).send()
    assert list(first.new_watermark().event_time(6).send().positions) == [0]


def _raises(rows: list[Row], acts: dict[str, Callable[[], object]]) -> None:
    """Each act raises the first class in the outcome of its row; keys begin a row's situation."""
    for begins, act in acts.items():
        (row,) = (row for row in rows if row["situation"].startswith(begins))
        with pytest.raises(TxlogError) as caught:
            act()
        assert type(caught.value).__name__ == re.split(r"\W", row["outcome"])[0], begins
