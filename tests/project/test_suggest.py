"""The hint with the nearest name of a topic, subscription or key; none if no name is near."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest

import txlog
from txlog.base.suggest import nearest, suggestion
from txlog.cli.main import main
from txlog.engine.plan import lookup
from txlog.errors import SubscriptionNotFound, TopicNotFound, TransactionKeyNotFound


@pytest.mark.parametrize(
    ("word", "names", "found"),
    [
        ("ordres", ["orders", "audit"], "orders"),
        ("order", ["orders", "orderings"], "orders"),
        ("ORDERS", ["orders"], "orders"),
        ("oders", ["odors", "orders"], "orders"),
        ("bil", ["billing"], None),
        ("ab", ["ba"], None),
        ("abc", ["acb"], "acb"),
        ("x" * 200, ["x" * 199], None),
        ("orders", [], None),
    ],
)
def test_the_nearest_name(word: str, names: list[str], found: str | None) -> None:
    assert nearest(word, names) == found


def test_nearest_name_beats_near_names() -> None:
    """Kills: the first name that is near enough, when a nearer one follows."""
    assert nearest("nightyl", ["nightly2", "nightly"]) == "nightly"
    assert nearest("aaab", ["aacc", "aaac"]) == "aaac"


def test_hint_is_made_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a search among all topics at each missing name, so that making topics slows down."""
    searches: list[str] = []

    def counted(word: str, names: Iterable[str], otherwise: str) -> str:
        searches.append(word)
        return suggestion(word, names, otherwise)

    monkeypatch.setattr(lookup, "suggestion", counted)
    txlog.init(str(tmp_path / "shop"))
    with txlog.open(str(tmp_path / "shop")) as client:
        for at in range(5):
            client.create_topic(f"orders-{at}")
        with pytest.raises(TopicNotFound) as error:
            client.producer("order-3")
        assert searches == []
        unpickled = pickle.loads(pickle.dumps(error.value))
        assert (error.value.hint, unpickled.hint) == ("did you mean orders-3?",) * 2
        assert error.value.hint == "did you mean orders-3?"
        assert searches == ["order-3"] * 2


def test_few_of_many_alike_names_are_compared_letter_by_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills: 65 ms for each miss where thousands of names are alike."""
    ratios: list[float] = []
    ratio = difflib.SequenceMatcher.ratio

    def counted(matcher: difflib.SequenceMatcher[str]) -> float:
        ratios.append(ratio(matcher))
        return ratios[-1]

    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", counted)
    names = [f"shop-orders-of-{at}" for at in range(2_000)]
    assert nearest("shop-order-of-1234", names) == "shop-orders-of-1234"
    assert nearest("shop-orders-of1999", names) == "shop-orders-of-1999"
    assert nearest("hop-orders-of-77", names) == "shop-orders-of-77"
    assert len(ratios) <= 2 * 3 * 40  # the standard library compares twice


def test_errors_suggest_the_nearest_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """spec/cli 2: the nearest known name, of topics, subscriptions and keys as of commands."""
    txlog.init(str(tmp_path / "shop"), coordinators=2)
    with txlog.open(str(tmp_path / "shop")) as client:
        client.create_topic("orders", 2)
        client.create_subscription("orders", "billing")
        client.connect("nightly")
        client.connect("gone")
        client.admin.delete_transaction_key("gone")
        with pytest.raises(TopicNotFound) as topic:
            client.producer("ordres/1")
        assert topic.value.hint == "did you mean orders?"
        with pytest.raises(TopicNotFound) as topic:
            client.producer("something-else")
        assert topic.value.hint == "create it: txlog topic create something-else"
        with pytest.raises(SubscriptionNotFound) as subscription:
            client.subscription("orders", "biling")
        assert subscription.value.hint == "did you mean billing?"
        with pytest.raises(TransactionKeyNotFound) as key:
            client.admin.transaction_key("nighty")
        assert key.value.hint == "did you mean nightly?"
        with pytest.raises(TransactionKeyNotFound) as key:
            client.admin.transaction_key("gome")  # the hint never names a deleted key
        assert key.value.hint == "txlog admin list-transaction-keys"
    store = ["-S", str(tmp_path / "shop")]
    for words in (
        ["sub", "describe", "billng"],
        ["consume", "orders", "-s", "billng"],
        ["wait", "--backlog", "billng=0"],
        ["sub", "seek", "billng", "-t", "orders", "--to", "end", "-y"],
    ):
        assert main([*words, *store]) == 3
        assert "did you mean billing?" in capfd.readouterr().err, words


def test_of_many_names_only_the_first_are_looked_at() -> None:
    """Kills: a hint that takes longer than the call that failed."""
    looked = iter([f"topic-{number:06}" for number in range(100_000)])
    assert nearest("something", looked) is None
    assert len(list(looked)) > 90_000
